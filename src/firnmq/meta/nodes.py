"""Registration of nodes: each one gets a higher incarnation than all before it."""

from __future__ import annotations

import msgspec

from firnmq.clock import Clock
from firnmq.errors import StaleIncarnation
from firnmq.meta.api import Compare, MetaStore, Session, TxnConflict
from firnmq.meta.records import (
    Incarnation,
    NodeRecord,
    Replica,
    decode,
    encode,
    incarnation_key,
    node_key,
)


class NodeIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """A registered node with its incarnation."""

    node: int
    incarnation: int
    guard: Compare
    """Holds until the node is registered again; every transaction of the node contains it."""

    @property
    def replica(self) -> Replica:
        return Replica(self.node, self.incarnation)

    def refusal(self, store: MetaStore) -> StaleIncarnation:
        """The error if the guard does not hold."""
        entry = store.get(self.guard.key)
        current = 0 if entry is None else decode(entry, Incarnation).incarnation
        return StaleIncarnation(self.node, self.incarnation, current)


def take_incarnation(store: MetaStore, node: int) -> NodeIdentity:
    """Gives the node a new incarnation; an earlier one can no longer write. It is not listed."""
    key = incarnation_key(node)
    while True:
        entry = store.get(key)
        last = 0 if entry is None else decode(entry, Incarnation).incarnation
        compare = Compare.absent(key) if entry is None else Compare.unchanged(entry)
        try:
            revision = store.txn([compare], {key: encode(Incarnation(incarnation=last + 1))})
        except TxnConflict:
            continue  # Another process registers the same node; the later registration wins.
        guard = Compare(key=key, revision=revision)
        return NodeIdentity(node=node, incarnation=last + 1, guard=guard)


def register_node(
    store: MetaStore, node: int, clock: Clock, session: Session | None = None
) -> NodeIdentity:
    """Registers the node with a new incarnation; an earlier one can no longer write.

    With a session the node is listed while the session lasts. A store that belongs to one process
    needs none: its lock ends with the process.
    """
    key = incarnation_key(node)
    while True:
        entry = store.get(key)
        last = 0 if entry is None else decode(entry, Incarnation).incarnation
        record = NodeRecord(node=node, incarnation=last + 1, registered_ms=clock.now_ms())
        compare = Compare.absent(key) if entry is None else Compare.unchanged(entry)
        puts = {key: encode(Incarnation(incarnation=last + 1))}
        listing = {node_key(node): encode(record)}
        try:
            revision = store.txn([compare], puts | listing if session is None else puts)
            guard = Compare(key=key, revision=revision)
            if session is not None:
                store.txn([guard], listing, session=session)
        except TxnConflict:
            continue  # Another process registers the same node; the later registration wins.
        return NodeIdentity(node=node, incarnation=last + 1, guard=guard)
