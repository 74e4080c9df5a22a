# Messages of set-up go to standard error: what a target prints on standard output is its result.
.SILENT:
.DEFAULT_GOAL := help
.PHONY: help setup setup-dev demo test test-unit test-debian-kernel check screenshots geoip lock uninstall
# Targets share one machine (namespaces, the installed copy): never two at once.
.NOTPARALLEL:

help: ## this list
	sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 28

demo: setup ## a flood in namespaces of its own, watched by fwtop (SCENARIO=… for another)
	scripts/demo.sh

setup: ## install fwtop on this machine: then `sudo fwtop`
	scripts/setup.sh

setup-dev: ## the same, and what tests and checks need, into .venv
	scripts/setup.sh dev

test: setup-dev ## every test (needs root or sudo)
	scripts/test.sh

test-unit: setup-dev ## the tests that need no root
	.venv/bin/python -m pytest tests/unit tests/ui

test-debian-kernel: setup-dev ## kernel tests on Debian 12's own kernel, in a virtual machine (TESTS=… for some)
	scripts/vm.sh sh -c 'make setup && .venv/bin/python -m compileall -q fwtop tests && \
		scripts/test.sh $(or $(TESTS),tests/kernel)'

check: ## lint, format, types, import directions
	scripts/setup.sh tools
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy
	.venv/bin/lint-imports

screenshots: setup-dev ## the pictures of the README, from the running program
	.venv/bin/python scripts/screenshots.py

geoip: setup-dev ## build the GeoIP data anew (needs npm)
	.venv/bin/python geoip/build.py

lock: ## resolve the pinned Python packages anew (needs uv)
	scripts/lock.sh

uninstall: ## take everything away again, rules included
	scripts/uninstall.sh
