"""Errors as values: what a node raises for another one's request is raised where it was asked."""

from __future__ import annotations

from typing import Any

import msgspec

from firnmq import errors
from firnmq.errors import Corruption, FirnError

_PLAIN = (str, int, float, bool, bytes, type(None))
_NESTED_MAX = 3
_DEPTH_MAX = 8


class _Stored(msgspec.Struct, array_like=True):
    kind: str
    text: tuple[str, ...]
    fields: dict[str, Any]


def _kinds() -> dict[str, type[FirnError]]:
    """Every error of firnmq.errors, by name."""
    found = {}
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, FirnError):
            found[name] = kind
    return found


_KINDS = _kinds()


def encode_error(error: FirnError) -> bytes:
    """The error with its fields. An error that only this process knows becomes the nearest kind
    that every node knows."""
    return msgspec.msgpack.encode(_stored(error, _NESTED_MAX))


def decode_error(data: bytes | memoryview) -> FirnError:
    try:
        stored = msgspec.msgpack.decode(data, type=_Stored)
    except msgspec.MsgspecError as error:
        return Corruption(str(error), where="an error that another node sent")
    return _restored(stored)


def _stored(error: FirnError, nested: int) -> _Stored:
    kind = next(each for each in type(error).__mro__ if _KINDS.get(each.__name__) is each)
    fields: dict[str, Any] = {}
    for name, value in vars(error).items():
        if isinstance(value, FirnError) and nested:
            fields[name] = {"error": msgspec.to_builtins(_stored(value, nested - 1))}
        elif isinstance(value, BaseException):
            fields[name] = {"text": str(value)}
        else:
            fields[name] = _plain(value)
    return _Stored(kind.__name__, tuple(map(str, error.args)), fields)


def _plain(value: object, depth: int = 0) -> object:
    if isinstance(value, _PLAIN) and type(value) in _PLAIN:
        return value
    if isinstance(value, int):  # An enumeration, or an id of its own type.
        return int(value)
    if isinstance(value, (tuple, list)) and depth < _DEPTH_MAX:
        return [_plain(each, depth + 1) for each in value]
    return str(value)


def _restored(stored: _Stored) -> FirnError:
    kind = _KINDS.get(stored.kind, FirnError)
    error = kind.__new__(kind)
    error.args = stored.text
    for name, value in stored.fields.items():
        if isinstance(value, dict):
            if "error" in value:
                value = _restored(msgspec.convert(value["error"], _Stored))
            else:
                value = OSError(value.get("text", ""))
        elif isinstance(value, list):
            value = tuple(value)
        setattr(error, name, value)
    return error
