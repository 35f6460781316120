"""CRCs of joined bytes, from the CRCs of their parts."""

import cython

from firnmq.errors import InvalidArgument
from firnmq.record.batch import CRC_START, HEADER_BYTES, Buffer

if not cython.compiled:
    from firnmq.record.codec.constants import HEADER_SIZE
    from firnmq.record.codec.memory import Store, View, new_store, read_integer, view_of


# A CRC is a polynomial over two elements, reflected: its top bit is the coefficient of x**0.
_POLYNOMIAL = cython.declare(cython.ulonglong, 0x82F63B78)
_ONE = cython.declare(cython.ulonglong, 1 << 31)
# After this many bits x comes round to 1, and so do bytes, since 8 has no divisor in common.
_PERIOD = cython.declare(cython.longlong, 2**31 - 1)
_CRC_START = cython.declare(cython.Py_ssize_t, CRC_START)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _times_x(polynomial: cython.ulonglong) -> cython.ulonglong:
    return (polynomial >> 1) ^ (-(polynomial & 1) & _POLYNOMIAL)


@cython.cfunc
def _byte_table() -> Store:
    """Each polynomial of eight terms, the highest a CRC can have, times x**8."""
    table: Store = new_store(8, 256)
    polynomial: cython.ulonglong
    index: cython.Py_ssize_t
    bit: cython.int
    for index in range(256):
        polynomial = index
        for bit in range(8):
            polynomial = _times_x(polynomial)
        table.p64[index] = polynomial
    return table


_BYTE_TABLE = _byte_table()
_BYTE_SHIFTED = cython.declare(cython.p_longlong)
_BYTE_SHIFTED = cython.cast(Store, _BYTE_TABLE).p64


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _times_byte(polynomial: cython.ulonglong) -> cython.ulonglong:
    """Times x**8."""
    return (polynomial >> 8) ^ _BYTE_SHIFTED[polynomial & 0xFF]


@cython.cfunc
@cython.exceptval(check=False)
def _times(first: cython.ulonglong, second: cython.ulonglong) -> cython.ulonglong:
    """The product of two polynomials modulo that of CRC32C."""
    # Four chains of eight steps, which a processor takes side by side, instead of one of 32.
    at_8: cython.ulonglong = _times_byte(second)
    at_16: cython.ulonglong = _times_byte(at_8)
    at_24: cython.ulonglong = _times_byte(at_16)
    product: cython.ulonglong = 0
    bit: cython.int
    for bit in range(7, -1, -1):
        product ^= -((first >> (bit + 24)) & 1) & second
        product ^= -((first >> (bit + 16)) & 1) & at_8
        product ^= -((first >> (bit + 8)) & 1) & at_16
        product ^= -((first >> bit) & 1) & at_24
        second = _times_x(second)
        at_8 = _times_x(at_8)
        at_16 = _times_x(at_16)
        at_24 = _times_x(at_24)
    return product


@cython.cfunc
def _shift_tables() -> Store:
    """What a CRC is multiplied with when bytes follow: number b of part k is for b * 256**k."""
    tables: Store = new_store(8, 4 * 256)
    step: cython.ulonglong = _ONE >> 8
    index: cython.Py_ssize_t
    for index in range(4 * 256):
        if index & 0xFF == 0:
            tables.p64[index] = _ONE
        else:
            tables.p64[index] = _times(tables.p64[index - 1], step)
            if index & 0xFF == 0xFF:
                step = _times(tables.p64[index], step)
    return tables


_SHIFT_TABLES = _shift_tables()
_SHIFTS = cython.declare(cython.p_longlong)
_SHIFTS = cython.cast(Store, _SHIFT_TABLES).p64


@cython.cfunc
@cython.exceptval(check=False)
def _combined(
    first: cython.ulonglong, second: cython.ulonglong, length: cython.longlong
) -> cython.ulonglong:
    part: cython.Py_ssize_t = 0
    while length > 0:
        if length & 0xFF != 0:
            first = _times(first, _SHIFTS[part + (length & 0xFF)])
        length >>= 8
        part += 256
    return first ^ second


def combine_crc(first: int, second: int, second_length: int) -> int:
    """The CRC32C of two byte strings put together, from theirs and the second one's length."""
    if not (0 <= first < 2**32 and 0 <= second < 2**32):
        raise InvalidArgument("first, second", "a CRC is a number of 32 bits")
    if second_length < 0:
        raise InvalidArgument("second_length", f"{second_length} is negative")
    return _combined(first, second, second_length % _PERIOD)


def chain_batch_crc(chained: cython.longlong, batch: Buffer) -> int:
    """The CRC32C of everything before `batch` and the batch, from that of what is before.

    Equals `crc32c(batch, chained)` if the batch's own CRC is right, of which its caller must be
    sure; the records are not looked at, only the bytes in front of what that CRC covers.
    """
    view: View = view_of(batch)
    crc: cython.ulonglong
    index: cython.Py_ssize_t
    if chained < 0 or chained > 0xFFFFFFFF:
        raise InvalidArgument("chained", "a CRC is a number of 32 bits")
    if view.size < HEADER_SIZE:
        raise InvalidArgument("batch", f"a batch has at least {HEADER_BYTES} bytes")
    crc = chained ^ 0xFFFFFFFF
    for index in range(_CRC_START):
        crc = _times_byte(crc ^ view.p[index])
    return _combined(
        crc ^ 0xFFFFFFFF,
        read_integer(view.p, _CRC_START - 4, 4) & 0xFFFFFFFF,
        view.size - _CRC_START,
    )
