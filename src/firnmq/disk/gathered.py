# cython: language_level=3, boundscheck=False, wraparound=False
# mypy: disable-error-code="untyped-decorator, no-any-return, name-defined, valid-type"
"""Large writes, with system calls that Python does not offer.

With a plain write the device starts only at the sync, after everything is in the page cache. Here
the device starts with each part while the next one is copied, and the sync at the end waits for the
rest. All of it runs without the interpreter's lock, which the thread has to get back only once.

This file is Cython in pure-Python mode. The interpreted form only says that it is unavailable.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import cython

if cython.compiled:
    from cython.cimports.cpython.buffer import (
        PyBUF_SIMPLE,
        PyBuffer_Release,
        PyObject_GetBuffer,
    )
    from cython.cimports.libc.errno import EINTR, EIO, errno
    from cython.cimports.libc.stdlib import free, malloc

IS_COMPILED: bool = cython.compiled
PART_BYTES = 512 * 1024
"""Bytes per request to the device: large enough to be efficient."""

_PART_BYTES = cython.declare(cython.longlong, PART_BYTES)
_PAGE_MASK = cython.declare(cython.longlong, -os.sysconf("SC_PAGE_SIZE"))
_PIECES_MAX = cython.declare(cython.int, 1024)
"""Buffers one call takes on Linux."""


def write_durably(
    descriptor: cython.int, buffers: Sequence[bytes | bytearray | memoryview], position: int
) -> int:
    """Writes all buffers at the position; they are on the device when this returns.

    Returns the number of bytes. After an error it is unknown how much was written.
    """
    if not cython.compiled:
        raise NotImplementedError("needs the compiled form; see IS_COMPILED")
    count: cython.int = len(buffers)
    views: cython.pointer(Py_buffer)
    pieces: cython.pointer(iovec)
    views = cython.cast(cython.pointer(Py_buffer), malloc(count * cython.sizeof(Py_buffer)))
    pieces = cython.cast(cython.pointer(iovec), malloc((count + 1) * cython.sizeof(iovec)))
    held: cython.int = 0
    size: cython.longlong = 0
    failure: cython.int = 0
    at: cython.longlong = position
    try:
        if views == cython.NULL or pieces == cython.NULL:
            raise MemoryError
        while held < count:
            PyObject_GetBuffer(buffers[held], cython.address(views[held]), PyBUF_SIMPLE)
            pieces[held].iov_base = views[held].buf
            pieces[held].iov_len = views[held].len
            size += views[held].len
            held += 1
        with cython.nogil:
            failure = _write_parts(descriptor, pieces, count, at, size)
    finally:
        while held:
            held -= 1
            PyBuffer_Release(cython.address(views[held]))
        free(views)
        free(pieces)
    if failure:
        raise OSError(failure, os.strerror(failure))
    return size


def reserve_blocks(
    descriptor: cython.int, position: cython.longlong, size: cython.longlong
) -> None:
    """Allocates blocks for a part of the file, whose length stays as it is. Does nothing on systems
    that cannot."""
    if not cython.compiled:
        raise NotImplementedError("needs the compiled form; see IS_COMPILED")
    failure: cython.int = 0
    with cython.nogil:
        if firn_reserve(descriptor, position, size) < 0:
            failure = errno
    if failure:
        raise OSError(failure, os.strerror(failure))


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _write_parts(
    descriptor: cython.int,
    pieces: cython.pointer(iovec),
    count: cython.int,
    position: cython.longlong,
    size: cython.longlong,
) -> cython.int:
    """Writes and syncs; returns 0 or the system's error number. Uses up the pieces."""
    end: cython.longlong = position + size
    started: cython.longlong = position & _PAGE_MASK
    border: cython.longlong
    first: cython.int = 0
    taken: cython.int
    part: cython.longlong
    excess: cython.size_t
    written: cython.longlong
    while position < end:
        # As many pieces as fit a part; the last of them is shortened to it for now.
        part = 0
        taken = first
        excess = 0
        while taken < count and part < _PART_BYTES and taken - first < _PIECES_MAX:
            part += pieces[taken].iov_len
            taken += 1
        if part > _PART_BYTES:
            excess = part - _PART_BYTES
            pieces[taken - 1].iov_len -= excess
        written = pwritev(descriptor, cython.address(pieces[first]), taken - first, position)
        pieces[taken - 1].iov_len += excess
        if written < 0:
            if errno == EINTR:
                continue
            return errno
        if written == 0 and part > 0:
            return EIO
        position += written
        while first < count and written >= cython.cast(cython.longlong, pieces[first].iov_len):
            written -= pieces[first].iov_len
            first += 1
        if written:
            pieces[first].iov_base = cython.cast(cython.p_char, pieces[first].iov_base) + written
            pieces[first].iov_len -= written
        border = position & _PAGE_MASK
        if position < end and border > started:
            firn_start_writing(descriptor, started, border - started)
            started = border
    if fdatasync(descriptor) < 0:
        return errno
    return 0
