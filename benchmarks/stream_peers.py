"""Other servers of streams, and the barest client of each: bytes made beforehand, sent in a
pipeline over one socket, and answers counted.

Nothing is installed or fetched; each server runs on a private port in a directory of the benchmark.
"""

import json
import os
import shutil
import socket
import struct
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from time import perf_counter

from benchmarks.harness import Skipped
from benchmarks.kafka_peer import Firn, Server, free_port
from firnmq.record import NewRecord, encode

IN_FLIGHT_RECORDS = 10_000
"""Records sent and not yet acknowledged, at most; the same for every server."""
_RECEIVE_BYTES = 256 * 1024
_TIMEOUT_S = 60.0
_MESSAGES_PER_SEND = 64
"""Messages of protocols without batches that are handed to the system at once."""
_STOP_TIMEOUT_S = 30


class Refused(Exception):
    """A server has refused a record; a rate would mean nothing."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes that are sent at once, and how many records they hold."""

    data: bytes
    count: int


def exchange(
    connection: socket.socket, pieces: Sequence[Piece], acknowledged: Callable[[bytes], int]
) -> float:
    """Seconds from the first byte sent until every record is acknowledged."""
    total = sum(piece.count for piece in pieces)
    waiting = iter(pieces)
    piece = next(waiting, None)
    sent = done = 0
    buffer = bytearray(_RECEIVE_BYTES)
    started = perf_counter()
    while done < total:
        while piece is not None and sent + piece.count - done <= IN_FLIGHT_RECORDS:
            connection.sendall(piece.data)
            sent += piece.count
            piece = next(waiting, None)
        size = connection.recv_into(buffer)
        if size == 0:
            raise Refused("the server has closed the connection")
        done += acknowledged(bytes(memoryview(buffer)[:size]))
    return perf_counter() - started


def in_pieces(messages: Sequence[bytes], per_piece: int) -> list[Piece]:
    return [
        Piece(b"".join(messages[at : at + per_piece]), len(messages[at : at + per_piece]))
        for at in range(0, len(messages), per_piece)
    ]


def connect(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=_TIMEOUT_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def program(name: str, *places: str) -> str:
    found = shutil.which(name) or next((place for place in places if Path(place).exists()), None)
    if found is None:
        raise Skipped(f"{name} is not installed")
    return found


class Marks:
    """Counts marks in a stream of bytes that comes in pieces of any size."""

    def __init__(self, mark: bytes, refusals: Sequence[bytes]) -> None:
        self._mark = mark
        self._refusals = refusals
        self._rest = b""

    def __call__(self, data: bytes) -> int:
        data = self._rest + data
        for refusal in self._refusals:
            if refusal in data:
                at = data.index(refusal)
                raise Refused(data[at : at + 200].decode(errors="replace"))
        *_, self._rest = data.rsplit(self._mark, 1)
        return data.count(self._mark)


class Frames:
    """Splits a stream into frames that begin with their length in four bytes."""

    def __init__(self, judge: Callable[[bytes], int]) -> None:
        self._judge = judge
        self._rest = b""

    def __call__(self, data: bytes) -> int:
        data = self._rest + data
        at = count = 0
        while len(data) - at >= 4:
            end = at + 4 + int.from_bytes(data[at : at + 4], "big")
            if end > len(data):
                break
            count += self._judge(data[at + 4 : end])
            at = end
        self._rest = data[at:]
        return count


# Ours -------------------------------------------------------------------------------------------

_BATCH_RECORDS = 60
"""About 60 KiB: what Kafka clients make of records that come fast."""


def produce_firn(server: Firn, topic: str, values: Sequence[bytes]) -> float:
    """Produce requests of the Kafka protocol, version 7, all replicas acknowledging."""
    pieces = []
    for number, at in enumerate(range(0, len(values), _BATCH_RECORDS)):
        some = values[at : at + _BATCH_RECORDS]
        pieces.append(Piece(produce_request(topic, number, some), len(some)))
    counts = {number: piece.count for number, piece in enumerate(pieces)}
    name = topic.encode()

    def judge(frame: bytes) -> int:
        (number,) = struct.unpack_from(">i", frame)
        (error,) = struct.unpack_from(">h", frame, 4 + 4 + 2 + len(name) + 4 + 4)
        if error:
            raise Refused(f"error {error}")
        return counts[number]

    with connect(server.port) as connection:
        return exchange(connection, pieces, Frames(judge))


def produce_request(topic: str, number: int, values: Sequence[bytes]) -> bytes:
    batch = bytes(encode([NewRecord(value=value) for value in values], now_ms=0))
    name = topic.encode()
    body = b"".join(
        (
            struct.pack(">hhih5s", 0, 7, number, 5, b"bench"),
            struct.pack(">hhii", -1, -1, 30_000, 1),  # No transaction, acks=all, one topic.
            struct.pack(">h", len(name)),
            name,
            struct.pack(">iii", 1, 0, len(batch)),  # One partition, the first.
            batch,
        )
    )
    return struct.pack(">i", len(body)) + body


# Redis ------------------------------------------------------------------------------------------


class Redis(Server):
    """Redis with an append-only file; `fsync` is what it calls everysec or always."""

    name = "redis"

    def __init__(self, directory: Path, fsync: str) -> None:
        super().__init__(directory)
        self._program = program("redis-server")
        self._fsync = fsync

    def command(self) -> list[str]:
        options = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "dir": str(self.directory),
            "appendonly": "yes",
            "appendfsync": self._fsync,
            "save": "",
            "auto-aof-rewrite-percentage": "0",
        }
        given = [part for key, value in options.items() for part in (f"--{key}", value)]
        return [self._program, *given]

    def produce(self, values: Sequence[bytes]) -> float:
        """One XADD per record, each answered with its id; the stream is emptied first."""
        head = b"*5\r\n$4\r\nXADD\r\n$1\r\ns\r\n$1\r\n*\r\n$1\r\nv\r\n"
        messages = [head + b"$%d\r\n%b\r\n" % (len(value), value) for value in values]
        with connect(self.port) as connection:
            connection.sendall(b"*2\r\n$3\r\nDEL\r\n$1\r\ns\r\n")
            connection.recv(64)
            answers = Marks(b"$", (b"-ERR", b"-OOM", b"-MISCONF"))
            return exchange(connection, in_pieces(messages, _MESSAGES_PER_SEND), answers)


# NATS -------------------------------------------------------------------------------------------


class Nats(Server):
    """NATS with JetStream, whose streams are files that it does not sync before it answers."""

    name = "nats"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._program = program("nats-server", "/usr/sbin/nats-server")

    def command(self) -> list[str]:
        where = ["--addr", "127.0.0.1", "--port", str(self.port)]
        return [self._program, *where, "--jetstream", "--store_dir", str(self.directory)]

    def produce(self, values: Sequence[bytes]) -> float:
        """One message per record to a new stream, each answered with its sequence number."""
        stream = {"name": "s", "subjects": ["s.in"], "storage": "file", "num_replicas": 1}
        messages = [b"PUB s.in in.a %d\r\n%b\r\n" % (len(value), value) for value in values]
        with connect(self.port) as connection:
            options = {"verbose": False, "pedantic": False, "headers": False}
            connection.sendall(b"CONNECT %b\r\n" % json.dumps(options).encode())
            connection.sendall(b"SUB in.* 1\r\n")
            self._ask(connection, b"STREAM.DELETE.s", b"", may_fail=True)
            self._ask(connection, b"STREAM.CREATE.s", json.dumps(stream).encode())
            answers = Marks(b'"seq":', (b'"error"', b"-ERR"))
            return exchange(connection, in_pieces(messages, _MESSAGES_PER_SEND), answers)

    @staticmethod
    def _ask(
        connection: socket.socket, what: bytes, body: bytes, *, may_fail: bool = False
    ) -> None:
        """A request of JetStream; returns when its whole answer is there."""
        connection.sendall(b"PUB $JS.API.%b in.q %d\r\n%b\r\n" % (what, len(body), body))
        data = b""
        while b"MSG in.q " not in data or not _is_whole(data[data.index(b"MSG in.q ") :]):
            more = connection.recv(_RECEIVE_BYTES)
            if not more:
                raise Refused("the server has closed the connection")
            data += more
        if b'"error"' in data and not may_fail:
            raise Refused(data.decode(errors="replace"))


def _is_whole(message: bytes) -> bool:
    """Whether `MSG subject sid size` is followed by as many bytes as it says."""
    line, separator, body = message.partition(b"\r\n")
    return bool(separator) and len(body) >= int(line.split()[-1]) + 2


# RabbitMQ ---------------------------------------------------------------------------------------

_DECLARE, _PUBLISH, _CONFIRM, _ERROR = 1, 2, 3, 4
_CREATE, _DELETE, _PROPERTIES, _HANDSHAKE, _AUTHENTICATE, _TUNE, _OPEN = 13, 14, 17, 18, 19, 20, 21
_RABBIT_OK, _RABBIT_NO_STREAM = 1, 2
_RABBIT_FRAME_RECORDS = 60


class RabbitMq(Server):
    """RabbitMQ with its stream protocol; a confirmed record is in the page cache."""

    name = "rabbitmq"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        # The inner script: the one on the path changes to a user who may not write here.
        self._program = program("/usr/lib/rabbitmq/bin/rabbitmq-server")
        self._epmd = program("epmd")
        ports = {"listeners.tcp": "none", "stream.listeners.tcp.1": f"127.0.0.1:{self.port}"}
        config = "".join(f"{key} = {value}\n" for key, value in ports.items())
        (directory / "rabbitmq.conf").write_text(config, encoding="utf-8")
        (directory / "plugins").write_text("[rabbitmq_stream].\n", encoding="utf-8")
        self._environment = {
            **os.environ,
            "HOME": str(directory),
            "ERL_EPMD_PORT": str(free_port()),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_NODENAME": f"bench{self.port}@localhost",
            "RABBITMQ_CONFIG_FILE": str(directory / "rabbitmq"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "plugins"),
            "RABBITMQ_MNESIA_BASE": str(directory / "data"),
            "RABBITMQ_LOG_BASE": str(directory / "logs"),
            "RABBITMQ_PID_FILE": str(directory / "pid"),
        }

    def command(self) -> list[str]:
        given = [f"{key}={value}" for key, value in self._environment.items()]
        return ["/usr/bin/env", *given, self._program]

    def stop(self) -> None:
        super().stop()
        # The name service that the node has started for itself, on a port of its own.
        subprocess.run(
            [self._epmd, "-kill"],
            env=self._environment,
            capture_output=True,
            timeout=_STOP_TIMEOUT_S,
        )

    def produce(self, values: Sequence[bytes]) -> float:
        """Publish frames of as many records as our batches have, each record confirmed."""
        with self._session() as connection:
            pieces = []
            for at in range(0, len(values), _RABBIT_FRAME_RECORDS):
                some = values[at : at + _RABBIT_FRAME_RECORDS]
                records = b"".join(
                    struct.pack(">QI", at + index, len(_amqp(value))) + _amqp(value)
                    for index, value in enumerate(some)
                )
                head = struct.pack(">HHBI", _PUBLISH, 1, 1, len(some))
                pieces.append(Piece(_framed(head + records), len(some)))
            return exchange(connection, pieces, Frames(_confirmed))

    @contextmanager
    def _session(self) -> Iterator[socket.socket]:
        """A connection with a publisher of a new stream."""
        with connect(self.port) as connection:
            reader = connection.makefile("rb")
            self._ask(connection, reader, _PROPERTIES, struct.pack(">I", 0))
            self._ask(connection, reader, _HANDSHAKE, b"")
            login = b"\0guest\0guest"
            body = _text("PLAIN") + struct.pack(">I", len(login)) + login
            self._ask(connection, reader, _AUTHENTICATE, body)
            tune = _read_frame(reader)  # What the server allows; it is taken as it is.
            connection.sendall(_framed(tune))
            self._ask(connection, reader, _OPEN, _text("/"))
            self._ask(connection, reader, _DELETE, _text("s"), allowed=_RABBIT_NO_STREAM)
            self._ask(connection, reader, _CREATE, _text("s") + struct.pack(">I", 0))
            self._ask(connection, reader, _DECLARE, b"\1" + _text("") + _text("s"))
            yield connection

    @staticmethod
    def _ask(
        connection: socket.socket,
        reader: BufferedReader,
        command: int,
        body: bytes,
        *,
        allowed: int = _RABBIT_OK,
    ) -> None:
        connection.sendall(_framed(struct.pack(">HHI", command, 1, command) + body))
        while True:
            answer = _read_frame(reader)
            key, _, _, code = struct.unpack_from(">HHIH", answer + bytes(4))
            if key == command | 0x8000:
                break
        if code not in (_RABBIT_OK, allowed):
            raise Refused(f"command {command}: code {code}")


def _read_frame(reader: BufferedReader) -> bytes:
    return reader.read(int.from_bytes(reader.read(4), "big"))


def _framed(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


def _text(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode()


def _amqp(value: bytes) -> bytes:
    """A message with one section of binary data, as clients of the stream protocol send it."""
    return b"\x00\x53\x75\xb0" + struct.pack(">I", len(value)) + value


def _confirmed(frame: bytes) -> int:
    command, _, _, count = struct.unpack_from(">HHBI", frame)
    if command == _ERROR:
        raise Refused("a record was not published")
    return count if command == _CONFIRM else 0
