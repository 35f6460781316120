"""One transactional id on a stage: requests in, answers out, saves and markers done when told."""

from __future__ import annotations

from firnmq.adapter import CommittedOffset
from firnmq.brokers.kafka.protocol.errors import ErrorCode
from firnmq.brokers.kafka.transactions import (
    AddGroupRequest,
    AddPartitionsRequest,
    CommitOffsetsRequest,
    EndRequest,
    InitRequest,
    Transaction,
    TransactionConfig,
    TransactionPartition,
    TransactionSnapshot,
    TransactionState,
)
from firnmq.brokers.kafka.transactions.messages import (
    Asked,
    Erase,
    MarkersWritten,
    Reply,
    Save,
    Saved,
    SaveFailed,
    Tick,
    Token,
    TransactionAction,
    TransactionEvent,
    TransactionRequest,
    WriteMarkers,
)

TIMEOUT_MS = 60_000


def partition(number: int = 0) -> TransactionPartition:
    return TransactionPartition(topic="t", shard=f"shard_{number}")


class Stage:
    def __init__(
        self, snapshot: TransactionSnapshot | None = None, config: TransactionConfig | None = None
    ) -> None:
        self.config = config or TransactionConfig()
        self.now_ms = 1_000
        self.saves: list[Save | Erase] = []
        self.markers: list[WriteMarkers] = []
        self.replies: dict[Token, Reply] = {}
        self._tokens = iter(range(1, 1_000))
        self._spares = iter(range(100, 1_000))
        if snapshot is None:
            self.transaction = Transaction(self.config, None)
        else:
            self.transaction, actions = Transaction.restore(self.config, snapshot)
            self._act(actions)

    @property
    def state(self) -> TransactionState | None:
        return self.transaction.state

    @property
    def snapshot(self) -> TransactionSnapshot:
        assert self.transaction.snapshot is not None
        return self.transaction.snapshot

    def start(self, request: TransactionRequest) -> Token:
        token = Token(next(self._tokens))
        self.give(Asked(token=token, request=request))
        return token

    def give(self, event: TransactionEvent) -> None:
        self._act(self.transaction.handle(event, self.now_ms))

    def saved(self) -> Save | Erase:
        save = self.saves.pop(0)
        self.give(Saved())
        return save

    def not_saved(self) -> None:
        self.saves.pop(0)
        self.give(SaveFailed())

    def marked(self) -> WriteMarkers:
        markers = self.markers.pop(0)
        self.give(MarkersWritten())
        return markers

    def settle(self) -> None:
        """Does whatever was asked for until nothing is."""
        while self.saves or self.markers:
            if self.saves:
                self.saved()
            else:
                self.marked()

    def pass_time(self, ms: int) -> None:
        self.now_ms += ms
        self.give(Tick())

    def ask(self, request: TransactionRequest) -> Reply:
        token = self.start(request)
        self.settle()
        return self.replies[token]

    def code(self, request: TransactionRequest) -> ErrorCode:
        return self.ask(request).error

    def _act(self, actions: list[TransactionAction]) -> None:
        for action in actions:
            match action:
                case Reply():
                    self.replies[action.token] = action
                case Save() | Erase():
                    self.saves.append(action)
                case WriteMarkers():
                    self.markers.append(action)

    # Requests in short ---------------------------------------------------------------------------

    def init(self, **fields: int) -> InitRequest:
        return InitRequest(
            **{"timeout_ms": TIMEOUT_MS, "spare_producer_id": next(self._spares), **fields}
        )


class Instance:
    """A producer with its id and epoch, as the requests name it."""

    def __init__(self, reply: Reply) -> None:
        assert reply.error is ErrorCode.NONE
        self.producer_id = reply.producer_id
        self.epoch = reply.epoch

    def add(self, *partitions: TransactionPartition) -> AddPartitionsRequest:
        return AddPartitionsRequest(
            producer_id=self.producer_id, epoch=self.epoch, partitions=partitions
        )

    def group(self, name: str) -> AddGroupRequest:
        return AddGroupRequest(producer_id=self.producer_id, epoch=self.epoch, group=name)

    def offsets(self, group: str, **offsets: int) -> CommitOffsetsRequest:
        return CommitOffsetsRequest(
            producer_id=self.producer_id,
            epoch=self.epoch,
            group=group,
            offsets={
                shard: CommittedOffset(offset=at, committed_ms=0) for shard, at in offsets.items()
            },
        )

    def end(self, *, is_commit: bool) -> EndRequest:
        return EndRequest(producer_id=self.producer_id, epoch=self.epoch, is_commit=is_commit)

    @property
    def commit(self) -> EndRequest:
        return self.end(is_commit=True)

    @property
    def abort(self) -> EndRequest:
        return self.end(is_commit=False)
