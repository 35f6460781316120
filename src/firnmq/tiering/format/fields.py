"""Bounds on the fields of objects in a store. A bucket may be damaged or hostile: every field is
checked against these bounds before it is used."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

_INT64_MAX: Final = 2**63 - 1
SHARD_COUNT_MAX: Final = 100_000
"""Shards of all topics of a cluster: the limit of a data directory."""
CLAIM_MAX: Final = 10**9 - 1
"""Of claims, and with each go 10⁹ numbers of manifests, so that both stay below 10¹⁸."""
NUMBER_MAX: Final = 10**18 - 1

Offset = Annotated[int, Meta(ge=0, le=_INT64_MAX)]
Size = Annotated[int, Meta(ge=0, le=2**50)]
"""Bytes of an object."""
Crc = Annotated[int, Meta(ge=0, le=2**32 - 1)]
Millis = Annotated[int, Meta(ge=-(2**63), le=_INT64_MAX)]
"""A time; clients' timestamps may be any."""
Epoch = Annotated[int, Meta(ge=0, le=2**62)]
"""Of a leader or a segment's description. It is counted on from."""
Seq = Annotated[int, Meta(ge=0, le=2**31 - 2)]
"""Of a segment; the next one must have room in the key-value store's four bytes as well."""
ShardCount = Annotated[int, Meta(ge=1, le=SHARD_COUNT_MAX)]
Count = Annotated[int, Meta(ge=0, le=_INT64_MAX)]
ClaimNumber = Annotated[int, Meta(ge=0, le=CLAIM_MAX)]
Number = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]
ProducerId = Annotated[int, Meta(ge=0, le=_INT64_MAX - 1)]
ProducerEpoch = Annotated[int, Meta(ge=0, le=2**15 - 1)]
LeaderEpoch = Annotated[int, Meta(ge=-1, le=2**31 - 1)]

_NAME: Final = r"\A(?!\.{1,2}\Z)[A-Za-z0-9._-]+\Z"
Cluster = Annotated[str, Meta(max_length=255, pattern=_NAME)]
TopicName = Annotated[str, Meta(max_length=249, pattern=_NAME)]
TopicId = Annotated[str, Meta(pattern=r"\A[0-9a-f]{1,32}\Z")]
ShardName = Annotated[str, Meta(pattern=r"\A[0-9a-f]{1,32}_(0|[1-9][0-9]{0,5})\Z")]
UploadId = Annotated[str, Meta(pattern=r"\A[0-9a-f]{16}\Z")]
ObjectKey = Annotated[str, Meta(max_length=1024, pattern=r"\A[A-Za-z0-9=._/-]+\Z")]
DirectoryId = Annotated[str, Meta(pattern=r"\A[0-9A-Za-z_-]{1,64}\Z")]
GroupName = Annotated[str, Meta(min_length=1, max_length=255)]
GroupNote = Annotated[str, Meta(max_length=65_536)]
OptionName = Annotated[str, Meta(min_length=1, max_length=100)]
OptionText = Annotated[str, Meta(max_length=10_000)]
