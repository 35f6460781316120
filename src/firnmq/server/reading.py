"""Pages of a topic's records: by offset, key, tag or time, or following new records.

The HTTP listener streams these pages, and `firn read` prints them of a directory that no node
serves. A page is bounded, and the next one is read when the caller asks for it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from firnmq.adapter import StorageDriverManager, Topic
from firnmq.engines import AdapterOffsetStrategy, Page
from firnmq.errors import FirnError, InvalidArgument, InvalidRecord, OffsetOutOfRange
from firnmq.record import Record
from firnmq.record.document import bytes_of

PAGE_RECORDS = 1000
PAGE_BYTES = 1024 * 1024
_FOLLOW_S = 10.0
"""How long the reader waits for a page before it sends an empty one as a sign of life."""

Wait = Callable[[Mapping[int, int], float], Awaitable[None]]
"""Returns when one of the shards grows beyond its offset, or after so many seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The records to read."""

    shard: int | None = None
    """All shards if none is given, one after the other."""
    offset: int | None = None
    """Where to begin; a negative number counts from the end of each shard."""
    from_end: bool = False
    """Only records that are appended from now on."""
    key: bytes | None = None
    """The newest record of this key, or all of them."""
    all_versions: bool = False
    tag: bytes | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    """Timestamps: from `since_ms` on, and below `until_ms`."""
    limit: int | None = None
    """No more records than this, of all shards together."""
    follow: bool = False
    """Continue with records that are appended later."""

    def __post_init__(self) -> None:
        for condition, argument, reason in (
            (
                self.limit is not None and self.limit < 1,
                "max",
                f"must be 1 or more, not {self.limit}",
            ),
            (self.key is not None and self.tag is not None, "key", "cannot be used with tag"),
            (self.all_versions and self.key is None, "all", "needs a key"),
            (self._is_newest and self.follow, "follow", "with a key needs all"),
            (self._is_newest and self._has_range, "key", "with an offset or a time needs all"),
            (
                self.since_ms is not None and (self.offset is not None or self.from_end),
                "since",
                "cannot be used with an offset",
            ),
        ):
            if condition:
                raise InvalidArgument(argument, reason)

    @property
    def _is_newest(self) -> bool:
        return self.key is not None and not self.all_versions

    @property
    def _has_range(self) -> bool:
        return self.from_end or any(
            each is not None for each in (self.offset, self.since_ms, self.until_ms)
        )


def reading_of(query: Mapping[str, str]) -> Reading:
    """From the parameters of a query."""
    place = query.get("offset", "start")
    return Reading(
        shard=number_of(query, "shard"),
        offset=None if place in ("start", "end") else number_of(query, "offset"),
        from_end=place == "end",
        key=_raw_of(query, "key"),
        all_versions=_flag_of(query, "all"),
        tag=_raw_of(query, "tag"),
        since_ms=number_of(query, "since_ms"),
        until_ms=number_of(query, "until_ms"),
        limit=number_of(query, "max"),
        follow=_flag_of(query, "follow"),
    )


def number_of(query: Mapping[str, str], name: str) -> int | None:
    text = query.get(name)
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        raise InvalidArgument(name, f"must be a whole number, not {text!r}") from None


def _flag_of(query: Mapping[str, str], name: str) -> bool:
    text = query.get(name, "false")
    if text not in ("true", "false"):
        raise InvalidArgument(name, f"must be true or false, not {text!r}")
    return text == "true"


def _raw_of(query: Mapping[str, str], name: str) -> bytes | None:
    try:
        return bytes_of(query, name)
    except InvalidRecord as error:
        raise InvalidArgument(name, str(error)) from error


class Found(NamedTuple):
    """Some records of a shard; empty if none were appended while the reader waited."""

    shard: int
    records: list[Record]


async def read_records(
    manager: StorageDriverManager, topic: Topic, wanted: Reading, wait: Wait | None = None
) -> AsyncGenerator[Found, None]:
    """Pages of the records. Invalid queries raise before the first page.

    Without following, a shard is read to the end that it had at the start.
    """
    try:
        async for found in _read(manager, topic, wanted, wait):
            yield found
    except FirnError as error:
        topic.name_shard(error)
        raise


async def _read(
    manager: StorageDriverManager, topic: Topic, wanted: Reading, wait: Wait | None
) -> AsyncGenerator[Found, None]:
    if wanted.key is not None and not wanted.all_versions:
        seq, record = await manager.read_by_key(topic, wanted.key, wanted.shard)
        yield Found(seq, [record])
        return
    reader = Reader(manager, topic, wanted)
    places = await reader.starts()
    yield Found(0, [])
    left = wanted.limit
    while True:
        ends = {seq: (await manager.bounds(topic, seq))[1] for seq in places}
        for seq, end in ends.items():
            is_at_end = False
            while not is_at_end and left != 0:
                page = await reader.page(seq, places[seq], left)
                is_at_end = page.next_offset >= end or page.next_offset == places[seq]
                places[seq] = page.next_offset
                records = reader.chosen(page, end)[:left]
                left = None if left is None else left - len(records)
                if records:
                    yield Found(seq, records)
        if left == 0 or not wanted.follow or wait is None:
            return
        # A shard can end beyond what may be read, where a transaction is open: its end then moves
        # when the transaction ends.
        await wait({seq: max(ends[seq], place) for seq, place in places.items()}, _FOLLOW_S)
        yield Found(0, [])


class Reader:
    """One way to get pages of a topic's shards."""

    def __init__(self, manager: StorageDriverManager, topic: Topic, wanted: Reading) -> None:
        self._manager = manager
        self.topic = topic
        self.wanted = wanted
        self._driver = manager.driver_of(topic.name)

    async def starts(self) -> dict[int, int]:
        """Each shard to read, and the offset to begin at."""
        wanted, topic = self.wanted, self.topic
        if wanted.shard is not None:
            shards = [self._manager.check_shard(topic, wanted.shard)]
        else:
            shards = list(range(topic.shard_count))
        if wanted.offset is not None and wanted.offset >= 0 and len(shards) > 1:
            raise InvalidArgument(
                "offset", f"needs a shard (--shard), because {topic.name} has {len(shards)} shards"
            )
        return {seq: await self.start(seq) for seq in shards}

    async def start(self, seq: int) -> int:
        """Where to begin in a shard."""
        wanted = self.wanted
        shard = self.topic.shard_name(seq)
        if wanted.since_ms is not None:
            return await self._driver.get_offset_by_timestamp(
                shard, wanted.since_ms, AdapterOffsetStrategy.LATEST
            )
        start, end = await self._manager.bounds(self.topic, seq)
        if wanted.from_end:
            return end
        if wanted.offset is None:
            return start
        if wanted.offset < 0:
            return max(start, end + wanted.offset)
        if not start <= wanted.offset <= end:
            raise OffsetOutOfRange(wanted.offset, start=start, end=end, shard=shard)
        return wanted.offset

    async def page(self, seq: int, offset: int, left: int | None) -> Page:
        try:
            return await self._page(seq, offset, left)
        except OffsetOutOfRange as error:
            if offset >= error.start:
                raise
            # Retention has removed what was about to be read.
            return await self._page(seq, error.start, left)

    async def _page(self, seq: int, offset: int, left: int | None) -> Page:
        wanted, driver = self.wanted, self._driver
        shard = self.topic.shard_name(seq)
        is_filtered = wanted.since_ms is not None or wanted.until_ms is not None
        max_records = PAGE_RECORDS
        if left is not None and not is_filtered:
            max_records = min(left, PAGE_RECORDS)
        if wanted.tag is not None:
            return await driver.read_by_tag(
                shard, wanted.tag, offset, max_records=max_records, max_bytes=PAGE_BYTES
            )
        if wanted.key is not None and driver.logs is not None:
            return await driver.logs.read_key_history(
                shard, wanted.key, offset, max_records=max_records, max_bytes=PAGE_BYTES
            )
        return await driver.read_by_offset(
            shard, offset, max_records=max_records, max_bytes=PAGE_BYTES
        )

    def chosen(self, page: Page, end: int) -> list[Record]:
        """The wanted records of a page. Timestamps need not rise with offsets."""
        wanted = self.wanted
        since, until = wanted.since_ms, wanted.until_ms
        columns = page.columns
        if until is not None:
            columns = tuple(each for each in columns if min(each.timestamps, default=until) < until)
        records = [record for each in columns for record in each.records()]
        if page.next_offset > end:
            records = [record for record in records if record.offset < end]
        if wanted.key is not None:
            records = [record for record in records if record.key == wanted.key]
        if since is not None:
            records = [record for record in records if record.timestamp_ms >= since]
        if until is not None:
            records = [record for record in records if record.timestamp_ms < until]
        return records
