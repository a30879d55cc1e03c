# One line a target; the work is in setup/. `make` alone lists them.

# The system's Python where it is new enough: an environment made from one in somebody's home is of no use
# to another user.
PYTHON := $(shell for p in /usr/bin/python3 python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
# Setup must leave no trace where nothing was missing.
SETUP := $(or $(PYTHON),python3) -B setup
BIN := .venv/bin
UNIT := tests/unit tests/setup tests/recipes tests/test_architecture.py tests/test_mutants.py

.DEFAULT_GOAL := help
.PHONY: help setup venv update-requirements demo unit test test-all man recordings reference knowledge toolkits vendor cluster arm64 sites training pages measure travel travel-peers reframe torture redteam docs lint format bench mutants release clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' Makefile | while IFS='|' read -r name text; do \
		printf '  make %-20s %s\n' "$$name" "$$text"; done

setup: ## install everything for work on envbuild; lists first what needs root
	@$(SETUP)/system.py --tests
	@$(SETUP)/apptainer.py
	@$(SETUP)/modules.py
	@$(SETUP)/environment.py --dev

venv: ## make .venv with envbuild and its development tools; never needs root
	@$(SETUP)/environment.py --dev

update-requirements: ## renew requirements/run.txt and dev.txt from pyproject.toml
	@$(SETUP)/environment.py --update

demo: ## install what envbuild needs to run; build an image, test it across ranks, load it as a module
	@$(SETUP)/system.py
	@$(SETUP)/apptainer.py
	@$(SETUP)/environment.py
	@setup/demo.sh

unit: venv ## run the quick tests, which need nothing but the virtual environment; ARGS="-k name" for some
	@$(BIN)/python -m pytest $(UNIT) -n auto $(ARGS)

test: setup ## run all tests but the slow ones; ARGS="-k name" for some
	@$(BIN)/python tests/run.py -m "not slow" $(ARGS)

test-all: setup ## run all tests; then build every toolkit, swap MPIs, and try to break it (hours)
	@$(SETUP)/qemu.py
	@$(SETUP)/chromium.py
	@$(BIN)/python tests/run.py --hypothesis-profile=thorough $(ARGS)
	@$(BIN)/python tests/run.py --uv oldest --programs real tests/unit/resolve tests/integration/resolve
	@$(BIN)/python tests/run.py --uv newest --programs real tests/unit/resolve tests/integration/resolve
	@$(BIN)/python -m benchmarks.bench --small
	@$(BIN)/python -m benchmarks.toolkits
	@$(BIN)/python -m benchmarks.vendor
	@$(BIN)/python -m benchmarks.torture

man: venv ## write the man pages, docs/man/*.1, from what --help says
	@$(BIN)/python setup/manpages.py

recordings: venv ## record plan, build and test on a terminal as docs/recordings/*.svg (ten minutes)
	@$(BIN)/python setup/recordings.py

reference: venv ## write schemas and reference pages of spec, recipe, job, base image, site and lock
	@$(BIN)/python setup/reference.py

knowledge: venv ## compare rows of knowledge with their sources; exit code 1 for a difference; ARGS="--update"
	@PYTHONPATH=setup $(BIN)/python -B -m knowledge $(ARGS)

toolkits: venv ## build, test and break every toolkit (two hours); ARGS="--only horovod"
	@$(SETUP)/system.py --check
	@$(BIN)/python -m benchmarks.toolkits $(ARGS)

vendor: venv ## test images on every MPI, their own and a host's (an hour); ARGS="--only mpich"
	@$(SETUP)/system.py --check
	@$(BIN)/python -m benchmarks.vendor $(ARGS)

cluster: setup ## test and vet nodes on a private cluster of Slurm, with faults that must be found; ARGS="--only vet"
	@$(BIN)/python setup/cluster.py $(ARGS)

arm64: setup ## build images for arm64 on this machine, and try them through QEMU (half an hour)
	@$(SETUP)/qemu.py
	@$(BIN)/python tests/run.py tests/integration/arm64 -n 1 $(ARGS)

sites: setup ## try each machine with a site file on this one, and write a table (half an hour); ARGS="--only lumi/g --whole"
	@$(SETUP)/qemu.py
	@$(BIN)/python setup/sites.py $(ARGS)

training: setup ## type the solutions of docs/training, and compare what they print (five minutes)
	@$(BIN)/python tests/run.py tests/integration/docs/test_pages.py -n 1 -k training $(ARGS)

pages: setup ## open the pages that envbuild writes in Chromium (five minutes; first it is written below build/)
	@$(SETUP)/chromium.py
	@$(BIN)/python tests/run.py tests/integration/pages -n 1 $(ARGS)

measure: setup ## scaling, recorded ranks and their cost on a private cluster of Slurm (half an hour); ARGS="--only killed"
	@$(BIN)/python setup/measure.py $(ARGS)

travel: venv ## send images through registries, and compare them bit for bit (five minutes)
	@$(SETUP)/system.py --check
	@$(BIN)/python -m benchmarks.travel $(ARGS)

travel-peers: venv ## have tools of others take what envbuild pushed and signed (two minutes; first ten more)
	@$(SETUP)/system.py --check
	@$(BIN)/python -m benchmarks.travel_peers

reframe: venv ## have ReFrame run checks that are exported for it (minutes; first it is installed below build/)
	@$(SETUP)/system.py --check
	@$(BIN)/python -m benchmarks.reframe $(ARGS)

torture: venv ## build under hostile conditions (15 minutes); ARGS="--only crowd"
	@$(SETUP)/system.py --check
	@$(BIN)/python -m benchmarks.torture $(ARGS)

redteam: venv ## attack envbuild as another user and with a stranger's input (minutes); ARGS="-k upstream"
	@$(SETUP)/system.py --check
	@$(BIN)/python tests/run.py -q -m redteam $(ARGS)

docs: venv ## the documentation as a site, below build/docs
	@$(BIN)/python -m sphinx -W --keep-going -q -E -b html docs build/docs
	@echo "docs: build/docs/index.html"

lint: venv ## what the code must satisfy besides its tests
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: venv ## let ruff arrange the code
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: venv ## compare envbuild with other tools (an hour); ARGS="--only more"
	@$(SETUP)/system.py --check
	@$(BIN)/python -m benchmarks.bench $(ARGS)

mutants: venv ## change one place of envbuild/ at a time and see which unit tests notice; ARGS="--seed 7 --count 20"
	@$(BIN)/python -m benchmarks.mutants $(ARGS)

release: venv ## write wheel, sdist, bundle, bill of materials and provenance of the commit; ARGS="--key release.pem"
	@$(BIN)/python setup/release.py $(ARGS)

clean: ## remove what make and the tools have written here
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find envbuild setup benchmarks tests -name __pycache__ -type d -prune -exec rm -rf {} +
