# The project's commands. `make run` needs Python 3.11 or newer and nothing else.
PYTHON ?= python3
UV ?= uv
VENV := .venv
# One worker more than processors: a test that waits for a disk or a process uses no processor.
WORKERS ?= $(shell echo $$(( $$(getconf _NPROCESSORS_ONLN) + 1 )))
# The slow tests mostly wait for other processes, and leave half of the processors unused.
SLOW_WORKERS ?= $(shell echo $$(( 2 * $$(getconf _NPROCESSORS_ONLN) + 1 )))
BIN := $(VENV)/bin
# Write bytecode: the tests start hundreds of processes, and each would compile every module again.
export PYTHONDONTWRITEBYTECODE :=
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check

.DEFAULT_GOAL := help
TIMES ?= 100
.PHONY: help run test test-slow soak check ruff spelling words mypy pyright types docs messages pictures bench clean pins pythons environments lowest

help:
	@echo 'make run      serves the demo tools on http://127.0.0.1:8765'
	@echo 'make test     runs the tests, except the slow ones'
	@echo 'make test-slow  runs the tests that start processes, browsers and clients in other languages'
	@echo 'make soak     kills a process a hundred times at each point, and runs every combination (hours)'
	@echo 'make check    runs ruff, codespell, mypy and pyright, and checks words and public types'
	@echo 'make pictures  writes the pictures of the pages in docs/pictures, with Chromium'
	@echo 'make docs     builds the site of docs/ in build/site'
	@echo 'make messages writes the texts of the pages into the catalogues for translators'
	@echo 'make pythons  runs the quick tests on the other installed Pythons'
	@echo 'make bench    measures the costs, next to baselines'
	@echo 'make clean    removes the environments, builds and caches'

run: $(VENV)/run.stamp
	$(BIN)/elicit serve

PYTEST = $(BIN)/python -m pytest --dist loadfile

test: $(VENV)/dev.stamp
	$(PYTEST) --numprocesses $(WORKERS) -m "not slow"

# By default xdist starts the files with the fewest tests last. Those are the longest files, and one
# worker would run the last of them alone.
test-slow: $(VENV)/dev.stamp
	$(PYTEST) --no-loadscope-reorder --numprocesses $(SLOW_WORKERS) -m slow

soak: $(VENV)/dev.stamp
	$(BIN)/python -m tests.soak --times $(TIMES) --workers $(WORKERS)

check: ruff spelling words mypy pyright types

ruff: $(VENV)/dev.stamp
	$(BIN)/ruff check
	$(BIN)/ruff format --check

spelling: $(VENV)/dev.stamp
	git ls-files | xargs $(BIN)/codespell

# The words of names, docstrings, pages and documents.
words: $(VENV)/dev.stamp
	$(BIN)/python -m pytest --quiet tests/test_words.py

mypy: $(VENV)/dev.stamp
	$(BIN)/mypy

pyright: $(VENV)/dev.stamp
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright --pythonpath $(BIN)/python

# Check that the public types are complete. This check has no --pythonpath: it uses Python from PATH.
types: $(VENV)/dev.stamp
	for each in flows webapp.client webapp.testing; do PYRIGHT_PYTHON_IGNORE_WARNINGS=1 \
		PATH="$(CURDIR)/$(BIN):$$PATH" pyright --verifytypes $$each --ignoreexternal || exit 1; done

# The tests that need neither a browser nor a client of another language: three minutes.
FAST := tests/flows tests/webapp/stores tests/webapp/calls tests/webapp/elicitations tests/webapp/records tests/test_*.py
OTHERS = $(filter-out $(shell $(PYTHON) -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])')=%,$(shell .ci/pythons))
PYTHONS ?= $(OTHERS)

# Run these tests on every other installed Python. PYTHONS lists them as VERSION=PROGRAM.
pythons: environments
	@set -e; for each in $(PYTHONS); do \
		echo "Python $${each%%=*}"; \
		$(VENV)-$${each%%=*}/bin/python -m pytest --numprocesses $(WORKERS) --dist loadfile $(FAST); \
	done

# An installation keeps one processor busy, so create the environments in parallel.
STAMPS = $(foreach each,$(PYTHONS),$(VENV)-$(firstword $(subst =, ,$(each)))/dev.stamp)
environments:
	@$(if $(STAMPS),$(MAKE) --jobs $(WORKERS) PYTHONS='$(PYTHONS)' $(STAMPS))

$(VENV)-%/dev.stamp: constraints-dev.txt pyproject.toml
	$(patsubst $*=%,%,$(filter $*=%,$(PYTHONS))) -m venv --clear $(VENV)-$*
	$(VENV)-$*/bin/python -m pip --quiet --disable-pip-version-check install --no-deps --require-hashes -r constraints-dev.txt
	$(VENV)-$*/bin/python -m pip --quiet --disable-pip-version-check install --no-deps --no-build-isolation -e .
	@touch $@

# Build the site. `python -m docs.generated` writes the pages that are derived from the code.
docs: $(VENV)-docs/docs.stamp
	$(VENV)-docs/bin/python -m sphinx --fresh-env --fail-on-warning --keep-going --quiet docs build/site
	@echo 'build/site/index.html'

# Update webapp/catalogues: add new texts, and remove texts that no page has any more.
messages: $(VENV)/dev.stamp
	$(BIN)/python -m tests.messages

# README and docs show these pictures. A test fails if a page has changed and its picture has not.
pictures: $(VENV)/dev.stamp
	$(BIN)/python -m tests.page_pictures

bench: $(VENV)/dev.stamp
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) $(VENV)-* build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/made.stamp:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; name one with: make PYTHON=...")'
	$(PYTHON) -m venv --clear $(VENV)
	@touch $@

# Install the project in editable mode, so that changes of its code need no second installation. The
# pins contain all dependencies: without --no-deps, an older pip would choose other versions.
$(VENV)/run.stamp: $(VENV)/made.stamp constraints.txt pyproject.toml
	$(PIP) install --no-deps --require-hashes -r constraints.txt
	$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

# constraints-dev.txt contains all pins of constraints.txt, so this environment can also run the server.
$(VENV)/dev.stamp: $(VENV)/made.stamp constraints.txt constraints-dev.txt pyproject.toml
	$(PIP) install --no-deps --require-hashes -r constraints-dev.txt
	$(PIP) install --no-deps --no-build-isolation -e .
	@touch $(VENV)/run.stamp $@

# A separate environment: you can change the code without installing the site generator.
$(VENV)-docs/docs.stamp: constraints-docs.txt pyproject.toml
	$(PYTHON) -m venv --clear $(VENV)-docs
	$(VENV)-docs/bin/python -m pip --quiet --disable-pip-version-check install --no-deps --require-hashes -r constraints-docs.txt
	$(VENV)-docs/bin/python -m pip --quiet --disable-pip-version-check install --no-deps --no-build-isolation -e .
	@touch $@

# For maintainers, with uv on PATH: pin the newest compatible versions, without "Linux or macOS" markers.
COMPILE = $(UV) pip compile --quiet --universal --upgrade --generate-hashes --no-header --no-annotate \
	--python-version 3.11 --group build pyproject.toml
SHORTEN = sed -E "s/ ; sys_platform == 'darwin' or sys_platform == 'linux'//; \
	s/ and \(sys_platform == 'darwin' or sys_platform == 'linux'\)//"

# Run the tests with the oldest versions that pyproject.toml allows. This needs uv too.
lowest:
	$(PYTHON) -m venv --clear $(VENV)-lowest
	$(UV) pip compile --quiet --resolution lowest-direct --python-version 3.11 --no-header --no-annotate \
		--group build --extra fastmcp pyproject.toml > $(VENV)-lowest/pins.txt
	$(UV) pip install --quiet --python $(VENV)-lowest/bin/python -r $(VENV)-lowest/pins.txt
	$(UV) pip compile --quiet --python-version 3.11 --constraint $(VENV)-lowest/pins.txt --no-header --no-annotate \
		--extra dev pyproject.toml > $(VENV)-lowest/dev.txt
	$(UV) pip install --quiet --python $(VENV)-lowest/bin/python -r $(VENV)-lowest/dev.txt
	$(UV) pip install --quiet --python $(VENV)-lowest/bin/python --no-deps --no-build-isolation -e .
	$(VENV)-lowest/bin/python -m pytest --numprocesses $(WORKERS) --dist loadfile $(FAST)

pins:
	$(COMPILE) --extra dev | $(SHORTEN) > constraints-dev.txt
	$(COMPILE) --constraints constraints-dev.txt | $(SHORTEN) > constraints.txt
	$(COMPILE) --extra docs --constraints constraints-dev.txt | $(SHORTEN) > constraints-docs.txt
