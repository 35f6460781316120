"""Consumer groups, as the HTTP listener offers them: members, lag, moving offsets."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from firnmq.adapter import CommittedOffset, Topic, shown_shard
from firnmq.brokers.kafka.groups import (
    GENERATION_NONE,
    CommitRequest,
    GroupState,
    MemberDescription,
)
from firnmq.brokers.kafka.handlers.groups import GroupHandler
from firnmq.brokers.kafka.protocol import ErrorCode, MalformedRequest
from firnmq.brokers.kafka.protocol.messages.groups import DeleteGroupsRequest
from firnmq.brokers.kafka.protocol.reader import Reader
from firnmq.brokers.net.loop_turns import Turns
from firnmq.cluster.peers import Served
from firnmq.errors import FirnError, InvalidArgument, OffsetOutOfRange
from firnmq.server.admin.errors import BrokerRefused, GroupElsewhere, GroupInUse, GroupNotFound
from firnmq.server.admin.others import OtherNodes
from firnmq.server.admin.parts import NodeParts
from firnmq.server.documents import (
    GroupDeleted,
    GroupDescription,
    GroupMember,
    GroupOffset,
    GroupSummary,
    OffsetMoved,
    OffsetReset,
)

_GROUPS = "groups"
_NEEDS_VALUE = ("offset", "time", "shift")
_RESETS = ("earliest", "latest", *_NEEDS_VALUE)


class GroupAdmin:
    def __init__(self, parts: NodeParts, others: OtherNodes | None = None) -> None:
        """`others`: those of the cluster, if the node is not alone."""
        self._coordinator = parts.coordinator
        self._offsets = parts.offsets
        self._storage = parts.storage
        self._clock = parts.local.clock
        self._handler = GroupHandler(parts.coordinator, parts.offsets, Turns())
        self._others = others
        self.on_change: Callable[[], None] = lambda: None
        """Called when offsets were moved, or a group was deleted."""
        if others is not None:
            others.serve(_GROUPS, self._served)

    async def names(self) -> list[str]:
        return sorted({*self._coordinator.group_ids(), *await self._offsets.groups()})

    async def all(self) -> list[GroupSummary]:
        """All groups; in a cluster those of every node that is there."""
        found = await self._own()
        if self._others is not None:
            answers = await self._others.ask_all(self._others.registered(), _GROUPS, _summaries)
            for answer in answers.values():
                if isinstance(answer, FirnError):
                    raise answer
                found += answer
        return sorted(found, key=lambda each: each.group)

    async def _served(self, _: bytes) -> Served:
        return Served(msgspec.msgpack.encode(await self._own()))

    async def _own(self) -> list[GroupSummary]:
        summaries = []
        for name in await self.names():
            found = self._coordinator.describe(name)
            summaries.append(
                GroupSummary(
                    group=name,
                    state=_state(found.state).value,
                    protocol_type=found.protocol_type,
                    member_count=len(found.members),
                )
            )
        return summaries

    async def describe(self, name: str) -> GroupDescription:
        await self._check_here(name)
        self._check_exists(name)
        found = self._coordinator.describe(name)
        return GroupDescription(
            group=name,
            state=_state(found.state).value,
            protocol_type=found.protocol_type,
            member_count=len(found.members),
            generation=found.generation,
            protocol=found.protocol_name,
            leader=found.leader,
            members=[
                GroupMember(
                    member_id=member.member_id,
                    instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                )
                for member in found.members
            ],
            offsets=await self.lag(name),
        )

    async def lag(self, name: str) -> list[GroupOffset]:
        """Every shard that the group has committed or is assigned, with what is left to read."""
        await self._check_here(name)
        committed = await self._offsets.load_committed(name)
        owners = {
            place: member.member_id
            for member in self._coordinator.describe(name).members
            for place in assigned_shards(member)
        }
        topics = {topic.topic_id: topic for topic in self._storage.catalog.topics()}
        places = set(owners)
        for shard in committed:
            topic_id, _, number = shard.rpartition("_")
            if topic_id in topics:
                places.add((topics[topic_id].name, int(number)))
        rows = []
        for place in sorted(places):
            found, seq = self._storage.find(place[0]), place[1]
            if found is not None and 0 <= seq < found.shard_count:
                entry = committed.get(found.shard_name(seq))
                rows.append(await self._row(found, seq, entry, owners.get(place)))
        return rows

    async def reset(self, name: str, wanted: OffsetReset) -> list[OffsetMoved]:
        """Moves committed offsets of a group without members, or returns what it would do."""
        await self._check_here(name)
        if wanted.to not in _RESETS:
            raise InvalidArgument("to", f"{wanted.to!r} is not one of {', '.join(_RESETS)}")
        if (wanted.value is None) == (wanted.to in _NEEDS_VALUE):
            takes = "needs a value" if wanted.value is None else "takes no value"
            raise InvalidArgument("value", f"{wanted.to} {takes}")
        topic = self._storage.topic(wanted.topic)
        shards = range(topic.shard_count) if wanted.shards is None else sorted(set(wanted.shards))
        self._check_unused(name)
        committed = await self._offsets.load_committed(name)
        moves = []
        for seq in shards:
            shard = self._storage.shard(wanted.topic, seq)
            entry = committed.get(shard)
            moves.append(await self._move(name, wanted, seq, entry))
        if not wanted.dry_run:
            # A member may have joined during the lookup of the offsets; the coordinator decides.
            self._check_unused(name)
            now_ms = self._clock.now_ms()
            await self._offsets.commit(
                name,
                {
                    topic.shard_name(move.shard): CommittedOffset(
                        offset=move.after, committed_ms=now_ms
                    )
                    for move in moves
                },
            )
            self.on_change()
        return moves

    async def delete(self, name: str) -> GroupDeleted:
        await self._check_here(name)
        self._check_exists(name)
        response = await self._handler.delete(DeleteGroupsRequest(groups_names=[name]))
        code = ErrorCode(response.results[0].error_code)
        if code is ErrorCode.NON_EMPTY_GROUP:
            raise GroupInUse(name, self._coordinator.describe(name).state.value)
        if code is not ErrorCode.NONE:
            raise BrokerRefused(code, f"group {name!r} cannot be deleted: {code.name}")
        self.on_change()
        return GroupDeleted(group=name)

    async def _check_here(self, name: str) -> None:
        """GroupElsewhere if another node coordinates the group."""
        if self._others is not None:
            node = await self._others.coordinator_of(name)
            if node is not None and node != self._others.node:
                raise GroupElsewhere(name, node)

    def _check_exists(self, name: str) -> None:
        is_dead = self._coordinator.describe(name).state is GroupState.DEAD
        if is_dead and not self._offsets.has_offsets(name):
            raise GroupNotFound(name)

    def _check_unused(self, name: str) -> None:
        outsider = CommitRequest(member_id="", generation=GENERATION_NONE, instance_id=None)
        state = self._coordinator.describe(name).state
        if state not in (GroupState.EMPTY, GroupState.DEAD):
            raise GroupInUse(name, state.value)
        code = self._coordinator.check_commit(name, outsider)
        if code is not ErrorCode.NONE:
            raise BrokerRefused(code, f"offsets of group {name!r} cannot be moved: {code.name}")

    async def _row(
        self, topic: Topic, seq: int, entry: CommittedOffset | None, owner: str | None
    ) -> GroupOffset:
        start, end = await self._storage.bounds(topic.name, seq)
        return GroupOffset(
            topic=topic.name,
            shard=seq,
            committed_offset=None if entry is None else entry.offset,
            start_offset=start,
            end_offset=end,
            lag=None if entry is None else max(end - max(entry.offset, start), 0),
            committed_ms=None if entry is None else entry.committed_ms,
            metadata=None if entry is None else entry.metadata,
            member_id=owner,
        )

    async def _move(
        self, group: str, wanted: OffsetReset, seq: int, entry: CommittedOffset | None
    ) -> OffsetMoved:
        start, end = await self._storage.bounds(wanted.topic, seq)
        value = wanted.value or 0
        match wanted.to:
            case "earliest":
                after = start
            case "latest":
                after = end
            case "time":
                found = await self._storage.offset_at(wanted.topic, seq, value)
                after = end if found is None else found
            case "shift":
                if entry is None:
                    raise InvalidArgument("shift", f"nothing is committed for shard {seq}")
                after = min(max(entry.offset + value, start), end)
            case _:
                after = value
                if not start <= after <= end:
                    shown = shown_shard(wanted.topic, seq)
                    raise OffsetOutOfRange(after, start=start, end=end, shard=shown)
        return OffsetMoved(
            group=group,
            topic=wanted.topic,
            shard=seq,
            before=None if entry is None else entry.offset,
            after=after,
            start_offset=start,
            end_offset=end,
            dry_run=wanted.dry_run,
        )


def assigned_shards(member: MemberDescription) -> Iterator[tuple[str, int]]:
    """A member's assignment as (topic, shard). Other bytes give nothing: the group's clients choose
    the format of assignments."""
    try:
        yield from _assigned(Reader(member.assignment))
    except MalformedRequest:
        return


def _assigned(reader: Reader) -> list[tuple[str, int]]:
    if not reader.remaining:
        return []
    reader.int16()  # Version of the assignment; later ones only add to the end.
    places = []
    for _ in range(reader.array_count(6)):
        topic = reader.string()
        places += [(topic, reader.int32()) for _ in range(reader.array_count(4))]
    return places


def _state(state: GroupState) -> GroupState:
    # A group with committed offsets exists for its users, even without members.
    return GroupState.EMPTY if state is GroupState.DEAD else state


def _summaries(value: memoryview, raw: memoryview) -> list[GroupSummary]:
    return msgspec.msgpack.decode(value, type=list[GroupSummary])
