"""The composition root: the only place where objects are wired together."""

from firnmq.server.embedded import (
    AsyncStore,
    AsyncTopicHandle,
    Store,
    TopicHandle,
    open_async,
    open_store,
)
from firnmq.server.local import LocalStore

__all__ = [
    "AsyncStore",
    "AsyncTopicHandle",
    "LocalStore",
    "Store",
    "TopicHandle",
    "open_async",
    "open_store",
]
