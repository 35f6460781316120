# Everything a developer runs. Each target that needs the environment makes it first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-done
SPARK43 := .venv-spark43
LOCK := requirements.lock
COMPILED := src/firnmq/record/codec src/firnmq/disk/gathered

# Variables for single targets:
#   make test ARGS="-k codec"       arguments for pytest
#   make test WORKERS=4             test files at a time; many of them mostly wait
#   make bench ONLY="name name"     only these benchmarks
#   make soak COUNT=1000 SEED=7     how many runs, and from which seed
#   make lock LOCK_ARGS=--upgrade   take the newest versions instead of keeping the locked ones
ARGS ?=
ONLY ?=
COUNT ?=
SEED ?=
LOCK_ARGS ?=
WORKERS ?= 3

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup run demo scale check format test test-hdfs test-spark43 test-iceberg \
	test-cluster test-streaming bench soak lock clean

help:
	@echo "make setup   create $(VENV) from $(LOCK) and compile what is compiled in place"
	@echo "make run     show a store at work in a scratch directory, then run a node"
	@echo "make demo    a clickstream through topics, Spark and the lake, shown as it happens"
	@echo "make scale   the same on a Spark cluster of three processes"
	@echo "make check   ruff, mypy, import-linter"
	@echo "make format  let ruff format and fix what it can"
	@echo "make test    check, then all tests"
	@echo "make test-spark43  the tests of the lake on PySpark 4.3.0, in $(SPARK43)"
	@echo "make test-hdfs  the tests of HDFS, with Hadoop from Maven (needs java and mvn)"
	@echo "make test-iceberg  tables with Iceberg's own runtime and REST catalog (needs java, mvn)"
	@echo "make test-cluster  the tests that start a Spark cluster"
	@echo "make test-streaming  long runs of Spark streams, of the example and of commands"
	@echo "make bench   all benchmarks into benchmarks/results.json"
	@echo "make soak    random workloads with crashes, for as long as you like"
	@echo "make lock    resolve pyproject.toml into $(LOCK)"
	@echo "make clean   remove what was built, except $(VENV) itself"

setup: $(STAMP)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "FirnMQ needs Python 3.11 or newer as '$(PYTHON)';" \
			"name another one with: make PYTHON=/path/to/python3.11 setup" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# Old extensions go first: where a module no longer compiles, the .py must be used.
$(STAMP): $(LOCK) pyproject.toml setup.py $(wildcard $(addsuffix .p*,$(COMPILED))) | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $(LOCK)
	rm -rf $(addsuffix .*.so,$(COMPILED)) build
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--no-build-isolation --no-deps -e .
	$(BIN)/python -m compileall -q src  # As an installed package is.
	@ls $(addsuffix .*.so,$(COMPILED)) >/dev/null 2>&1 \
		|| echo "note: not everything could be compiled;" \
			"it runs interpreted, correct but slow (a C compiler makes it fast)" >&2
	@touch $@

run: setup
	$(BIN)/firn demo
	$(BIN)/firn serve $(ARGS)

demo: setup
	$(BIN)/python -m examples.clickstream $(ARGS)

scale: setup
	$(BIN)/python -m scale $(ARGS)

check: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: setup
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

test: setup check
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(ARGS)

# Another Spark than the locked one, in an environment of its own; everything else is as locked.
test-spark43: setup
	test -x $(SPARK43)/bin/python || $(PYTHON) -m venv $(SPARK43)
	$(SPARK43)/bin/python -m pip install --quiet --disable-pip-version-check \
		--require-hashes -r $(LOCK)
	$(SPARK43)/bin/python -m pip install --quiet --disable-pip-version-check \
		--no-build-isolation --no-deps pyspark==4.3.0 -e .
	$(SPARK43)/bin/python -m pytest tests/unit/lake tests/integration/lake $(ARGS)

test-hdfs: setup
	$(BIN)/python -m pytest -m hdfs tests/integration/tiering $(ARGS)

test-iceberg: setup
	$(BIN)/python -m pytest -m iceberg tests/integration/lake $(ARGS)

test-streaming: setup
	$(BIN)/python -m pytest -m streaming tests/integration/lake $(ARGS)

test-cluster: setup
	$(BIN)/python -m pytest -m cluster tests/integration/lake $(ARGS)

bench: setup
	$(BIN)/python -m benchmarks $(ONLY)

soak: setup
	$(BIN)/python -m tests.soak $(if $(COUNT),--count $(COUNT)) $(if $(SEED),--seed $(SEED))

lock: | $(BIN)/python
	@test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
		--no-emit-index-url --no-emit-find-links --no-annotate --no-header \
		$(LOCK_ARGS) --extra dev --output-file $(LOCK) pyproject.toml >/dev/null

clean:
	rm -rf build dist var $(addsuffix .*.so,$(COMPILED)) $(STAMP) \
		.mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
