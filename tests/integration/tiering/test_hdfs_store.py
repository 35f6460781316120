"""What only HDFS does; run by make test-hdfs."""

import time
from pathlib import Path

import pytest

from firnmq.errors import StoreUnavailable
from firnmq.tiering.stores import StoreOptions, open_store
from firnmq.tiering.stores.hdfs import PARTIAL
from tests.integration.tiering.hadoop import Hadoop

pytestmark = pytest.mark.hdfs


def test_stopped_nodes_fail_in_time_and_come_back(tmp_path: Path) -> None:
    hadoop = Hadoop(tmp_path)
    try:
        # A NameNode that has just begun may take longer than a second for its first answers.
        patient = open_store(f"{hadoop.url}/x")
        patient.put("key", b"hello")
        store = open_store(f"{hadoop.url}/x", StoreOptions(timeout_ms=1_000))
        hadoop.pause()
        for call in (
            lambda: store.get_range("key", 0, 5),
            lambda: store.put("other", b""),
            lambda: list(store.list("")),
            lambda: store.delete(["none"]),
        ):
            began = time.monotonic()
            with pytest.raises(StoreUnavailable):
                call()
            assert time.monotonic() - began < 10
        hadoop.resume()
        assert bytes(patient.get_range("key", 0, 5)) == b"hello"
        hadoop.stop()
        for _ in range(3):
            with pytest.raises(StoreUnavailable):
                store.head("key")
        hadoop.start_all()
        assert bytes(patient.get_range("key", 0, 5)) == b"hello"
        patient.close()
        store.close()
    finally:
        hadoop.stop()


def test_no_node_at_all_fails_in_time() -> None:
    store = open_store("hdfs://127.0.0.1:1/x", StoreOptions(timeout_ms=500))
    with pytest.raises(StoreUnavailable):
        store.head("key")
    store.close()


def test_what_a_crash_leaves_is_no_object_and_is_swept(hadoop: Hadoop) -> None:
    store = open_store(f"{hadoop.url}/crashed")
    above = open_store(hadoop.url)
    store.put("key", b"x")
    # A file that was never renamed, made through the client of a store one folder above.
    writer = above._call(
        "create", "", lambda: above._client.create(f"/crashed/{PARTIAL}/left", above._write_options)
    )
    above._call("write", "", lambda: writer.write(b"some"))
    assert [info.key for info in store.list("")] == ["key"]
    assert store.sweep("", before_ms=1_000) == 0
    assert store.sweep("", before_ms=1 << 50) == 1
    assert store.sweep("", before_ms=1 << 50) == 0
    above.close()
    store.close()
