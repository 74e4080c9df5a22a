# Set-up messages go to standard error; standard output holds only a target's result.
.SILENT:
.DEFAULT_GOAL := help
.PHONY: help setup setup-dev demo test test-unit test-matrix bench golden documents test-fresh test-debian-kernel check screenshots geoip lock uninstall
# Targets share the machine's namespaces and installed copy, so they must not run in parallel.
.NOTPARALLEL:

help: ## show this list
	sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 28

demo: setup ## flood a victim in network namespaces, watched by fwtop (SCENARIO=… for another)
	scripts/demo.sh

setup: ## install fwtop on this machine: then `sudo fwtop`
	scripts/setup.sh

setup-dev: ## the same, with the tools for tests and checks (apt packages, .venv)
	scripts/setup.sh dev

test: setup-dev ## run all tests (needs root or sudo)
	scripts/test.sh

test-unit: setup-dev ## run the tests that need no root
	.venv/bin/python -m pytest tests/unit tests/ui

test-matrix: setup-dev ## run what `make test` leaves out, or go on with it (hours; TESTS=… for some)
	$(if $(TESTS),scripts/test.sh -m matrix $(TESTS),.venv/bin/python scripts/matrix.py)

bench: ## measure a developers' table (TABLE=list names them; WORDS=… for what it takes and its options)
	scripts/setup.sh tools
	.venv/bin/python -m benches $(or $(TABLE),list) $(WORDS)

golden: ## show how outputs differ from those kept in tests/golden (UPDATE=1 keeps the new ones)
	scripts/setup.sh tools
	FWTOP_GOLDEN=$(if $(UPDATE),update) scripts/test.sh -q tests/unit/test_golden.py \
		tests/kernel/test_golden_previews.py

documents: setup-dev ## write the documents that the program makes: the sample of screen.toml, the policy's schema, the table of keys
	.venv/bin/python -m fwtop config --sample > docs/screen.toml
	.venv/bin/python -m fwtop policy schema > docs/policy.schema.json
	.venv/bin/python -m fwtop api --schema > docs/api.schema.json
	.venv/bin/python scripts/keys_page.py docs/KEYS.md

test-fresh: ## run demo, checks and tests on a new Debian 12 in a temporary directory (TESTS=… for some)
	scripts/test-fresh.sh $(TESTS)

test-debian-kernel: setup-dev ## run kernel tests on Debian 12's kernel in a virtual machine (TESTS=… for some)
	scripts/vm.sh sh -c 'make setup && .venv/bin/python -m compileall -q fwtop tests && \
		scripts/test.sh $(or $(TESTS),tests/kernel)'

check: ## lint, format, types, import directions
	scripts/setup.sh tools
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy
	.venv/bin/lint-imports

screenshots: setup-dev ## make the README's pictures from the running program
	.venv/bin/python scripts/screenshots.py

geoip: setup-dev ## rebuild the GeoIP data (needs npm and cargo)
	.venv/bin/python geoip/build.py

lock: ## update the pinned Python packages (needs uv)
	scripts/lock.sh

uninstall: ## remove everything, including active rules
	scripts/uninstall.sh
