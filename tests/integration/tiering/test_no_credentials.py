"""A cloud store that was given no credentials, on a machine without a role."""

import os
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from firnmq.config import StoreOptions
from firnmq.errors import StoreDenied, StoreUnavailable
from firnmq.tiering.stores import open_store

QUICK = StoreOptions(timeout_ms=500, connect_timeout_ms=300, retries=1, retry_timeout_ms=500)


class NoRole(BaseHTTPRequestHandler):
    """The machine's address for credentials, where there is no role."""

    def do_PUT(self) -> None:
        self.send_error(403)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def machine() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), NoRole) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)


def test_a_machine_without_a_role_is_told_the_settings(
    monkeypatch: pytest.MonkeyPatch, machine: str
) -> None:
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", machine)
    with pytest.raises(StoreDenied) as error:
        open_store("s3://bucket/prefix", QUICK).head("key")
    check(error.value, machine)


def test_so_is_a_machine_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may answer in a moment: the error may be retried."""
    nowhere = "http://127.0.0.1:1"
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", nowhere)
    with pytest.raises(StoreUnavailable) as error:
        list(open_store("s3://bucket/prefix", QUICK).list(""))
    check(error.value, nowhere)


def check(error: Exception, machine: str) -> None:
    text = str(error)
    assert "there are no credentials" in text
    for name in ("access_key", "FIRN_TIERING_ACCESS_KEY", "FIRN_TIERING_SECRET_KEY"):
        assert name in text
    assert "AWS_ACCESS_KEY_ID" in text
    assert machine not in text
