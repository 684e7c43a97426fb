# Everything is made in .venv; PYTHON chooses the interpreter it is made with (3.11 to 3.13).
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test test-all lint docs clean

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

# the theme's advertisement for its successor is no news to whoever builds this
docs: .venv/ready-for-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict
	$(BIN)/python tools/check_site.py site

# torch first: the pinned build is then already there when the other packages ask for one
.venv/ready: .venv/made pyproject.toml constraints.txt
	$(PIP) torch
	$(PIP) -e .
	touch $@

.venv/made:
	$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14) and "FedDig needs Python 3.11 to 3.13: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv .venv
	touch $@

.venv/ready-for-tests: .venv/ready
	$(PIP) -e '.[dev,docs,dp,flower,logging,mlflow]'
	touch $@

# the packages of the extra alone: the site is made from text and docstrings and needs no torch
.venv/ready-for-docs: .venv/made pyproject.toml constraints.txt
	$(BIN)/python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['docs'], sep='\n')" > .venv/docs.txt
	$(PIP) -r .venv/docs.txt
	touch $@

clean:
	rm -rf .venv build dist site .mypy_cache .ruff_cache .import_linter_cache .hypothesis
