# Two commands: `make run` does all set-up and runs the main job; `make test` does all set-up and passes the tests.
# Both need only Python 3.11+, make and git.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
RECIPE ?= recipes/training/example-training-mitigations.yaml
PYTEST_ARGS ?= -n auto --dist worksteal --durations 25

.PHONY: run test lint types unit format docs install clean

run: $(VENV)/.installed
	$(BIN)/aorta sweep run --recipe $(RECIPE)

test: lint types unit

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/snakefmt --check Snakefile workflow

types: $(VENV)/.installed-dev
	$(BIN)/mypy

unit: $(VENV)/.installed-dev
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pytest $(PYTEST_ARGS)

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/snakefmt Snakefile workflow

# The pages that are made from the code; tests hold them against it.
docs: $(VENV)/.installed-dev
	$(BIN)/python -m aorta.workloads.reference > docs/workloads.md
	$(BIN)/python -m aorta.cli.reference

install: $(VENV)/.installed

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "aorta needs Python 3.11 or newer, and $(PYTHON) is $$($(PYTHON) -V 2>&1); try: make PYTHON=python3.11" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@ $(VENV)/.installed

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
