# Everything is made in .venv; PYTHON chooses the interpreter it is made with (3.11 to 3.13).
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test test-all lint clean

demo: .venv/ready
	$(BIN)/feddig compare --algorithms fedavg,frozen,feddig --scenarios sequential --seeds 0 --out results/demo

test: lint
	$(BIN)/python -m pytest -m "not slow"

test-all: lint
	$(BIN)/python -m pytest

lint: .venv/ready-for-tests
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

# torch first: the pinned build is then already there when the other packages ask for one
.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14) and "FedDig needs Python 3.11 to 3.13: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv .venv
	$(PIP) torch
	$(PIP) -e .
	touch $@

.venv/ready-for-tests: .venv/ready
	$(PIP) -e '.[dev,dp,flower,logging]'
	touch $@

clean:
	rm -rf .venv build dist .mypy_cache .ruff_cache .import_linter_cache .hypothesis
