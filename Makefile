# Everything here needs Python and make, nothing else. The environment lies in .venv.

# Which Python to use: make PYTHON=/path/to/python3.12. Without it, the first one found that fits.
PYTHON =

BIN := .venv/bin
# Written when everything is installed, so that it is done once for each state of the two files.
INSTALLED := .venv/.installed

# Debian's names of what make test-system needs.
SYSTEM_PACKAGES := faketime gcc libc6-dev postgresql-client spin

.PHONY: help run dev test test-system system-packages mutants soak check setup clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' Makefile

run: $(INSTALLED) ## from here to a finished sync of the demo's accounts
	@$(BIN)/sync-assets demo run

dev: $(INSTALLED) ## the demo under the Dagster UI, with schedule and sensor on (PORT=3001)
	@$(BIN)/sync-assets dev$(if $(PORT), --port $(PORT))

test: $(INSTALLED) ## every test that needs nothing but Python and make
	@$(BIN)/pytest -n auto --dist loadgroup

test-system: $(INSTALLED) system-packages ## the tests that need packages of the system; as root on Debian it installs them
	@$(BIN)/pytest -m system -n auto --dist loadgroup

system-packages:
	@has_all() { dpkg -s $(SYSTEM_PACKAGES) >/dev/null 2>&1; }; \
	if ! has_all && command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
	    apt-get install -qq -y --no-install-recommends $(SYSTEM_PACKAGES) >/dev/null; \
	fi; \
	has_all || { echo "the packages of the system are not all there, and cannot be installed here: $(SYSTEM_PACKAGES)" >&2; exit 1; }

mutants: $(INSTALLED) ## break the product in one line at a time, and show which test notices (some minutes)
	@$(BIN)/python -m sync_assets_tests.mutants

# A figure for each kind of fault, so that a soak in which little happened fails.
soak: $(INSTALLED) system-packages ## break everything for 15 minutes, then check what happened; writes docs/soak.txt
	@$(BIN)/python -m sync_assets_tests.soak --seconds 900 --report docs/soak.txt \
	  --min-hits 300 --min-takeovers 200 --min-fenced 200 --min-ambiguous 200 --min-jumps 20

check: $(INSTALLED) ## style, types, layers, and that Dagster loads the project
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@home=$$(mktemp -d) && trap 'rm -rf "$$home"' EXIT && touch "$$home/dagster.yaml" && \
	DAGSTER_HOME="$$home" $(BIN)/python -W ignore -m dagster definitions validate

setup: $(INSTALLED) ## install everything into .venv

clean: ## remove the environment, the demo's data and every cache
	@# run by root, the demo's Postgres lies where the user it runs as can get at it
	if [ -L .sync-assets/server ]; then rm -rf "$$(readlink .sync-assets/server)"; fi
	rm -rf .venv .sync-assets .dagster .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml requirements.txt
	@fits() { "$$1" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 14))' 2>/dev/null; }; \
	if ! fits .venv/bin/python; then \
	  for python in $(or $(PYTHON),python3 python3.13 python3.12 python3.11 python3.10); do \
	    if fits "$$python"; then break; fi; python=; \
	  done; \
	  if [ -z "$$python" ]; then \
	    echo "Python 3.10 to 3.13 is needed, and none of $(or $(PYTHON),python3, python3.13 … python3.10) is that." \
	      "Install one, or name it: make PYTHON=/path/to/python3.12" >&2; exit 1; \
	  fi; \
	  if ! "$$python" -c 'import ensurepip, venv' 2>/dev/null; then \
	    echo "$$python comes without venv or ensurepip." \
	      "On Debian and Ubuntu they are in a package of their own: apt-get install python3-venv" >&2; exit 1; \
	  fi; \
	  "$$python" -m venv --clear .venv || exit 1; \
	fi
	@echo "installing into .venv (once, a minute or two) …"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements.txt -e '.[dev]'
	@touch $@
