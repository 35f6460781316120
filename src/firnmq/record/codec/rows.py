"""All columns of the records that a decoding takes, in the making."""

from typing import Any

import cython

from firnmq.record.columns import NO_ENTRIES, Columns

if not cython.compiled:
    from firnmq.record.codec.constants import HEADER_SIZE
    from firnmq.record.codec.fields import Fields, is_tag, next_header
    from firnmq.record.codec.memory import Store, new_store
    from firnmq.record.codec.plan import Plan
    from firnmq.record.codec.strings import (
        BinaryViews,
        Bits,
        Strings,
        new_bits,
        new_strings,
        new_views,
    )

# From this length of a record on its value is not copied: below it, copying the value now costs
# no more than finding it again later.
_VIEWED_BYTES_MIN = cython.declare(cython.Py_ssize_t, 256)
# What records are taken to expand to at most before they are decompressed.
_EXPANSION_MAX = cython.declare(cython.Py_ssize_t, 8)


@cython.final
@cython.cclass
class Lists:
    """The columns that come from headers, in the making. Most batches have none, so this exists
    only from the first record with headers on."""

    header_bounds: Store
    names: Strings
    contents: Strings
    tag_bounds: Store
    tags: Strings

    def __init__(self, rows: cython.Py_ssize_t) -> None:
        row: cython.Py_ssize_t
        self.header_bounds = new_store(4, rows + 2)
        self.tag_bounds = new_store(4, rows + 2)
        for row in range(rows + 1):
            self.header_bounds.p32[row] = 0
            self.tag_bounds.p32[row] = 0
        self.names = new_strings(0)
        self.contents = new_strings(0)
        self.tags = new_strings(0)

    @cython.cfunc
    @cython.exceptval(-1)
    def add(
        self, row: cython.Py_ssize_t, p: cython.p_uchar, fields: Fields, plan: Plan
    ) -> cython.int:
        """Append the headers, which are verified, and the tags of record number `row`."""
        at: cython.Py_ssize_t = fields.headers_at
        while at < fields.stop:
            at = next_header(p, at, fields)
            if at < 0:  # Only if the buffer is written to while it is decoded.
                break
            if plan.has_headers:
                self.names.add(p, fields.name_at, fields.name_length, fields.stop)
                self.contents.add(p, fields.content_at, fields.content_length, fields.stop)
            if plan.has_tags and is_tag(p, fields, plan.tag_headers):
                self.tags.add(p, fields.content_at, fields.content_length, fields.stop)
        self.header_bounds.reserve(row + 2)
        self.header_bounds.p32[row + 1] = self.names.count
        self.tag_bounds.reserve(row + 2)
        self.tag_bounds.p32[row + 1] = self.tags.count
        return 0


@cython.final
@cython.cclass
class Rows:
    """The columns in the making."""

    count: cython.Py_ssize_t
    encoded_bytes: cython.longlong
    offsets: Store
    timestamps: Store
    keys: Strings
    is_started: cython.bint
    has_views: cython.bint
    values: Strings
    views: BinaryViews
    has_lists: cython.bint
    lists: Lists
    has_expiry: cython.bint
    expiries: Store
    expiry_bits: Bits

    @cython.cfunc
    @cython.exceptval(-1)
    def start(
        self,
        plan: Plan,
        payload_bytes: cython.Py_ssize_t,
        batch_bytes: cython.Py_ssize_t,
        record_count: cython.longlong,
    ) -> cython.int:
        """Get ready for batches like the first one, whose records are so long and so many, and
        which takes so many bytes as it is stored."""
        batch_count: cython.Py_ssize_t = plan.total_bytes // (payload_bytes + HEADER_SIZE)
        self.is_started = True
        if plan.is_sparse:
            return 0
        if plan.has_values:
            if plan.may_view and payload_bytes >= record_count * _VIEWED_BYTES_MIN:
                self.has_views = True
                self.views = new_views()
            else:
                # A buffer that is too small is copied as it grows. A ratio as high as that of one
                # batch that compresses very well would reserve too much.
                ratio: cython.Py_ssize_t = min(1 + payload_bytes // batch_bytes, _EXPANSION_MAX)
                self.values.content.reserve(min(plan.total_bytes * ratio, plan.max_bytes))
        # Compressed batches count for less than they hold, so this is never too much.
        self.reserve(min(record_count * batch_count, plan.max_records))
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def reserve(self, rows: cython.Py_ssize_t) -> cython.int:
        self.offsets.reserve(rows)
        self.timestamps.reserve(rows)
        self.keys.bounds.reserve(rows + 1)
        if self.has_views:
            self.views.views.reserve(4 * rows)
        else:
            self.values.bounds.reserve(rows + 1)
        return 0

    @cython.cfunc
    @cython.inline
    @cython.exceptval(-1)
    def add(
        self,
        p: cython.p_uchar,
        fields: Fields,
        plan: Plan,
        offset: cython.longlong,
        timestamp: cython.longlong,
        expiry: cython.longlong,
    ) -> cython.int:
        """Append the record in `fields`, whose headers are verified."""
        row: cython.Py_ssize_t = self.count
        if row >= self.offsets.capacity:
            self.reserve(row + 16)
        self.offsets.p64[row] = offset
        self.timestamps.p64[row] = timestamp
        if plan.has_keys:
            self.keys.add(p, fields.key_at, fields.key_length, fields.stop)
        if plan.has_values:
            if self.has_views:
                self.views.add(p, fields.value_at, fields.value_length)
            else:
                self.values.add(p, fields.value_at, fields.value_length, fields.stop)
        if fields.header_count > 0 or self.has_lists:
            if not self.has_lists:
                self.lists = Lists(row)
                self.has_lists = True
            self.lists.add(row, p, fields, plan)
        if expiry >= 0 or self.has_expiry:
            self.add_expiry(row, expiry)
        self.count = row + 1
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def add_expiry(self, row: cython.Py_ssize_t, expiry: cython.longlong) -> cython.int:
        earlier: cython.Py_ssize_t
        if not self.has_expiry:
            self.has_expiry = True
            self.expiries = new_store(8, row + 1)
            self.expiry_bits = new_bits()
            for earlier in range(row):
                self.expiries.p64[earlier] = 0
                self.expiry_bits.put(earlier, False)
        self.expiries.reserve(row + 1)
        self.expiries.p64[row] = expiry if expiry >= 0 else 0
        self.expiry_bits.put(row, expiry >= 0)
        return 0

    @cython.cfunc
    def finish(self, plan: Plan) -> Any:
        count: cython.Py_ssize_t = self.count
        header_bounds: Any = None
        tag_bounds: Any = None
        names: Any = None
        contents: Any = None
        tags: Any = None
        values: Any = None
        if plan.has_values:
            values = self.views.finish() if self.has_views else self.values.finish()
        if plan.has_headers:
            header_bounds = (
                self.lists.header_bounds.finish(count + 1)
                if self.has_lists
                else bytes(4 * (count + 1))
            )
            names = self.lists.names.finish() if self.has_lists else NO_ENTRIES
            contents = self.lists.contents.finish() if self.has_lists else NO_ENTRIES
        if plan.has_tags:
            tag_bounds = (
                self.lists.tag_bounds.finish(count + 1)
                if self.has_lists
                else bytes(4 * (count + 1))
            )
            tags = self.lists.tags.finish() if self.has_lists else NO_ENTRIES
        return Columns(
            count,
            self.offsets.finish(count),
            self.timestamps.finish(count),
            self.keys.finish() if plan.has_keys else None,
            values,
            header_bounds,
            names,
            contents,
            tag_bounds,
            tags,
            self.expiries.finish(count) if self.has_expiry else None,
            self.expiry_bits.finish(count) if self.has_expiry else None,
            plan.next_offset,
            bool(plan.is_limited),
            self.encoded_bytes,
        )


@cython.cfunc
def new_rows() -> Rows:
    rows: Rows = Rows.__new__(Rows)
    rows.count = 0
    rows.encoded_bytes = 0
    rows.offsets = new_store(8, 0)
    rows.timestamps = new_store(8, 0)
    rows.keys = new_strings(0)
    rows.is_started = False
    rows.has_views = False
    rows.values = new_strings(0)
    rows.has_lists = False
    rows.has_expiry = False
    return rows
