"""The bare clients of the peers' benchmarks: what they send, how they count, when they are skipped.

No server is started here.
"""

import shutil
import socket
import struct
import threading
from pathlib import Path

import pytest

from benchmarks.harness import Skipped
from benchmarks.stream_peers import (
    IN_FLIGHT_RECORDS,
    Frames,
    Marks,
    Nats,
    Piece,
    RabbitMq,
    Redis,
    Refused,
    exchange,
    in_pieces,
    produce_request,
    program,
)
from firnmq.brokers.kafka.protocol import decode_request
from firnmq.record import decode


def test_what_is_not_installed_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(Skipped, match="redis-server is not installed"):
        Redis(tmp_path, "always")
    with pytest.raises(Skipped, match="no-such-program is not installed"):
        program("no-such-program", str(tmp_path / "nowhere"))
    assert program("no-such-program", str(tmp_path)) == str(tmp_path)


@pytest.mark.parametrize("make", [Nats, RabbitMq, lambda path: Redis(path, "always")])
def test_a_peer_that_is_there_is_started_in_its_own_directory(make: object, tmp_path: Path) -> None:
    assert callable(make)
    try:
        server = make(tmp_path)
    except Skipped as reason:
        pytest.skip(str(reason))
    assert any(str(tmp_path) in part for part in server.command())
    assert any(str(server.port) in part for part in server.command())


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_marks_are_counted_however_the_bytes_come(size: int) -> None:
    data = b'MSG in.a 1 20\r\n{"stream":"s","seq":1}\r\n' * 50
    marks = Marks(b'"seq":', (b'"error"',))
    assert sum(marks(data[at : at + size]) for at in range(0, len(data), size)) == 50
    with pytest.raises(Refused, match="no room"):
        marks(b'{"error":"no room"}')


@pytest.mark.parametrize("size", [1, 3, 4, 9, 1000])
def test_frames_are_split_however_the_bytes_come(size: int) -> None:
    bodies = [bytes([number]) * number for number in range(30)]
    data = b"".join(struct.pack(">I", len(body)) + body for body in bodies)
    found: list[bytes] = []

    def judge(frame: bytes) -> int:
        found.append(frame)
        return 2

    frames = Frames(judge)
    assert sum(frames(data[at : at + size]) for at in range(0, len(data), size)) == 60
    assert found == bodies


def test_a_produce_request_is_what_the_protocol_says() -> None:
    frame = produce_request("t", 5, [b"a", b"b"])
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    header, request = decode_request(bytearray(frame[4:]))
    assert (header.api_key, header.api_version, header.correlation_id) == (0, 7, 5)
    (topic,) = request.topic_data  # type: ignore[attr-defined]
    (partition,) = topic.partition_data
    assert (topic.name, partition.index, request.acks) == ("t", 0, -1)  # type: ignore[attr-defined]
    assert [each.value for each in decode([partition.records]).records()] == [b"a", b"b"]


def test_an_exchange_ends_with_the_last_answer_and_keeps_the_limit() -> None:
    messages = [b"x" * 10] * (3 * IN_FLIGHT_RECORDS)
    ours, theirs = socket.socketpair()
    most = 0

    def serve() -> None:
        nonlocal most
        seen = 0
        while seen < len(messages) * 10:
            data = theirs.recv(1 << 20)
            most = max(most, len(data) // 10)
            seen += len(data)
            theirs.sendall(b"." * (seen // 10 - (seen - len(data)) // 10))

    thread = threading.Thread(target=serve)
    with ours, theirs:
        thread.start()
        assert exchange(ours, in_pieces(messages, 64), Marks(b".", ())) > 0
        thread.join()
    assert 0 < most <= IN_FLIGHT_RECORDS


def test_a_connection_that_is_closed_is_no_result() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        theirs.close()
        with pytest.raises((Refused, OSError)):
            exchange(ours, [Piece(b"x", 1)], Marks(b".", ()))


def test_pieces_hold_everything_once() -> None:
    pieces = in_pieces([b"%d" % number for number in range(10)], 4)
    assert [piece.count for piece in pieces] == [4, 4, 2]
    assert b"".join(piece.data for piece in pieces) == b"0123456789"
