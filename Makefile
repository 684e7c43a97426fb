# All commands use the environment .venv. PYTHON names the interpreter that creates it (3.11 to 3.13).
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# A file's tests run in one worker, because they share fixtures. Files keep their order: the last ones are short.
PYTEST := $(BIN)/python -m pytest --dist loadfile --no-loadscope-reorder

.PHONY: demo test test-all lint docs clean

demo: .venv/ready
	$(BIN)/feddig compare --algorithms fedavg,frozen,digests-only,feddig,feddig-plus --scenarios sequential --seeds 0 --out results/demo

test: lint
	$(PYTEST) -n 2 -m "not slow"

# three workers for two cores, because tests of real federations mostly wait
test-all: lint
	$(PYTEST) -n 3

lint: .venv/ready-for-tests
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy --num-workers 2
	$(BIN)/lint-imports

# the variable hides the theme's advertisement for its successor
docs: .venv/ready-for-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict
	$(BIN)/python tools/check_site.py site

# torch first, so that the other packages find the pinned build
.venv/ready: .venv/made pyproject.toml constraints.txt
	$(PIP) torch
	$(PIP) -e .
	touch $@

.venv/made:
	$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14) and "FedDig needs Python 3.11 to 3.13: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv .venv
	touch $@

.venv/ready-for-tests: .venv/ready
	$(PIP) -e '.[dev,dicom,docs,dp,flower,logging,mlflow]'
	touch $@

# only the packages of the extra: the site is built from text and docstrings and needs no torch
.venv/ready-for-docs: .venv/made pyproject.toml constraints.txt
	$(BIN)/python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['docs'], sep='\n')" > .venv/docs.txt
	$(PIP) -r .venv/docs.txt
	touch $@

clean:
	rm -rf .venv build dist site .mypy_cache .ruff_cache .import_linter_cache .hypothesis
