from types import ModuleType

import pytest

from firnmq.errors import InvalidArgument
from firnmq.record import Compression, NewRecord
from tests.unit.record.batches import made, record, with_crc

FIRST = made(record(0), record(1), base_offset=10)
SECOND = made(record(0), base_offset=12, compression=Compression.GZIP)
THIRD = made(record(0), record(1), record(2), base_offset=13)
LOG = FIRST + SECOND + THIRD


def test_whole_batches_up_to_the_exact_end(codec: ModuleType) -> None:
    found = codec.walk(LOG, expected_offset=10)
    assert found.reason is None
    assert found.valid_end == len(LOG)
    assert found.needed_bytes == 0
    assert [span.position for span in found.headers] == [0, len(FIRST), len(FIRST + SECOND)]
    assert [span.size for span in found.headers] == [len(FIRST), len(SECOND), len(THIRD)]
    assert [span.base_offset for span in found.headers] == [10, 12, 13]
    assert [span.last_offset for span in found.headers] == [11, 12, 15]
    assert [span.record_count for span in found.headers] == [2, 1, 3]


def test_every_field_of_an_entry(codec: ModuleType) -> None:
    batch = codec.encode(
        [NewRecord(value=b"v", timestamp_ms=t) for t in (5, 9, 7)],
        now_ms=1,
        base_offset=4,
        leader_epoch=6,
        producer_id=2**40,
        producer_epoch=8,
        base_sequence=11,
        compression=Compression.LZ4,
    )
    (span,) = codec.walk(batch).headers
    assert (span.base_timestamp, span.max_timestamp) == (5, 9)
    assert (span.producer_id, span.producer_epoch, span.base_sequence) == (2**40, 8, 11)
    assert (span.leader_epoch, span.attributes) == (6, 3)
    assert "base_offset=4" in repr(span)


def test_nothing_is_a_good_end(codec: ModuleType) -> None:
    found = codec.walk(b"")
    assert (found.headers, found.valid_end, found.reason) == ([], 0, None)
    assert "0 batches" in repr(found)


def test_every_cut_is_truncated_after_the_whole_batches(codec: ModuleType) -> None:
    ends = [0, len(FIRST), len(FIRST + SECOND), len(LOG)]
    for cut in range(len(LOG)):
        found = codec.walk(LOG[:cut])
        assert found.valid_end == max(end for end in ends if end <= cut)
        assert found.reason == (None if cut in ends else "truncated")
        if found.reason:
            assert cut - found.valid_end < found.needed_bytes
            needed = LOG[: found.valid_end + found.needed_bytes]
            assert len(codec.walk(needed).headers) >= len(found.headers)


def test_a_range_of_the_buffer(codec: ModuleType) -> None:
    found = codec.walk(b"??" + LOG + b"??", 2, 2 + len(LOG))
    assert found.reason is None
    assert found.headers[0].position == 2
    assert codec.walk(memoryview(LOG), len(FIRST)).headers[0].base_offset == 12


@pytest.mark.parametrize("bounds", [(-1, None), (5, 4), (0, 10**6), (10**6, None)])
def test_a_range_outside_the_buffer_is_the_callers_mistake(
    codec: ModuleType, bounds: tuple[int, int | None]
) -> None:
    with pytest.raises(InvalidArgument):
        codec.walk(LOG, *bounds)


def test_a_flipped_byte_ends_the_walk_in_front_of_its_batch(codec: ModuleType) -> None:
    for position in range(len(FIRST) + 12, len(FIRST) + len(SECOND)):
        if len(FIRST) + 12 <= position < len(FIRST) + 16:
            continue  # The leader epoch is not covered by the CRC.
        damaged = bytearray(LOG)
        damaged[position] ^= 0x40
        found = codec.walk(damaged)
        assert found.valid_end == len(FIRST)
        assert found.reason not in (None, "truncated")


def test_without_verification_only_the_header_is_looked_at(codec: ModuleType) -> None:
    damaged = bytearray(LOG)
    damaged[len(FIRST) - 1] ^= 1
    assert codec.walk(damaged).reason == "crc mismatch"
    assert codec.walk(damaged, verify=False).reason is None


@pytest.mark.parametrize(
    ("tail", "reason"),
    [
        (bytes(200), "bad length"),
        (b"\xff" * 200, "bad length"),
        (made(record(0), magic=1), "bad magic"),
        (made(record(0), base_offset=-1), "bad offset"),
        (made(record(0), base_offset=2**62 + 1), "bad offset"),
        (made(record(0), last_offset_delta=-1), "bad offset"),
        (made(record(0), record_count=-1, last_offset_delta=0), "bad record count"),
        (made(record(0), record_count=3, last_offset_delta=1), "bad record count"),
        (made(record(0), batch_length=2**31 - 1), "bad length"),
        (made(record(0), batch_length=48), "bad length"),
        (made(record(0), batch_length=-5), "bad length"),
        (made(record(0), batch_length=1000), "truncated"),
    ],
)
def test_why_a_walk_ends(codec: ModuleType, tail: bytes, reason: str) -> None:
    found = codec.walk(FIRST + tail)
    assert found.reason == reason
    assert found.valid_end == len(FIRST)


def test_a_batch_above_the_limit_is_not_waited_for(codec: ModuleType) -> None:
    assert codec.walk(FIRST, max_batch_bytes=len(FIRST)).reason is None
    assert codec.walk(FIRST, max_batch_bytes=len(FIRST) - 1).reason == "bad length"


def test_offsets_must_follow_each_other_if_asked(codec: ModuleType) -> None:
    assert codec.walk(LOG, expected_offset=9).reason == "offset gap"
    assert codec.walk(LOG, expected_offset=0).valid_end == 0
    gap = FIRST + THIRD
    assert codec.walk(gap).reason is None
    found = codec.walk(gap, expected_offset=10)
    assert (found.reason, found.valid_end) == ("offset gap", len(FIRST))
    # Also where the batch is cut short, since waiting for its rest would be in vain.
    assert codec.walk(gap[:-1], expected_offset=10).reason == "offset gap"


def test_an_empty_batch_is_a_batch(codec: ModuleType) -> None:
    batch = made(record_count=0, last_offset_delta=4, base_offset=10)
    found = codec.walk(batch, expected_offset=10)
    assert found.reason is None
    assert found.headers[0].last_offset == 14


def test_the_crc_helper_agrees(codec: ModuleType) -> None:
    assert codec.walk(with_crc(FIRST)).reason is None
