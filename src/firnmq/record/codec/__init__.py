"""The loops over batch bytes: walk, decode, collect, judge, encode.

The modules here are Cython in pure-Python mode. `compiled.pyx` includes all of them, so that the C
compiler sees one unit and can put the small functions of one module into the loops of another:
their variables are then C variables and their `p_…` values C pointers. Where there is no compiled
form, `interpreted` gives the same functions from the same modules, whose names then hold Python
numbers and buffers. In the one unit a module has the names of those before it, so what a module
imports from its neighbours is imported only `if not cython.compiled`, and no two modules may give
one name to two things. No module has the name of a function, which it would hide.

Bounds are not checked by the compiler. Each read is therefore preceded by a comparison with the
end of what may be read, and each length taken from bytes is compared with the bytes that remain
before it is used.
"""

from firnmq.record.codec.installed import (
    IS_COMPILED,
    BatchEntry,
    BatchKeys,
    BinaryViews,
    JudgedBatch,
    Walk,
    chain_batch_crc,
    collect,
    combine_crc,
    decode,
    encode,
    encode_columns,
    encode_some,
    judge,
    key_entries,
    tag_entries,
    validate,
    validate_header,
    walk,
)

__all__ = [
    "IS_COMPILED",
    "BatchEntry",
    "BatchKeys",
    "BinaryViews",
    "JudgedBatch",
    "Walk",
    "chain_batch_crc",
    "collect",
    "combine_crc",
    "decode",
    "encode",
    "encode_columns",
    "encode_some",
    "judge",
    "key_entries",
    "tag_entries",
    "validate",
    "validate_header",
    "walk",
]
