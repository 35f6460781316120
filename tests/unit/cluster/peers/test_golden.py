"""The bytes between nodes stay what they are."""

from __future__ import annotations

import json
from pathlib import Path

from firnmq.cluster.peers.failures import decode_error, encode_error
from firnmq.cluster.peers.frames import (
    AnswerHeader,
    Frame,
    FrameParser,
    RequestHeader,
    decode_header,
    frame_parts,
)
from firnmq.cluster.peers.handshake import (
    VERSION,
    Greeting,
    Introduction,
    Welcome,
    check_welcome,
    welcome,
)
from firnmq.errors import NotLeader

_GOLDEN = Path(__file__).parents[3] / "golden" / "peers_v1.json"
_SECRET = b"secret"


def _frame(name: str) -> Frame:
    (frame,) = FrameParser().feed(bytes.fromhex(json.loads(_GOLDEN.read_text())[name]))
    return frame


def test_the_handshake_of_another_version_of_the_program_is_understood() -> None:
    greeting = decode_header(_frame("greeting"), Greeting)
    introduction = decode_header(_frame("introduction"), Introduction)
    answer = decode_header(_frame("welcome"), Welcome)

    assert greeting == Greeting(VERSION, bytes(range(32)))
    assert (introduction.node, introduction.wanted) == (1, 2)
    assert welcome(_SECRET, 2, greeting, introduction) == answer
    check_welcome(_SECRET, greeting, introduction, answer)


def test_requests_and_answers_are_read_and_made_as_before() -> None:
    asked = _frame("request")
    assert decode_header(asked, RequestHeader) == RequestHeader(7, "submit", 5000, 3, "t_0")
    assert bytes(asked.body) == b"\x91\xa1traw"
    told = _frame("answer")
    assert decode_header(told, AnswerHeader) == AnswerHeader(7, is_error=False, value_bytes=2)
    made = b"".join(map(bytes, frame_parts(AnswerHeader(7, False, 2), (b"\x91\x07", b"raw"))))
    assert made.hex() == json.loads(_GOLDEN.read_text())["answer"]


def test_an_error_is_read_and_made_as_before() -> None:
    frame = _frame("error")
    error = decode_error(frame.body)
    assert isinstance(error, NotLeader)
    assert (error.shard, error.node, error.leader) == ("t_0", 1, 2)
    assert encode_error(NotLeader("t_0", 1, 2)) == bytes(frame.body)
