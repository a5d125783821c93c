# `make setup` once; every other target does it for you when needed.

PYTHON ?= python3
VENV ?= .venv
# What pip installs first. From PyPI this is the CUDA build on Linux; for another build name its index as well, e.g.
#   make setup TORCH="torch==2.13.0 --index-url URL"
TORCH ?= torch==2.13.0

BIN := $(VENV)/bin
READY := $(VENV)/.ready
export TOKENIZERS_PARALLELISM ?= false

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow lint format typecheck clean distclean

help:
	@echo "make setup      $(VENV) with torch, the package and the tools for working on it"
	@echo "make demo       one prompt, plain and probe side by side, on the bundled model"
	@echo "make test       the default tests; make test-slow: those that take minutes"
	@echo "make lint       ruff; make format: let ruff rewrite"
	@echo "make typecheck  pyright"
	@echo "make clean      caches and builds; make distclean: $(VENV) too"

setup: $(READY)

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "multitoken needs Python 3.11 or newer: set PYTHON=...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install $(TORCH)
	$(BIN)/python -m pip install -e ".[dev]"
	@touch $@

demo: $(READY)
	$(BIN)/python -m multitoken demo

test: $(READY)
	$(BIN)/python -m pytest

test-slow: $(READY)
	$(BIN)/python -m pytest -m slow

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

typecheck: $(READY)
	$(BIN)/pyright

clean:
	rm -rf build dist .pytest_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV)
