PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: reproduce test lint stress clean

reproduce: $(VENV)/.ready
	$(BIN)/python scripts/reproduce.py cem/table3

test: $(VENV)/.ready
	$(BIN)/python -m pytest -q

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python scripts/typecheck.py

stress: $(VENV)/.ready
	$(BIN)/python -m pytest -q -m stress

$(VENV)/.ready: constraints.txt pyproject.toml setup.py
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -c constraints.txt torch
	$(BIN)/pip install -q -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV)
