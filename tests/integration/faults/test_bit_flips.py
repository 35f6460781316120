"""Damaged files: a damaged record is never given out, and everything else still is."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from firnmq.errors import Corruption, FirnError, KeyNotFound
from firnmq.record import NewRecord, Record, walk
from firnmq.server import LocalStore, Store, TopicHandle

_EPOCH = range(12, 16)
"""Bytes of a batch's header that nothing read here depends on and no CRC covers."""
_HEADER_BYTES = 61
_BATCHES = 40
_PER_BATCH = 5
_KEYS = 4
_TAGS = ("red", "blue")


class Scene:
    """An open store, its segment files, and what reading it gave before the damage."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.topic = store.topic("topic")
        shard = self.topic.topic.shard_name(0)
        self.files = sorted((store.local.path / "segments" / shard).glob("*.log"))
        self.records = list(self.topic.records())
        self.answers = {name: question(self.topic) for name, question in questions().items()}


def fill(path: Path) -> None:
    with Store(LocalStore(path, background=False)) as store:
        topic = store.create_topic("topic", options={"segment.bytes": 6_144})
        for batch in range(_BATCHES):
            topic.append([record(batch * _PER_BATCH + at) for at in range(_PER_BATCH)])


def record(number: int) -> NewRecord:
    return NewRecord(
        value=b"%d " % number * 40,
        # Neighbours share a key, so that a shifted batch would give the wrong one of them.
        key=b"key-%d" % (number // 2 % _KEYS),
        tags=(_TAGS[number % len(_TAGS)],),
        timestamp_ms=1_000_000 + number,
    )


def questions() -> dict[str, Callable[[TopicHandle], Any]]:
    """Every kind of read, by name."""

    def by_key(key: bytes) -> Callable[[TopicHandle], Any]:
        return lambda topic: topic.read_by_key(key)

    def by_tag(tag: str) -> Callable[[TopicHandle], Any]:
        return lambda topic: topic.read_by_tag(tag).records()

    def by_time(timestamp_ms: int) -> Callable[[TopicHandle], Any]:
        return lambda topic: topic.offset_at(timestamp_ms)

    found: dict[str, Callable[[TopicHandle], Any]] = {}
    found |= {f"key {number}": by_key(b"key-%d" % number) for number in range(_KEYS)}
    found |= {f"tag {tag}": by_tag(tag) for tag in _TAGS}
    times = range(1_000_000, 1_000_000 + _BATCHES * _PER_BATCH, 17)
    found |= {f"time {time}": by_time(time) for time in times}
    return found


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    fill(tmp_path / "store")
    with Store(LocalStore(tmp_path / "store", background=False)) as store:
        made = Scene(store)
        assert len(made.files) > 4
        yield made


@contextmanager
def damaged(path: Path, content: bytes | None) -> Iterator[None]:
    """The file with another content, in place, or without the file."""
    before = path.read_bytes()
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    try:
        yield
    finally:
        path.write_bytes(before)


def flipped(content: bytes, position: int, bit: int) -> bytes:
    output = bytearray(content)
    output[position] ^= 1 << bit
    return bytes(output)


def check_damage(scene: Scene, file: Path, *, is_harmless: bool = False) -> None:
    """Every read gives what it gave before or names the damaged file."""
    found: list[Record] = []
    error = None
    try:
        for each in scene.topic.records():
            found.append(each)
    except Corruption as corruption:
        error = corruption
    assert found == scene.records[: len(found)], "damaged records were given out"
    if is_harmless:
        assert error is None
        assert found == scene.records
    else:
        assert error is not None, "nobody noticed"
        assert error.where == str(file)
    for name, question in questions().items():
        answer = answer_or_place(question, scene.topic)
        assert answer in (scene.answers[name], str(file)), name


def answer_or_place(question: Callable[[TopicHandle], Any], topic: TopicHandle) -> Any:
    """The answer, or where the damage is."""
    try:
        return question(topic)
    except Corruption as corruption:
        return corruption.where
    except KeyNotFound:
        return None


def check_others(scene: Scene, file: Path) -> None:
    """Segments other than the damaged one can be read."""
    bases = [int(each.stem) for each in scene.files] + [len(scene.records)]
    for number, each in enumerate(scene.files):
        if each == file:
            continue
        base, end = bases[number], bases[number + 1]
        page = scene.topic.read(base, max_records=end - base)
        assert page.records() == scene.records[base:end]


@pytest.mark.parametrize("number", [2, -1], ids=["sealed", "active"])
def test_a_flipped_bit_is_never_given_out(scene: Scene, number: int) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    file = scene.files[number]
    content = file.read_bytes()
    batches = walk(content).headers
    for batch in (batches[0], rng.choice(batches[1:-1]), batches[-1]):
        inside = rng.sample(range(_HEADER_BYTES, batch.size), 12)
        for position in (*range(_HEADER_BYTES), *inside):
            bits = range(8) if position == 7 else [rng.randrange(8)]
            for bit in bits:
                with damaged(file, flipped(content, batch.position + position, bit)):
                    try:
                        check_damage(scene, file, is_harmless=position in _EPOCH)
                    except AssertionError as error:
                        error.add_note(f"byte {position} of the batch at {batch.position}")
                        raise
    with damaged(file, flipped(content, batches[1].position + 20, 3)):
        check_others(scene, file)


@pytest.mark.parametrize("cut", ["nothing", "a batch", "half", "all", "missing"])
def test_a_sealed_file_that_is_shorter_is_noticed(scene: Scene, cut: str) -> None:
    file = scene.files[2]
    content = file.read_bytes()
    last = walk(content).headers[-1]
    left = {
        "nothing": content,
        "a batch": content[: last.position],
        "half": content[: len(content) // 2],
        "all": b"",
        "missing": None,
    }[cut]
    scene.store.local.files.forget(str(file))
    with damaged(file, left):
        check_damage(scene, file, is_harmless=cut == "nothing")
        check_others(scene, file)
        scene.store.local.files.forget(str(file))


def torn_tails() -> dict[str, Callable[[bytes], bytes]]:
    """What an interrupted write may leave after the good end, made from the good bytes."""
    return {
        "zeros": lambda _: bytes(5_000),
        "one byte": lambda _: b"\x17",
        "garbage": lambda _: random.Random(1).randbytes(3_000),
        "half a batch": lambda good: good[: walk(good).headers[0].size // 2],
        "an old batch": lambda good: good[: walk(good).headers[0].size],
        "a header": lambda good: good[:_HEADER_BYTES],
        "a sector": lambda good: good[:512],
    }


@pytest.mark.parametrize("kind", torn_tails())
def test_a_torn_tail_is_cut_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    fill(tmp_path / "store")
    with Store(LocalStore(tmp_path / "store", background=False)) as store:
        before = Scene(store)
    file = before.files[-1]
    good = file.read_bytes()
    torn = torn_tails()[kind](good)
    file.write_bytes(good + torn)

    with Store(LocalStore(tmp_path / "store", background=False)) as store:
        topic = store.topic("topic")
        assert list(topic.records()) == before.records
        assert file.read_bytes() == good
        (written,) = topic.append(record(999))
        assert written.base_offset == len(before.records)
        assert topic.read(written.base_offset).records()[0].value == record(999).value
    cuts = [vars(event)["fields"] for event in caplog.records if "tail_cut" in event.message]
    assert [fields["cut_bytes"] for fields in cuts] == [len(torn)]


@pytest.mark.parametrize("left", ["half", "nothing", "missing"])
def test_an_active_file_that_lost_synced_bytes_is_refused(tmp_path: Path, left: str) -> None:
    fill(tmp_path / "store")
    with Store(LocalStore(tmp_path / "store", background=False)) as store:
        before = Scene(store)
        store.create_topic("other").append(b"other")
    file = before.files[-1]
    content = file.read_bytes()
    if left == "missing":
        file.unlink()
    else:
        file.write_bytes(content[: len(content) // 2] if left == "half" else b"")
    with Store(LocalStore(tmp_path / "store", background=False)) as store:
        with pytest.raises(Corruption) as caught:
            store.topic("topic").read(0)
        assert caught.value.where == str(file)
        with pytest.raises(Corruption):
            store.topic("topic").append(b"more")
        assert [each.value for each in store.topic("other").records()] == [b"other"]
    if left != "missing":
        assert len(file.read_bytes()) < len(content), "nothing was invented"


def test_flipped_bits_in_the_database_are_never_given_out(tmp_path: Path) -> None:
    """RocksDB checks its blocks; what it finds reaches the reader as one of our errors."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    origin = tmp_path / "store"
    options = {"storage.type": "EngineRocksDB", "segment.bytes": 8_192}
    with Store(LocalStore(origin, background=False)) as store:
        topic = store.create_topic("topic", options=options)
        for batch in range(_BATCHES):
            topic.append([record(batch * _PER_BATCH + at) for at in range(_PER_BATCH)])
        wanted = list(topic.records())
    noticed = 0
    for number in range(25):
        path = tmp_path / f"{number}"
        shutil.copytree(origin, path)
        file = rng.choice(sorted((path / "db").glob("*.sst")))
        content = file.read_bytes()
        file.write_bytes(flipped(content, rng.randrange(len(content)), rng.randrange(8)))
        found: list[Record] = []
        try:
            with Store(LocalStore(path, background=False)) as store:
                for each in store.topic("topic").records():
                    found.append(each)
        except FirnError:
            noticed += 1
        else:
            assert found == wanted
        assert found == wanted[: len(found)]
        shutil.rmtree(path)
    assert noticed
