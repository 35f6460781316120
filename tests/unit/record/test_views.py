"""Values that decoding leaves where they are."""

from types import ModuleType

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firnmq.record import BinaryColumn, Columns, Compression, NewRecord, Selection
from firnmq.record.arrow import SCHEMA
from tests.unit.record import codec_forms

LENGTHS = [0, 1, 3, 4, 5, 11, 12, 13, 16, 17, 255, 3_000, 40_000]
_BYTES = bytes(range(240)) * 200
VALUES = [None, *(_BYTES[number : number + size] for number, size in enumerate(LENGTHS)), None]


def encoded(
    codec: ModuleType,
    values: list[bytes | None],
    base_offset: int = 0,
    compression: Compression = Compression.NONE,
) -> bytes:
    records = [NewRecord(value=value, key=b"k") for value in values]
    return bytes(codec.encode(records, now_ms=1, base_offset=base_offset, compression=compression))


def assert_views(columns: Columns, values: list[bytes | None]) -> None:
    """The values are views, and every way to look at them shows the same."""
    views = columns.values
    assert views is not None
    assert not isinstance(views, BinaryColumn)
    assert len(views) == len(values)
    assert views.entries() == values
    assert [views[index] for index in range(len(views))] == values
    assert views.null_count == values.count(None)
    assert views.content_bytes == sum(len(value or b"") for value in values)
    assert [record.value for record in columns.records()] == values
    gathered = views.gathered()
    assert gathered.entries() == values
    assert gathered.null_count == values.count(None)
    for is_view in (False, True):
        arrow = columns.to_arrow(views=is_view)
        arrow.validate(full=True)
        assert arrow.column("value").to_pylist() == values
        assert arrow.column("value").null_count == values.count(None)
        back = Columns.from_arrow(arrow)
        assert [record.value for record in back.records()] == values
    assert columns.to_arrow().schema == SCHEMA
    assert columns.to_arrow(views=True).schema.field("value").type == pa.binary_view()


@pytest.mark.parametrize("compression", Compression)
def test_every_length_from_every_kind_of_batch(codec: ModuleType, compression: Compression) -> None:
    batches = [encoded(codec, VALUES, base, compression) for base in (0, 100)]
    assert_views(codec.decode(batches), VALUES * 2)
    assert_views(codec.decode([b"".join(batches)]), VALUES * 2)


@given(st.lists(st.lists(st.one_of(st.none(), st.binary(max_size=40)), min_size=1), min_size=1))
def test_any_values_in_any_batches(lists: list[list[bytes | None]]) -> None:
    """A long value in each batch makes it worth while."""
    values = [[bytes(256 * (len(each) + 1)), *each] for each in lists]
    for codec in codec_forms.forms():
        batches = [encoded(codec, each, 1_000 * n) for n, each in enumerate(values)]
        assert_views(codec.decode(batches), [value for each in values for value in each])


def test_no_byte_of_a_long_value_is_copied(codec: ModuleType) -> None:
    batch = encoded(codec, [bytes(1_000)] * 3)
    columns = codec.decode([batch])
    assert columns.values.source_buffers() == [batch]
    _, views, source = columns.to_arrow(views=True).column("value").buffers()
    assert source.address == pa.py_buffer(batch).address
    assert views.address == pa.py_buffer(columns.values.views_buffer).address


def test_a_source_is_counted_once_however_many_batches_it_holds(codec: ModuleType) -> None:
    first, second = (encoded(codec, [bytes(1_000)] * 3, base) for base in (0, 3))
    assert len(codec.decode([first + second]).values.source_buffers()) == 1
    assert len(codec.decode([first, second]).values.source_buffers()) == 2


def test_the_buffers_outlive_whoever_made_them(codec: ModuleType) -> None:
    source = bytearray(encoded(codec, VALUES))
    columns = codec.decode([memoryview(source)])
    arrow = columns.to_arrow(views=True)
    with pytest.raises(BufferError):
        source.clear()
    del source, columns
    assert arrow.column("value").to_pylist() == VALUES


def test_short_values_are_copied(codec: ModuleType) -> None:
    columns = codec.decode([encoded(codec, [bytes(200)] * 100)])
    assert isinstance(columns.values, BinaryColumn)
    assert columns.to_arrow(views=True).schema == SCHEMA


def test_few_values_are_copied_and_their_source_let_go(codec: ModuleType) -> None:
    source = bytearray(encoded(codec, [bytes([number]) * 1_000 for number in range(100)]))
    for selection in (
        Selection(start_offset=60),
        Selection(max_records=10),
        Selection(max_bytes=40_000),
        Selection(holes=frozenset(range(55))),
    ):
        columns = codec.decode([source], selection)
        assert isinstance(columns.values, BinaryColumn)
        offsets = columns.offsets.tolist()
        assert 0 < len(offsets) < 50
        assert columns.values.entries() == [bytes([offset]) * 1_000 for offset in offsets]
        source.append(0)  # The buffer is not exported.
        del source[-1]


def test_batches_cut_out_of_much_more_are_copied(codec: ModuleType) -> None:
    """A part of a buffer keeps the whole of it."""
    first, second, third = (encoded(codec, [bytes(1_000)] * 10, base) for base in (0, 10, 20))
    read = memoryview(first + second + third)
    size = len(first)
    one, two = read[:size], read[size : 2 * size]
    assert isinstance(codec.decode([one]).values, BinaryColumn)
    assert_views(codec.decode([one, two]), [bytes(1_000)] * 20)


def test_what_cannot_be_pointed_at_is_copied(codec: ModuleType) -> None:
    """Views have 31 bits for a position, and more than that may be decompressed."""
    columns = codec.decode([encoded(codec, [bytes(1_000)])], max_decompressed=2**31)
    assert isinstance(columns.values, BinaryColumn)


def test_values_that_nobody_asked_for(codec: ModuleType) -> None:
    columns = codec.decode([encoded(codec, [bytes(1_000)])], Selection(columns=frozenset({"key"})))
    assert columns.values is None


def test_an_index_that_is_not_there(codec: ModuleType) -> None:
    views = codec.decode([encoded(codec, [bytes(1_000)])]).values
    for index in (-1, 1):
        with pytest.raises(IndexError):
            views[index]


def test_encoding_from_views(codec: ModuleType) -> None:
    batch = encoded(codec, VALUES, base_offset=5)
    assert codec.encode_columns(codec.decode([batch])) == batch


def test_nobody_can_write_to_the_views(codec: ModuleType) -> None:
    views = codec.decode([encoded(codec, VALUES)]).values
    assert views.views_buffer.readonly
    assert views.validity.readonly
