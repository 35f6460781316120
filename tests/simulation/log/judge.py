"""Which appends were acknowledged, failed or left without an answer, and what reads must show."""

from __future__ import annotations

from typing import NamedTuple

from firnmq.disk import Ticket
from firnmq.engines import Appended
from firnmq.engines.engine import LogEngine
from firnmq.errors import FirnError, KeyNotFound, StorageFailed, TimedOut
from tests.simulation.log.disk import SHARD


class Violation(AssertionError):
    """A promise was broken. The seed replays it."""


class Stored(NamedTuple):
    number: int
    key: bytes


class Pending(NamedTuple):
    place: int
    """Among all appends, in the order they were submitted."""
    ticket: Ticket[Appended]
    records: list[Stored]
    deleted: frozenset[int] = frozenset()
    """Offsets, if it is the entry of a deletion."""


class Judge:
    """Knows every append of a schedule."""

    def __init__(self, *, is_lossy: bool) -> None:
        self.is_lossy = is_lossy
        """Whether a power cut may take acknowledged records, from the end."""
        self._pending: list[Pending] = []
        self._acknowledged: dict[int, Stored] = {}
        self._maybe: set[Stored] = set()
        """Of appends that failed or had no answer before a power cut: there or not."""
        self._holes: set[int] = set()
        """Offsets of deleted records, and of entries."""
        self._maybe_deleted: list[frozenset[int]] = []
        """By deletions that failed or had no answer before a power cut."""
        self._start = 0
        self._resent: list[tuple[Ticket[Appended], Appended]] = []
        self._place = 0
        self._offsets: dict[int, int] = {}
        """Of acknowledged appends since the last power cut, by their place."""
        self.acknowledged_count = 0
        self.failed_count = 0
        self.unknown_count = 0

    def submitted(self, ticket: Ticket[Appended], records: list[Stored]) -> None:
        self._place += 1
        self._pending.append(Pending(self._place, ticket, records))

    def deleting(self, ticket: Ticket[Appended], offsets: frozenset[int]) -> None:
        self._place += 1
        self._pending.append(Pending(self._place, ticket, [], offsets))

    def resent(self, ticket: Ticket[Appended], stored: Appended) -> None:
        """A batch that was acknowledged is sent again: the answer is the same."""
        self._resent.append((ticket, stored))

    def check(self, engine: LogEngine) -> None:
        """Every acknowledged record is shown, and no other is, by offset and by key."""
        self._hear()
        start = self._take_start(engine)
        wanted = {at: each for at, each in self._acknowledged.items() if at >= start}
        found = shown(engine)
        missing = _missing(engine, found) - self._holes
        if missing:
            raise Violation(f"there is nothing at {missing}")
        if found != wanted:
            raise Violation(f"shown {found}, acknowledged {wanted}")
        newest = {each.key: at for at, each in sorted(wanted.items())}
        for key in {each.key for each in self._acknowledged.values()}:
            if newest_of(engine, key) != newest.get(key):
                raise Violation(f"{key!r}: {newest_of(engine, key)}, not {newest.get(key)}")

    def crashed(self) -> None:
        """Nobody will be told of what has had no answer."""
        self._hear()
        for pending in self._pending:
            self.unknown_count += 1
            self._maybe.update(pending.records)
            self._maybe_deleted += [pending.deleted] if pending.deleted else []
        self._pending, self._resent, self._offsets = [], [], {}

    def reopened(self, engine: LogEngine) -> None:
        """After a power cut: what was acknowledged is there, and behind it perhaps more."""
        start = self._take_start(engine)
        found = shown(engine)
        end = max(found, default=start - 1) + 1
        missing = _missing(engine, found) - self._holes
        gone = missing & frozenset().union(*self._maybe_deleted)
        if len(missing - gone) > len(self._maybe_deleted):
            raise Violation(f"there is nothing at {missing}")
        for at, each in self._acknowledged.items():
            if at in gone:
                continue
            if at >= start and found.get(at) != each and not (self.is_lossy and at >= end):
                raise Violation(f"{at} was acknowledged as {each} and is {found.get(at)}")
        if self.is_lossy:
            self._acknowledged = {at: it for at, it in self._acknowledged.items() if at < end}
        for at, each in found.items():
            if at not in self._acknowledged and each not in self._maybe:
                raise Violation(f"{at} is {each}, which was never appended there")
        self._acknowledged = {at: it for at, it in self._acknowledged.items() if at not in gone}
        bounds = range(*engine.bounds(SHARD))
        self._holes = {at for at in self._holes | missing if at in bounds and at not in found}
        self._maybe_deleted = []
        self._acknowledged |= found
        self._maybe -= set(found.values())

    def _take_start(self, engine: LogEngine) -> int:
        start, end = engine.bounds(SHARD)
        if start < self._start or start > end:
            raise Violation(f"the start moved from {self._start} to {start} of {end}")
        self._start = start
        return start

    def _hear(self) -> None:
        """Takes the answers that have come."""
        resent, self._resent = self._resent, []
        for ticket, stored in resent:
            try:
                if (appended := ticket.wait(0)) != stored:
                    raise Violation(f"a batch at {stored} was stored again at {appended}")
            except TimedOut:
                self._resent.append((ticket, stored))
            except StorageFailed:
                continue
        left = []
        for pending in self._pending:
            try:
                appended = pending.ticket.wait(0)
            except TimedOut:
                left.append(pending)
            except FirnError:
                self.failed_count += 1
                self._maybe.update(pending.records)
                self._maybe_deleted += [pending.deleted] if pending.deleted else []
            else:
                self.acknowledged_count += 1
                self._offsets[pending.place] = appended.base_offset
                if pending.deleted:
                    self._holes |= {appended.base_offset, *pending.deleted}
                    for offset in pending.deleted:
                        self._acknowledged.pop(offset, None)
                for offset, each in enumerate(pending.records, appended.base_offset):
                    if offset in self._acknowledged:
                        raise Violation(f"{offset} was given out twice")
                    self._acknowledged[offset] = each
        self._pending = left
        in_order = [self._offsets[place] for place in sorted(self._offsets)]
        if in_order != sorted(in_order):
            raise Violation(f"appends overtook each other: {in_order}")


def shown(engine: LogEngine) -> dict[int, Stored]:
    start, end = engine.bounds(SHARD)
    found: dict[int, Stored] = {}
    if start < end:
        page = engine.read_by_offset(SHARD, start, max_records=10_000, max_bytes=2**30)
        for record in page.records():
            number = int(bytes(record.value or b"").split()[0])
            found[record.offset] = Stored(number, bytes(record.key or b""))
    return found


def _missing(engine: LogEngine, found: dict[int, Stored]) -> set[int]:
    """Offsets of the log at which no record is shown."""
    return set(range(*engine.bounds(SHARD))) - found.keys()


def newest_of(engine: LogEngine, key: bytes) -> int | None:
    try:
        (record,) = engine.read_by_key(SHARD, key).records()
    except KeyNotFound:
        return None
    return record.offset
