# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PINNED := requirements/pinned.txt

.PHONY: demo check-results test test-oldest test-engines test-architectures lint bench inspect-kernels campaign docs linkcheck check-wheel clean

$(VENV)/.ready: pyproject.toml setup.py $(PINNED) $(wildcard src/gradcent/kernels/csrc/*)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint $(PINNED) --editable ".[lab,dev]"
	touch $@

# only what the demo imports; an environment that `make test` made is used as it is
$(VENV)/.demo: pyproject.toml setup.py $(PINNED) $(wildcard src/gradcent/kernels/csrc/*)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint $(PINNED) --editable ".[demo]"
	touch $@

demo: $(if $(wildcard $(VENV)/.ready),$(VENV)/.ready,$(VENV)/.demo)
	$(BIN)/gradcent demo

test: $(VENV)/.ready
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

# the library's tests on the oldest torch that pyproject.toml allows; the C extension is the one of $(VENV), which does
# not depend on torch's version (before 2.10 the foreach path serves). The warning is raised by LBFGS of old releases.
OLDEST_TORCH := $(shell sed -n 's/^dependencies = \["torch>=\(.*\)"\]/\1/p' pyproject.toml)
OLDEST_VENV  ?= .venv-oldest
OLDEST_TESTS := $(addprefix tests/,test_contract.py test_plan.py test_overrides.py test_operator.py test_lifecycle.py \
	test_switches.py test_nonfinite.py test_refusals.py test_diagnostics.py test_reported_defects.py kernels/test_steps.py)

$(OLDEST_VENV)/.ready: pyproject.toml
	test -x $(OLDEST_VENV)/bin/python || $(PYTHON) -m venv $(OLDEST_VENV)
	$(OLDEST_VENV)/bin/python -m pip install --quiet "torch==$(OLDEST_TORCH).*" numpy expecttest hypothesis pytest pytest-xdist
	touch $@

test-oldest: $(VENV)/.ready $(OLDEST_VENV)/.ready
	PYTHONPATH=src OMP_NUM_THREADS=1 $(OLDEST_VENV)/bin/python -m pytest -q -n 2 --dist worksteal \
		-W "ignore:Converting a tensor with requires_grad:UserWarning" $(OLDEST_TESTS)

# every engine and framework, each in an environment of its own; writes docs/engines-matrix.md
# make test-engines PARTS="lightning jax" runs some of them; the others' lines stay as they are
test-engines: $(VENV)/.ready
	$(BIN)/python tests/engines/engine_run.py $(PARTS)

# class rules against traces over published architectures, on meta tensors; writes results/architectures.jsonl
test-architectures: $(VENV)/.ready
	OMP_NUM_THREADS=1 $(BIN)/python tools/architectures.py

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# compiles the GPU kernels ahead of time and counts registers, accesses and instructions; no GPU is needed
inspect-kernels: $(VENV)/.ready
	$(BIN)/gradcent inspect-kernels --out results/kernels --page docs/kernels.md

# repeats a random run of each of three random studies of results/studies and compares every number; needs GRADCENT_DATA;
# RUNS="--runs 5 --seed 1" changes the choice
check-results: $(VENV)/.ready
	OMP_NUM_THREADS=1 $(BIN)/python tools/check_results.py $(RUNS)

bench: $(VENV)/.ready
	$(BIN)/gradcent bench

# try to make it lose, alter or leak something; writes results/campaigns and docs/reliability.md
# make campaign PARTS="kills --more --minutes 30" continues one of them from its stored figures
campaign: $(VENV)/.ready
	(cd tools && PYTHONPATH=. OMP_NUM_THREADS=1 ../$(BIN)/python -m campaigns $(PARTS)); status=$$?; \
	$(BIN)/python tools/pages.py && exit $$status

# the documentation site, warnings as errors; open docs/_build/html/index.html
docs: $(VENV)/.docs
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -q -W --keep-going -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

# opens every link of the site that leads elsewhere; needs the internet
linkcheck: $(VENV)/.docs
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -q -b linkcheck docs docs/_build/linkcheck

$(VENV)/.docs: $(VENV)/.ready
	$(BIN)/python -m pip install --quiet --constraint $(PINNED) --editable ".[lab,dev,docs]"
	touch $@

# sdist and wheel as a release builds them: audited, installed into an empty environment, tested there
# GRADCENT_WHEEL_TORCH=torch==2.13.0 chooses another torch than the newest
check-wheel: $(VENV)/.ready
	$(BIN)/python -m pip install --quiet --requirement requirements/release.txt
	tools/check_wheel.sh $(BIN)/python $(OLDEST_TESTS)

clean:
	rm -rf $(VENV) $(OLDEST_VENV) build dist docs/_build src/*.egg-info .pytest_cache .mypy_cache .ruff_cache
