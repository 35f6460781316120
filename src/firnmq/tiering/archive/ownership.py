"""Which data directory a cluster's objects belong to.

Two directories with the same cluster name in one store would remove each other's objects as
orphans: a copy of a directory that is started beside the original, or a second node with the same
setting. So a directory claims the cluster with a numbered object, created only if absent. The
highest number counts. `firn recover` makes the next claim; the previous directory then stops
tiering.
"""

from __future__ import annotations

import re
import secrets
import threading
from collections.abc import Callable
from contextlib import suppress

import msgspec

from firnmq.clock import Clock
from firnmq.errors import (
    Corruption,
    FirnError,
    InvalidArgument,
    InvalidField,
    ObjectExists,
    ObjectNotFound,
)
from firnmq.meta import Compare, MetaStore, TxnConflict
from firnmq.tiering.format.fields import CLAIM_MAX, Cluster, DirectoryId, Millis
from firnmq.tiering.format.manifest import decode_checked
from firnmq.tiering.stores import ObjectStore

_REFRESH_S = 30.0
"""How long uploads may rely on the last check of the claim. Removals, and writes of topic and shard
manifests, check it every time."""
_FOLDER = "owners"
_CLUSTER_KEY = "tier_cluster"
"""Key in the metadata."""
_CLAIM_BYTES_MAX = 64 * 1024
_KEY = re.compile(r"owners/(?P<cluster>[A-Za-z0-9._-]+)/(?P<number>[0-9]{20})\.json", re.ASCII)


class NotOwner(FirnError):
    """The objects of this cluster belong to another data directory; nothing was changed."""

    def __init__(self, cluster: str, store: str) -> None:
        super().__init__(
            f"cluster {cluster!r} in {store} belongs to another data directory; set "
            "tiering.cluster to a name of its own, or take it over with firn recover"
        )
        self.cluster = cluster
        self.store = store


class OtherStore(FirnError):
    """The directory has copies, but not in this store; nothing was changed."""

    def __init__(self, cluster: str, store: str) -> None:
        super().__init__(
            f"nothing of cluster {cluster!r} is in {store}, but this data directory has copies in "
            "another store or under another prefix; set tiering.url to where they are, or copy all "
            "objects from there first"
        )
        self.cluster = cluster
        self.store = store


def cluster_of(meta: MetaStore, wanted: str | None) -> str:
    """The cluster name of a data directory: the first that it was given, permanently.

    Raises InvalidArgument if another is `wanted`: the copies would be sought in the wrong place.
    """
    if meta.get(_CLUSTER_KEY) is None:
        cluster = wanted or f"firn-{secrets.token_hex(8)}"
        with suppress(TxnConflict):  # Another node of the cluster was faster: its choice counts.
            meta.txn([Compare.absent(_CLUSTER_KEY)], {_CLUSTER_KEY: cluster.encode()})
    known = known_cluster(meta)
    assert known is not None, "it is never removed"
    if wanted not in (None, known):
        raise InvalidArgument(
            "tiering.cluster",
            f"is {wanted!r}, but this data directory's objects are those of {known!r}",
        )
    return known


def known_cluster(meta: MetaStore) -> str | None:
    """The cluster name of a data directory; None if it has none yet."""
    entry = meta.get(_CLUSTER_KEY)
    return None if entry is None else entry.value.decode()


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a claim's object, as JSON."""

    cluster: Cluster
    directory_id: DirectoryId
    claimed_ms: Millis


class Ownership:
    """One directory's claim to a cluster. Not safe with threads."""

    def __init__(self, store: ObjectStore, cluster: str, directory_id: str, clock: Clock) -> None:
        self._store = store
        self._cluster = cluster
        self._directory_id = directory_id
        self._clock = clock
        self._number: int | None = None
        """The number of our claim; None until it is confirmed."""
        self.claim = 0
        """The last confirmed number of our claim; any thread may read it."""

    def ensure(self, *, has_copies: bool) -> None:
        """Claims the cluster if it is unclaimed; NotOwner if another directory claimed it.

        OtherStore if it is unclaimed although the directory `has_copies`: a claim comes before the
        first copy, so the copies are in another store. Uploads to this one would split the history
        over two stores.
        """
        if self._number is not None:
            try:
                self._store.head(claim_key(self._cluster, self._number + 1))
            except ObjectNotFound:
                return
            self._number = None
        latest = latest_claim(self._store, self._cluster)
        if latest is None:
            if has_copies:
                raise OtherStore(self._cluster, self._store.url)
            self.take_over()
        elif latest[1].directory_id != self._directory_id:
            raise NotOwner(self._cluster, self._store.url)
        else:
            self._number = self.claim = latest[0]

    def take_over(self) -> None:
        """Makes the next claim, even if another directory has the last one."""
        while True:
            latest = latest_claim(self._store, self._cluster)
            number = 1 if latest is None else latest[0] + 1
            claim = Claim(
                cluster=self._cluster,
                directory_id=self._directory_id,
                claimed_ms=self._clock.now_ms(),
            )
            try:
                self._store.put(claim_key(self._cluster, number), msgspec.json.encode(claim))
            except ObjectExists:
                found = latest_claim(self._store, self._cluster)
                if found is None or found[1].directory_id != self._directory_id:
                    continue
                number = found[0]
            self._number = self.claim = number
            return


class Tenure:
    """A running mover's cached check of its claim. Safe with threads."""

    def __init__(
        self, ownership: Ownership, has_copies: Callable[[], bool], monotonic: Callable[[], float]
    ) -> None:
        self._ownership = ownership
        self._has_copies = has_copies
        self._monotonic = monotonic
        self._asking = threading.Lock()
        """Held during the check of the claim."""
        self._known_at_s: float | None = None

    @property
    def is_known(self) -> bool:
        return self._known_at_s is not None

    @property
    def claim(self) -> int:
        """The last confirmed number of our claim."""
        return self._ownership.claim

    def confirm(self) -> None:
        """Checks the claim in the store; NotOwner or OtherStore if it is not ours."""
        with self._asking:
            try:
                self._ownership.ensure(has_copies=self._has_copies())
            except FirnError:
                self._known_at_s = None
                raise
            self._known_at_s = self._monotonic()

    def refresh(self) -> None:
        """Checks the claim unless it was checked within the last 30 seconds."""
        known_at_s = self._known_at_s
        if known_at_s is None or self._monotonic() - known_at_s > _REFRESH_S:
            self.confirm()


def claim_key(cluster: str, number: int) -> str:
    return f"{_FOLDER}/{cluster}/{number:020d}.json"


def latest_claim(store: ObjectStore, cluster: str) -> tuple[int, Claim] | None:
    """The claim that counts, with its number."""
    found = [
        (int(parsed["number"]), info)
        for info in store.list(f"{_FOLDER}/{cluster}")
        if (parsed := _KEY.fullmatch(info.key)) is not None
    ]
    if not found:
        return None
    number, info = max(found, key=lambda each: each[0])
    if number > CLAIM_MAX:
        raise Corruption(
            f"is no claim of FirnMQ, which are numbered up to {CLAIM_MAX:,}; remove the object",
            where=info.key,
        )
    if info.size > _CLAIM_BYTES_MAX:
        raise Corruption(f"{info.size:,} bytes are too many for a claim", where=info.key)
    claim = decode_checked(bytes(store.get_range(info.key, 0, info.size)), Claim, info.key)
    if claim.cluster != cluster:
        raise InvalidField("cluster", f"{claim.cluster!r} is another one", where=info.key)
    return number, claim


def clusters_in(store: ObjectStore) -> list[str]:
    """Clusters with a claim in the store."""
    parsed = (_KEY.fullmatch(info.key) for info in store.list(_FOLDER))
    return sorted({each["cluster"] for each in parsed if each is not None})


def is_claim(key: str) -> bool:
    return _KEY.fullmatch(key) is not None
