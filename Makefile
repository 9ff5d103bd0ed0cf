# Set-up and checks. `make demo` and `make test` need nothing but Python 3.11, make and git.

SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ICEBERG_VENV := .venv-iceberg
PEER_VENVS := .venv-deltars .venv-sail .venv-pyiceberg
PYTEST := $(BIN)/python -m pytest
DEFAULT_TESTS := -m "not slow and not iceberg and not cluster and not s3 and not browser"
QUICK_TESTS := -m "not spark and not slow and not iceberg and not cluster and not s3 and not browser"
# Two processes, each with one Spark session: most of a test is waiting for one thread of Spark.
WORKERS ?= 2

.DEFAULT_GOAL := help
.PHONY: help setup system demo lint typing quick test test-all test-seed test-iceberg test-cluster test-s3 test-ui screenshots test-python dist docs docs-tables docs-faults lock clean \
  bench bench-full bench-size bench-merge bench-large bench-replace bench-report bench-peers

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

quick: lint typing  ## Lint, types, and the tests that need no Spark: under two minutes
	$(PYTEST) -n $(WORKERS) --dist worksteal $(QUICK_TESTS)

test: lint typing  ## Lint, types, and the tests that take minutes
	$(PYTEST) -n $(WORKERS) --dist worksteal $(DEFAULT_TESTS)

test-all: lint typing  ## Every test of this environment, the slow ones too
	$(PYTEST) -n $(WORKERS) --dist worksteal -m "not iceberg and not cluster and not s3 and not browser"

test-seed: setup  ## One random program of each kind against DuckDB: ICEFLOE_SEED=17 make test-seed
	$(PYTEST) tests/properties

$(ICEBERG_VENV)/.installed: requirements-iceberg.lock pyproject.toml | system
	$(PYTHON) -m venv $(ICEBERG_VENV)
	$(ICEBERG_VENV)/bin/python -m pip install --quiet --requirement requirements-iceberg.lock
	$(ICEBERG_VENV)/bin/python -m pip install --quiet --no-deps --editable .
	touch $@

test-iceberg: system $(ICEBERG_VENV)/.installed  ## Take turns with Iceberg's own Spark runtime (Spark 4.1)
	$(ICEBERG_VENV)/bin/python -m pytest -m iceberg tests/iceberg

test-ui: setup  ## The web page in Chromium, which is installed with apt if it is missing
	@scripts/install-chromium
	$(PYTEST) -m browser tests/ui

screenshots: setup  ## The same, and the screenshots of docs/ui.md are taken again
	@scripts/install-chromium
	ICEFLOE_SCREENSHOTS=docs/images/ui $(PYTEST) -m browser tests/ui
	pngquant --force --ext .png --quality 80-98 docs/images/ui/*.png

DOCS_VENV := .venv-docs

$(DOCS_VENV)/.installed: requirements-docs.lock | system
	$(PYTHON) -m venv $(DOCS_VENV)
	$(DOCS_VENV)/bin/python -m pip install --quiet --requirement requirements-docs.lock
	touch $@

docs: system $(DOCS_VENV)/.installed  ## The documentation site in ./site; strict: no broken link or anchor
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build --strict --quiet
	$(DOCS_VENV)/bin/python scripts/check_site.py site

docs-tables: setup  ## The tables of properties and errors in docs/, from the code
	$(BIN)/python scripts/docs_tables.py

test-cluster: setup  ## The smoke suite on a standalone cluster and over Spark Connect
	ICEFLOE_TEST_BACKEND=cluster $(PYTEST) -m cluster tests/cluster
	ICEFLOE_TEST_BACKEND=connect $(PYTEST) -m cluster tests/cluster

PYTHON_VENV := .venv-$(notdir $(PYTHON))

$(PYTHON_VENV)/.installed: requirements.lock pyproject.toml | system
	$(PYTHON) -m venv $(PYTHON_VENV)
	$(PYTHON_VENV)/bin/python -m pip install --quiet --requirement requirements.lock
	$(PYTHON_VENV)/bin/python -m pip install --quiet --no-deps --editable .
	touch $@

test-python: $(PYTHON_VENV)/.installed  ## The tests with another Python: make test-python PYTHON=python3.13 TESTS=tests/sql
	$(PYTHON_VENV)/bin/python -m pytest -n $(WORKERS) --dist worksteal $(DEFAULT_TESTS) $(TESTS)

DIST_VENV := .venv-dist

$(DIST_VENV)/.installed: requirements-dist.lock | system
	$(PYTHON) -m venv $(DIST_VENV)
	$(DIST_VENV)/bin/python -m pip install --quiet --requirement requirements-dist.lock
	touch $@

dist: $(DIST_VENV)/.installed  ## Wheel, sdist and SBOM in ./dist, checked and tried in a clean environment
	rm -rf dist build
	$(DIST_VENV)/bin/python -m build --outdir dist
	$(DIST_VENV)/bin/twine check --strict dist/*
	$(DIST_VENV)/bin/python scripts/check_dist.py dist

test-s3: setup  ## Object stores: a real S3 server, Iceberg's REST catalog, faults between them and us
	$(PYTEST) -m s3 tests/s3

docs-faults: setup  ## The tables of faults in docs/object_stores.md, from a run of their tests
	ICEFLOE_WRITE_FAULTS=1 $(PYTEST) tests/s3/test_faults.py

$(PEER_VENVS:=/.installed): .venv-%/.installed: requirements-%.lock | system
	$(PYTHON) -m venv .venv-$*
	.venv-$*/bin/python -m pip install --quiet --requirement $<
	touch $@

bench-peers: setup $(ICEBERG_VENV)/.installed $(PEER_VENVS:=/.installed)

BENCH_SIZE ?= narrow
BENCH := $(BIN)/python -m benchmarks.run
REPORT := $(BIN)/python -m benchmarks.report && $(BIN)/python -m benchmarks.docs_page
# Kept short: the narrow run has every library, the wide run only those that goals name, and no
# scans; bench-full has everything.
NARROW_PEERS := icefloe-cow icefloe-mor iceberg-cow iceberg-mor deltars sail-mor pyiceberg
WIDE_PEERS := icefloe-cow icefloe-mor iceberg-cow iceberg-mor deltars
WIDE_STATEMENTS := delete-1-spread delete-1-clustered update-1-spread update-10-spread \
  merge-upsert-1-spread merge-upsert-1-clustered

QUICK := --repetitions 2 --repetition-seconds 10 --warm-ups 8 --warm-up-seconds 6

bench: bench-peers  ## The statements that have goals, narrow and wide, against the peers: about 16 minutes
	status=0; \
	$(BENCH) --size narrow --name bench-narrow $(QUICK) --statements goals \
	  --peers $(NARROW_PEERS) $(BENCH_OPTIONS) || status=1; \
	$(BENCH) --size wide --name bench-wide $(QUICK) --statements $(WIDE_STATEMENTS) \
	  --peers $(WIDE_PEERS) $(BENCH_OPTIONS) || status=1; \
	$(REPORT) && exit $$status

# At least one warm-up of each kind and one timed run; fast statements get more of both.
FULL := --repetitions 4 --repetition-seconds 10 --warm-ups 4 --warm-up-seconds 15 --silence 120 \
  --driver-memory 2g

bench-full: bench-peers  ## Every statement with every library on tables of 1 GiB: about 3.5 hours
	status=0; \
	for size in narrow-gb wide-gb; do \
	  $(BENCH) --size $$size $(FULL) $(BENCH_OPTIONS) || status=1; \
	done; \
	$(REPORT) && exit $$status

bench-size: bench-peers  ## Every statement at one size: BENCH_SIZE=wide make bench-size
	status=0; $(BENCH) --size $(BENCH_SIZE) $(BENCH_OPTIONS) || status=1; \
	$(REPORT) && exit $$status

bench-merge: bench-peers  ## MERGE only, with the same peers
	status=0; \
	$(BENCH) --size $(BENCH_SIZE) $(BENCH_OPTIONS) --statements merge --name $(BENCH_SIZE)-merge \
	  || status=1; \
	$(REPORT) && exit $$status

bench-large: setup  ## Upsert 20 million rows with 2 GB of heap
	$(BIN)/python -m benchmarks.large_merge $(BENCH_OPTIONS)
	$(REPORT)

bench-replace: setup  ## Replace partitions and rows, compared to overwriting and delta-rs
	$(BIN)/python -m benchmarks.replace --rows 2000000 --save

bench-report: setup  ## benchmarks/report.md and the chart and table of docs/benchmarks.md
	$(REPORT)

lock:  ## Resolve the dependencies again
	$(PYTHON) -m pip install --quiet uv
	$(PYTHON) -m uv pip compile --quiet --no-header --no-annotate --python-version 3.11 \
	  --extra connect --extra postgresql --extra s3 --extra text --extra ui --extra vector --group dev pyproject.toml --output-file requirements.lock
	$(PYTHON) -m uv pip compile --quiet --no-header --no-annotate --python-version 3.11 \
	  pyproject.toml requirements-iceberg.in --output-file requirements-iceberg.lock
	for peer in docs dist $(PEER_VENVS:.venv-%=%); do \
	  $(PYTHON) -m uv pip compile --quiet --no-header --no-annotate --python-version 3.11 \
	    requirements-$$peer.in --output-file requirements-$$peer.lock || exit 1; \
	done

clean:  ## Remove environments and the demo's lake
	rm -rf $(VENV) $(ICEBERG_VENV) $(PEER_VENVS) $(DOCS_VENV) $(DIST_VENV) .venv-python* demo-lake site dist build
