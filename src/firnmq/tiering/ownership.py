"""Which data directory a cluster's objects belong to.

Two directories under one cluster's name in one store would remove each other's objects as orphans:
a copy of a directory that is started beside the original, or a second node with the same setting.
So a directory claims the cluster by an object with a number, created only if it is absent. The
highest number counts. `firn recover` makes the next claim, after which the directory before it
stops moving anything.
"""

from __future__ import annotations

import re
import secrets
import threading
from collections.abc import Callable

import msgspec

from firnmq.clock import Clock
from firnmq.errors import Corruption, FirnError, InvalidArgument, ObjectExists, ObjectNotFound
from firnmq.meta import Compare, MetaStore
from firnmq.tiering.stores import ObjectStore

_REFRESH_S = 30.0
"""How old the knowledge may be that the cluster's objects are ours, for uploads. Whoever removes
something, or writes a manifest of a topic or a shard, asks."""
_FOLDER = "owners"
_CLUSTER_KEY = "tier_cluster"
"""Of the metadata."""
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
    """The store has never been this directory's, but its copies are in one; nothing was changed."""

    def __init__(self, cluster: str, store: str) -> None:
        super().__init__(
            f"nothing of cluster {cluster!r} is in {store}, but this data directory has copies in "
            "another store or under another prefix; set tiering.url to where they are, or copy all "
            "objects from there first"
        )
        self.cluster = cluster
        self.store = store


def cluster_of(meta: MetaStore, wanted: str | None) -> str:
    """The cluster whose objects a data directory's are: the first that it was given, for good.

    InvalidArgument if another is wanted: its copies would be looked for in the wrong place.
    """
    entry = meta.get(_CLUSTER_KEY)
    if entry is not None:
        known = entry.value.decode()
        if wanted not in (None, known):
            raise InvalidArgument(
                "tiering.cluster",
                f"is {wanted!r}, but this data directory's objects are those of {known!r}",
            )
        return known
    cluster = wanted or f"firn-{secrets.token_hex(8)}"
    meta.txn([Compare.absent(_CLUSTER_KEY)], {_CLUSTER_KEY: cluster.encode()})
    return cluster


def known_cluster(meta: MetaStore) -> str | None:
    """The same, None if the directory has none yet."""
    entry = meta.get(_CLUSTER_KEY)
    return None if entry is None else entry.value.decode()


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """What a claim's object holds, as JSON."""

    cluster: str
    directory_id: str
    claimed_ms: int


class Ownership:
    """One directory's claim to a cluster. For one thread at a time."""

    def __init__(self, store: ObjectStore, cluster: str, directory_id: str, clock: Clock) -> None:
        self._store = store
        self._cluster = cluster
        self._directory_id = directory_id
        self._clock = clock
        self._number: int | None = None
        """Of our claim, once it is known to stand."""
        self.claim = 0
        """The last number of ours that stood, for what we write; any thread may read it."""

    def ensure(self, *, has_copies: bool) -> None:
        """Claims the cluster if nobody has; NotOwner if another directory has since.

        OtherStore if nobody has although the directory `has_copies`: a claim comes before the first
        copy, so they are elsewhere. New ones here would leave a history that no store has whole.
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
        """Makes the next claim, whoever has the last one."""
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
    """What a running mover knows of its ownership. Safe with threads."""

    def __init__(
        self, ownership: Ownership, has_copies: Callable[[], bool], monotonic: Callable[[], float]
    ) -> None:
        self._ownership = ownership
        self._has_copies = has_copies
        self._monotonic = monotonic
        self._asking = threading.Lock()
        """Held while the store is asked whether its objects are ours."""
        self._known_at_s: float | None = None

    @property
    def is_known(self) -> bool:
        return self._known_at_s is not None

    @property
    def claim(self) -> int:
        """The last number of ours that stood."""
        return self._ownership.claim

    def confirm(self) -> None:
        """Asks the store; NotOwner or OtherStore if the objects are not ours."""
        with self._asking:
            try:
                self._ownership.ensure(has_copies=self._has_copies())
            except FirnError:
                self._known_at_s = None
                raise
            self._known_at_s = self._monotonic()

    def refresh(self) -> None:
        """Asks the store unless that was done a short while ago."""
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
    number, info = max(found)
    data = bytes(store.get_range(info.key, 0, info.size))
    try:
        return number, msgspec.json.decode(data, type=Claim)
    except msgspec.MsgspecError as error:
        raise Corruption(str(error), where=info.key) from error


def clusters_in(store: ObjectStore) -> list[str]:
    """Clusters that have been claimed in the store."""
    parsed = (_KEY.fullmatch(info.key) for info in store.list(_FOLDER))
    return sorted({each["cluster"] for each in parsed if each is not None})


def is_claim(key: str) -> bool:
    return _KEY.fullmatch(key) is not None
