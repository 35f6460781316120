"""An engine's side of the store's health: what is reported of shards, and looked at again."""

from __future__ import annotations

from collections.abc import Callable, Container
from contextlib import suppress
from functools import partial
from typing import TypeVar

from firnmq.engines.shardlog import ShardLog
from firnmq.errors import Corruption, FirnError, NoObjectStore, StorageFailed, storage_failure
from firnmq.health import Health, ProblemKind

T = TypeVar("T")


class ShardTroubles:
    """Reports what an engine meets, and finds out what is over. Safe with threads."""

    def __init__(self, health: Health, shards: Container[str]) -> None:
        self._health = health
        self._shards = shards
        """The names of the engine's shards, as they are whenever one looks."""
        self._reads: dict[str, Callable[[], object]] = {}
        """Of each shard with an unreadable place, the read that failed there."""

    def read(self, shard: str, read: Callable[[], T]) -> T:
        """What `read` gives; what it cannot read is reported. Its errors are typed."""
        try:
            return read()
        except Corruption as error:
            self._unreadable(shard, read, error)
            raise
        except NoObjectStore as error:
            self._health.report(ProblemKind.OBJECT_STORE_MISSING, shard, error)
            raise
        except OSError as error:
            failure = storage_failure(shard, error)
            self._unreadable(shard, read, failure)
            raise failure from error
        except StorageFailed as error:
            if error.shard == shard:
                raise  # The log is closed, which was reported when it happened.
            failure = type(error)(shard, error.cause)  # A database that holds the shard's rows.
            self._unreadable(shard, read, failure)
            raise failure from error

    def check_files(self, log: ShardLog) -> None:
        """Reports a sealed segment whose file is not there, or too short."""

        def check() -> None:
            for segment in log.view.segments:
                meta = segment.meta
                if meta.is_sealed and meta.is_local and segment.bytes.is_file:
                    length = segment.bytes.length()
                    if length < meta.length:
                        reason = f"{length:,} of {meta.length:,} bytes are there"
                        raise Corruption(reason, where=segment.bytes.where)

        with suppress(Corruption, StorageFailed):
            self.read(log.spec.name, check)

    def failed(self, shard: str, error: FirnError) -> None:
        """A write failed, or the shard cannot be opened."""
        if isinstance(error, (Corruption, StorageFailed)):
            self._health.report(ProblemKind.SHARD_FAILED, shard, error)

    def upkeep_failed(self, shard: str, error: Corruption | StorageFailed) -> None:
        """Upkeep could not read the shard, or not change it; it will try again."""
        is_corrupt = isinstance(error, Corruption)
        kind = ProblemKind.SEGMENT_UNREADABLE if is_corrupt else ProblemKind.SHARD_FAILED
        self._health.report(kind, shard, error)

    def opened(self, shard: str) -> None:
        """The shard was opened, or upkeep went well."""
        self._health.clear(ProblemKind.SHARD_FAILED, shard)

    def of(self, shard: str) -> str | None:
        return self._health.failure_of(shard)

    def forget(self, shard: str) -> None:
        self._reads.pop(shard, None)
        self._health.forget(shard)

    def recheck(self, reopen: Callable[[str], object]) -> None:
        """Looks at every problem of the engine's shards again."""
        for problem in self._health.problems():
            shard = problem.subject
            if shard not in self._shards:
                continue
            if problem.kind is ProblemKind.SHARD_FAILED:
                if _succeeds(partial(reopen, shard)):
                    self._health.clear(problem.kind, shard)
            elif shard in self._reads and _succeeds(self._reads[shard]):
                self.readable(shard)

    def readable(self, shard: str) -> None:
        """What could not be read can be read now."""
        self._reads.pop(shard, None)
        self._health.clear(ProblemKind.SEGMENT_UNREADABLE, shard)

    def compacted(self, shard: str) -> None:
        """All of the shard's sealed segments that compaction wants could be read."""
        if shard not in self._reads:
            self._health.clear(ProblemKind.SEGMENT_UNREADABLE, shard)

    def _unreadable(self, shard: str, read: Callable[[], object], error: FirnError) -> None:
        self._reads.setdefault(shard, read)
        self._health.report(ProblemKind.SEGMENT_UNREADABLE, shard, error)


def _succeeds(attempt: Callable[[], object]) -> bool:
    """Whether storage allows it. Another refusal, such as an offset that is gone, is no problem."""
    try:
        attempt()
    except (Corruption, StorageFailed, OSError):
        return False
    except FirnError:
        return True
    return True
