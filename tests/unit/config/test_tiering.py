"""Settings of the object store."""

import pytest

from firnmq.config import TieringConfig, load_tiering_config
from firnmq.errors import InvalidArgument


def test_there_is_no_store_by_default() -> None:
    assert not TieringConfig().is_on
    assert not load_tiering_config({}).is_on


def test_the_environment_says_it_all() -> None:
    found = load_tiering_config(
        {
            "FIRN_TIERING_URL": "s3://bucket/prefix",
            "FIRN_TIERING_CLUSTER": "north",
            "FIRN_TIERING_ACCESS_KEY": "me",
            "FIRN_TIERING_SECRET_KEY": "hush",
            "FIRN_TIERING_BACKLOG_BYTES": "1000",
            "FIRN_TIERING_READ_BACK": "true",
        }
    )
    assert found.is_on
    assert (found.cluster, found.backlog_bytes, found.read_back) == ("north", 1000, True)
    assert "hush" not in repr(found)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"url": "bucket"}, "tiering.url"),
        ({"cluster": "a/b"}, "tiering.cluster"),
        ({"cluster": ""}, "tiering.cluster"),
        ({"parallel_uploads": 0}, "tiering.parallel_uploads"),
        ({"backlog_bytes": 0}, "tiering.backlog_bytes"),
        ({"timeout_ms": 0}, "timeout_ms"),
        ({"secret_key": "without an access key"}, "access_key"),
        ({"retry_ms": 100, "retry_ms_max": 99}, "tiering.retry_ms_max"),
    ],
)
def test_what_cannot_be_meant_is_refused(fields: dict, named: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        TieringConfig(**fields)
    assert caught.value.argument == named
