"""Errors on the wire: a gRPC status, and metadata from which the client makes the same error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc
import msgspec

from firnmq.errors import (
    AlreadyExists,
    CreationTimedOut,
    DiskFull,
    FirnError,
    InvalidArgument,
    ShardNotFound,
    StaleIncarnation,
    StorageFailed,
    TimedOut,
    TopicNotFound,
)
from firnmq.meta.api import Compacted, SessionLapsed

ERROR_KEY = "firn-error-bin"
WHERE = "the meta service"
_TEXT_MAX = 2_000


class MetaServiceFailed(FirnError):
    """The meta service reports an error that has no type here."""


class OtherController(FirnError):
    """The process is not the controller, or there is none at the moment."""


@dataclass(frozen=True, slots=True)
class _Kind:
    status: grpc.StatusCode
    fields: tuple[str, ...]
    make: Callable[..., FirnError]


def _timed_out(text: str) -> FirnError:
    return TimedOut(text)


def _storage_failed(text: str, *, is_outcome_unknown: bool) -> FirnError:
    failure = StorageFailed(WHERE, OSError(text))
    failure.is_outcome_unknown = is_outcome_unknown
    return failure


_CODE = grpc.StatusCode
_KINDS: dict[str, _Kind] = {
    InvalidArgument.__name__: _Kind(
        _CODE.INVALID_ARGUMENT, ("argument", "reason"), InvalidArgument
    ),
    AlreadyExists.__name__: _Kind(_CODE.ALREADY_EXISTS, ("kind", "name"), AlreadyExists),
    TopicNotFound.__name__: _Kind(_CODE.NOT_FOUND, ("name",), TopicNotFound),
    ShardNotFound.__name__: _Kind(_CODE.NOT_FOUND, ("name",), ShardNotFound),
    StaleIncarnation.__name__: _Kind(
        _CODE.FAILED_PRECONDITION, ("node", "incarnation", "current"), StaleIncarnation
    ),
    SessionLapsed.__name__: _Kind(_CODE.FAILED_PRECONDITION, ("session_id",), SessionLapsed),
    Compacted.__name__: _Kind(_CODE.OUT_OF_RANGE, ("asked", "oldest"), Compacted),
    CreationTimedOut.__name__: _Kind(
        _CODE.DEADLINE_EXCEEDED, ("topic", "awaited", "timeout_s"), CreationTimedOut
    ),
    DiskFull.__name__: _Kind(
        _CODE.RESOURCE_EXHAUSTED, (), lambda: DiskFull(WHERE, OSError("full"))
    ),
}
"""Types whose fields are the arguments of their constructor."""


def status_of(error: FirnError) -> tuple[grpc.StatusCode, bytes]:
    """The status of an answer, and what its metadata hold."""
    kind = _KINDS.get(type(error).__name__)
    fields: dict[str, Any] = {}
    if kind is not None:
        status = kind.status
        fields = {name: getattr(error, name) for name in kind.fields}
    elif isinstance(error, TimedOut):
        status = _CODE.UNAVAILABLE
    elif isinstance(error, StorageFailed):
        status = _CODE.UNAVAILABLE
        fields = {"is_outcome_unknown": error.is_outcome_unknown}
    else:
        status = _CODE.INTERNAL
    document = {"type": type(error).__name__, "text": str(error)[:_TEXT_MAX], "fields": fields}
    return status, msgspec.json.encode(document)


def error_of(raw: bytes) -> FirnError:
    """The error that the metadata of an answer hold."""
    try:
        document = msgspec.json.decode(raw, type=dict[str, Any])
        name, text, fields = document["type"], document["text"], document["fields"]
        if name in _KINDS:
            return _KINDS[name].make(**fields)
        if name == TimedOut.__name__:
            return _timed_out(text)
        if name == StorageFailed.__name__:
            return _storage_failed(text, is_outcome_unknown=bool(fields["is_outcome_unknown"]))
        return MetaServiceFailed(f"{name}: {text}")
    except (msgspec.MsgspecError, KeyError, TypeError) as error:
        return MetaServiceFailed(f"an answer that cannot be read: {error}")
