"""Reads ahead: an iterator worked off in a thread while its consumer is busy with what it gave."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import Final, Generic, TypeVar

T = TypeVar("T")
_POLL_S: Final = 0.1


class _End:
    """Comes after the last item, with the error that ended the iterator if one did."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class Ahead(Generic[T]):
    """Iterate over it once, and close it: then the thread has ended and the source is closed.

    At most `depth` items wait; what the source raises is raised where the items are taken.
    """

    def __init__(self, source: Iterable[T], depth: int) -> None:
        self._source = source
        self._items: queue.Queue[T | _End] = queue.Queue(depth)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="firn-ahead", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[T]:
        while True:
            item = self._items.get()
            if isinstance(item, _End):
                if item.error is not None:
                    raise item.error
                return
            yield item

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()

    def __enter__(self) -> Ahead[T]:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _work(self) -> None:
        end = _End(None)
        try:
            for item in self._source:
                if not self._put(item):
                    break
        except BaseException as error:  # It is raised again where it is waited for.
            end = _End(error)
        finally:
            close = getattr(self._source, "close", None)
            if close is not None:
                close()  # In this thread: a generator runs where it was run.
        self._put(end)

    def _put(self, item: T | _End) -> bool:
        while not self._stopping.is_set():
            try:
                self._items.put(item, timeout=_POLL_S)
                return True
            except queue.Full:
                continue
        return False
