"""Topics that are being made, deleted or given shards: one at a time per name, and how many shards
all topics may have together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from firnmq.adapter.catalog import TopicCatalog
from firnmq.disk.waiting import is_blocking
from firnmq.errors import (
    AlreadyExists,
    FirnError,
    InvalidArgument,
    TimedOut,
    TooManyShards,
    TopicNotFound,
)

ClusterClaim = Callable[[str, FirnError], AbstractContextManager[None]]
"""Claims a topic's name among all nodes; raises the error if another node has it."""

SHARDS_MAX = 100_000
"""Shards of one topic."""
_REFUSALS = (AlreadyExists, InvalidArgument, TopicNotFound)
"""A change of a topic that ends so has left nothing behind."""


class TopicsUnderWay:
    """Claims of names and of shards. Safe with threads."""

    def __init__(
        self,
        catalog: TopicCatalog,
        shard_count_max: int,
        shared_shard_count_max: int,
        cluster_claim: ClusterClaim | None = None,
    ) -> None:
        self._cluster_claim = cluster_claim
        self._catalog = catalog
        self._limits = {False: shard_count_max, True: shared_shard_count_max}
        """By whether the shards share files, how many all topics may have together."""
        self._changed = threading.Condition()
        """Guards the claims; notified whenever one ends."""
        self._claims: dict[str, tuple[int, bool]] = {}
        """By topic, how many shards it will have, and whether they share files."""
        self.unfinished: dict[str, int] = {}
        """Topics whose making, deletion or growth failed, each with the number of shards that it
        was to have: they may be there, and are removed later."""

    @contextmanager
    def claim(
        self,
        name: str,
        shard_count: int = 0,
        *,
        shares_files: bool = False,
        refusal: FirnError | None = None,
    ) -> Iterator[None]:
        """Keeps others from making, deleting or growing a topic of this name until the exit.

        Waits for another claim of the name, or raises `refusal` if one is given. TooManyShards if
        the topic may not have `shard_count` shards.
        """
        with self._changed:
            if name in self._claims:
                if refusal is not None:
                    raise refusal
                self._wait_for(name)
            if shard_count:
                self._check_room(name, shard_count, shares_files=shares_files)
            self._claims[name] = shard_count, shares_files
        try:
            with self._claimed_everywhere(name, refusal):
                yield
        except _REFUSALS:
            raise
        except BaseException:
            self.note_unfinished(name, shard_count)
            raise
        finally:
            with self._changed:
                del self._claims[name]
                self._changed.notify_all()

    def _claimed_everywhere(
        self, name: str, refusal: FirnError | None
    ) -> AbstractContextManager[None]:
        if self._cluster_claim is None:
            return nullcontext()
        under_way = TimedOut(f"another node changes topic {name!r}; try again")
        return self._cluster_claim(name, refusal or under_way)

    def note_unfinished(self, name: str, shard_count: int) -> None:
        """Notes that a change of a topic may have left something behind."""
        self.unfinished[name] = max(shard_count, self.unfinished.get(name, 0))

    def check_room(
        self, name: str, shard_count: int, planned_count: int = 0, *, shares_files: bool = False
    ) -> None:
        """TooManyShards if a topic of this name may not have so many shards beside the planned."""
        with self._changed:
            self._check_room(name, shard_count, planned_count, shares_files=shares_files)

    def _wait_for(self, name: str) -> None:
        # An event loop cannot wait here; only topics of foreign adapters are changed on one.
        timeout_s = self._catalog.wait_s if is_blocking() else 0
        if not self._changed.wait_for(lambda: name not in self._claims, timeout_s):
            raise TimedOut(f"another change of topic {name!r} is under way; try again")

    def _check_room(
        self, name: str, shard_count: int, planned_count: int = 0, *, shares_files: bool
    ) -> None:
        limit = self._limits[shares_files]
        if shard_count > limit:
            raise TooManyShards(shard_count, 0, limit, shares_files=shares_files)
        there = planned_count + self._catalog.shard_count(shares_files=shares_files)
        there -= self._known(name, shares_files)
        for claimed, (count, shares) in self._claims.items():
            if shares is shares_files and claimed != name:
                there += max(count - self._known(claimed, shares), 0)
        if there + shard_count > limit:
            raise TooManyShards(shard_count, there, limit, shares_files=shares_files)

    def _known(self, name: str, shares_files: bool) -> int:
        """How many shards of this kind the catalog counts for a topic."""
        topic = self._catalog.by_name.get(name)
        is_kind = topic is not None and topic.config.shares_files is shares_files
        return topic.shard_count if topic is not None and is_kind else 0
