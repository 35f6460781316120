"""Shards that share files: how they are written, and what becomes of their space."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from firnmq.config import StoreConfig, TopicConfig
from firnmq.disk import Family
from firnmq.engines.catalog.segments import Medium
from firnmq.engines.media.layouts.shared_file import SharedFile
from firnmq.engines.media.layouts.shared_file.frames import FILE_HEADER_BYTES, FRAME_HEADER_BYTES
from firnmq.engines.media.layouts.shared_file.rows import ALL_LOCATIONS, unpack_location
from firnmq.engines.verify.findings import FindingKind
from firnmq.errors import Corruption, StorageFailed
from firnmq.record import NewRecord, Record
from tests.conformance.lab import SHARED_FILE, SHARED_FILE_BYTES, Lab, Shard


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """A store with one lane."""
    lab = Lab(tmp_path / "data", SHARED_FILE, config=StoreConfig(io_workers=1))
    yield lab
    lab.close()


def shared(lab: Lab) -> SharedFile:
    return lab.store.shared


def numbers(lab: Lab) -> list[int]:
    return shared(lab).table.numbers_on_disk()


def content(shard: Shard) -> list[Record]:
    return shard.records()


def check_accounts(lab: Lab) -> None:
    """Live and dead bytes of each file are all that was written to it."""
    assert list(lab.store.verifier.outside_shards()) == []
    table = shared(lab).table
    live = dict.fromkeys(table.extents, 0)
    for _, packed in lab.store.kv.items(Family.LOCATIONS, *ALL_LOCATIONS):
        location = unpack_location(packed)
        live[location.file] += FRAME_HEADER_BYTES + location.length
    for number, extent in table.extents.items():
        assert live[number] == max(table.live_bytes(number), 0), f"file {number}"
        if extent.written:
            assert live[number] + table.dead_bytes(number) + FILE_HEADER_BYTES == extent.written


def fill(lab: Lab, shards: list[Shard], rounds: int = 10) -> None:
    for number in range(rounds):
        for shard in shards:
            shard.append(NewRecord(key=b"%d" % number, value=b"%d " % number * 40))


def test_a_turn_is_one_write_and_one_sync_whatever_the_number_of_shards(lab: Lab) -> None:
    shards = [lab.shard() for _ in range(200)]
    fill(lab, shards, 1)
    before, turns = lab.store.file_statistics(), lab.store.pool.turn_count

    async def append_to_all() -> None:
        await asyncio.gather(
            *(lab.engine.append(each.name, [NewRecord(value=b"v")]) for each in shards)
        )

    asyncio.run(append_to_all())
    turn_count = lab.store.pool.turn_count - turns
    assert turn_count < 20
    # A turn that begins a file syncs its predecessor, which has no unsynced bytes.
    assert lab.store.file_statistics().sync_count - before.sync_count == turn_count
    assert all(each.values()[-1] == b"v" for each in shards)


def test_segments_go_on_in_the_layout_that_the_topic_has_now(lab: Lab) -> None:
    """1. a topic shares files, 2. it does no more, 3. it does again: each from the next segment
    on."""
    shard = lab.shard()
    expected = []
    for number, layout in enumerate(("shared-file", "partition-per-file", "shared-file")):
        shard.engine.reconfigure(
            shard.name, TopicConfig.from_options({**lab.options, "segment.layout": layout})
        )
        shard.append_values(b"before the roll %d" % number)
        shard.roll()
        shard.append_values(b"after the roll %d" % number)
        expected += [b"before the roll %d" % number, b"after the roll %d" % number]
    media = [each.medium for each in shard.status.segments]
    assert media == [Medium.SHARED, Medium.SHARED, Medium.NATIVE, Medium.SHARED]
    assert shard.values() == expected
    for restart in (lab.reopen, lab.crash):
        restart()
        assert shard.values() == expected
        assert lab.store.verifier.verify(shard.name).findings == ()
    shard.delete_before(3)
    shard.engine.delete_shard(shard.name)
    assert not list((lab.path / "segments").glob("*/*"))
    assert not lab.store.kv.items(Family.LOCATIONS, *ALL_LOCATIONS)


def test_files_of_deleted_shards_are_removed(lab: Lab) -> None:
    shards = [lab.shard() for _ in range(4)]
    fill(lab, shards, 40)
    ended = numbers(lab)[:-1]
    assert ended
    for shard in shards:
        shard.engine.delete_shard(shard.name)
    check_accounts(lab)
    shared(lab).housekeep()
    assert len(numbers(lab)) == 1, "the present file stays"
    lab.reopen()
    check_accounts(lab)


def test_what_lives_is_copied_out_of_files_that_are_mostly_dead(lab: Lab) -> None:
    """1. one shard of five stays, 2. its frames move, 3. the files go, 4. it is all there."""
    kept, *others = [lab.shard({"segment.bytes": 2_048}) for _ in range(5)]
    fill(lab, [kept, *others], 20)
    before, files = content(kept), numbers(lab)
    for shard in others:
        shard.engine.delete_shard(shard.name)
    shared(lab).housekeep()
    check_accounts(lab)
    shared(lab).housekeep()
    check_accounts(lab)
    assert not set(files[:-1]) & set(numbers(lab))
    assert content(kept) == before
    for restart in (lab.reopen, lab.crash):
        restart()
        check_accounts(lab)
        assert content(kept) == before
        assert lab.store.verifier.verify(kept.name).findings == ()


def test_a_full_disk_gets_the_space_of_the_present_file_too(lab: Lab) -> None:
    """1. little of a file is dead, and its space is freed, 2. so is that of the last frames."""
    dropped, *kept = [lab.shard() for _ in range(4)]
    fill(lab, [dropped, *kept], 6)
    before, files = [content(each) for each in kept], numbers(lab)
    assert not shared(lab).has_deleted
    dropped.engine.delete_shard(dropped.name)
    shared(lab).housekeep()
    assert numbers(lab) == files, "most of them lives, or is still appended to"
    assert shared(lab).has_deleted
    shared(lab).reclaim()
    assert not set(files) & set(numbers(lab))
    for restart in (lambda: None, lab.reopen, lab.crash):
        restart()
        check_accounts(lab)
        assert [content(each) for each in kept] == before
    kept[0].append_values(b"after")
    for each in kept:
        each.engine.delete_shard(each.name)
    shared(lab).reclaim()
    assert numbers(lab) == []
    lab.shard().append_values(b"in a new file")
    check_accounts(lab)


def test_a_file_whose_end_is_not_stored_yet_is_kept(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = [lab.shard() for _ in range(3)]
    fill(lab, shards, 6)
    files = numbers(lab)
    for each in shards:
        each.engine.delete_shard(each.name)
    monkeypatch.setattr(shared(lab).table, "store_extents", _fails)
    with pytest.raises(StorageFailed):
        shared(lab).reclaim()
    monkeypatch.undo()
    shared(lab).housekeep()
    assert files[-1] in numbers(lab)
    shared(lab).reclaim()
    assert numbers(lab) == []
    lab.shard().append_values(b"after")
    check_accounts(lab)


def test_a_segment_that_is_dropped_while_it_is_copied_stays_dropped(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, dropped, *others = [lab.shard() for _ in range(6)]
    fill(lab, [kept, dropped, *others], 20)
    before = content(kept)
    for shard in others:
        shard.engine.delete_shard(shard.name)
    lane = shared(lab)._lanes[0]
    appending = lane.appending

    def append_late(frames: object, *, durable: bool) -> object:
        if dropped.name in {spec.name for spec in lab.engine.list_shard()}:
            lab.engine.delete_shard(dropped.name)
        return appending(frames, durable=durable)  # type: ignore[arg-type]

    monkeypatch.setattr(lane, "appending", append_late)
    shared(lab).housekeep()
    monkeypatch.undo()
    check_accounts(lab)
    lab.crash()
    check_accounts(lab)
    assert content(kept) == before


def test_readers_do_not_notice_that_frames_move(lab: Lab) -> None:
    kept, *others = [lab.shard() for _ in range(5)]
    fill(lab, [kept, *others], 20)
    before = content(kept)
    found: list[object] = []
    stopping = threading.Event()

    def read() -> None:
        while not stopping.is_set():
            found.append(content(kept))

    reader = threading.Thread(target=read)
    reader.start()
    for shard in others:
        shard.engine.delete_shard(shard.name)
        shared(lab).housekeep()
    shared(lab).housekeep()
    stopping.set()
    reader.join()
    assert all(each == before for each in found)


def test_a_file_with_a_damaged_frame_is_kept(lab: Lab) -> None:
    """What the damage hides may still be readable where it is."""
    kept, *others = [lab.shard() for _ in range(5)]
    fill(lab, [kept, *others], 60)
    files = numbers(lab)
    for shard in others:
        shard.engine.delete_shard(shard.name)
    path = Path(shared(lab).table.path(files[0]))
    data = bytearray(path.read_bytes())
    data[FILE_HEADER_BYTES + 3] ^= 1  # The first frame's header; its batches are good.
    path.write_bytes(data)
    before = content(kept)
    for _ in range(3):
        shared(lab).housekeep()
    assert files[0] in numbers(lab)
    assert files[1] not in numbers(lab)
    assert content(kept) == before


def _fails(*arguments: object, **named: object) -> object:
    raise OSError(5, "Input/output error")


@pytest.mark.parametrize("broken", ["write_at", "kv batch"])
def test_what_a_failed_turn_has_written_is_gone(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    """1. frames or their rows cannot be written, 2. the append is refused, 3. the next one counts,
    with and without a restart in between."""
    shards = [lab.shard() for _ in range(3)]
    fill(lab, shards, 2)
    before = [content(each) for each in shards]
    for restart in (lambda: None, lab.reopen, lab.crash):
        target: Callable[..., object] = lab.store.files if broken == "write_at" else lab.store.kv
        monkeypatch.setattr(target, broken.removeprefix("kv "), _fails)
        with pytest.raises(StorageFailed):
            shards[0].append_values(b"never")
        monkeypatch.undo()
        lab.engine.housekeep()
        restart()
        assert [content(each) for each in shards] == before
        check_accounts(lab)
    fill(lab, shards, 1)
    assert [len(content(each)) for each in shards] == [3, 3, 3]
    check_accounts(lab)


def test_a_damaged_frame_costs_its_shard_alone(lab: Lab) -> None:
    """A crash has lost the rows of the last turns, and a bit of the first of them has flipped."""
    shards = [lab.shard() for _ in range(3)]
    fill(lab, shards, 1)
    lab.store.kv.sync()
    rows = lab.store.kv.items(Family.LOCATIONS, b"", b"\xff" * 17)
    fill(lab, shards, 1)
    (path,) = (lab.path / "shared").glob("*.log")
    table = shared(lab).table
    damaged = path.read_bytes()
    with lab.store.kv.batch() as batch:
        batch.delete_range(Family.LOCATIONS, b"", b"\xff" * 17)
        batch.put_many(Family.LOCATIONS, rows)
        batch.delete_range(Family.INDEX, b"", b"\xff" * 17)
    written = table.extents[1].written
    lab.store.close()
    first = damaged.index(b"\xf1FRM", written // 2)
    flipped = bytearray(damaged)
    flipped[first + FRAME_HEADER_BYTES + 70] ^= 4
    path.write_bytes(flipped)
    lab.store = lab._opened()
    assert sorted(len(each.values()) for each in shards) == [1, 2, 2]
    fill(lab, shards, 1)
    assert sorted(len(each.values()) for each in shards) == [2, 3, 3]
    for each in shards:
        assert lab.store.verifier.verify(each.name).findings == ()


def test_flipped_bits_are_never_given_out(lab: Lab) -> None:
    shards = [lab.shard() for _ in range(3)]
    fill(lab, shards, 4)
    before = [shard.records() for shard in shards]
    (path,) = (lab.path / "shared").glob("*.log")
    good = path.read_bytes()
    for at in range(FILE_HEADER_BYTES, len(good), 7):
        flipped = bytearray(good)
        flipped[at] ^= 1 << at % 8
        path.write_bytes(flipped)
        whole = 0
        for shard, expected in zip(shards, before, strict=True):
            try:
                assert shard.records() == expected
                whole += 1
            except Corruption:
                pass
        assert whole >= len(shards) - 1, "damage to one frame is one shard's"
    path.write_bytes(good)


def test_verify_tells_of_files_that_are_not_what_their_rows_say(lab: Lab) -> None:
    shards = [lab.shard() for _ in range(3)]
    fill(lab, shards, 100)
    first, *_, last = numbers(lab)
    table = shared(lab).table
    Path(table.path(last)).write_bytes(b"")
    lab.store.files.remove(table.path(first))
    Path(table.path(99)).write_bytes(b"")
    with table.changing_dead() as change:
        change.add(first + 1, 7)
    found = {each.where: each.kind for each in lab.store.verifier.outside_shards()}
    assert found == {
        table.path(first): FindingKind.FILE_MISSING,
        table.path(first + 1): FindingKind.ORPHAN,
        table.path(last): FindingKind.FILE_MISSING,
        table.path(99): FindingKind.ORPHAN,
    }


def test_files_have_the_size_that_the_settings_say(lab: Lab) -> None:
    shard = lab.shard()
    fill(lab, [shard], 100)
    shard.append_values(b"large" * SHARED_FILE_BYTES)
    shard.append_values(b"small")
    sizes = [Path(shared(lab).table.path(each)).stat().st_size for each in numbers(lab)]
    large = [size for size in sizes if size > SHARED_FILE_BYTES]
    assert len(large) == 1, "a turn that is larger has a file of its own"
    assert len(shard.values()) == 102


@pytest.mark.parametrize("left", [0, 20])
def test_a_file_of_which_a_power_failure_leaves_nothing_is_forgotten(lab: Lab, left: int) -> None:
    """1. An append that nothing has synced begins a file; its rows are synced. 2. The power fails,
    and of the file there are at most zeros. 3. The shard is empty, and takes records again."""
    shard = lab.shard({"durability": "os"})
    shard.append_values(b"lost")
    lab.store.kv.sync()
    (number,) = numbers(lab)

    def lose(copy: Path) -> None:
        path = copy / "shared" / Path(shared(lab).table.path(number)).name
        path.write_bytes(bytes(left))

    lab.crash(lose)
    assert shard.values() == []
    check_accounts(lab)
    shard.append_values(b"kept")
    lab.reopen()
    assert shard.values() == [b"kept"]
    check_accounts(lab)
