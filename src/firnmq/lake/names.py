"""Names of a table's data files, which say what is in them and what may become of them.

A file of a conversion is named after the split it was made of and a digest of its bytes. Commits
only ever add files of splits that begin where the table ends. So a file of an earlier split that no
snapshot has can never be in one, while a file of a later split may be about to be.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

DATA: Final = "data"
DELETIONS: Final = "deletions"

_CONVERTED: Final = re.compile(
    r"data/[^/]+/(\d{5,})-(\d{20})-(\d{20})-(\d{3,})-[0-9a-f]{16}\.parquet"
)


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
