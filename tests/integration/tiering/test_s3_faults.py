"""An S3 store when the server, the network or the credentials are bad."""

import multiprocessing
import os
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import firnmq
from firnmq.errors import (
    ObjectExists,
    ObjectNotFound,
    ObjectTruncated,
    StoreDenied,
    StoreError,
    StoreTimedOut,
    StoreUnavailable,
)
from firnmq.testing.fault_proxy import Fault, FaultProxy
from firnmq.testing.seaweed import ACCESS_KEY, SECRET_KEY, SeaweedServer
from firnmq.tiering.stores import ObjectStore, open_store
from tests.integration.tiering.stage import TIMEOUT_S, once_available

MIB = 1024 * 1024
QUICK = {"timeout_ms": 500, "connect_timeout_ms": 300, "retries": 1, "retry_timeout_ms": 500}
"""For what is never answered. Whatever must succeed may take longer on a busy machine."""
IN_TIME_S = 30


class Scene:
    """A store behind a proxy, and the same store without it."""

    def __init__(self, seaweed: SeaweedServer) -> None:
        self.proxy = FaultProxy(("127.0.0.1", seaweed.port))
        url = f"{seaweed.url}/{secrets.token_hex(8)}"
        self.direct = open_store(url, seaweed.options())
        self.patient = open_store(url, seaweed.options(endpoint=self.proxy.endpoint))
        self.quick = open_store(url, seaweed.options(endpoint=self.proxy.endpoint, **QUICK))
        self.once = open_store(url, seaweed.options(endpoint=self.proxy.endpoint, retries=0))

    def keys(self) -> list[str]:
        return [info.key for info in self.direct.list("")]


@pytest.fixture
def scene(seaweed: SeaweedServer) -> Iterator[Scene]:
    scene = Scene(seaweed)
    yield scene
    scene.proxy.stop()


def calls(store: ObjectStore) -> dict[str, Callable[[], object]]:
    return {
        "put": lambda: store.put("new", b"x"),
        "overwrite": lambda: store.put("key", b"x", if_absent=False),
        "upload": lambda: store.upload("big", (bytes(MIB) for _ in range(20)), size=20 * MIB),
        "get_range": lambda: store.get_range("key", 0, 5),
        "head": lambda: store.head("key"),
        "list": lambda: list(store.list("")),
        "delete": lambda: store.delete(["key"]),
        "sweep": lambda: store.sweep("", before_ms=0),
    }


CALLS = [
    *("put", "overwrite", "upload", "get_range", "head", "list", "delete", "sweep"),
]


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    "fault", [Fault(is_silent=True), Fault(status=503), Fault(is_cut_before=True)]
)
def test_a_store_that_does_not_answer_is_unavailable_in_time(
    scene: Scene, name: str, fault: Fault
) -> None:
    scene.direct.put("key", b"hello")
    scene.proxy.inject(fault)
    began = time.monotonic()
    with pytest.raises(StoreUnavailable) as error:
        calls(scene.quick)[name]()
    assert time.monotonic() - began < IN_TIME_S
    assert error.value.store == scene.quick.url
    assert "error sending request" not in str(error.value)
    if fault.is_silent:
        assert isinstance(error.value, StoreTimedOut)
        assert error.value.timeout_ms == 500
        assert error.value.operation.startswith(
            {"overwrite": "put", "sweep": "GET of unfinished uploads"}.get(name, name)
        )
        assert "within 500 ms (tiering.timeout_ms)" in str(error.value)
    assert SECRET_KEY not in str(error.value)


def test_a_server_that_is_not_there_is_called_that(seaweed: SeaweedServer) -> None:
    store = open_store(seaweed.url, seaweed.options(endpoint="http://127.0.0.1:1", **QUICK))
    with pytest.raises(StoreUnavailable, match="head: cannot be reached: Connection refused"):
        store.head("key")


@pytest.mark.parametrize("name", [each for each in CALLS if each not in ("put", "sweep")])
def test_one_failure_is_retried(scene: Scene, name: str) -> None:
    scene.direct.put("key", b"hello")
    scene.proxy.inject(Fault(status=503, times=1))
    calls(scene.patient)[name]()
    assert len(scene.proxy.exchanges) >= 2


def test_a_read_that_is_cut_is_read_to_its_end(scene: Scene) -> None:
    data = os.urandom(3 * MIB)
    scene.direct.upload("key", [data], size=len(data))
    scene.proxy.inject(Fault(methods=("GET",), cut_after=MIB, times=1))
    assert bytes(scene.patient.get_range("key", 0, len(data))) == data


def test_a_shorter_answer_is_truncated(scene: Scene) -> None:
    scene.direct.put("key", b"hello")
    scene.proxy.inject(Fault(methods=("GET",), truncate=2))
    with pytest.raises((ObjectTruncated, StoreUnavailable)):
        scene.once.get_range("key", 0, 5)


def test_an_answer_that_was_lost_may_have_been_a_success(scene: Scene) -> None:
    """1. The put arrives and its answer is lost. 2. The error says unknown. 3. The next try finds
    the object, which is the caller's own.
    """
    scene.proxy.inject(Fault(methods=("PUT",), cut_after=-1))
    with pytest.raises((StoreUnavailable, ObjectExists)):
        scene.once.put("key", b"mine")
    scene.proxy.clear()
    with pytest.raises(ObjectExists):
        scene.once.put("key", b"mine")
    assert bytes(scene.direct.get_range("key", 0, 4)) == b"mine"


@pytest.mark.parametrize("part", ["partNumber=1&", "partNumber=3&", "partNumber=4&"])
def test_an_upload_with_a_bad_part_leaves_nothing(scene: Scene, part: str) -> None:
    scene.proxy.inject(Fault(methods=("PUT",), path=part, status=500))
    with pytest.raises(StoreUnavailable):
        scene.once.upload("big", (bytes(MIB) for _ in range(30)), size=30 * MIB)
    assert scene.keys() == []
    assert scene.direct.sweep("", before_ms=1 << 50) == 0


def test_what_could_not_be_aborted_is_swept(scene: Scene) -> None:
    """1. Parts arrive, the rest fails, aborting too. 2. Nothing is visible, but something is there.
    3. A sweep leaves what is young and what is elsewhere. 4. A sweep of the folder removes it.
    """
    scene.proxy.inject(Fault(methods=("PUT",), path="partNumber=4&", status=500))
    scene.proxy.inject(Fault(methods=("DELETE",), status=500))
    with pytest.raises(StoreUnavailable):
        scene.once.upload("folder/big", (bytes(MIB) for _ in range(30)), size=30 * MIB)
    assert scene.keys() == []
    assert scene.direct.sweep("folder", before_ms=1_000_000) == 0
    assert scene.direct.sweep("other", before_ms=1 << 50) == 0
    assert scene.direct.sweep("", before_ms=1 << 50, is_meant=lambda key: key == "other") == 0
    is_it = "folder/big".__eq__
    assert scene.direct.sweep("folder", before_ms=1 << 50, is_meant=is_it) == 1
    assert scene.direct.sweep("", before_ms=1 << 50) == 0


def test_a_completion_whose_answer_is_lost(scene: Scene) -> None:
    scene.proxy.inject(Fault(methods=("POST",), path="uploadId=", cut_after=-1))
    data = os.urandom(20 * MIB)
    with pytest.raises(StoreError):
        scene.once.upload("big", [data], size=len(data))
    assert scene.direct.sweep("", before_ms=1 << 50) == 0
    scene.proxy.clear()
    scene.patient.upload("big", [data], size=len(data))
    assert bytes(scene.direct.get_range("big", 0, len(data))) == data


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(("key", "secret"), [("nobody", SECRET_KEY), (ACCESS_KEY, "wrong")])
def test_wrong_credentials_are_denied(
    seaweed: SeaweedServer, name: str, key: str, secret: str
) -> None:
    store = open_store(seaweed.url, seaweed.options(access_key=key, secret_key=secret))
    with pytest.raises(StoreDenied):
        calls(store)[name]()


@pytest.mark.parametrize("name", [each for each in CALLS if each != "delete"])
def test_a_bucket_that_is_not_there_is_not_an_empty_one(seaweed: SeaweedServer, name: str) -> None:
    store = open_store("s3://no-such-bucket/x", seaweed.options())
    with pytest.raises(StoreDenied) as raised:
        calls(store)[name]()
    if name in ("put", "get_range", "list"):
        assert "there is no such bucket" in str(raised.value)


@pytest.mark.parametrize(
    ("wrong", "setting"),
    [
        ({"secret_key": "wrong"}, "secret_key in [tiering], FIRN_TIERING_SECRET_KEY"),
        ({"access_key": "wrong"}, "access_key in [tiering], FIRN_TIERING_ACCESS_KEY"),
    ],
)
def test_a_refusal_names_the_setting(
    seaweed: SeaweedServer, wrong: dict[str, object], setting: str
) -> None:
    store = open_store(seaweed.url, seaweed.options(**wrong))
    with pytest.raises(StoreDenied, match=re.escape(setting)) as raised:
        list(store.list(""))
    assert "Generic S3 error" not in str(raised.value)


def test_an_upload_with_a_wrong_secret_says_so_once(seaweed: SeaweedServer, tmp_path: Path) -> None:
    options = seaweed.options()
    variables = {
        "FIRN_TIERING_URL": f"{seaweed.url}/wrong-secret",
        "FIRN_TIERING_ENDPOINT": str(options.endpoint),
        "FIRN_TIERING_ALLOW_HTTP": "true",
        "FIRN_TIERING_REGION": str(options.region),
        "FIRN_TIERING_ACCESS_KEY": ACCESS_KEY,
        "FIRN_TIERING_SECRET_KEY": "wrong",
    }
    with firnmq.open(tmp_path) as embedded:
        topic = embedded.create_topic("orders", options={"tiering": "on"})
        topic.append(b"one")
        topic.roll()
    done = subprocess.run(
        [sys.executable, "-m", "firnmq", "tier", "upload", "--data", str(tmp_path)],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert (done.stdout + done.stderr).count("FIRN_TIERING_SECRET_KEY") == 1


def test_a_stopped_server_fails_in_time_and_comes_back(tmp_path: Path) -> None:
    """SIGSTOP: the kernel still accepts connections, and nothing is ever answered."""
    server = SeaweedServer(tmp_path)
    try:
        store = open_store(server.url, server.options(**QUICK))
        once_available(lambda: store.put("key", b"hello", if_absent=False))
        server.pause()
        for name in ("get_range", "put", "upload", "list"):
            began = time.monotonic()
            with pytest.raises(StoreUnavailable):
                calls(store)[name]()
            assert time.monotonic() - began < IN_TIME_S
        server.resume()
        assert bytes(once_available(lambda: store.get_range("key", 0, 5))) == b"hello"
        server.stop()
        with pytest.raises(StoreUnavailable):
            store.head("key")
        server.restart()
        assert once_available(lambda: store.head("key")).size == 5
    finally:
        server.stop()


def _use_after_fork(store: ObjectStore, answers: object) -> None:
    try:
        store.head("key")
    except StoreError as error:
        answers.send(str(error))  # type: ignore[attr-defined]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_is_refused_instead_of_waiting_forever(scene: Scene) -> None:
    with pytest.raises(ObjectNotFound):
        scene.direct.head("key")
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=_use_after_fork, args=(scene.direct, theirs))
    process.start()
    try:
        assert ours.poll(TIMEOUT_S)
        assert "fork" in ours.recv()
    finally:
        process.join(10)
        process.kill()
        ours.close()
        theirs.close()


def test_memory_of_an_upload_is_bounded(scene: Scene) -> None:
    """While no part gets through, the source is asked for the parts in flight and a few more."""
    asked = 0

    def chunks() -> Iterator[bytes]:
        nonlocal asked
        for _ in range(60):
            asked += 1
            yield bytes(4 * MIB)

    scene.proxy.inject(Fault(methods=("PUT",), is_silent=True))
    with pytest.raises(StoreUnavailable):
        scene.quick.upload("big", chunks(), size=240 * MIB)
    assert asked * 4 <= (8 + 3) * 8
