"""Which records a decoding takes, and how far it has come."""

from typing import Any

import cython

from firnmq.record.selection import COLUMN_BYTES_MAX

if not cython.compiled:
    from firnmq.record.codec.constants import BYTES_LEFT, INT64_MAX, INT64_MIN
    from firnmq.record.codec.fields import Fields, expiry_of, is_tag, next_header
    from firnmq.record.codec.memory import bytes_at, equals


@cython.final
@cython.cclass
class Plan:
    """A Selection in C variables, and how far the decoding has come."""

    start_offset: cython.longlong
    end_offset: cython.longlong
    max_records: cython.Py_ssize_t
    max_bytes: cython.longlong
    tag_headers: tuple
    expire_header: bytes
    has_ttl: cython.bint
    ttl_ms: cython.longlong
    has_now: cython.bint
    now_ms: cython.longlong
    has_filter: cython.bint
    holes: Any
    dead_keys: Any
    key: Any
    tag: Any
    min_timestamp: cython.longlong
    include_control: cython.bint
    has_keys: cython.bint
    has_values: cython.bint
    has_headers: cython.bint
    has_tags: cython.bint
    is_sparse: cython.bint
    may_view: cython.bint
    total_bytes: cython.Py_ssize_t
    next_offset: cython.longlong
    is_limited: cython.bint
    # Facts about the record whose headers were scanned last.
    header_expiry: cython.longlong
    has_tag: cython.bint

    def __init__(self, selection: Any) -> None:
        self.start_offset = selection.start_offset
        self.end_offset = selection.end_offset
        # Arrow's 32-bit bounds hold no more, and no column is larger than the encoded records.
        self.max_records = min(selection.max_records, COLUMN_BYTES_MAX)
        self.max_bytes = min(selection.max_bytes, COLUMN_BYTES_MAX)
        self.tag_headers = selection.tag_headers
        self.expire_header = selection.expire_header
        self.has_ttl = selection.ttl_ms is not None
        self.ttl_ms = selection.ttl_ms if selection.ttl_ms is not None else 0
        self.has_now = selection.now_ms is not None
        self.now_ms = selection.now_ms if selection.now_ms is not None else 0
        self.holes = selection.holes if selection.holes else None
        self.dead_keys = selection.dead_keys if selection.dead_keys else None
        self.key = selection.key
        self.tag = selection.tag
        minimum = selection.min_timestamp
        self.min_timestamp = minimum if minimum is not None else INT64_MIN
        self.has_filter = (
            self.holes is not None
            or self.dead_keys is not None
            or self.key is not None
            or self.tag is not None
        )
        self.include_control = selection.include_control
        columns = selection.columns
        self.has_keys = "key" in columns
        self.has_values = "value" in columns
        self.has_headers = "headers" in columns
        self.has_tags = "tags" in columns
        # Few records are expected to match, so no room is made for all of them.
        self.is_sparse = self.key is not None or self.tag is not None or self.max_records < 100
        self.total_bytes = 0
        self.next_offset = self.start_offset
        self.is_limited = False

    @cython.cfunc
    @cython.exceptval(-1)
    def keeps(
        self,
        p: cython.p_uchar,
        fields: Fields,
        offset: cython.longlong,
        expiry: cython.longlong,
    ) -> cython.bint:
        """Whether expiry, tag, key, holes and dead keys let the record through."""
        if self.has_now and 0 <= expiry <= self.now_ms:
            return False
        if self.tag is not None and not self.has_tag:
            return False
        if self.key is not None:
            if fields.key_length < 0:
                return False
            if not equals(p, fields.key_at, fields.key_length, self.key):
                return False
        if self.holes is not None and offset in self.holes:
            return False
        if self.dead_keys is not None and fields.key_length >= 0:
            below = self.dead_keys.get(bytes_at(p, fields.key_at, fields.key_length))
            if below is not None and offset < below:
                return False
        return True

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def expiry(self, timestamp: cython.longlong) -> cython.longlong:
        """When the record whose headers were scanned last expires; -1 if never."""
        limit: cython.longlong
        if not self.has_ttl or timestamp < 0 or timestamp > INT64_MAX - self.ttl_ms:
            return self.header_expiry
        limit = timestamp + self.ttl_ms
        return limit if self.header_expiry < 0 else min(limit, self.header_expiry)

    @cython.cfunc
    def scan_headers(self, p: cython.p_uchar, fields: Fields) -> cython.int:
        """Check a record's headers and note its expiry and whether it has the wanted tag."""
        at: cython.Py_ssize_t = fields.headers_at
        index: cython.Py_ssize_t
        for index in range(fields.header_count):
            at = next_header(p, at, fields)
            if at < 0:
                return at
            if equals(p, fields.name_at, fields.name_length, self.expire_header):
                self.header_expiry = expiry_of(p, fields)
            if self.tag is not None and not self.has_tag:
                if is_tag(p, fields, self.tag_headers):
                    self.has_tag = equals(p, fields.content_at, fields.content_length, self.tag)
        return 0 if at == fields.stop else BYTES_LEFT
