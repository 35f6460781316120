"""The journal of the key-value store: a crash leaves its records up to the last whole one."""

import errno
import json
import os
import random
from pathlib import Path

import pytest

from firnmq.disk.kv.journal import DELETE, DELETE_RANGE, PUT, Change, Journal, JournalFile
from firnmq.errors import Corruption

CHANGES: list[list[Change]] = [
    [(number % 4, PUT, [(b"key %d" % number, b"value" * number)]), (0, DELETE, [(b"k", b"")])]
    for number in range(6)
]

RANGE: list[Change] = [(2, DELETE_RANGE, [(b"a", b"b")])]
GOLDEN = Path(__file__).parents[2] / "golden" / "journal_v1.json"


def journal(directory: Path) -> Journal:
    made = Journal(directory)
    made.rewrite()
    return made


def left(directory: Path) -> list[list[Change]]:
    reopened = journal(directory)
    found = list(reopened.records())
    reopened.close()
    return found


def files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def fill(directory: Path, *, switch_after: int = 3) -> None:
    made = journal(directory)
    for number, changes in enumerate(CHANGES):
        made.append(changes, may_wait=False)
        if number + 1 == switch_after:
            made.switch()
    made.close()


def test_records_come_back_in_order_and_once(tmp_path: Path) -> None:
    assert left(tmp_path) == []
    assert files(tmp_path) == [], "a journal without records is no file"
    fill(tmp_path)
    assert len(files(tmp_path)) == 2
    assert left(tmp_path) == CHANGES
    made = journal(tmp_path)
    made.append([(2, DELETE_RANGE, [(b"a", b"b")])], may_wait=True)
    assert made.write_out() is not None
    made.close()
    assert left(tmp_path) == [*CHANGES, [(2, DELETE_RANGE, [(b"a", b"b")])]]
    made = journal(tmp_path)
    made.discard()
    assert files(tmp_path) == []


def test_the_bytes_are_as_documented(tmp_path: Path) -> None:
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    made = journal(tmp_path)
    for changes in CHANGES[:3]:
        made.append(changes, may_wait=False)
    made.append(RANGE, may_wait=False)
    made.close()
    path = tmp_path / "journal-00000001.log"
    assert path.read_bytes().hex() == golden["file"]
    path.write_bytes(bytes.fromhex(golden["file"]))
    assert left(tmp_path) == [*CHANGES[:3], RANGE]


@pytest.mark.parametrize("seed", range(20))
def test_a_torn_end_is_dropped(tmp_path: Path, seed: int) -> None:
    fill(tmp_path)
    last = tmp_path / files(tmp_path)[-1]
    rng = random.Random(seed)
    length = rng.randrange(last.stat().st_size)
    os.truncate(last, length)
    if rng.random() < 0.5:
        with last.open("ab") as file:
            file.write(bytes(rng.randrange(600)))
    found = left(tmp_path)
    assert found == CHANGES[: len(found)]
    assert len(found) >= 3, "what the older file has is durable"
    assert left(tmp_path) == found


def test_an_older_file_is_never_shortened(tmp_path: Path) -> None:
    fill(tmp_path)
    first = tmp_path / files(tmp_path)[0]
    whole = first.read_bytes()
    for damaged in (whole[:-1], whole[:40] + b"\xff" + whole[41:], b"FIRNKVJ9" + whole[8:], b""):
        first.write_bytes(damaged)
        with pytest.raises(Corruption):
            journal(tmp_path)
    first.write_bytes(whole)
    assert left(tmp_path) == CHANGES


def test_a_missing_file_in_the_middle_is_noticed(tmp_path: Path) -> None:
    made = journal(tmp_path)
    for changes in CHANGES[:3]:
        made.append(changes, may_wait=False)
        made.switch()
    made.close()
    (tmp_path / files(tmp_path)[1]).unlink()
    with pytest.raises(Corruption):
        journal(tmp_path)


def test_another_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "journal-00000001.log"
    path.write_bytes(b"FIRNKVJ2 and more")
    with pytest.raises(Corruption):
        journal(tmp_path)
    assert path.read_bytes() == b"FIRNKVJ2 and more"


@pytest.mark.parametrize("written", [0, 1, 9, 30, 70])
def test_a_failed_write_leaves_the_records_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    """Some of the bytes get into the file, records that had waited among them."""
    made = journal(tmp_path)
    made.append(CHANGES[0], may_wait=False)
    made.append(CHANGES[1], may_wait=True)

    def fail(self: JournalFile, parts: list[bytes]) -> None:
        os.pwrite(self._descriptor, b"".join(parts)[:written], self.position)
        raise OSError(errno.EIO, "the device said no")

    with monkeypatch.context() as patched:
        patched.setattr(JournalFile, "write", fail)
        with pytest.raises(OSError, match="said no"):
            made.append(CHANGES[2], may_wait=False)
    made.rewrite()
    assert list(made.records()) == CHANGES[:2]
    made.append(CHANGES[3], may_wait=False)
    made.close()
    assert left(tmp_path) == [*CHANGES[:2], CHANGES[3]]


def test_a_rewrite_that_fails_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path)
    before = files(tmp_path)

    def refuse(self: JournalFile, length: int) -> None:
        raise OSError(errno.EIO, "the device said no")

    with monkeypatch.context() as patched:
        patched.setattr(JournalFile, "repeat", refuse)
        with pytest.raises(OSError, match="said no"):
            journal(tmp_path)
    assert files(tmp_path) == before
    assert left(tmp_path) == CHANGES


def test_a_rewrite_writes_and_syncs_every_byte_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed sync may have left them in the page cache alone."""
    fill(tmp_path)
    written: dict[str, int] = {}
    synced: list[str] = []
    pwritev, fdatasync = os.pwritev, os.fdatasync

    def name_of(descriptor: int) -> str:
        return Path(os.readlink(f"/proc/self/fd/{descriptor}")).name

    def counted(descriptor: int, parts: list[bytes], position: int) -> int:
        assert position == 0
        written[name_of(descriptor)] = sum(map(len, parts))
        return pwritev(descriptor, parts, position)

    def noted(descriptor: int) -> None:
        assert name_of(descriptor) in written
        synced.append(name_of(descriptor))
        fdatasync(descriptor)

    monkeypatch.setattr(os, "pwritev", counted)
    monkeypatch.setattr(os, "fdatasync", noted)
    journal(tmp_path).close()
    assert written == {name: (tmp_path / name).stat().st_size for name in files(tmp_path)}
    assert synced == files(tmp_path)
