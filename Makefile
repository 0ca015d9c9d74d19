# make demo | test | test-all | docs | check | bench | fuzz: each sets up what it needs; a second call starts at once.
# Needs Python 3.11 - 3.13 (override with PYTHON=...) and nothing else.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
  $$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Flower's own pins clash with ours: its tests have an environment of their own.
FLOWER := .venv-flower
FLOWER_READY := $(FLOWER)/.ready
FLOWER_TESTS := tests/engines/flower tests/cli/flower

# Two test processes on two cores: more BLAS threads would only wait for each other.
test test-all bench fuzz: export OMP_NUM_THREADS := 1
test test-all bench fuzz: export OPENBLAS_NUM_THREADS := 1

.PHONY: demo test test-all docs check bench fuzz format clean
.DELETE_ON_ERROR:

demo: $(READY)
	$(BIN)/odcl demo --force

test:
	@$(MAKE) --no-print-directory -j 2 $(READY) $(FLOWER_READY)
	$(BIN)/python -m pytest -n 2 -m "not slow"
	$(FLOWER)/bin/python -m pytest -n 2 --dist loadfile -m "not slow" $(FLOWER_TESTS)

# Adds real deployments (one at a time: each has ten processes), browsers, long pages and simulations.
test-all: test
	$(BIN)/python -m pytest -n 2 -m slow
	$(FLOWER)/bin/python -m pytest -m slow $(FLOWER_TESTS)

# Warnings are errors: broken links, names without a place, whatever is loaded from elsewhere.
docs: $(READY)
	$(BIN)/python -m sphinx -W --keep-going -q -b html -d build/doctrees docs build/docs
	@echo "Open build/docs/index.html"

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/python -m bench

fuzz: $(READY)
	$(BIN)/python -m tests.engines.files.fuzz 20000

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(READY): pyproject.toml constraints.txt
	$(call set_up,$(VENV),constraints.txt,dev)

$(FLOWER_READY): pyproject.toml constraints-flower.txt
	$(call set_up,$(FLOWER),constraints-flower.txt,dev-flower)

# A virtual environment (1) with what these constraints (2) and this extra (3) say. Modules are compiled
# when they are first imported: compiling all of them takes as long as installing them.
define set_up
	@test -n "$(PYTHON)" || { echo "No Python 3.11 - 3.13 found: install one, or say make PYTHON=/path/to/python" >&2; exit 2; }
	@$(PYTHON) -m venv --clear $(1) || { echo "Could not make a virtual environment with $(PYTHON): on Debian and Ubuntu, apt install python3-venv" >&2; exit 2; }
	@echo "Setting up $(1) (once; about a minute) ..."
	@$(1)/bin/python -m pip install --no-compile --quiet --quiet --disable-pip-version-check -c $(2) -e '.[$(3)]'
	@touch $(1)/.ready
endef

clean:
	rm -rf $(VENV) $(FLOWER) demo build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
