# Set-up and checks. `make demo` and `make test` need nothing but Python 3.11, make and git.

SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ICEBERG_VENV := .venv-iceberg
PYTEST := $(BIN)/python -m pytest
DEFAULT_TESTS := -m "not slow and not iceberg and not cluster"
# Two processes, each with one Spark session: most of a test is waiting for one thread of Spark.
WORKERS ?= 2

.DEFAULT_GOAL := help
.PHONY: help setup system demo lint typing test test-all test-seed test-iceberg test-cluster lock clean \
  bench bench-merge bench-large bench-replace bench-report

help:  ## Show what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

system:
	@scripts/install-system-packages

setup: system $(VENV)/.installed  ## Make the virtual environment

$(VENV)/.installed: requirements.lock pyproject.toml | system
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --editable .
	touch $@

demo: setup  ## Load, update, merge, replace and travel in time on a lake in ./demo-lake
	$(BIN)/icefloe demo

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

typing: setup
	$(BIN)/mypy

test: lint typing  ## Lint, types, and the tests that take minutes
	$(PYTEST) -n $(WORKERS) $(DEFAULT_TESTS)

test-all: lint typing  ## Every test of this environment, the slow ones too
	$(PYTEST) -n $(WORKERS) -m "not iceberg and not cluster"

test-seed: setup  ## One random program of each kind against DuckDB: ICEFLOE_SEED=17 make test-seed
	$(PYTEST) tests/properties

$(ICEBERG_VENV)/.installed: requirements-iceberg.lock pyproject.toml | system
	$(PYTHON) -m venv $(ICEBERG_VENV)
	$(ICEBERG_VENV)/bin/python -m pip install --quiet --requirement requirements-iceberg.lock
	$(ICEBERG_VENV)/bin/python -m pip install --quiet --no-deps --editable .
	touch $@

test-iceberg: system $(ICEBERG_VENV)/.installed  ## Take turns with Iceberg's own Spark runtime (Spark 4.1)
	$(ICEBERG_VENV)/bin/python -m pytest -m iceberg tests/iceberg

test-cluster: setup  ## The smoke suite on a standalone cluster and over Spark Connect
	ICEFLOE_TEST_BACKEND=cluster $(PYTEST) -m cluster tests/cluster
	ICEFLOE_TEST_BACKEND=connect $(PYTEST) -m cluster tests/cluster

BENCH_SIZE ?= narrow
BENCH := $(BIN)/python -m benchmarks.run --size $(BENCH_SIZE) $(BENCH_OPTIONS)

bench: setup $(ICEBERG_VENV)/.installed  ## DELETE, UPDATE and MERGE against four peers: BENCH_SIZE=wide make bench
	$(BENCH)
	$(MAKE) bench-report

bench-merge: setup $(ICEBERG_VENV)/.installed  ## MERGE alone, with the same peers
	$(BENCH) --statements merge --name $(BENCH_SIZE)-merge
	$(MAKE) bench-report

bench-large: setup  ## Upsert 20 million rows with 2 GB of memory
	$(BIN)/python -m benchmarks.large_merge $(BENCH_OPTIONS)
	$(MAKE) bench-report

bench-replace: setup  ## Replacing partitions and rows against overwriting and delta-rs
	$(BIN)/python -m benchmarks.replace --rows 2000000 --save

bench-report:
	$(BIN)/python -m benchmarks.report benchmarks/results/*.json > docs/benchmarks.md

lock:  ## Resolve dependencies anew
	$(PYTHON) -m pip install --quiet uv
	$(PYTHON) -m uv pip compile --quiet --no-header --no-annotate --python-version 3.11 \
	  --extra connect --extra postgresql --group dev pyproject.toml --output-file requirements.lock
	$(PYTHON) -m uv pip compile --quiet --no-header --no-annotate --python-version 3.11 \
	  pyproject.toml requirements-iceberg.in --output-file requirements-iceberg.lock

clean:  ## Remove environments and the demo's lake
