# make run      serves in development mode; ARGS="..." are more flags of `treedb serve`
# make test     runs the whole gate
# make develop  makes .venv with all that the tests need, and runs no tests
# make lock     makes the lock files again after a change of pyproject.toml; ARGS="--upgrade" renews
#               all versions (docs/dependencies.md)
# make audit    lists the locked packages that have a known vulnerability
# They make what they need in .venv first, and next time only what is missing.

VENV := .venv
BIN := $(VENV)/bin
LOCKS := .ci/locks/treedb.txt .ci/locks/tests.txt
STATE := $(firstword $(shell cat pyproject.toml treedbd/__init__.py $(LOCKS) | cksum))
INSTALLED := $(VENV)/.installed-$(STATE)
TESTABLE := $(VENV)/.testable-$(STATE)
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: run test develop lock audit

run: $(INSTALLED)
	@exec $(BIN)/treedb serve $(ARGS)

test: $(TESTABLE)
	@.ci/packages curl=curl strace=strace chromium=chromium chromedriver=chromium-driver wrk=wrk \
		zsh=zsh fish=fish systemd-analyze=systemd haproxy=haproxy /usr/sbin/nginx=nginx caddy=caddy \
		promtool=prometheus slowhttptest=slowhttptest testssl=testssl.sh faketime=faketime
	@tests/clients/install
	@tests/console/install
	@tests/board/install
	@tests/scanners/install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python .ci/audit treedb tests
	$(BIN)/pytest --numprocesses 4 --dist loadfile --no-loadscope-reorder

develop: $(TESTABLE)

lock:
	@.ci/lock $(ARGS)

audit: $(TESTABLE)
	@$(BIN)/python .ci/audit treedb tests

$(BIN)/python:
	@.ci/environment $(VENV)

# The project itself is installed without an environment for its build, whose packages would not be
# those of the lock files: these have what a build needs.
$(INSTALLED): | $(BIN)/python
	@echo "Installing treedb and the packages it needs in $(VENV): once, in about a minute."
	@.ci/install $(VENV) treedb
	@$(PIP) --quiet install --no-deps --no-build-isolation --editable .
	@touch $@

$(TESTABLE): | $(BIN)/python
	@echo "Installing treedb and what its tests need in $(VENV)."
	@.ci/install $(VENV) treedb tests
	@$(PIP) --quiet install --no-deps --no-build-isolation --editable .
	@touch $@ $(INSTALLED)
