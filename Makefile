# Every target sets up what it needs: a virtual environment in .venv, made anew when pyproject.toml or constraints.txt change.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
EXTRAS := dev,docs,minari,datasets,hdf5,box2d,tensorboard
# One thread per process: parallel one-thread processes beat one many-thread process.
ONE_THREAD := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1

.PHONY: help demo test test-slow test-lowest check audit fuzz kills lock locked format bench docs docs-site notebooks clean
help: ## show this list
	@grep -hE '^[a-z-]+:.*##' Makefile | sed 's/:.*## /\t/' | expand -t 14

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: oal needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V). Say  make PYTHON=python3.12 ..."; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing oal into $(VENV) (once; some minutes on a slow line) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing oal and its test tools into $(VENV) (once) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@ $(VENV)/.core

demo: $(VENV)/.core ## learn from shipped demonstrations, with a progress bar and a picture at the end
	@$(BIN)/oal demo

test: $(VENV)/.dev ## the fast tests
	$(ONE_THREAD) $(BIN)/python -m pytest -n 2 -m 'not slow'

# the tests of sweeps on a cluster need Ray, which nothing else does
$(VENV)/.slow: $(VENV)/.dev
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS),ray]'
	@touch $@

test-slow: $(VENV)/.slow ## the learning tests, kills, clusters: an hour
	$(ONE_THREAD) $(BIN)/python -m pytest -n 2 -m slow

check: $(VENV)/.dev ## lint, format, types, the lock and known vulnerabilities
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/python tools/lock.py --check
	$(BIN)/python tools/audit.py

audit: | $(BIN)/python ## known vulnerabilities of what is pinned; says so where the database cannot be reached
	$(BIN)/python tools/audit.py

fuzz: $(VENV)/.dev ## ten thousand mutated files for every reader: an hour; FUZZ="--count 500 'run folder'" for less
	$(ONE_THREAD) $(BIN)/python tests/fuzz_readers.py $(FUZZ)

kills: $(VENV)/.dev ## fifty random kills, as a table in docs/results/kills.csv
	$(ONE_THREAD) PYTHONPATH=tests $(BIN)/python tests/kills.py

lock: | $(BIN)/python ## write requirements.lock again, from constraints.txt and the package index
	$(BIN)/python tools/lock.py

# what CI installs: exactly the files whose hashes are in the lock; then oal itself, which needs nothing more
locked: | $(BIN)/python ## install what requirements.lock says, hashes checked
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $(VENV)/.core $(VENV)/.dev $(VENV)/.slow

format: $(VENV)/.dev ## put the code in shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.dev ## measure, as ratios in one run (BENCH=--quick for a short one)
	$(BIN)/python benchmarks/run.py $(BENCH)

docs: $(VENV)/.dev ## write the generated parts of docs/ again
	$(BIN)/python docs/equations_page.py
	$(BIN)/python tools/import_graph.py
	$(BIN)/python docs/build.py

docs-site: $(VENV)/.dev ## build the documentation site into build/site; a dead link or a missing docstring fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "open build/site/index.html"

notebooks: $(VENV)/.dev ## run the notebooks of examples/ and keep their outputs: some minutes
	$(ONE_THREAD) $(BIN)/python tools/notebooks.py

test-lowest: | $(BIN)/python ## the fast tests with the oldest versions that pyproject.toml allows
	$(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-lowest.txt -e '.[dev,minari,datasets,hdf5,tensorboard]'
	$(ONE_THREAD) .venv-lowest/bin/python -m pytest -n 2 -m 'not slow'

clean: ## remove the environment and caches
	rm -rf $(VENV) .pytest_cache .ruff_cache
