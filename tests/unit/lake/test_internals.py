"""The private parts of other libraries that we use are there; if not, this says which is gone.

Those of pyiceberg and Spark are behind functions of `pyiceberg_internals` and `spark_internals`,
where they can be replaced; those of kafka-python are the classes of its protocol.
"""

import importlib
import inspect
import re
from pathlib import Path

import pyiceberg.io.pyarrow
import pyspark
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.io.pyarrow import PyArrowFile
from pyiceberg.table import Transaction
from pyiceberg.table.update.snapshot import _SnapshotProducer
from pyspark.sql.classic.dataframe import DataFrame

import firnmq
from firnmq.lake.plans.wire import load_protocol
from firnmq.lake.tables.files.pyiceberg_internals import PRODUCER_FIELDS, PRODUCER_METHODS

SOURCE = Path(firnmq.__file__).parent
GONE = "{library} {version} has no {name} any more: adapt {module}"


def gone(library: str, name: str, module: str) -> str:
    version = __import__(library).__version__
    return GONE.format(library=library, version=version, name=name, module=module)


@pytest.mark.parametrize("name", PRODUCER_METHODS)
def test_a_method_of_a_snapshots_producer(name: str) -> None:
    assert callable(getattr(_SnapshotProducer, name, None)), gone(
        "pyiceberg", f"_SnapshotProducer.{name}", "pyiceberg_internals"
    )


@pytest.mark.parametrize("name", PRODUCER_FIELDS)
def test_a_field_of_a_snapshots_producer(name: str) -> None:
    source = "".join(inspect.getsource(each) for each in _SnapshotProducer.__mro__[:2])
    assert re.search(rf"self\.{name}\b", source), gone(
        "pyiceberg", f"_SnapshotProducer.{name}", "pyiceberg_internals"
    )


def test_a_transaction_has_its_table() -> None:
    assert "self._table = " in inspect.getsource(Transaction.__init__), gone(
        "pyiceberg", "Transaction._table", "pyiceberg_internals.file_io"
    )


def test_delete_files_are_read_with_what_and_for_what() -> None:
    reading = getattr(pyiceberg.io.pyarrow, "_read_all_delete_files", None)
    assert reading is not None, gone("pyiceberg", "_read_all_delete_files", "pyiceberg_internals")
    assert list(inspect.signature(reading).parameters)[:2] == ["io", "tasks"]


def test_a_rest_catalog_sets_up_its_session_before_it_asks() -> None:
    assert list(inspect.signature(RestCatalog._config_headers).parameters) == ["self", "session"]
    source = inspect.getsource(RestCatalog._create_session)
    assert "self._config_headers(session)" in source, gone(
        "pyiceberg", "RestCatalog._config_headers", "catalogs.rest.PunctualRestCatalog"
    )


def test_a_file_of_pyiceberg_knows_its_path() -> None:
    assert "self._path = " in inspect.getsource(PyArrowFile.__init__), gone(
        "pyiceberg", "PyArrowFile._path", "catalogs.metadata_files"
    )


@pytest.mark.parametrize("name", ["_active_spark_context", "_gateway"])
def test_a_field_of_sparks_context(name: str) -> None:
    assert hasattr(pyspark.SparkContext, name), gone(
        "pyspark", f"SparkContext.{name}", "spark_internals"
    )


def test_sparks_context_has_a_server_for_counters() -> None:
    assert "self._accumulatorServer = " in inspect.getsource(pyspark.SparkContext), gone(
        "pyspark", "SparkContext._accumulatorServer", "spark_internals.forget_counters"
    )


def test_a_frame_has_its_java_object() -> None:
    assert "self._jdf" in inspect.getsource(DataFrame), gone(
        "pyspark", "DataFrame._jdf", "spark_internals.analyzed_plan"
    )


REQUESTS = {
    "admin": ("DescribeConfigsRequest",),
    "consumer": ("FetchRequest", "ListOffsetsRequest", "OffsetFetchRequest"),
    "metadata": ("ApiVersionsRequest", "FindCoordinatorRequest", "MetadataRequest"),
    "producer": (
        *("AddOffsetsToTxnRequest", "AddPartitionsToTxnRequest", "EndTxnRequest"),
        *("InitProducerIdRequest", "ProduceRequest", "TxnOffsetCommitRequest"),
    ),
    "sasl": ("SaslAuthenticateRequest", "SaslHandshakeRequest"),
}
"""Of kafka-python, whose documented interface does not include its protocol."""


@pytest.mark.parametrize("module", REQUESTS)
def test_the_requests_of_kafka_python(module: str) -> None:
    load_protocol()
    for name in REQUESTS[module]:
        request = getattr(importlib.import_module(f"kafka.protocol.{module}"), name, None)
        assert request is not None, gone("kafka", name, "plans.wire or spark.producing")
        assert callable(request.encode), gone("kafka", f"{name}.encode", "plans.wire")


def test_every_request_of_kafka_python_that_is_used_is_listed() -> None:
    listed = {name for names in REQUESTS.values() for name in names}
    imported = re.compile(r"from kafka\.protocol\.\w+ import (.+)")
    used = {
        name.strip()
        for path in SOURCE.glob("**/*.py")
        for names in imported.findall(path.read_text(encoding="utf-8"))
        for name in names.split(",")
    }
    assert used == listed


def test_the_logins_and_errors_of_kafka_python() -> None:
    from kafka.errors import KafkaConfigurationError, for_code
    from kafka.net.sasl import get_sasl_mechanism

    assert for_code(29).__name__ == "TopicAuthorizationFailedError"
    assert issubclass(KafkaConfigurationError, Exception)
    assert callable(get_sasl_mechanism("SCRAM-SHA-256"))


def test_nothing_else_reaches_into_them() -> None:
    allowed = {"pyiceberg_internals.py", "spark_internals.py"}
    private = re.compile(r"\._(jdf|jvm|jsc|gateway|active_spark_context|table)\b(?<!self\._table)")
    imported = re.compile(r"^from (pyiceberg|pyspark)\S* import .*\b_\w+|^    _\w+,$", re.MULTILINE)
    for path in SOURCE.glob("**/*.py"):
        if path.name in allowed or "lake" not in path.parts:
            continue
        text = path.read_text(encoding="utf-8")
        found = private.search(text) or imported.search(text)
        assert found is None, f"{path.relative_to(SOURCE)}: {found[0]}"
