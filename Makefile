# Works on a fresh clone with Python 3.11 or newer and make. `make help` lists the targets.
PYTHON ?= python3
VENV := .venv
LIVE := .venv-live
BIN := $(VENV)/bin
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
# Where bytecode is not kept, each of the tests' many processes compiles all sources anew.
export PYTHONDONTWRITEBYTECODE =
.PHONY: help demo dashboard docs pictures test lint format pytest compiled collected live-env test-live bench clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

# A stamp holds what was installed for: a changed pyproject.toml installs again.
$(VENV)/.plain: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed: make PYTHON=python3.11")'
	[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	touch $@

# An extra, by its name, beside the plain package: only the tests bring torch.
$(VENV)/.test $(VENV)/.dashboard $(VENV)/.docs: $(VENV)/.plain
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$(@:$(VENV)/.%=%)]'
	touch $@

demo: $(VENV)/.plain  ## speculation off and on at several request rates: the table and the cutover
	$(BIN)/draftcast simulate default --rates 10,30,50,60,70,80
	$(BIN)/draftcast cutover default

dashboard: $(VENV)/.dashboard  ## the what-if pages in a browser, on this machine only
	$(BIN)/draftcast dashboard

docs: $(VENV)/.docs  ## the documentation site, in site/; any warning is an error
	$(BIN)/mkdocs build --strict --quiet

pictures: $(VENV)/.test  ## the pictures of README and docs; needs kaleido and a Chromium
	$(BIN)/draftcast simulate default --rates 10,20,30,40,50,60,65,70,75,80 --plot docs/img/demo.png
	$(BIN)/draftcast evidence --plot docs/img/evidence.png > /dev/null
	$(BIN)/draftcast profile plot h100-sxm --out docs/img/h100-sxm.png
	$(BIN)/python docs/screenshots.py

lint: $(VENV)/.test  ## ruff (lint and format) and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.test  ## let ruff rewrite the code
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

test: $(VENV)/.test  ## lint, and every test that needs neither a GPU nor vLLM
	$(MAKE) --no-print-directory --jobs 3 lint pytest

# A file's tests stay in one process: what they share (a browser, a wheel, recorded runs) is made once. Three processes
# keep two cores busy while some wait for a browser or a server.
pytest: compiled collected
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder -m 'not live' tests

# The engine's machine code, made while mypy has the other core.
compiled: $(VENV)/.test
	$(BIN)/python tests/compile_engine.py

# The tests' bytecode, made once and not by each of the processes that run them, which also say what cannot be imported.
collected: $(VENV)/.test
	$(BIN)/python -m pytest --collect-only -q tests > /dev/null || true

live-env: $(LIVE)/.stamp  ## the environment with vLLM (CPU build) that the live tests run in

# vLLM's pins come first: our own run-time packages are added only where they are missing, nothing it chose is changed.
$(LIVE)/.stamp: .ci/live-env pyproject.toml
	.ci/live-env $(LIVE) $(PYTHON)
	touch $@

test-live: $(LIVE)/.stamp  ## live tests against vLLM itself: scheduler, n-gram search, flags, live runs and a short validation
	HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 $(LIVE)/bin/python -m pytest -m live tests/live

bench: $(VENV)/.test  ## speed of the engine, of policies, of profiles, of a sweep and of the dashboard: tables, then one JSON line each
	$(BIN)/python benchmarks/engine.py
	$(BIN)/python benchmarks/policies.py
	$(BIN)/python benchmarks/step_cost.py
	folder=$$(mktemp -d) && for turn in first again; do $(BIN)/draftcast sweep default --grid rate=5..50:10 --grid k=0..3 \
	    --set workload.num_requests=2000 --set statistics.replications=5 --workers 2 --out $$folder | tail -1; done
	$(BIN)/python benchmarks/dashboard.py
	$(BIN)/python benchmarks/cutover.py

clean:  ## remove the environments and caches
	rm -rf $(VENV) $(LIVE) .mypy_cache .ruff_cache .pytest_cache .hypothesis dist site
