"""Tables in a bucket and its own REST catalog: SeaweedFS, which has both and asks who we are."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Barrier, Thread

import msgspec
import pytest

from firnmq.lake.tables.catalogs.catalog import CatalogFailed
from firnmq.lake.tables.files.rewrite import Rewritten, run_rewrite
from firnmq.lake.tables.maintain import compact, expire
from firnmq.testing.seaweed import ACCESS_KEY, SECRET_KEY, SeaweedServer
from tests.integration.kafka.nodes import NodeProcess
from tests.integration.lake.lab import (
    new_topic,
    numbered,
    open_table,
    produce,
    rows_of,
    sync_here,
)

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:pyiceberg")


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedServer]:
    server = SeaweedServer(tmp_path_factory.mktemp("weed"), table_bucket="lake")
    yield server
    server.stop()


@pytest.fixture
def options(bucket: SeaweedServer, node: NodeProcess) -> dict[str, str]:
    return {
        "bootstrap": node.address,
        "topic": new_topic(node, "bucket"),
        "catalog": bucket.catalog,
        "catalog.credential": f"{ACCESS_KEY}:{SECRET_KEY}",
        "warehouse": "s3://lake",
        "warehouse.endpoint": bucket.endpoint,
        "warehouse.region": "us-east-1",
        "warehouse.access_key": ACCESS_KEY,
        "warehouse.secret_key": SECRET_KEY,
        "warehouse.allow_http": "true",
    }


def test_a_table_from_nothing_to_tidy(node: NodeProcess, options: dict[str, str]) -> None:
    """1. Three syncs, the last of them three at once. 2. Compaction and expiry. 3. Every record is
    there once, before and after."""
    topic = options["topic"]
    sent = produce(node, topic, numbered(60, step_ms=1_000))
    assert sync_here(options).row_count == 60
    sent += produce(node, topic, numbered(40, start=60, step_ms=1_000))
    assert sync_here(options).row_count == 40
    sent += produce(node, topic, numbered(40, start=100, step_ms=1_000))
    barrier, counts, failures = Barrier(3), [], []

    def work() -> None:
        try:
            barrier.wait(60)
            counts.append(sync_here(options, commit_bytes=1_000, split_bytes=500).row_count)
        except BaseException as error:
            failures.append(error)

    threads = [Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert sum(counts) == 40
    assert rows_of(options) == sorted(each.row for each in sent)
    catalog, table = open_table(options)
    with catalog:
        tidy = compact(
            table,
            lambda work: [
                msgspec.msgpack.decode(run_rewrite(msgspec.msgpack.encode(each)), type=Rewritten)
                for each in work
            ],
        )
        assert (tidy.files_after, tidy.rows) == (2, 140)
        assert expire(table, older_than_ms=0, grace_ms=0).files >= 4
    assert rows_of(options) == sorted(each.row for each in sent)


def test_nobody_without_credentials(options: dict[str, str]) -> None:
    for wrong in ({}, {"catalog.credential": f"{ACCESS_KEY}:wr0ng"}, {"catalog.token": "wr0ng"}):
        named = {name: value for name, value in options.items() if name != "catalog.credential"}
        with pytest.raises(CatalogFailed, match="refuses access") as caught:
            sync_here({**named, **wrong})
        assert "wr0ng" not in str(caught.value)
        assert "\n" not in str(caught.value)
