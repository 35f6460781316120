"""Columns of byte strings in the making, copied together or as views of where they are."""

from sys import byteorder
from typing import Any

import cython

from firnmq.record.batch import Buffer
from firnmq.record.columns import BinaryColumn

if not cython.compiled:
    from firnmq.record.codec.memory import Store, View, bytes_at, new_store, view_of

if cython.compiled:
    from cython.cimports.libc.string import memcpy


@cython.final
@cython.cclass
class Bits:
    """A validity bitmap that exists only from the first null entry on."""

    store: Store
    null_count: cython.Py_ssize_t

    @cython.cfunc
    @cython.exceptval(-1)
    def put(self, index: cython.Py_ssize_t, is_valid: cython.bint) -> cython.int:
        """Note whether entry `index` is valid. Entries come in order."""
        byte: cython.Py_ssize_t = index >> 3
        bit: cython.int = index & 7
        at: cython.Py_ssize_t
        if self.null_count == 0:
            if is_valid:
                return 0
            self.store = new_store(1, byte + 1)
            for at in range(byte):
                self.store.p8[at] = 0xFF
            self.store.p8[byte] = (1 << bit) - 1
        elif bit == 0:
            self.store.reserve(byte + 1)
            self.store.p8[byte] = 0
        if is_valid:
            self.store.p8[byte] |= 1 << bit
        else:
            self.null_count += 1
        return 0

    @cython.cfunc
    def finish(self, count: cython.Py_ssize_t) -> Any:
        """The bitmap of `count` entries, or None if none of them is null."""
        if self.null_count == 0:
            return None
        return self.store.finish((count + 7) >> 3)


@cython.cfunc
def new_bits() -> Bits:
    bits: Bits = Bits.__new__(Bits)
    bits.null_count = 0
    return bits


@cython.final
@cython.cclass
class Strings:
    """A BinaryColumn in the making."""

    bounds: Store
    content: Store
    bits: Bits
    has_null: cython.bint
    count: cython.Py_ssize_t
    used: cython.Py_ssize_t

    @cython.cfunc
    @cython.inline
    @cython.exceptval(-1)
    def add(
        self,
        p: cython.p_uchar,
        at: cython.Py_ssize_t,
        length: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
    ) -> cython.int:
        """Append the bytes at `at`, of which those before `end` may be read; a negative length
        appends null."""
        if length > 0:
            if self.used + length > self.content.capacity:
                self.content.reserve(self.used + length)
            if cython.compiled:
                if length <= 16 and end - at >= 16 and self.content.capacity - self.used >= 16:
                    # Copying a constant number of bytes is two instructions, not a call. Those
                    # beyond `length` are overwritten by the next entry or dropped at the end.
                    memcpy(self.content.p8 + self.used, p + at, 16)
                else:
                    memcpy(self.content.p8 + self.used, p + at, length)
            else:
                self.content.p8[self.used : self.used + length] = p[at : at + length]
            self.used += length
        if length < 0 or self.has_null:
            self.has_null = True
            self.bits.put(self.count, length >= 0)
        self.count += 1
        if self.count >= self.bounds.capacity:
            self.bounds.reserve(self.count + 1)
        self.bounds.p32[self.count] = self.used
        return 0

    @cython.cfunc
    def finish(self) -> Any:
        # Arguments by position, here and in Rows, are a good part of a microsecond faster.
        return BinaryColumn(
            self.count,
            self.bounds.finish(self.count + 1),
            self.content.finish(self.used),
            self.bits.finish(self.count),
            self.bits.null_count,
        )


@cython.cfunc
def new_strings(size: cython.Py_ssize_t) -> Strings:
    """An empty column with capacity for `size` bytes."""
    strings: Strings = Strings.__new__(Strings)
    strings.bounds = new_store(4, 1)
    strings.content = new_store(1, size)
    strings.bits = new_bits()
    strings.has_null = False
    strings.count = 0
    strings.used = 0
    strings.bounds.p32[0] = 0
    return strings


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _word(p: cython.p_uchar, at: cython.Py_ssize_t, length: cython.Py_ssize_t) -> cython.int:
    """Up to four bytes, and zeros after them, as they would lie in memory."""
    word: cython.int = 0
    if cython.compiled:
        if length >= 4:
            memcpy(cython.address(word), p + at, 4)
        elif length > 0:
            memcpy(cython.address(word), p + at, length)
        return word
    else:
        content = bytes(p[at : at + min(max(length, 0), 4)]).ljust(4, b"\0")
        return int.from_bytes(content, byteorder, signed=True)


@cython.final
@cython.cclass
class BinaryViews:
    """Byte strings that stay where they are, some of which may be null: Arrow's binary view.

    The views are four 32-bit numbers per entry. The first is its length. Up to twelve bytes follow
    in the view itself; of a longer entry there are its first four bytes, the number of its source
    and where it begins there. The sources stay open, and must not be written to.
    """

    length = cython.declare(cython.Py_ssize_t, visibility="readonly")
    null_count = cython.declare(cython.Py_ssize_t, visibility="readonly")
    validity = cython.declare(object, visibility="readonly")
    content_bytes = cython.declare(cython.longlong, visibility="readonly")
    views: Store
    bits: Bits
    sources: list
    # What the sources are part of: the last such object, and the size of all of them.
    held: Any
    held_bytes: cython.longlong

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: cython.Py_ssize_t) -> bytes | None:
        if index < 0 or index >= self.length:
            raise IndexError(index)
        return self.entry(view_of(self.views.owner), index)

    @property
    def views_buffer(self) -> Any:
        """The views in Arrow's layout."""
        return memoryview(self.views.owner).toreadonly()

    def source_buffers(self) -> list[Buffer]:
        """The buffers that the views refer to by their number."""
        source: View
        owners: list = []
        for source in self.sources:
            owners.append(source.owner)
        return owners

    def entries(self) -> list[bytes | None]:
        """All entries."""
        inline: View = view_of(self.views.owner)
        index: cython.Py_ssize_t
        found: list = []
        for index in range(self.length):
            found.append(self.entry(inline, index))
        return found

    def gathered(self) -> BinaryColumn:
        """The same entries copied into one buffer, for what cannot read views."""
        strings: Strings = new_strings(self.content_bytes)
        inline: View = view_of(self.views.owner)
        source: View
        number: cython.Py_ssize_t = -1
        last_number: cython.Py_ssize_t = -1
        index: cython.Py_ssize_t
        size: cython.Py_ssize_t
        views: cython.p_int = self.views.p32
        source = inline
        strings.bounds.reserve(self.length + 1)
        for index in range(self.length):
            size = views[4 * index]
            if size > 12:
                number = views[4 * index + 2]
                if number != last_number:
                    source = self.sources[number]
                    last_number = number
                strings.add(source.p, views[4 * index + 3], size, source.size)
            elif self.null_count > 0 and self.is_null(index):
                strings.add(inline.p, 0, -1, 0)
            else:
                strings.add(inline.p, 16 * index + 4, size, inline.size)
        return strings.finish()

    @cython.cfunc
    @cython.exceptval(check=False)
    def is_null(self, index: cython.Py_ssize_t) -> cython.bint:
        return (self.bits.store.p8[index >> 3] >> (index & 7)) & 1 == 0

    @cython.cfunc
    def entry(self, inline: View, index: cython.Py_ssize_t) -> Any:
        source: View
        size: cython.Py_ssize_t = self.views.p32[4 * index]
        if self.null_count > 0 and self.is_null(index):
            return None
        if size <= 12:
            return bytes_at(inline.p, 16 * index + 4, size)
        source = self.sources[self.views.p32[4 * index + 2]]
        return bytes_at(source.p, self.views.p32[4 * index + 3], size)

    @cython.cfunc
    @cython.exceptval(-1)
    def open_source(self, source: View) -> cython.int:
        """What is added from here on lies in `source`."""
        held: Any
        if len(self.sources) == 0 or self.sources[len(self.sources) - 1] is not source:
            self.sources.append(source)
            held = source.owner
            if isinstance(held, memoryview):
                held = held.obj
            if held is not self.held:
                self.held = held
                self.held_bytes += memoryview(held).nbytes
        return 0

    @cython.cfunc
    @cython.inline
    @cython.exceptval(-1)
    def add(
        self, p: cython.p_uchar, at: cython.Py_ssize_t, length: cython.Py_ssize_t
    ) -> cython.int:
        """Append the bytes at `at` of the source; a negative length appends null."""
        row: cython.Py_ssize_t = 4 * self.length
        if row + 4 > self.views.capacity:
            self.views.reserve(row + 64)
        if length > 12:
            self.views.p32[row] = length
            self.views.p32[row + 1] = _word(p, at, 4)
            self.views.p32[row + 2] = len(self.sources) - 1
            self.views.p32[row + 3] = at
            self.content_bytes += length
        else:
            self.views.p32[row] = max(length, 0)
            self.views.p32[row + 1] = _word(p, at, length)
            self.views.p32[row + 2] = _word(p, at + 4, length - 4)
            self.views.p32[row + 3] = _word(p, at + 8, length - 8)
            self.content_bytes += max(length, 0)
        if length < 0 or self.bits.null_count > 0:
            self.bits.put(self.length, length >= 0)
        self.length += 1
        return 0

    @cython.cfunc
    def finish(self) -> Any:
        """This column, or a copy of its entries where they are little of what they would hold."""
        self.views.resize(4 * self.length)
        self.null_count = self.bits.null_count
        validity = self.bits.finish(self.length)
        self.validity = None if validity is None else memoryview(validity).toreadonly()
        self.held = None
        if 2 * self.content_bytes < self.held_bytes:
            return self.gathered()
        return self


@cython.cfunc
def new_views() -> BinaryViews:
    """A column of views without entries."""
    column: BinaryViews = BinaryViews.__new__(BinaryViews)
    column.length = 0
    column.content_bytes = 0
    column.views = new_store(4, 0)
    column.bits = new_bits()
    column.sources = []
    column.held = None
    column.held_bytes = 0
    return column
