# Every target works in a fresh clone: it makes .venv first if it is missing or out of date.
PYTHON ?= python3
VENV := .venv
INSTALLED := $(VENV)/.installed

.PHONY: help train test slow bench lint format clean
help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "eigen2 needs Python 3.11 or newer, $(PYTHON) is $$($(PYTHON) -V 2>&1): make PYTHON=/path/to/python3.11"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

train: $(INSTALLED)  ## train 16 agents for 25 generations on the sample prices
	$(VENV)/bin/python -m eigen2.cli fit --config configs/erl.yaml

test: $(INSTALLED)  ## run the test suite
	$(VENV)/bin/python -m pytest --numprocesses auto --maxprocesses 4

slow: $(INSTALLED)  ## run the tests that take minutes
	$(VENV)/bin/python -m pytest -m slow

bench: $(INSTALLED)  ## speed and size against references, in one process
	$(VENV)/bin/python -m benchmarks.bench

lint: $(INSTALLED)  ## ruff and mypy
	$(VENV)/bin/python -m ruff check .
	$(VENV)/bin/python -m ruff format --check .
	$(VENV)/bin/python -m mypy

format: $(INSTALLED)  ## let ruff format the code
	$(VENV)/bin/python -m ruff format .
	$(VENV)/bin/python -m ruff check --fix .

clean:  ## remove .venv and caches, not the runs
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
