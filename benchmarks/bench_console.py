"""The console: what its live tail costs producers, and its lists the event loop."""

import asyncio
import http.client
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import firnmq
from benchmarks.bench_kafka import Side
from benchmarks.harness import REPOSITORY, Bar, Better, Measured, Run, benchmark
from benchmarks.kafka_client import Client
from benchmarks.kafka_peer import Firn
from firnmq.nodefile import node_serving

_RECORDS = 600_000
_OPTIONS = {"durability": "os", "index.key": "false", "index.tag": "false"}
_TAIL_RATE_MIN = 900
"""Records a second that the reader must have got: all of the 1,000 but what begins and ends it."""
_TOPICS = 10_000
_MAKERS = 64
_PAGES = 120
_BEAT_S = 0.001
_CHILD = "import sys, benchmarks.bench_console as bench; bench.child(sys.argv[1])"


@benchmark("console_tail", unit="records/s", bar=Bar.ratio_at_least(0.95))
def console_tail(run: Run) -> Measured:
    """Producing as fast as a client can, with and without a browser that follows the topic live.

    The reader must have been shown 1,000 records a second, or the bar is missed.
    """
    server = Firn(run.scratch())
    rates: list[float] = []
    server.start()
    try:
        side = Side(server, Client(server.address))
        address = node_serving(server.directory / "data")
        assert address is not None
        assert address.http is not None
        admin = address.http

        def produce(*, is_followed: bool) -> float:
            with side.topic(1, _OPTIONS) as topic:
                if not is_followed:
                    return _RECORDS / side.client.produce(topic, 1, _RECORDS)
                with _following(admin, topic) as shown_count:
                    begun = time.perf_counter()
                    seconds = side.client.produce(topic, 1, _RECORDS)
                    rates.append(shown_count() / (time.perf_counter() - begun))
                return _RECORDS / seconds

        found = run.alternate(
            ours=lambda: produce(is_followed=True), baseline=lambda: produce(is_followed=False)
        )
    finally:
        server.stop()
    shown_rate = sorted(rates)[len(rates) // 2]
    return _with(found, also_holds=shown_rate >= _TAIL_RATE_MIN, shown_per_second=round(shown_rate))


def _with(found: Measured, *, also_holds: bool, **extra: float) -> Measured:
    return replace(found, also_holds=also_holds, extra={**found.extra, **extra})


@contextmanager
def _following(admin: str, topic: str) -> Iterator[Callable[[], int]]:
    """Follows a topic as the console does; gives how many records were shown so far."""
    connection = http.client.HTTPConnection(urlsplit(admin).netloc, timeout=60)
    connection.request("GET", f"/v1/topics/{topic}/tail")
    answer = connection.getresponse()
    assert answer.status == 200
    shown_count = 0
    has_begun, is_over = threading.Event(), threading.Event()

    def read() -> None:
        nonlocal shown_count
        while not is_over.is_set() and (line := answer.readline()):
            shown_count += line.count(b'"offset":')
            has_begun.set()

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    has_begun.wait()
    try:
        yield lambda: shown_count
    finally:
        is_over.set()
        connection.sock.shutdown(socket.SHUT_RDWR)  # Ends the reader, which may wait for a line.
        thread.join()
        connection.close()


@benchmark("console_list", unit="ms", bar=Bar.value_at_most(20), better=Better.LOWER)
def console_list(run: Run) -> Measured:
    """The longest time for which the event loop of a node with 10,000 topics could do nothing else,
    while a browser pages through their list, filtered and sorted in every way."""
    answer = subprocess.run(
        [sys.executable, "-c", _CHILD, str(run.scratch())],
        cwd=REPOSITORY,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    figures = json.loads(answer.splitlines()[-1])
    return Measured(value=figures.pop("longest_ms"), extra=figures)


def child(directory: str) -> None:
    """Prints what was measured; runs in the child process."""
    print(json.dumps(asyncio.run(_listed(Path(directory)))))


async def _listed(directory: Path) -> dict[str, float]:
    from firnmq.config import AdminConfig
    from firnmq.server.node import Node
    from firnmq.server.settings import NodeConfig

    async with await firnmq.open_async(directory) as store:
        left = iter(range(_TOPICS))

        async def make() -> None:
            for number in left:
                await store.create_topic(f"topic-{number:05}")

        await asyncio.gather(*(make() for _ in range(_MAKERS)))
    config = NodeConfig(admin=AdminConfig(port=0))
    async with Node(directory, config) as node:
        assert node.admin is not None
        url = node.admin.local_url
        await _beats(_browse(url, 3))  # What is loaded and gathered first.
        idle = await _beats(asyncio.sleep(2))
        begun = time.perf_counter()
        gaps = await _beats(_browse(url, _PAGES))
        seconds = time.perf_counter() - begun
    return {
        "longest_ms": round(max(gaps), 2),
        "p999_ms": round(gaps[int(len(gaps) * 0.999)], 2),
        "idle_longest_ms": round(max(idle), 2),
        "page_ms": round(1000 * seconds / _PAGES, 1),
    }


async def _browse(url: str, pages: int) -> None:
    """In a process of its own: its work must not look like the node's."""
    program = (
        "import itertools, sys, urllib.request as r\n"
        "sorts = itertools.cycle(['topic', 'length_bytes', 'lag', 'record_rate', 'created_ms'])\n"
        "for n in range(int(sys.argv[2])):\n"
        '    q = f\'?sort={next(sorts)}&start={n * 50}&filter={("", "9", "topic")[n % 3]}\'\n'
        "    r.urlopen(sys.argv[1] + '/v1/pages/topics' + q, timeout=60).read()\n"
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program, url, str(pages))
    )
    assert await process.wait() == 0


async def _beats(work: Coroutine[Any, Any, None]) -> list[float]:
    """How long, during the work, the loop kept a coroutine waiting beyond its time; ms in order."""
    task = asyncio.ensure_future(work)
    gaps = []
    while not task.done():
        begun = time.perf_counter()
        await asyncio.sleep(_BEAT_S)
        gaps.append((time.perf_counter() - begun - _BEAT_S) * 1000)
    await task
    return sorted(gaps)
