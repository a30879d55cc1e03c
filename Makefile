# One line a target; the work is in setup/. `make` alone lists them.

# The system's Python where it is new enough: an environment made from one in somebody's home is of no use
# to another user.
PYTHON := $(shell for p in /usr/bin/python3 python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
# Setup must leave no trace where nothing was missing.
SETUP := $(or $(PYTHON),python3) -B setup
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help setup venv update-requirements demo test man reference toolkits vendor torture docs lint format bench mutants clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' Makefile | while IFS='|' read -r name text; do \
		printf '  make %-20s %s\n' "$$name" "$$text"; done

setup: ## everything a machine needs; says first what it needs root for
	@$(SETUP)/system.py --tests
	@$(SETUP)/apptainer.py
	@$(SETUP)/modules.py
	@$(SETUP)/environment.py

venv: ## envbuild's own virtual environment alone; never needs root
	@$(SETUP)/environment.py

update-requirements: ## renew requirements.lock from pyproject.toml
	@$(SETUP)/environment.py --update

demo: setup ## build an image, test it across ranks, load it as a module
	@setup/demo.sh

test: setup ## run all tests; ARGS="-k name" for some
	@$(BIN)/python -m pytest $(ARGS)

man: setup ## write the man pages, docs/man/*.1, from what --help says
	@$(BIN)/python setup/manpages.py

reference: setup ## write the reference pages of spec, recipe, controls, base image, site and lock
	@$(BIN)/python setup/reference.py

toolkits: setup ## build and test every toolkit, and write docs/toolkits.md (an hour); ARGS="--only horovod"
	@$(BIN)/python benchmarks/toolkits.py $(ARGS)

vendor: setup ## images on every MPI, their own and a host's, and write docs/vendor.md (an hour); ARGS="--only mpich"
	@$(BIN)/python benchmarks/vendor.py $(ARGS)

torture: setup ## try to break it, and write docs/torture.md (hours); needs root; ARGS="--only crowd"
	@$(BIN)/python benchmarks/torture.py $(ARGS)

docs: setup ## the documentation as a site, below build/docs
	@$(BIN)/python -m sphinx -W --keep-going -q -E -b html docs build/docs
	@echo "docs: build/docs/index.html"

lint: setup ## what the code must satisfy besides its tests
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: setup ## let ruff arrange the code
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: setup ## measure envbuild against its peers, and write docs/bench.md (hours); ARGS="--only more"
	@$(BIN)/python benchmarks/bench.py $(ARGS)

mutants: venv ## change one place of envbuild/ at a time and see which unit tests notice; ARGS="--seed 7 --count 20"
	@$(BIN)/python benchmarks/mutants.py $(ARGS)

clean: ## remove what make and the tools have written here
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find envbuild setup benchmarks tests -name __pycache__ -type d -prune -exec rm -rf {} +
