"""Topics as groups see them that subscribe by name or by regular expression."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import re2

from firnmq.adapter import TopicCatalog
from firnmq.adapter.catalog import TopicState
from firnmq.brokers.kafka.groups.consumer.messages import InvalidPattern, TopicSize

_PATTERN_COUNT_MAX: Final = 200
_FOUND_COUNT_MAX: Final = 50
"""Patterns of which it is kept what they find; that may be every topic."""
_PATTERN_BYTES_MAX: Final = 256 << 10
"""Memory that one compiled expression may take; RE2 refuses what needs more."""


class TopicNames:
    """The `Topics` of group coordinators. Owned by the event loop.

    Expressions have the syntax of RE2, as in Kafka. RE2 takes time in proportion to a name's length
    whatever the expression is, so that no client can keep the node busy with one.
    """

    def __init__(self, catalog: TopicCatalog) -> None:
        self._catalog = catalog
        self._matches: dict[str, tuple[int, frozenset[str]]] = {}
        """Pattern to what it found, and at which revision."""

    @property
    def revision(self) -> int:
        return self._catalog.change_count

    def find(self, name: str) -> TopicSize | None:
        topic = self._catalog.by_name.get(name)
        if topic is None or topic.state is not TopicState.READY:
            return None
        return TopicSize(topic.topic_id, topic.shard_count)

    def name_of(self, topic_id: str) -> str | None:
        topic = self._catalog.with_id(topic_id)
        return None if topic is None else topic.name

    def matching(self, pattern: str) -> frozenset[str]:
        revision = self.revision
        known = self._matches.get(pattern)
        if known is not None and known[0] == revision:
            return known[1]
        compiled = _compiled(pattern)
        found = frozenset(
            name for name in list(self._catalog.by_name) if compiled.fullmatch(name) is not None
        )
        if len(self._matches) >= _FOUND_COUNT_MAX:
            self._matches.clear()
        self._matches[pattern] = (revision, found)
        return found


@lru_cache(maxsize=_PATTERN_COUNT_MAX)
def _compiled(pattern: str) -> re2.Pattern:
    options = re2.Options()
    options.max_mem = _PATTERN_BYTES_MAX
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0] if error.args else b""
        text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise InvalidPattern(text) from None
