# Everything a developer runs. Each target that needs the environment makes it first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SPARK43 := .venv-spark43
LOCK := requirements.lock
COMPILED := src/firnmq/record/codec/compiled src/firnmq/disk/gathered
COMPILED_SOURCES := $(wildcard src/firnmq/record/codec/*.py src/firnmq/record/codec/*.pyx \
	src/firnmq/disk/gathered.p* src/firnmq/cli/launcher.c)

# One environment, filled in three steps. The smaller locks are parts of the large one:
#   requirements-run.lock   what `firn serve` and the object stores need
#   requirements-lake.lock  and what Spark, Iceberg and `firn lake` need
#   requirements.lock       and what the tests, the checks and the examples need
RUN_LOCK := requirements-run.lock
LAKE_LOCK := requirements-lake.lock
RUN_STAMP := $(VENV)/.run-done
LAKE_STAMP := $(VENV)/.lake-done
STAMP := $(VENV)/.setup-done

# Variables for single targets:
#   make test ARGS="-k codec"       arguments for pytest
#   make run ARGS="--port 9093"     arguments for firn serve
#   make test WORKERS=4             test files at a time; many of them mostly wait
#   make bench ONLY="name name"     only these benchmarks
#   make bench-compare REV=HEAD~1   the revision to compare with; ONLY as above
#   make soak COUNT=1000 SEED=7     how many runs, and from which seed
#   make lock LOCK_ARGS=--upgrade   take the newest versions instead of keeping the locked ones
ARGS ?=
ONLY ?=
REV ?= HEAD
COUNT ?=
SEED ?=
LOCK_ARGS ?=
WORKERS ?= 3

PIP := $(BIN)/python -m pip --disable-pip-version-check install
# Says every ten seconds how long a command has taken.
SHOWN := $(PYTHON) tools/shown.py
# pip writes a line for each package as it comes, but none while it installs them.
FETCH := $(SHOWN) $(PIP) --require-hashes --no-deps --progress-bar on -r
# After Ctrl-C nothing needs to be explained.
FETCH_FAILED := { [ $$? -eq 130 ] || echo "error: pip could not install the packages, see above;" \
	"without access to pypi.org, PIP_INDEX_URL or PIP_PROXY names a way to them" >&2; exit 1; }

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help install lake setup run demo scale check format test test-chaos test-hdfs test-spark43 \
	test-iceberg test-cluster test-streaming test-real-job bench bench-compare etcd proto soak \
	docs lock clean

help:
	@echo "make run     install what a node needs, show a store at work, then run a node"
	@echo "make test    install everything, then style, types, layers and all tests"
	@echo
	@echo "make install what a node needs, into $(VENV); ./firn runs it"
	@echo "make lake    what 'firn lake' needs as well: Spark, Iceberg and a Java (1 GB)"
	@echo "make setup   what tests and checks need as well"
	@echo "make demo    a clickstream through topics, Spark and the lake, shown as it happens"
	@echo "make scale   the same on a Spark cluster of three processes"
	@echo "make check   ruff, mypy, import-linter"
	@echo "make format  let ruff format and fix what it can"
	@echo "make docs    write the generated parts of docs/ again"
	@echo "make test-spark43  the tests of the lake on PySpark 4.3.0, in $(SPARK43)"
	@echo "make test-hdfs  the tests of HDFS, with Hadoop from Maven (needs java and mvn)"
	@echo "make test-iceberg  tables with Iceberg's own runtime and REST catalog (needs java, mvn)"
	@echo "make test-cluster  the tests that start a Spark cluster"
	@echo "make test-streaming  long runs of Spark streams, of the example and of commands"
	@echo "make bench   all benchmarks into benchmarks/results.json"
	@echo "make bench-compare REV=...  benchmarks of this checkout against another revision"
	@echo "make etcd    build etcd into var/etcd, for the meta store of a cluster"
	@echo "make proto   generate the stubs of etcd's API and of the meta service"
	@echo "make soak    random workloads with crashes, for as long as you like"
	@echo "make lock    resolve pyproject.toml into the three lock files"
	@echo "make clean   remove what was built, except $(VENV) itself"

install: $(RUN_STAMP)

lake: $(LAKE_STAMP)

setup: $(STAMP)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "FirnMQ needs Python 3.11 or newer as '$(PYTHON)';" \
			"name another one with: make PYTHON=/path/to/python3.11 run" >&2; exit 1; }
	@echo "--- creating $(VENV)"
	@$(SHOWN) $(PYTHON) -m venv $(VENV)

# Old extensions go first: where a module no longer compiles, the .py must be used.
$(RUN_STAMP): $(RUN_LOCK) pyproject.toml setup.py $(COMPILED_SOURCES) | $(BIN)/python
	@echo "--- installing what a node needs ($$(grep -c == $(RUN_LOCK)) packages, 280 MB)"
	@$(FETCH) $(RUN_LOCK) || $(FETCH_FAILED)
	@echo "--- compiling FirnMQ (20 seconds on an idle machine, minutes on a busy one)"
	@rm -rf $(addsuffix .*.so,$(COMPILED)) build
	@$(SHOWN) $(PIP) --quiet --no-build-isolation --no-deps -e .
	@$(SHOWN) $(BIN)/python -m compileall -q src  # As an installed package is.
	@ls $(addsuffix .*.so,$(COMPILED)) >/dev/null 2>&1 \
		|| echo "note: not everything could be compiled;" \
			"it runs interpreted, correct but slow (a C compiler makes it fast)" >&2
	@touch $@

$(LAKE_STAMP): $(LAKE_LOCK) $(RUN_STAMP)
	@echo "--- installing Spark, Iceberg and a Java (1 GB)"
	@$(FETCH) $(LAKE_LOCK) || $(FETCH_FAILED)
	@touch $@

$(STAMP): $(LOCK) $(RUN_STAMP)
	@echo "--- installing what tests need ($$(grep -c == $(LOCK)) packages, 1.7 GB)"
	@$(FETCH) $(LOCK) || $(FETCH_FAILED)
	@touch $(LAKE_STAMP) $@

run: install
	@$(BIN)/firn serve $(ARGS) --check
	@$(BIN)/firn demo
	@$(PYTHON) tools/foreground.py $(BIN)/firn serve $(ARGS)

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
	-@$(MAKE) --no-print-directory etcd
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(ARGS)

# Another Spark than the locked one, in an environment of its own; everything else is as locked.
test-spark43: setup
	test -x $(SPARK43)/bin/python || $(PYTHON) -m venv $(SPARK43)
	$(SPARK43)/bin/python -m pip install --disable-pip-version-check \
		--require-hashes -r $(LOCK)
	$(SPARK43)/bin/python -m pip install --quiet --disable-pip-version-check \
		--no-build-isolation --no-deps pyspark==4.3.0 -e .
	$(SPARK43)/bin/python -m pytest tests/unit/lake tests/integration/lake $(ARGS)

# Nodes with replicas under load are killed, paused and restarted for ten minutes. It prints its
# seed; SEED= repeats the order of faults, SECONDS= takes another time.
test-chaos: setup
	$(BIN)/python -m tests.integration.replication.storm \
		--seconds $(if $(SECONDS),$(SECONDS),600) $(if $(SEED),--seed $(SEED))

test-hdfs: setup
	$(BIN)/python -m pytest -m hdfs tests/integration/tiering $(ARGS)

test-iceberg: setup
	$(BIN)/python -m pytest -m iceberg tests/integration/lake $(ARGS)

test-streaming: setup
	$(BIN)/python -m pytest -m streaming tests/integration/lake $(ARGS)

# A month of a million events: Kafka client, object store, reads through the node, lake.
test-real-job: setup
	REAL_JOB_EVENTS=1000000 $(BIN)/python -m pytest tests/integration/lake/test_real_job.py $(ARGS)

test-cluster: setup
	$(BIN)/python -m pytest -m cluster tests/integration/lake $(ARGS)

bench: setup
	$(BIN)/python -m benchmarks $(ONLY)

# This checkout against another one, in alternating runs: make bench-compare REV=HEAD~1
bench-compare: setup
	$(BIN)/python -m benchmarks.compare $(REV) $(ONLY)

docs: setup
	@$(BIN)/python -m docs.generate

# etcd, for the meta store of a cluster: built once, kept in var/. Its tests are skipped without it.
etcd: var/etcd/etcd

var/etcd/etcd: tools/etcd/main.go tools/etcd/go.mod tools/etcd/go.sum
	$(PYTHON) tools/etcd/build.py

# The stubs of etcd's API and of the meta service, from the .proto beside them. The compiler is
# older than the library on purpose: what it makes works with the library's major version and the
# next one.
proto: | $(BIN)/python
	test -x var/protoc/bin/python || $(PYTHON) -m venv var/protoc
	var/protoc/bin/python -m pip install --quiet --disable-pip-version-check \
		grpcio-tools==1.75.1 setuptools
	cd src && ../var/protoc/bin/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. \
		firnmq/meta/etcd/etcd_rpc.proto firnmq/meta/service/meta_service.proto

soak: setup
	$(BIN)/python -m tests.integration.replication.storm --seconds 3600 $(if $(SEED),--seed $(SEED))
	$(BIN)/python -m tests.soak $(if $(COUNT),--count $(COUNT)) $(if $(SEED),--seed $(SEED))

# Each lock keeps to the versions of the large one.
lock: | $(BIN)/python
	@test -x $(BIN)/uv || $(PIP) --quiet uv
	$(COMPILE) $(LOCK_ARGS) --extra dev --output-file $(LOCK) pyproject.toml >/dev/null
	$(COMPILE) --constraint $(LOCK) --extra build --extra s3 \
		--output-file $(RUN_LOCK) pyproject.toml >/dev/null
	$(COMPILE) --constraint $(LOCK) --extra build --extra lake \
		--output-file $(LAKE_LOCK) pyproject.toml >/dev/null

COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-emit-find-links --no-annotate --no-header

clean:
	rm -rf build dist var $(addsuffix .*.so,$(COMPILED)) $(RUN_STAMP) $(LAKE_STAMP) $(STAMP) \
		.mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
