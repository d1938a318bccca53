# `make test` and `make demo` do all their set-up from nothing: Debian 12 with make and Python 3.11 is enough.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.SUFFIXES:

VENV := .venv
BIN := $(VENV)/bin
PY := $(BIN)/python
# Without byte-compiling all of PyTorch beforehand: what is imported is compiled then.
PIP_INSTALL := $(PY) -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt
# The newest set-up that .venv holds: `base` can run Headway, `jobs` can train the examples too, `dev` can check it all.
BASE := $(VENV)/.stamp-base
JOBS := $(VENV)/.stamp-jobs
DEV := $(VENV)/.stamp-dev

SEED ?= 1
SEEDS ?= 500
N ?= $(SEEDS)
ARGS ?=
# The policies whose kernels are compiled beforehand; empty: all.
WARM :=
PYTHON ?= python3

# A .venv that was copied or moved here, or whose Python has gone, runs another checkout or nothing: set up anew.
VENV_HERE := $(shell [ -x $(PY) ] && head -n 3 $(BIN)/pip 2>/dev/null | grep -qF '$(CURDIR)/$(BIN)/' && echo yes)
ifneq ($(VENV_HERE),yes)
$(shell rm -f $(BASE) $(JOBS) $(DEV))
endif

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-7s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: demo
demo: WARM := fifo mlf-h+mlf-c
demo: $(JOBS) warm ## set up if need be, then train six models on four slots: examples/demo.py
	@exec $(PY) examples/demo.py

.PHONY: test
test: $(DEV) lint warm ## set up if need be, then run every check: lint, types, import rules, all tests
	$(PY) -m pytest -n 2 $(ARGS)

.PHONY: lint
lint: $(DEV) ## ruff, formatting, mypy --strict on src, import rules
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(BIN)/lint-imports --no-logo

.PHONY: fix
fix: $(DEV) ## let ruff repair and format the code
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

.PHONY: fuzz
fuzz: $(DEV) warm ## faults from a seed on, simulated and live: make fuzz [SEED=1] [SEEDS=500]
	$(PY) -m headway.testing.fuzz --seed $(SEED) --count $(N)
	$(PY) -m headway.testing.fuzz --live --seed $(SEED) --count $(N)

.PHONY: bench
bench: $(DEV) warm ## measure, and compare with the committed ratios
	$(PY) bench/run.py $(ARGS)

.PHONY: venv
venv: $(DEV) ## set up .venv with everything that the checks need
	@echo "$(VENV) is up to date."

# No stamp: the kernels' cache lies outside .venv and knows itself what is stale. Warming only moves work forward, so
# a failure is told and passed over: what is missing is compiled on first use.
.PHONY: warm
warm: $(BASE) ## compile the Numba kernels into the cache, where that is not done yet
	@if [ -f src/headway/warm.py ]; then \
	  $(PY) -m headway.warm $(WARM) || echo "Could not warm the kernels; they compile on first use." >&2; \
	fi

.PHONY: clean
clean: ## remove caches and build output; .venv stays
	rm -rf build dist htmlcov .coverage .coverage.* .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	find src tests bench examples -type d -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

# Debian ships Python without ensurepip: it comes with the package python3-venv.
define make_venv
	@if [ "$(VENV_HERE)" != yes ] || ! $(PY) -m pip --version >/dev/null 2>&1; then \
	  python=; \
	  for each in "$(PYTHON)" python3 python3.13 python3.12 python3.11; do \
	    if "$$each" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then python=$$each; break; fi; \
	  done; \
	  if [ -z "$$python" ]; then \
	    echo "Headway needs Python 3.11 or newer: install it, or name it with 'make PYTHON=...'." >&2; exit 1; \
	  fi; \
	  if ! "$$python" -c 'import ensurepip, venv' >/dev/null 2>&1 && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "Installing python3-venv ..."; \
	    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3-venv; } >/dev/null || true; \
	  fi; \
	  if ! "$$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then \
	    echo "$$python cannot make virtual environments: install python3-venv (Debian: apt-get install python3-venv)." >&2; exit 1; \
	  fi; \
	  "$$python" -m venv --clear $(VENV); \
	fi
endef

$(BASE): pyproject.toml constraints.txt
	$(make_venv)
	@echo "Setting up $(VENV); the first time this takes about a minute ..."
	@$(PIP_INSTALL) -e .
	@touch $@

$(JOBS): pyproject.toml constraints.txt
	$(make_venv)
	@echo "Setting up $(VENV) with PyTorch for the examples; the first time this takes a minute or two ..."
	@$(PIP_INSTALL) -e '.[jobs]'
	@touch $(BASE) $@

$(DEV): pyproject.toml constraints.txt
	$(make_venv)
	@echo "Setting up $(VENV) with the tools of the checks; the first time this takes about a minute ..."
	@$(PIP_INSTALL) -e '.[dev,dev-jobs]'
	@touch $(BASE) $(JOBS) $@
