"""A metadata store that answers when it is told to."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from firnmq.errors import StorageFailed
from firnmq.meta import Compare, Session, SqliteMetaStore

_WAIT_S_MAX = 60.0


class HeldMetaStore(SqliteMetaStore):
    """A SqliteMetaStore whose transactions can be held up, refused, or left without an answer."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._may_go_on = threading.Event()
        self._may_go_on.set()
        self._changed = threading.Condition()
        self._held_count = 0
        self.refusal: StorageFailed | None = None
        """What transactions fail with, after they have happened if `happens`."""
        self.happens = False

    def hold(self) -> None:
        """Transactions wait from now on."""
        self._may_go_on.clear()

    def release(self) -> None:
        self._may_go_on.set()

    def wait_until_held(self, count: int = 1) -> None:
        """Returns once so many transactions wait."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._held_count >= count, _WAIT_S_MAX)

    def txn(
        self,
        compares: Sequence[Compare] = (),
        puts: Mapping[str, bytes] | None = None,
        deletes: Sequence[str] = (),
        session: Session | None = None,
    ) -> int:
        self._count(1)
        assert self._may_go_on.wait(_WAIT_S_MAX), "the metadata is never released"
        self._count(-1)
        if self.refusal is not None and not self.happens:
            raise self.refusal
        revision = super().txn(compares, puts, deletes, session)
        if self.refusal is not None:
            raise self.refusal
        return revision

    def _count(self, change: int) -> None:
        with self._changed:
            self._held_count += change
            self._changed.notify_all()
