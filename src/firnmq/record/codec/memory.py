"""Bytes in, bytes out: buffers held open for reading, growing arrays, and numbers in between."""

from array import array
from typing import Any

import cython

if cython.compiled:
    from cython.cimports.cpython.buffer import (
        Py_buffer,
        PyBUF_SIMPLE,
        PyBuffer_Release,
        PyObject_GetBuffer,
    )
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING, PyByteArray_Resize
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
    from cython.cimports.libc.string import memcmp

IS_COMPILED = cython.compiled


@cython.final
@cython.cclass
class View:
    """Holds a buffer open and points at its bytes."""

    if cython.compiled:
        raw: Py_buffer
    owner: Any
    p: cython.p_uchar
    size: cython.Py_ssize_t
    is_open: cython.bint

    def __dealloc__(self) -> None:
        if cython.compiled:
            if self.is_open:
                PyBuffer_Release(cython.address(self.raw))


@cython.cfunc
def view_of(buffer: Any) -> View:
    # A function instead of a constructor, here and below, saves packing and turning its arguments
    # into objects.
    view: View = View.__new__(View)
    view.owner = buffer
    if cython.compiled:
        PyObject_GetBuffer(buffer, cython.address(view.raw), PyBUF_SIMPLE)
        view.is_open = True
        view.p = cython.cast(cython.p_uchar, view.raw.buf)
        view.size = view.raw.len
    else:
        view.p = memoryview(buffer).cast("B")
        view.size = len(view.p)
    return view


@cython.final
@cython.cclass
class Store:
    """A growing array of 1, 4 or 8 byte items, filled through one of its three pointers.

    Compiled it is a bytearray whose memory is written directly; interpreted it is a bytearray or
    an array, and all pointers are that object.
    """

    owner: Any
    p8: cython.p_uchar
    p32: cython.p_int
    p64: cython.p_longlong
    capacity: cython.Py_ssize_t
    item_bytes: cython.Py_ssize_t

    @cython.cfunc
    @cython.exceptval(-1)
    def resize(self, capacity: cython.Py_ssize_t) -> cython.int:
        if cython.compiled:
            PyByteArray_Resize(self.owner, capacity * self.item_bytes)
            self.p8 = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(self.owner))
            self.p32 = cython.cast(cython.p_int, self.p8)
            self.p64 = cython.cast(cython.p_longlong, self.p8)
        else:
            if capacity < self.capacity:
                del self.owner[capacity:]
            elif self.item_bytes == 1:
                self.owner.extend(bytes(capacity - self.capacity))
            else:
                self.owner.frombytes(bytes((capacity - self.capacity) * self.item_bytes))
            self.p8 = self.p32 = self.p64 = self.owner
        self.capacity = capacity
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def reserve(self, needed: cython.Py_ssize_t) -> cython.int:
        """Raise the capacity to `needed` items, or by half if that is more."""
        if needed > self.capacity:
            self.resize(max(needed, self.capacity + (self.capacity >> 1)))
        return 0

    @cython.cfunc
    def finish(self, count: cython.Py_ssize_t) -> Any:
        """The array with its first `count` items; nothing may be added afterwards."""
        self.resize(count)
        return self.owner


@cython.cfunc
def new_store(item_bytes: cython.Py_ssize_t, capacity: cython.Py_ssize_t) -> Store:
    store: Store = Store.__new__(Store)
    store.item_bytes = item_bytes
    store.capacity = 0
    if cython.compiled:
        store.owner = bytearray()
    else:
        store.owner = bytearray() if item_bytes == 1 else array("i" if item_bytes == 4 else "q")
    store.resize(capacity)
    return store


@cython.cfunc
@cython.inline
def bytes_at(p: cython.p_uchar, at: cython.Py_ssize_t, length: cython.Py_ssize_t) -> bytes:
    if cython.compiled:
        return PyBytes_FromStringAndSize(cython.cast(cython.p_char, p + at), length)
    else:
        return bytes(p[at : at + length])


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def equals(
    p: cython.p_uchar, at: cython.Py_ssize_t, length: cython.Py_ssize_t, text: bytes
) -> cython.bint:
    if length != len(text):
        return False
    if cython.compiled:
        return memcmp(p + at, PyBytes_AS_STRING(text), length) == 0
    else:
        return p[at : at + length] == text


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def read_integer(
    p: cython.p_uchar, at: cython.Py_ssize_t, size: cython.Py_ssize_t
) -> cython.longlong:
    """A big-endian two's complement number of `size` bytes."""
    index: cython.Py_ssize_t
    value: cython.longlong = p[at]
    if value > 127:
        value -= 256
    for index in range(at + 1, at + size):
        value = value * 256 + p[index]
    return value


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def put_integer(
    p: cython.p_uchar, at: cython.Py_ssize_t, value: cython.ulonglong, size: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Write a big-endian number of `size` bytes; the position after it."""
    index: cython.Py_ssize_t
    for index in range(size - 1, -1, -1):
        p[at + index] = value & 0xFF
        value >>= 8
    return at + size
