# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PINNED := requirements/pinned.txt

.PHONY: demo test test-engines lint bench clean

$(VENV)/.ready: pyproject.toml setup.py $(PINNED) $(wildcard src/gradcent/kernels/csrc/*)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint $(PINNED) --editable ".[lab,dev]"
	touch $@

demo: $(VENV)/.ready
	$(BIN)/gradcent demo

test: $(VENV)/.ready
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

# every engine and framework, each in an environment of its own; writes docs/engines-matrix.md
# make test-engines PARTS="lightning jax" runs some of them; the others' lines stay as they are
test-engines: $(VENV)/.ready
	$(BIN)/python tests/engines/engine_run.py $(PARTS)

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.ready
	$(BIN)/gradcent bench

clean:
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache
