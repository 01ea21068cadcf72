# make run    serves in development mode
# make test   runs the whole gate
# Both make what they need in .venv first, and next time only what is missing.

VENV := .venv
BIN := $(VENV)/bin
STATE := $(firstword $(shell cat pyproject.toml treedbd/version.py | cksum))
INSTALLED := $(VENV)/.installed-$(STATE)
TESTABLE := $(VENV)/.testable-$(STATE)
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: run test

run: $(INSTALLED)
	@exec $(BIN)/twistd -n treedb

test: $(TESTABLE)
	@.ci/packages curl=curl strace=strace chromium=chromium chromedriver=chromium-driver wrk=wrk
	@tests/clients/install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest --numprocesses 2 --dist loadfile

$(BIN)/python:
	@.ci/environment $(VENV)

$(INSTALLED): | $(BIN)/python
	@echo "Installing treedb in $(VENV)."
	@$(PIP) install --editable .
	@touch $@

$(TESTABLE): | $(BIN)/python
	@echo "Installing treedb and what its tests need in $(VENV)."
	@$(PIP) install --editable '.[test]'
	@touch $@ $(INSTALLED)
