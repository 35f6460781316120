"""Where transactions are saved."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from typing import Protocol

from firnmq.adapter import CommittedOffset, OffsetRows
from firnmq.brokers.kafka.transactions.snapshot import (
    TransactionSnapshot,
    decode_snapshot,
    encode_snapshot,
)
from firnmq.disk import Family, KeyValueStore

_PREFIX = b"X"
_AFTER = b"Y"


class TransactionStore(Protocol):
    """Keeps one snapshot per transactional id, durably. Calls for one id never overlap."""

    async def save(
        self,
        transactional_id: str,
        snapshot: TransactionSnapshot,
        commits: Mapping[str, Mapping[str, CommittedOffset]],
    ) -> None:
        """Saves the snapshot and the groups' offsets: both or neither survive a crash."""

    async def load_all(self) -> Mapping[str, TransactionSnapshot]:
        """Every saved transactional id."""
        ...

    async def delete(self, transactional_id: str) -> None:
        """Forgets an id; one that is not there is no error."""


class KvTransactionStore:
    """A TransactionStore in the node's key-value store, where the groups' offsets are as well."""

    def __init__(self, rows: OffsetRows, executor: Executor | None = None) -> None:
        self._rows = rows
        self._kv = rows.kv
        self._executor = executor

    async def save(
        self,
        transactional_id: str,
        snapshot: TransactionSnapshot,
        commits: Mapping[str, Mapping[str, CommittedOffset]],
        extra: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        """`extra` rows are written with them."""

        def write() -> None:
            with self._kv.row_lock:
                rows = [(_PREFIX + transactional_id.encode(), encode_snapshot(snapshot)), *extra]
                for group, offsets in commits.items():
                    rows += self._rows.put(group, offsets, is_decided=True)
                with self._kv.batch() as batch:
                    batch.put_many(Family.STATE, rows)
            self._kv.sync()

        await asyncio.get_running_loop().run_in_executor(self._executor, write)

    async def load_all(self) -> dict[str, TransactionSnapshot]:
        def read() -> dict[str, TransactionSnapshot]:
            found = {}
            for key, value in self._kv.items(Family.STATE, _PREFIX, _AFTER):
                name = key[len(_PREFIX) :].decode()
                found[name] = decode_snapshot(value, transactional_id=name)
            return found

        return await asyncio.get_running_loop().run_in_executor(self._executor, read)

    async def delete(self, transactional_id: str) -> None:
        def erase() -> None:
            with self._kv.batch() as batch:
                batch.delete(Family.STATE, _PREFIX + transactional_id.encode())
            self._kv.sync()

        await asyncio.get_running_loop().run_in_executor(self._executor, erase)


def saved_transactional_ids(kv: KeyValueStore) -> set[str]:
    return {key[len(_PREFIX) :].decode() for key, _ in kv.items(Family.STATE, _PREFIX, _AFTER)}
