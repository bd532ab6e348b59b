# Two commands set everything up on a fresh machine: `make run` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
CHROMIUM ?= chromium

.PHONY: run up test lint types check bench chaos browser clean

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

run: .venv/installed            ## the demo recipe, from raw text to a trained model, in ./lake
	$(BIN)/basemill run

up: .venv/installed             ## the dashboard and a worker, until Ctrl-C
	$(BIN)/basemill up

test: .venv/installed           ## unit and stage tests, one small recipe end to end, one case of each fault
	$(BIN)/python -m pytest

lint: .venv/installed
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: .venv/installed
	$(BIN)/mypy

check: lint types test

chaos: .venv/installed          ## every kill and every fault, as often as it takes
	$(BIN)/python -m pytest -m chaos tests

browser: .venv/installed        ## the dashboard, driven with Chromium (CHROMIUM=path where it has another name)
	@command -v $(CHROMIUM) >/dev/null || { echo "make browser needs Chromium: apt-get install chromium (Debian), or CHROMIUM=/path/to/chrome"; exit 1; }
	CHROMIUM=$(CHROMIUM) $(BIN)/python -m pytest -m browser tests

bench: .venv/installed          ## ratios beside peers; see tests/bench/README.md
	$(BIN)/python -m pytest -m bench -s tests/bench

clean:
	rm -rf .venv lake
