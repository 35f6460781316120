"""A transactional producer as tasks and drivers use it, one step at a time, over `wire.py`.

Kafka's own clients hide the id and the epoch of their transactions. Here they are the point: a
task leaves its transaction open and says who may end it, and the driver ends it from elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from firnmq.errors import FirnError
from firnmq.lake.plans.wire import (
    NodeRefused,
    NodeUnreachable,
    TopicPlace,
    WireClient,
    with_retries,
)
from firnmq.record import Buffer

_ACKS_ALL: Final = -1
_PRODUCE_TIMEOUT_MS: Final = 30_000
_PRODUCE_VERSION_MAX: Final = 9
_CLASSIC_VERSION_MAX: Final = 3
"""Of the calls about transactions: later versions are for brokers, or change their layout."""
_OFFSET_FETCH_VERSION_MAX: Final = 7
_TOPIC_RESOURCE: Final = 2
_TRANSACTION_KEY: Final = 1
_GROUP_KEY: Final = 0
_SEQUENCE_END: Final = 2**31
_RETRY_S: Final = 60.0
_NOT_OPEN: Final = frozenset({47, 48, 49, 90})
"""Error codes of a transaction that was ended, or whose producer was replaced."""
_UNKNOWN_ID: Final = 49
_DUPLICATE_SEQUENCE: Final = 46

T = TypeVar("T")


class NotOpen(FirnError):
    """The transaction was ended some other way: aborted after its time, or by a newer producer."""

    def __init__(self, transaction: Transaction, reason: NodeRefused) -> None:
        super().__init__(f"transaction {transaction.id!r} is not open any more: {reason}")
        self.transaction = transaction
        self.is_forgotten = reason.code == _UNKNOWN_ID
        """The id was unused for so long that the node has forgotten its outcome."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """The producer id and epoch that may write to a transaction and end it."""

    id: str
    producer_id: int
    epoch: int


class Coordinator:
    """Begins and ends transactions, and keeps a group's offsets. For one thread."""

    def __init__(self, client: WireClient) -> None:
        self._client = client
        self._addresses: dict[tuple[int, str], str] = {}

    def begin(self, transactional_id: str, timeout_ms: int) -> Transaction:
        """A new epoch of the id: an open transaction is aborted, and the last user is fenced."""
        from kafka.protocol.producer import InitProducerIdRequest

        def ask() -> Transaction:
            request = InitProducerIdRequest(
                transactional_id=transactional_id,
                transaction_timeout_ms=timeout_ms,
                producer_id=-1,
                producer_epoch=-1,
            )
            answer = self._ask(_TRANSACTION_KEY, transactional_id, request, 4)
            _check(f"transactional id {transactional_id!r}", answer.error_code)
            return Transaction(
                id=transactional_id, producer_id=answer.producer_id, epoch=answer.producer_epoch
            )

        return self._with_retries(ask)

    def add_shards(self, transaction: Transaction, topic: str, shards: Sequence[int]) -> None:
        """Makes shards part of the transaction; NotOpen if it cannot be written to any more.

        Saying it again changes nothing, and so tells whether a transaction is still open.
        """
        from kafka.protocol.producer import AddPartitionsToTxnRequest

        def ask() -> None:
            kind = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
            request = AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=transaction.id,
                v3_and_below_producer_id=transaction.producer_id,
                v3_and_below_producer_epoch=transaction.epoch,
                v3_and_below_topics=[kind(name=topic, partitions=list(shards))],
            )
            answer = self._ask(_TRANSACTION_KEY, transaction.id, request, _CLASSIC_VERSION_MAX)
            for each in answer.results_by_topic_v3_and_below:
                for part in each.results_by_partition:
                    _check(f"transaction {transaction.id!r}", part.partition_error_code)

        self._of_open(transaction, ask)

    def end(self, transaction: Transaction, *, commit: bool) -> None:
        """Returns when the outcome is certain. To end it the same way again changes nothing."""
        from kafka.protocol.producer import EndTxnRequest

        def ask() -> None:
            request = EndTxnRequest(
                transactional_id=transaction.id,
                producer_id=transaction.producer_id,
                producer_epoch=transaction.epoch,
                committed=commit,
            )
            answer = self._ask(_TRANSACTION_KEY, transaction.id, request, _CLASSIC_VERSION_MAX)
            _check(f"transaction {transaction.id!r}", answer.error_code)

        self._of_open(transaction, ask)

    def note(
        self, transaction: Transaction, group: str, topic: str, offset: int, text: str
    ) -> None:
        """An offset and a text for a group, which has them when the transaction is committed."""
        from kafka.protocol.producer import AddOffsetsToTxnRequest, TxnOffsetCommitRequest

        def add_group() -> None:
            request = AddOffsetsToTxnRequest(
                transactional_id=transaction.id,
                producer_id=transaction.producer_id,
                producer_epoch=transaction.epoch,
                group_id=group,
            )
            answer = self._ask(_TRANSACTION_KEY, transaction.id, request, _CLASSIC_VERSION_MAX)
            _check(f"transaction {transaction.id!r}", answer.error_code)

        def commit_offset() -> None:
            kind = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
            part = kind.TxnOffsetCommitRequestPartition(
                partition_index=0,
                committed_offset=offset,
                committed_leader_epoch=-1,
                committed_metadata=text,
            )
            request = TxnOffsetCommitRequest(
                transactional_id=transaction.id,
                group_id=group,
                producer_id=transaction.producer_id,
                producer_epoch=transaction.epoch,
                generation_id=-1,
                member_id="",
                group_instance_id=None,
                topics=[kind(name=topic, partitions=[part])],
            )
            answer = self._ask(_GROUP_KEY, group, request, _CLASSIC_VERSION_MAX)
            _check(f"group {group!r}", answer.topics[0].partitions[0].error_code)

        self._of_open(transaction, add_group)
        self._of_open(transaction, commit_offset)

    def noted(self, group: str, topic: str) -> tuple[int, str] | None:
        """The offset and the text that a group has, if it has any."""
        from kafka.protocol.consumer import OffsetFetchRequest

        def ask() -> tuple[int, str] | None:
            kind = OffsetFetchRequest.OffsetFetchRequestTopic
            request = OffsetFetchRequest(
                group_id=group,
                topics=[kind(name=topic, partition_indexes=[0])],
                require_stable=True,
            )
            answer = self._ask(_GROUP_KEY, group, request, _OFFSET_FETCH_VERSION_MAX)
            _check(f"group {group!r}", answer.error_code)
            part = answer.topics[0].partitions[0]
            # 88: an offset of the group is in a transaction that has not ended.
            if part.error_code == 88:
                raise NodeRefused(f"group {group!r}", 51)
            _check(f"group {group!r}", part.error_code)
            if part.committed_offset < 0:
                return None
            return part.committed_offset, part.metadata or ""

        return self._with_retries(ask)

    def _of_open(self, transaction: Transaction, ask: Callable[[], T]) -> T:
        try:
            return self._with_retries(ask)
        except NodeRefused as error:
            if error.code in _NOT_OPEN:
                raise NotOpen(transaction, error) from error
            raise

    def _ask(self, kind: int, key: str, request: Any, version_max: int) -> Any:
        return self._client.call(request, self._address(kind, key), version_max=version_max)

    def _address(self, kind: int, key: str) -> str:
        """The coordinator's address; looked up once, and again after a failure."""
        from kafka.protocol.metadata import FindCoordinatorRequest

        found = self._addresses.get((kind, key))
        if found is None:
            answer = self._client.call(
                FindCoordinatorRequest(key=key, key_type=kind), version_max=3
            )
            _check(f"coordinator of {key!r}", answer.error_code)
            found = self._addresses[kind, key] = f"{answer.host}:{answer.port}"
        return found

    def _with_retries(self, ask: Callable[[], T]) -> T:
        def attempt() -> T:
            try:
                return ask()
            except (NodeUnreachable, NodeRefused):
                self._addresses.clear()
                raise

        return with_retries(attempt, timeout_s=_RETRY_S)


class Producer:
    """Writes batches into the shards of a topic within one transaction. For one thread."""

    def __init__(
        self, client: WireClient, topic: str, transactional_id: str, *, timeout_ms: int
    ) -> None:
        self._client = client
        self._coordinator = Coordinator(client)
        self._topic = topic
        self._place: TopicPlace | None = None
        self._sequences: dict[int, int] = {}
        self.transaction = self._coordinator.begin(transactional_id, timeout_ms)

    @property
    def shards(self) -> tuple[int, ...]:
        """Those that were written to."""
        return tuple(self._sequences)

    def sequence(self, shard: int) -> int:
        """What the next record of a shard has."""
        return self._sequences.get(shard, 0)

    def send(self, batches: Mapping[int, tuple[Buffer, int]]) -> None:
        """Writes one batch per shard, each with its number of records; returns when all have it.

        After a broken connection all are sent again: what has been written is recognised.
        """
        new = [shard for shard in batches if shard not in self._sequences]
        if new:
            self._coordinator.add_shards(self.transaction, self._topic, new)
        waiting = dict(batches)
        deadline = time.monotonic() + _RETRY_S
        while waiting:
            try:
                self._send_some(waiting)
            except (NodeUnreachable, NodeRefused) as error:
                may_pass = isinstance(error, NodeUnreachable) or error.may_pass
                if isinstance(error, NodeRefused) and error.code in _NOT_OPEN:
                    raise NotOpen(self.transaction, error) from error
                if not may_pass or time.monotonic() > deadline:
                    raise
                self._place = None
                time.sleep(0.1)
        for shard, (_, count) in batches.items():
            self._sequences[shard] = (self.sequence(shard) + count) % _SEQUENCE_END

    def end(self, *, commit: bool) -> None:
        self._coordinator.end(self.transaction, commit=commit)

    def _send_some(self, waiting: dict[int, tuple[Buffer, int]]) -> None:
        """Removes the written batches from `waiting`."""
        from kafka.protocol.producer import ProduceRequest

        if self._place is None:
            self._place = self._client.place(self._topic)
        leaders: dict[str, list[int]] = {}
        for shard in waiting:
            if shard not in self._place.leaders:
                raise NodeRefused(f"shard {shard} of {self._topic!r}", 3)
            leaders.setdefault(self._place.leaders[shard], []).append(shard)
        kind = ProduceRequest.TopicProduceData
        for address, shards in leaders.items():
            parts = [
                kind.PartitionProduceData(index=shard, records=waiting[shard][0])
                for shard in shards
            ]
            request = ProduceRequest(
                transactional_id=self.transaction.id,
                acks=_ACKS_ALL,
                timeout_ms=_PRODUCE_TIMEOUT_MS,
                topic_data=[kind(name=self._topic, partition_data=parts)],
            )
            answer = self._client.call(request, address, version_max=_PRODUCE_VERSION_MAX)
            failure: NodeRefused | None = None
            for part in answer.responses[0].partition_responses:
                if part.error_code in (0, _DUPLICATE_SEQUENCE):
                    del waiting[part.index]
                else:
                    message = getattr(part, "error_message", None)
                    what = f"write to shard {part.index} of {self._topic!r}"
                    failure = NodeRefused(what, part.error_code, message)
            if failure is not None:
                raise failure


def tag_header(client: WireClient, topic: str) -> str:
    """The header that a tag of a record of this topic goes into."""
    from kafka.protocol.admin import DescribeConfigsRequest

    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=_TOPIC_RESOURCE, resource_name=topic, configuration_keys=["tag.headers"]
    )
    request = DescribeConfigsRequest(
        resources=[resource], include_synonyms=False, include_documentation=False
    )
    answer = with_retries(lambda: client.call(request, version_max=3))
    for result in answer.results:
        _check(f"topic {topic!r}", result.error_code)
        for config in result.configs:
            names = (config.value or "").split(",")
            if config.name == "tag.headers" and names[0].strip():
                return str(names[0]).strip()
    return "tag"


def _check(what: str, code: int) -> None:
    if code:
        raise NodeRefused(what, code)
