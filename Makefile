# The one door to everything this project does. `make` alone lists what there is.
# Needs python3 (3.10 or later) with venv, make, and a network that reaches a Python package index.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
CHAOS_RUNS ?= 10
PYTEST_ARGS ?=
TEST_JOBS ?= 3
CHECKED := tests/unit tests/contract/test_docs.py tests/contract/test_layout.py

# `operator` holds the operator's package and is no package itself.
export PYTHONPATH := .:operator
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help install demo site check unit test chaos faults bench docs lock dist clean

help: ## list what make can do
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / { printf "  %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(STAMP) ## make .venv with the pinned development requirements and this package

$(STAMP): pyproject.toml requirements-dev.txt
	@echo "installing into $(VENV), which takes a minute"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --requirement requirements-dev.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

demo: install ## crawl a local web site, kill workers, and show that no page is lost
	$(BIN)/python -m tests.site.demo

site: install ## serve the demo's shop at http://127.0.0.1:8765/ until Ctrl-C
	@echo "in another terminal: $(BIN)/scrapy crawl shop -a url=http://127.0.0.1:8765/ -O products.jl"
	@$(BIN)/python -m tests.site.server --site shop --port 8765

check: install ## lint, types, import rules, generated docs, unit tests: under a minute
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python docs/generate.py --check
	$(BIN)/pytest $(CHECKED) $(PYTEST_ARGS)

unit: install ## the unit tests alone
	$(BIN)/pytest tests/unit $(PYTEST_ARGS)

test: check ## check, then every other test, TEST_JOBS (3) at once
	$(BIN)/pytest tests $(CHECKED:%=--ignore=%) -n $(TEST_JOBS) --dist worksteal $(PYTEST_ARGS)

chaos: install ## kill and cut off workers and servers CHAOS_RUNS (10) times, and count pages
	CHAOS_RUNS=$(CHAOS_RUNS) $(BIN)/pytest tests/chaos -n $(TEST_JOBS) --dist worksteal $(PYTEST_ARGS)

faults: install ## break the code on purpose, and see that a test fails for each fault
	$(BIN)/python -m tests.faults

bench: install ## measure against plain Scrapy and scrapy-redis
	$(BIN)/python -m tests.benchmarks

docs: install ## write docs/settings.md anew from the code
	$(BIN)/python docs/generate.py

lock: install ## pin requirements.txt and requirements-dev.txt anew from pyproject.toml
	$(BIN)/python -m pip install --quiet uv
	$(LOCK) --output-file requirements.txt
	$(LOCK) --extra dev --output-file requirements-dev.txt

LOCK = $(BIN)/uv pip compile pyproject.toml --quiet --universal --python-version 3.10 \
	--no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" --upgrade

dist: install ## build the wheel and the source archive into dist/
	$(BIN)/python -m build --no-isolation

clean: ## remove what make made, and the caches
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
