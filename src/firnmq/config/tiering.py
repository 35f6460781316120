"""The configuration of a node's object store."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from firnmq.config.object_store import SCHEMES, StoreOptions, half_of_keys
from firnmq.config.sections import Settings
from firnmq.errors import InvalidArgument

_CLUSTER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_DAY_MS = 24 * 3600 * 1000
_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class TieringConfig(StoreOptions):
    """Where sealed segments of topics with `tiering=on` are copied to, and how fast.

    Secrets are better given as FIRN_TIERING_SECRET_KEY or AWS_SECRET_ACCESS_KEY than in a file.
    """

    url: str | None = None
    """`file:///path`, `s3://bucket/prefix`, `gs://`, `az://` or `hdfs://`. None: no tiering."""
    cluster: str | None = None
    """Name under which objects are kept, for stores that several clusters share. None: the one the
    data directory had before, else a random one. A directory keeps the first it was given."""
    cache_directory: Path | None = None
    """Chunks that were read from the store. None: `tier-cache` in the data directory."""
    cache_bytes: int = 1024 * _MIB
    """Bytes the cache may hold; the least recently read go first."""
    read_bytes_per_s: int | None = None
    """Bytes a second that cold reads may fetch. None: no limit."""
    read_bytes_per_s_beside_appends: int | None = None
    """Bytes a second that scans of cold segments may take from the store or the cache on disk while
    there are appends to durable topics: a gigabyte takes about two seconds of a processor, and
    appends would wait for it. None: 64 MB for each processor, up to four. Who reads a few records
    is not held back."""
    upload_bytes_per_s: int | None = None
    """Bytes a second that uploads may send. None: no limit."""
    parallel_uploads: int = 2
    """Segments uploaded at the same time."""
    backlog_bytes: int | None = None
    """Sealed bytes that may wait for their upload, over all topics. Above it, appends to tiered
    topics are refused, and clients try again, until uploads have caught up. None: the disk is the
    limit."""
    interval_ms: int = 1_000
    """Time between looks for something to upload, drop or remove."""
    retry_ms: int = 500
    """Wait after a first failure; doubles with each further one."""
    retry_ms_max: int = 60_000
    offsets_ms: int | None = 60_000
    """Time between looks whether groups have committed other offsets in tiered topics, which then
    go to the store: what a recovery may lose of them. None: only when the node ends."""
    read_back: bool = False
    """Read every uploaded segment again and compare its CRC before it counts as copied. Costs as
    many bytes of reading as were written; else sizes and the store's own checksums are compared."""
    scrub_ms: int | None = _DAY_MS
    """Time between searches for objects that nothing refers to. None: only when asked."""
    scrub_grace_ms: int = _DAY_MS
    """Objects younger than this, by the store's own clock, are never removed by a scrub."""

    def __post_init__(self) -> None:
        StoreOptions.__post_init__(self)
        if self.cluster is not None and not _CLUSTER_NAME.fullmatch(self.cluster):
            raise InvalidArgument(
                "tiering.cluster",
                f"{self.cluster!r} is not 1 to 64 letters, digits, dots, dashes, underscores",
            )
        if self.url is not None:
            _check_url(self.url)
        for name in _POSITIVE:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidArgument(f"tiering.{name}", f"must be above 0, not {value}")
        if self.retry_ms_max < self.retry_ms:
            raise InvalidArgument("tiering.retry_ms_max", "must not be below retry_ms")

    def check_keys(self) -> None:
        """As for any store; without a URL there is none, and a key is ignored: the secret alone may
        stand in the environment of every command."""
        half = half_of_keys(self.access_key, self.secret_key)
        if self.url is None or half is None:
            return
        given, missing = half
        raise InvalidArgument(
            f"tiering.{given}",
            f"is given, but {missing} is not: set FIRN_TIERING_{missing.upper()}, or {missing} in "
            "[tiering] of the configuration file",
        )

    @property
    def is_on(self) -> bool:
        return self.url is not None


def _check_url(url: str) -> None:
    scheme, separator, _ = url.partition("://")
    if not separator:
        advice = f"; a directory is {Path(url).as_uri()}" if url.startswith("/") else ""
        raise InvalidArgument("tiering.url", f"{url!r} is not like s3://bucket/prefix{advice}")
    if scheme not in SCHEMES:
        known = ", ".join(f"{each}://" for each in SCHEMES)
        raise InvalidArgument("tiering.url", f"{url!r} is none of {known}")


def load_tiering_config(
    environment: Mapping[str, str] | None = None, *, path: Path | None = None
) -> TieringConfig:
    """Defaults, overlaid by the section of a node's file, overlaid by FIRN_TIERING_* variables."""
    return Settings(path, environment).section("tiering", TieringConfig, prefix="TIERING_")


_POSITIVE = (
    *("cache_bytes", "read_bytes_per_s", "read_bytes_per_s_beside_appends"),
    *("upload_bytes_per_s", "parallel_uploads"),
    *("backlog_bytes", "interval_ms", "retry_ms", "retry_ms_max", "scrub_ms", "offsets_ms"),
)
