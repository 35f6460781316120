"""What can be wrong with the bytes of a batch, and the limits of the loops, as C numbers."""

import cython

from firnmq.record.batch import HEADER_BYTES, LENGTH_END, OFFSET_MAX, RECORD_BYTES_MIN

INT64_MAX = cython.declare(cython.longlong, 2**63 - 1)
INT64_MIN = cython.declare(cython.longlong, -INT64_MAX - 1)

# The numbers of `firnmq.record.batch` that the loops use.
HEADER_SIZE = cython.declare(cython.Py_ssize_t, HEADER_BYTES)
PREFIX_SIZE = cython.declare(cython.Py_ssize_t, LENGTH_END)
OFFSET_LIMIT = cython.declare(cython.longlong, OFFSET_MAX)
RECORD_SIZE_MIN = cython.declare(cython.Py_ssize_t, RECORD_BYTES_MIN)

# What is done for so many records takes less than a millisecond.
RECORDS_PER_TURN = cython.declare(cython.longlong, 2048)

# Functions that parse return a position, or one of these codes; only the functions that know whose
# bytes they read turn a code into an error.
PAST_END = cython.declare(cython.int, -1)
LONG_VARINT = cython.declare(cython.int, -2)
BAD_RECORD_LENGTH = cython.declare(cython.int, -3)
BAD_KEY_LENGTH = cython.declare(cython.int, -4)
BAD_VALUE_LENGTH = cython.declare(cython.int, -5)
BAD_HEADER_COUNT = cython.declare(cython.int, -6)
BAD_NAME_LENGTH = cython.declare(cython.int, -7)
BAD_HEADER_LENGTH = cython.declare(cython.int, -8)
BYTES_LEFT = cython.declare(cython.int, -9)
TRUNCATED = cython.declare(cython.int, -10)
BAD_LENGTH = cython.declare(cython.int, -11)
BAD_MAGIC = cython.declare(cython.int, -12)
BAD_OFFSET = cython.declare(cython.int, -13)
BAD_COUNT = cython.declare(cython.int, -14)
BAD_OFFSET_DELTA = cython.declare(cython.int, -15)
BAD_TIMESTAMP = cython.declare(cython.int, -16)
BAD_NAME = cython.declare(cython.int, -17)
TOO_LARGE = cython.declare(cython.int, -18)

REASONS = {
    -1: "a number or field runs past the end",
    -2: "a number has too many bytes",
    -3: "record length does not fit the bytes that remain",
    -4: "key length does not fit the record",
    -5: "value length does not fit the record",
    -6: "header count does not fit the record",
    -7: "header name length does not fit the record",
    -8: "header value length does not fit the record",
    -9: "bytes are left over at the end of the record",
    -10: "truncated",
    -11: "bad length",
    -12: "bad magic",
    -13: "bad offset",
    -14: "bad record count",
    -16: "timestamp out of range",
    -17: "a header name is not UTF-8",
}
