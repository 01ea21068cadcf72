# make run    serves in development mode; ARGS="..." are more flags of `treedb serve`
# make test   runs the whole gate
# Both make what they need in .venv first, and next time only what is missing.

VENV := .venv
BIN := $(VENV)/bin
STATE := $(firstword $(shell cat pyproject.toml treedbd/version.py | cksum))
INSTALLED := $(VENV)/.installed-$(STATE)
TESTABLE := $(VENV)/.testable-$(STATE)
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: run test

run: $(INSTALLED)
	@exec $(BIN)/treedb serve $(ARGS)

test: $(TESTABLE)
	@.ci/packages curl=curl strace=strace chromium=chromium chromedriver=chromium-driver wrk=wrk \
		zsh=zsh fish=fish systemd-analyze=systemd haproxy=haproxy /usr/sbin/nginx=nginx caddy=caddy \
		promtool=prometheus slowhttptest=slowhttptest testssl=testssl.sh faketime=faketime
	@tests/clients/install
	@tests/board/install
	@tests/scanners/install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest --numprocesses 2 --dist loadfile

$(BIN)/python:
	@.ci/environment $(VENV)

$(INSTALLED): | $(BIN)/python
	@echo "Installing treedb and the packages it needs in $(VENV): once, in about a minute."
	@$(PIP) --quiet install --editable .
	@touch $@

$(TESTABLE): | $(BIN)/python
	@echo "Installing treedb and what its tests need in $(VENV)."
	@$(PIP) --quiet install --editable '.[test]'
	@touch $@ $(INSTALLED)
