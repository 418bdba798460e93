# Every target makes .venv and installs what it needs, once; touch pyproject.toml or constraints.txt to install again.
PYTHON ?= python3
WORKERS ?= 2
ARGS ?=

BIN := .venv/bin
BENCH := .venv-bench/bin
METRIC := .venv-metric/bin
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt
BENCH_PIP := $(BENCH)/python -m pip install -qq --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: run test test-avx2 lint types bench bench-metric clean help

run: .venv/.run ## train, attack and compare four methods on digits; ends with the path of the report
	@$(BIN)/holdfast run quickstart $(ARGS)

# One torch thread per worker: two workers with a thread per core each would fight for the same cores.
test: .venv/.dev ## run the tests; ARGS='tests/test_rng.py -n 0' chooses some of them
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(ARGS)

# What a processor without AVX-512 does: PyTorch's kernels and oneDNN read these variables when they are loaded.
test-avx2: ## run the tests of crafting and attacks as on a processor that has AVX2 but not AVX-512
	@echo "Capabilities capped to AVX2: ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2"
	@ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 $(MAKE) --no-print-directory test ARGS='tests/crafting tests/attacks $(ARGS)'

lint: .venv/.dev ## check style and formatting
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: .venv/.dev ## check types, strictly
	@$(BIN)/mypy

bench: .venv-bench/.peers ## time and judge attacks beside their peers in ten minutes; ARGS=--full takes two hours
	@$(BENCH)/python benchmarks/attacks.py --quick $(ARGS)

bench-metric: .venv-metric/.peers ## time the metric learners beside metric-learn; ARGS=--tiny only shows that it works
	@$(METRIC)/python benchmarks/metric.py $(ARGS)

clean: ## remove the environments and caches; runs/ is kept
	@rm -rf .venv .venv-bench .venv-metric dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	@find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

help: ## show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

.venv/.run: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing holdfast into .venv: this takes some minutes, once."
	@$(PIP) -e .
	@touch $@

.venv/.dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing holdfast and its development tools into .venv: this takes some minutes, once."
	@$(PIP) -e '.[dev]'
	@touch .venv/.run $@

# Peers pin versions that would hold back holdfast's own, hence an environment of their own.
.venv-bench/.peers: pyproject.toml constraints.txt $(wildcard benchmarks/requirements*.txt) | $(BENCH)/python
	@echo "Installing holdfast and its peers into .venv-bench: this takes some minutes, once."
	@$(BENCH_PIP) -e . -r benchmarks/requirements.txt
	@$(BENCH_PIP) --no-deps -r benchmarks/requirements-alone.txt
	@touch $@

# metric-learn stops at a scikit-learn older than the tested one.
.venv-metric/.peers: pyproject.toml constraints.txt benchmarks/requirements-metric.txt | $(METRIC)/python
	@echo "Installing holdfast and metric-learn into .venv-metric: this takes some minutes, once."
	@grep -v '^scikit-learn==' constraints.txt > .venv-metric/constraints.txt
	@$(METRIC)/python -m pip install -qq --disable-pip-version-check -c .venv-metric/constraints.txt \
	  -e . -r benchmarks/requirements-metric.txt
	@touch $@

# A venv that failed half-way would look whole to the next call, hence the rm.
$(BIN)/python $(BENCH)/python $(METRIC)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "holdfast needs Python 3.11 or later but '$(PYTHON)' is $$($(PYTHON) --version 2>&1 || true);" \
	    "name another one, for example: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -m venv $(@:/bin/python=) || { rm -rf $(@:/bin/python=); exit 1; }
