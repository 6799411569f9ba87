#!/usr/bin/env bash
# The C kernels under the address and undefined-behaviour sanitizers; exits with 0 if nothing was found.
# CC chooses the compiler. With CC=aarch64-linux-gnu-gcc RUN=qemu-aarch64 the same runs as ARM code.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
source="$here/../../src/gradcent/kernels/csrc"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
"${CC:-cc}" -std=c11 -g -O1 -ffp-contract=off -Wall -Wextra -Werror -Wno-maybe-uninitialized -Wno-psabi \
    ${SANITIZE--fsanitize=address,undefined -fno-sanitize-recover=all} -I"$source" "$here/sanitize.c" \
    "$source"/{isa_baseline,isa_avx2,isa_avx512,instruction_set,memory,memory_order,parallel,schedule,work_queue}.c -o "$work/sanitize" ${STATIC:-} -lm -lpthread
${RUN:-} "$work/sanitize"
