"""Names of a table's data files, which say what is in them and what may become of them.

A file of a conversion is named after the split it was made of and a digest of its bytes. Commits
only ever add files of splits that begin where the table ends. So a file of an earlier split that no
snapshot has can never be in one, while a file of a later split may be about to be.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from firnmq.errors import FirnError

DATA: Final = "data"
DELETIONS: Final = "deletions"

_CONVERTED: Final = re.compile(
    r"data/[^/]+/(\d{5,})-(\d{20})-(\d{20})-(\d{3,})-[0-9a-f]{16}\.parquet"
)


_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/*")
_SAME_SCHEMES: Final = {"s3a": "s3", "s3n": "s3", "gcs": "gs"}


class FileElsewhere(FirnError):
    """A table has a file that is not below its location, which another program must have added."""

    def __init__(self, location: str, path: str) -> None:
        super().__init__(
            f"the file {path} of a table is not below the table's location, {location}; only files "
            "that are can be read here"
        )
        self.location = location
        self.path = path


def normal(location: str) -> str:
    """A location as we write it: catalogs and other engines write `file:/path` for `file:///path`
    and `s3a://` for `s3://`, and mean the same."""
    found = _SCHEME.match(location)
    if found is None:
        return f"file://{location.rstrip('/')}" if location.startswith("/") else location
    scheme = found[1].lower()
    rest = location[found.end() :].rstrip("/")
    if scheme == "file":
        return f"file:///{rest}"
    return f"{_SAME_SCHEMES.get(scheme, scheme)}://{rest}"


def below(location: str, path: str) -> str | None:
    """What a path is called below a location, both written in any way; None if it is not there."""
    prefix, found = f"{normal(location)}/", normal(path)
    return found.removeprefix(prefix) if found.startswith(prefix) else None


class Converted(NamedTuple):
    """What the name of a conversion's file says."""

    shard: int
    start_offset: int
    end_offset: int
    number: int


def converted_path(
    *,
    partition: str,
    shard: int,
    start_offset: int,
    end_offset: int,
    number: int,
    digest: str,
) -> str:
    """Of the split's `number`th file; `partition` is the folder."""
    name = f"{shard:05d}-{start_offset:020d}-{end_offset:020d}-{number:03d}-{digest}"
    return f"{DATA}/{partition}/{name}.parquet"


def parse_converted(path: str) -> Converted | None:
    """What the name says; None for the name of something else."""
    found = _CONVERTED.fullmatch(path)
    return None if found is None else Converted(*(int(part) for part in found.groups()))


def deletions_path(shard: int, digest: str) -> str:
    """Of the document that names deletions applied to a shard's rows."""
    return f"{DELETIONS}/{shard:05d}-{digest}"


def compacted_path(*, partition: str, shard: int, run: str, number: int, digest: str) -> str:
    """Of a file made of others by one run of a compaction, or of one by a removal of rows; never
    written by another."""
    return f"{DATA}/{partition}/compacted-{shard:05d}-{run}-{number:03d}-{digest}.parquet"
