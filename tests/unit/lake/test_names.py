"""Where a table's files are, however a location is written."""

from __future__ import annotations

import pytest

from firnmq.lake.tables.files.names import below, normal


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("file:///lake/clicks", "file:///lake/clicks"),
        ("file:/lake/clicks/", "file:///lake/clicks"),
        ("/lake/clicks", "file:///lake/clicks"),
        ("s3://bucket/a/b", "s3://bucket/a/b"),
        ("S3A://bucket/a/b/", "s3://bucket/a/b"),
        ("s3n://bucket", "s3://bucket"),
        ("gcs://bucket/a", "gs://bucket/a"),
        ("hdfs://node:8020/a", "hdfs://node:8020/a"),
    ],
)
def test_one_place_has_one_name(written: str, meant: str) -> None:
    assert normal(written) == meant


@pytest.mark.parametrize(
    ("location", "path", "name"),
    [
        ("file:///lake/t", "file:/lake/t/data/1.parquet", "data/1.parquet"),
        ("s3a://b/t/", "s3://b/t/metadata/2.json", "metadata/2.json"),
        ("s3://b/t", "s3://b/t2/data/1.parquet", None),
        ("s3://b/t", "s3://c/t/data/1.parquet", None),
        ("s3://b/t", "s3://b/t", None),
        ("file:///b/t", "s3://b/t/data/1.parquet", None),
    ],
)
def test_only_what_is_below_a_location_is_of_it(location: str, path: str, name: str | None) -> None:
    assert below(location, path) == name
