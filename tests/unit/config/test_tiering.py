"""Settings of the object store."""

from pathlib import Path

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
        ({"url": "ftp://bucket"}, "tiering.url"),
        ({"cluster": "a/b"}, "tiering.cluster"),
        ({"cluster": ""}, "tiering.cluster"),
        ({"parallel_uploads": 0}, "tiering.parallel_uploads"),
        ({"backlog_bytes": 0}, "tiering.backlog_bytes"),
        ({"timeout_ms": 0}, "timeout_ms"),
        ({"url": "s3://b", "secret_key": "without an access key"}, "tiering.secret_key"),
        ({"retry_ms": 100, "retry_ms_max": 99}, "tiering.retry_ms_max"),
    ],
)
def test_what_cannot_be_meant_is_refused(fields: dict, named: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        TieringConfig(**fields)
    assert caught.value.argument == named


def test_a_key_alone_matters_only_where_there_is_a_store() -> None:
    assert load_tiering_config({"FIRN_TIERING_SECRET_KEY": "s"}).secret_key == "s"
    assert load_tiering_config({"FIRN_TIERING_ACCESS_KEY": "a"}).access_key == "a"
    with pytest.raises(InvalidArgument) as caught:
        load_tiering_config({"FIRN_TIERING_SECRET_KEY": "s", "FIRN_TIERING_URL": "s3://bucket"})
    assert caught.value.argument == "FIRN_TIERING_SECRET_KEY"
    assert "set FIRN_TIERING_ACCESS_KEY, or access_key in [tiering]" in caught.value.reason


def test_the_access_key_of_a_file_and_the_secret_of_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text('[tiering]\nurl = "s3://bucket"\naccess_key = "a"\n')
    found = load_tiering_config({"FIRN_TIERING_SECRET_KEY": "s"}, path=file)
    assert (found.access_key, found.secret_key) == ("a", "s")
    with pytest.raises(InvalidArgument) as caught:
        load_tiering_config({}, path=file)
    assert caught.value.argument == f"{file}: tiering.access_key"
    assert "set FIRN_TIERING_SECRET_KEY" in caught.value.reason


def test_a_path_as_url_says_how_to_write_it() -> None:
    with pytest.raises(InvalidArgument) as caught:
        load_tiering_config({"FIRN_TIERING_URL": "/tmp/x"})
    assert str(caught.value).startswith("FIRN_TIERING_URL: '/tmp/x' is not like")
    assert "a directory is file:///tmp/x" in caught.value.reason
