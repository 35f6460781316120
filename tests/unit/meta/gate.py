"""Holds a cache back, as one would be that is slow or cut off."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

from firnmq.meta import Changes, MetaCache


class Gate:
    """While it is closed, the cache takes nothing in beyond a revision."""

    def __init__(self, cache: MetaCache, *, upto: int) -> None:
        self._apply = cache.apply
        self._upto = upto
        self._opened = threading.Event()
        cache.apply = self  # type: ignore[method-assign,assignment]

    def __call__(self, changes: Changes) -> None:
        if changes.revision > self._upto:
            self._opened.wait()
        self._apply(changes)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._opened.set()
