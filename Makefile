# Every target sets up what it needs in .venv; a machine needs make and Python >= 3.11, nothing else.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

VENV := .venv
BIN := $(VENV)/bin
RUN := $(VENV)/.run-stamp
DEV := $(VENV)/.dev-stamp

# An environment whose interpreter has gone is made anew.
$(shell [ -x $(BIN)/python ] || rm -f $(RUN) $(DEV))

# Otherwise each process that imports Kitchener or collects the tests would compile all of it.
unexport PYTHONDONTWRITEBYTECODE

# Arguments for the program behind a target: make chat ARGS='--help'
ARGS ?=

# A name on the PATH may be a stub that does not start, so each candidate is run.
IS_NEW_ENOUGH := -c 'import sys; sys.exit(sys.version_info < (3, 11))'
PYTHON ?= $(shell for each in python3 python3.13 python3.12 python3.11; do \
	if $$each $(IS_NEW_ENOUGH) 2>/dev/null; then echo $$each; break; fi; done)

PIP_INSTALL := $(BIN)/python -m pip --disable-pip-version-check --no-input install -qq

.PHONY: help chat demo test format bench load servers memory peers real doors soak pythons lock clean

help: ## print this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

chat: $(RUN) ## talk to an agent; pass options with ARGS='...'
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/kitchener chat $(ARGS)

demo: $(RUN) ## run the offline demonstration
	@$(BIN)/python -m examples.demo $(ARGS)

test: $(DEV) ## check format, lint, types and layers, then run the tests
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@# Beside mypy, the tests are compiled, which each process of pytest would do for itself.
	@$(BIN)/python -m pytest --collect-only -qq >/dev/null 2>&1 & $(BIN)/mypy --num-workers auto; checked=$$?; wait; exit $$checked
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python -m pytest -n auto

format: $(DEV) ## format the code and apply the safe lint fixes
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

bench: $(DEV) ## measure CPU time a turn
	@$(BIN)/python benchmarks/sessions.py $(ARGS)

load: $(DEV) ## measure 5,000 concurrent sessions, and load and attack a server
	@$(BIN)/python benchmarks/sessions.py --sessions 5000 --turns 3
	@$(BIN)/python -m benchmarks.serving $(ARGS)

servers: $(DEV) .venv-gateways/.stamp ## measure the server beside a bare one and LiteLLM's proxy
	@$(BIN)/python -m benchmarks.servers --gateway-python .venv-gateways/bin/python $(ARGS)

.venv-gateways/.stamp: requirements/gateways.txt
	@echo "Setting up .venv-gateways with LiteLLM's proxy (about two minutes, once) ..."
	@rm -rf .venv-gateways && $(BIN)/python -m venv .venv-gateways
	@.venv-gateways/bin/python -m pip --disable-pip-version-check --no-input install -qq --require-hashes --no-deps -r requirements/gateways.txt \
		|| { rm -rf .venv-gateways; echo "LiteLLM could not be installed from requirements/gateways.txt; pip says why above" >&2; exit 1; }
	@touch $@

memory: $(DEV) ## measure long-term memory: reads at size, replies while it learns
	@$(BIN)/python benchmarks/memory.py
	@$(BIN)/python benchmarks/consolidation.py

peers: $(DEV) .venv-peers/.stamp ## measure a turn beside other runtimes; ARGS=--wire: over HTTP
	@$(BIN)/python -m benchmarks.peers --peer-python .venv-peers/bin/python $(ARGS)

.venv-peers/.stamp: requirements/peers.txt
	@echo "Setting up .venv-peers with the runtimes to compare with (about a minute, once) ..."
	@rm -rf .venv-peers && $(BIN)/python -m venv .venv-peers
	@.venv-peers/bin/python -m pip --disable-pip-version-check --no-input install -qq --require-hashes --no-deps -r requirements/peers.txt \
		|| { rm -rf .venv-peers; echo "the other runtimes could not be installed from requirements/peers.txt; pip says why above" >&2; exit 1; }
	@touch $@

real: $(DEV) ## talk with a small language model, replay and verify; installs it below .real (needs Node.js)
	@$(BIN)/python -m benchmarks.real $(ARGS)

doors: $(DEV) ## run the tests with MCP servers and clients of npm (need Node.js) and in a browser (need Chromium), as far as these are installed
	@$(BIN)/python -m tests.doors $(ARGS)

# Installs what a folder's lock file names: $(call install_by_npm,FOLDER OF THE LOCK FILE,WHERE,WHAT,MEGABYTES)
define install_by_npm
@echo "Installing $(3) below $(2) ($(4) MB, once) ..."
@rm -rf $(2)/node_modules && mkdir -p $(2) && cp $(1)/package.json $(1)/package-lock.json $(2)
@(cd $(2) && npm ci --ignore-scripts --no-audit --no-fund --loglevel error) \
	|| { rm -rf $(2)/node_modules; echo "make doors: $(3) could not be installed; npm says why above" >&2; exit 1; }
@touch $@
endef

# tests/doors.py says what the system has to have for each of these.
.doors/.stamp: tests/mcp/doors/package-lock.json
	$(call install_by_npm,tests/mcp/doors,.doors,the MCP servers 'everything' and 'filesystem',40)

.doors/clients/.stamp: tests/clients/doors/package-lock.json
	$(call install_by_npm,tests/clients/doors,.doors/clients,the clients of tests/clients/doors,100)

# Chromium itself is the system's; only what drives it is installed here.
.doors/python/.stamp: requirements/doors.txt | $(DEV)
	@echo "Installing Playwright, which drives the browser, below .doors/python (170 MB, once) ..."
	@rm -rf .doors/python
	@$(PIP_INSTALL) --require-hashes --no-deps --target .doors/python -r requirements/doors.txt \
		|| { rm -rf .doors/python; echo "make doors: Playwright could not be installed from requirements/doors.txt; pip says why above" >&2; exit 1; }
	@touch $@

soak: $(DEV) ## run what make test leaves out: long tests, whole tables, the other event loop, property tests with many examples
	@HYPOTHESIS_PROFILE=soak $(BIN)/python -m pytest -m 'soak or hypothesis' -o faulthandler_timeout=0 --timeout=3600 $(ARGS)

# Those of the versions in pyproject.toml that start here.
PYTHONS ?= $(shell for each in python3.11 python3.12 python3.13; do \
	if $$each $(IS_NEW_ENOUGH) 2>/dev/null; then echo $$each; fi; done)

pythons: $(PYTHONS:%=.venv-%/.stamp) ## run the tests on each supported Python of this machine; pass options with ARGS='...'
	@[ -n "$(PYTHONS)" ] || { echo "none of Python 3.11, 3.12 and 3.13 was found. Name one: make pythons PYTHONS=python3.13" >&2; exit 1; }
	@for each in $(PYTHONS); do .venv-$$each/bin/python -m pytest -n auto $(ARGS) || exit 1; done

.venv-python%/.stamp: requirements/dev.txt pyproject.toml
	@echo "Setting up .venv-python$* (about a minute, once) ..."
	@rm -rf .venv-python$* && python$* -m venv .venv-python$*
	@.venv-python$*/bin/python -m pip --disable-pip-version-check --no-input install -qq --require-hashes --no-deps -r requirements/dev.txt
	@.venv-python$*/bin/python -m pip --disable-pip-version-check --no-input install -qq --no-deps --no-build-isolation -e .
	@touch $@

lock: $(BIN)/python ## compile requirements/*.txt anew; ARGS=--upgrade for newer versions
	@echo "Compiling requirements/run.txt and requirements/dev.txt ..."
	@$(PIP_INSTALL) 'uv>=0.13,<0.14'
	@UV_PYTHON_DOWNLOADS=never $(LOCK) pyproject.toml --extra models --extra mcp --extra serve --group build \
		--output-file requirements/run.txt $(ARGS)
	@UV_PYTHON_DOWNLOADS=never $(LOCK) pyproject.toml --all-extras --group dev --constraint requirements/run.txt \
		--output-file requirements/dev.txt $(ARGS)
	@for each in doors gateways peers; do \
		UV_PYTHON_DOWNLOADS=never $(LOCK) --group pyproject.toml:$$each --output-file requirements/$$each.txt $(ARGS) || exit 1; done

LOCK := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-header --no-annotate

clean: ## remove .venv, caches and build results
	@rm -rf $(VENV) .venv-peers .venv-gateways .venv-python* .real .doors build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis .coverage
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@python="$(PYTHON)"; \
	if [ -z "$$python" ] || ! "$$python" $(IS_NEW_ENOUGH) 2>/dev/null; then \
		echo "kitchener needs Python 3.11 or newer; none found. Name one: make PYTHON=/path/to/python3" >&2; exit 1; \
	fi; \
	rm -rf $(VENV) && "$$python" -m venv $(VENV)

$(RUN): requirements/run.txt pyproject.toml | $(BIN)/python
	@echo "Setting up $(VENV) to run kitchener (about a minute, once) ..."
	@$(PIP_INSTALL) --require-hashes --no-deps -r requirements/run.txt
	@$(PIP_INSTALL) --no-deps --no-build-isolation -e .
	@touch $@

# The development set holds the run set in the same versions, so both are then in place.
$(DEV): requirements/dev.txt requirements/run.txt pyproject.toml | $(BIN)/python
	@echo "Setting up $(VENV) for development (about a minute, once) ..."
	@$(PIP_INSTALL) --require-hashes --no-deps -r requirements/dev.txt
	@$(PIP_INSTALL) --no-deps --no-build-isolation -e .
	@touch $(RUN) $@
