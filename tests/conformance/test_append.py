"""Appending: contiguous offsets, one answer per request, whole batches or nothing."""

import asyncio
import threading

import pytest

from firnmq.engines import Appended
from firnmq.errors import InvalidArgument, InvalidRecord, LimitExceeded
from firnmq.record import NewRecord, parse_header
from tests.conformance.lab import Lab, Shard, numbered


def test_offsets_are_contiguous_from_zero(shard: Shard) -> None:
    assert shard.append_values(b"a") == Appended(base_offset=0, next_offset=1)
    assert shard.append_values(b"b", b"c") == Appended(base_offset=1, next_offset=3)
    assert shard.append(*numbered(100)) == Appended(base_offset=3, next_offset=103)
    assert shard.offsets() == list(range(103))
    assert (shard.start, shard.end) == (0, 103)


def test_an_empty_shard_reads_as_empty(shard: Shard) -> None:
    page = shard.read(0)
    assert (len(page), page.next_offset, page.start_offset, page.end_offset) == (0, 0, 0, 0)


def test_a_request_without_records_is_refused(shard: Shard) -> None:
    with pytest.raises(InvalidArgument):
        shard.append()
    with pytest.raises(InvalidRecord):
        shard.append_raw(b"")
    assert shard.end == 0


def test_a_large_request_is_one_batch(own_lab: Lab) -> None:
    shard = own_lab.shard({"segment.bytes": 65_536})
    shard.append_values(b"before")
    assert shard.append(*numbered(30_000)) == Appended(base_offset=1, next_offset=30_001)
    raw = shard.engine.read_batches(shard.name, 1, max_bytes=1)
    assert [parse_header(batch).record_count for batch in raw.batches] == [30_000]
    assert shard.offsets() == list(range(30_001))


def test_a_request_that_does_not_fit_a_batch_is_refused_whole(own_lab: Lab) -> None:
    shard = own_lab.shard({"max.batch.bytes": 4096, "max.record.bytes": 1000})
    with pytest.raises(LimitExceeded, match=r"max\.batch\.bytes") as caught:
        shard.append(*numbered(200, size=100))
    assert (caught.value.limit, caught.value.option) == (4096, "max.batch.bytes")
    assert caught.value.size > 20_000
    assert (shard.end, shard.status.failure) == (0, None)
    with pytest.raises(InvalidRecord):
        shard.append(*numbered(200, size=100), NewRecord(value="no bytes"))  # type: ignore[arg-type]
    shard.append(*numbered(20, size=100))
    own_lab.reopen()
    assert shard.end == (0 if own_lab.storage_type == "EngineMemory" else 20)


def test_each_thread_is_told_where_its_own_records_are(shard: Shard) -> None:
    answers: dict[bytes, Appended] = {}

    def write(writer: int) -> None:
        for number in range(25):
            values = [b"%d-%d-%d" % (writer, number, part) for part in range(1 + number % 3)]
            answers[values[0]] = shard.append_values(*values)

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    values = shard.values()
    assert shard.offsets() == list(range(len(values)))
    for first, appended in answers.items():
        writer, number, _ = first.split(b"-")
        own = values[appended.base_offset : appended.next_offset]
        assert own == [b"%b-%b-%d" % (writer, number, part) for part in range(len(own))]
        assert len(own) == 1 + int(number) % 3


async def test_each_task_is_told_where_its_own_records_are(shard: Shard) -> None:
    async def write(number: int) -> tuple[int, Appended]:
        records = [NewRecord(value=b"%d" % number)] * (1 + number % 20)
        return number, await shard.engine.append(shard.name, records)

    answers = await asyncio.gather(*(write(number) for number in range(200)))
    values = shard.values()
    assert len(values) == sum(1 + number % 20 for number in range(200)) == shard.end
    for number, appended in answers:
        assert values[appended.base_offset : appended.next_offset] == [b"%d" % number] * (
            1 + number % 20
        )


async def test_small_requests_and_whole_batches_keep_their_own_offsets(shard: Shard) -> None:
    """Merged and unmerged requests alternate, so that merging must stop and start again."""
    sizes = [1, 100, 2, 3, 40, 1, 1, 17, 16]

    async def write(number: int, size: int) -> Appended:
        records = [NewRecord(value=b"%d" % number)] * size
        return await shard.engine.append(shard.name, records)

    answers = await asyncio.gather(*(write(*pair) for pair in enumerate(sizes)))
    values = shard.values()
    assert len(values) == sum(sizes)
    for number, (size, appended) in enumerate(zip(sizes, answers, strict=True)):
        own = values[appended.base_offset : appended.next_offset]
        assert own == [b"%d" % number] * size


def test_a_request_with_one_bad_record_stores_nothing(shard: Shard) -> None:
    shard.append_values(b"before")
    bad = NewRecord(value="text")  # type: ignore[arg-type]
    for count in (1, 50):
        with pytest.raises(InvalidRecord):
            shard.append(*numbered(count), bad)
    assert shard.values() == [b"before"]
    shard.append_values(b"after")
    assert shard.offsets() == [0, 1]


def test_a_record_above_the_limit_is_refused_with_the_numbers(lab: Lab) -> None:
    shard = lab.shard({"max.record.bytes": 1000})
    with pytest.raises(LimitExceeded) as caught:
        shard.append_values(b"x" * 1001)
    assert caught.value.limit == 1000
    assert caught.value.size > 1000
    assert shard.end == 0


@pytest.mark.parametrize("size", range(900, 1100, 7))
def test_a_record_near_the_batch_limit_never_closes_the_shard(lab: Lab, size: int) -> None:
    """A refusal is for its sender: whoever appends next is served."""
    shard = lab.shard({"max.record.bytes": 1024, "max.batch.bytes": 1024})
    try:
        shard.append_values(b"x" * size)
    except LimitExceeded:
        stored = 0
    else:
        stored = 1
    shard.append_values(b"next")
    assert shard.status.failure is None
    assert shard.values() == [b"x" * size] * stored + [b"next"]


async def test_a_cancelled_append_breaks_nothing(shard: Shard) -> None:
    """Its records may be stored or not; whatever follows is right either way."""
    for number in range(20):
        record = NewRecord(value=b"cancelled %d" % number)
        task = asyncio.ensure_future(shard.engine.append(shard.name, [record]))
        await asyncio.wait([asyncio.ensure_future(_nothing())])
        task.cancel()
        kept = await shard.engine.append(shard.name, [NewRecord(value=b"kept %d" % number)])
        assert shard.values()[kept.base_offset] == b"kept %d" % number
        await asyncio.wait([task])
    values = [value or b"" for value in shard.values()]
    assert shard.offsets() == list(range(shard.end))
    assert [value for value in values if value.startswith(b"kept")] == [
        b"kept %d" % number for number in range(20)
    ]
    assert len(values) == len(set(values)) <= 40


async def _nothing() -> None:
    """Ends at once: waiting for it lets other tasks take a step."""
