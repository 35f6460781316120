"""The parts of uvicorn and h11 that `AdminProtocol` relies on; if one is gone, this says which."""

import inspect
import re

import h11
import pytest
import uvicorn
from uvicorn.protocols.http import h11_impl
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol, RequestResponseCycle

GONE = f"uvicorn {uvicorn.__version__} has no {{name}} any more: adapt http/connection.py"
METHODS = {
    "connection_made": ["transport"],
    "connection_lost": ["exc"],
    "data_received": ["data"],
    "on_response_complete": [],
    "pause_writing": [],
    "resume_writing": [],
}


@pytest.mark.parametrize("name", METHODS)
def test_a_method_that_is_extended(name: str) -> None:
    method = getattr(H11Protocol, name, None)
    assert method is not None, GONE.format(name=f"H11Protocol.{name}")
    assert list(inspect.signature(method).parameters) == ["self", *METHODS[name]]


def test_the_end_of_a_response_is_reported_to_the_protocol() -> None:
    """`on_response_complete` is extended, so the cycle has to be given the bound method."""
    source = inspect.getsource(H11Protocol)
    assert "on_response=self.on_response_complete" in source, GONE.format(name="on_response")


@pytest.mark.parametrize("name", ["app", "client", "conn", "cycle", "loop", "tasks", "transport"])
def test_a_field_of_a_connection(name: str) -> None:
    source = inspect.getsource(H11Protocol)
    assert re.search(rf"self\.{name}\b.* = ", source), GONE.format(name=f"H11Protocol.{name}")


def test_a_request_gets_the_application_that_was_replaced() -> None:
    """`AdminProtocol` puts its own function in the place of `app`."""
    assert re.search(r"app = self\.app\b", inspect.getsource(H11Protocol.handle_events))


@pytest.mark.parametrize("name", ["disconnected", "message_event"])
def test_a_field_of_a_request(name: str) -> None:
    source = inspect.getsource(RequestResponseCycle.__init__)
    assert re.search(rf"self\.{name}\b", source), GONE.format(name=f"RequestResponseCycle.{name}")


def test_a_phrase_is_the_bytes_of_a_status_line() -> None:
    assert STATUS_PHRASES[408] == b"Request Timeout"
    assert h11_impl.h11 is h11, "the states of `conn` are those of h11"


def test_bytes_that_a_connection_has_not_used_are_seen() -> None:
    connection = h11.Connection(our_role=h11.SERVER)
    connection.receive_data(b"GET / HT")
    assert connection.next_event() is h11.NEED_DATA
    assert connection.trailing_data == (b"GET / HT", False)
    assert connection.their_state is h11.IDLE
