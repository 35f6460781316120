"""What goes in comes out, and a selection takes exactly what it says."""

from types import ModuleType

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from firnmq.record import Columns, Compression, NewRecord, Record, Selection
from tests.properties.record.strategies import BATCHES, CODECS

EVERY_FORM = settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
SOME = st.none() | st.integers(0, 100)


@EVERY_FORM
@given(records=BATCHES, compression=CODECS, now_ms=st.integers(0, 2**62 - 1))
def test_records_come_back(
    codec: ModuleType, records: list[NewRecord], compression: Compression, now_ms: int
) -> None:
    batch = codec.encode(records, now_ms=now_ms, compression=compression)
    assert codec.validate(batch).record_count == len(records)
    columns = codec.decode([batch])
    for new, stored in zip(records, columns.records(), strict=True):
        assert (stored.key, stored.value) == (new.key, new.value)
        assert stored.headers[: len(new.headers)] == new.headers
        named = tuple(
            value.decode("utf-8", "surrogateescape")
            for name, value in new.headers
            if name == "tag" and value is not None
        )
        assert stored.tags == named + new.tags
        assert stored.timestamp_ms == (now_ms if new.timestamp_ms is None else new.timestamp_ms)
        if new.expire_at_ms is not None:
            assert stored.expire_at_ms == new.expire_at_ms
    arrow = columns.to_arrow()
    arrow.validate(full=True)
    assert codec.encode_columns(columns, compression=compression) == batch
    assert codec.encode_columns(Columns.from_arrow(arrow), compression=compression) == batch
    assert codec.walk(batch + batch).valid_end == 2 * len(batch)


@st.composite
def logs(draw: st.DrawFn) -> list[list[NewRecord]]:
    """Some batches whose keys, tags and times are few, so that selections hit."""
    record = st.builds(
        NewRecord,
        value=st.binary(max_size=20),
        key=st.sampled_from([None, b"a", b"b", b"c"]),
        tags=st.lists(st.sampled_from(["x", "y"]), max_size=2).map(tuple),
        timestamp_ms=st.integers(0, 100),
        expire_at_ms=SOME,
    )
    return draw(st.lists(st.lists(record, min_size=1, max_size=6), min_size=1, max_size=4))


SELECTIONS = st.builds(
    Selection,
    start_offset=st.integers(0, 25),
    end_offset=st.integers(0, 30) | st.just(2**63 - 1),
    max_records=st.integers(0, 12) | st.just(1_000),
    max_bytes=st.integers(0, 200) | st.just(2**31),
    ttl_ms=SOME,
    now_ms=SOME,
    holes=st.none() | st.frozensets(st.integers(0, 25), max_size=5),
    dead_keys=st.none() | st.dictionaries(st.sampled_from([b"a", b"b"]), st.integers(0, 25)),
    key=st.none() | st.sampled_from([b"a", b"b"]),
    tag=st.none() | st.sampled_from([b"x", b"y"]),
    min_timestamp=SOME,
)


def matches(record: Record, selection: Selection) -> bool:
    """The selection's meaning, record by record."""
    expiries = [] if record.expire_at_ms is None else [record.expire_at_ms]
    if selection.ttl_ms is not None:
        expiries.append(record.timestamp_ms + selection.ttl_ms)
    key = record.key
    dead_below = None if key is None else (selection.dead_keys or {}).get(key)
    return (
        selection.start_offset <= record.offset < selection.end_offset
        and (selection.key is None or key == selection.key)
        and (selection.tag is None or selection.tag.decode() in record.tags)
        and record.offset not in (selection.holes or ())
        and (dead_below is None or record.offset >= dead_below)
        and (selection.min_timestamp is None or record.timestamp_ms >= selection.min_timestamp)
        and (selection.now_ms is None or all(expiry > selection.now_ms for expiry in expiries))
    )


@settings(EVERY_FORM, max_examples=200)
@given(log=logs(), selection=SELECTIONS, compression=CODECS)
def test_a_selection_takes_what_it_says(
    codec: ModuleType,
    log: list[list[NewRecord]],
    selection: Selection,
    compression: Compression,
) -> None:
    batches = []
    offset = 0
    for records in log:
        batches.append(codec.encode(records, now_ms=1, base_offset=offset, compression=compression))
        offset += len(records)
    everything: list[Record] = codec.decode(batches).records()
    expected = [record.offset for record in everything if matches(record, selection)]

    taken = codec.decode(batches, selection)
    found = taken.offsets.tolist()
    # What is taken is a prefix of what matches, and everything unless a limit was hit.
    assert found == expected[: len(found)]
    assert len(found) <= selection.max_records
    if not taken.is_limited:
        assert found == expected
    if expected and selection.max_records > 0:
        assert found
    if len(found) > 1:
        assert taken.encoded_bytes <= selection.max_bytes
    # Going on from next_offset loses nothing.
    assert all(record >= taken.next_offset for record in expected[len(found) :])
    assert all(record < taken.next_offset for record in found)
    by_offset = {record.offset: record for record in everything}
    for record in taken.records():
        original = by_offset[record.offset]
        assert (record.key, record.value, record.tags) == (
            original.key,
            original.value,
            original.tags,
        )
