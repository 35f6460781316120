"""Names of objects. docs/formats/tiered-objects.md describes them.

Every upload uses new names, so no object is ever overwritten. Names of a shard's objects begin with
a hash, since stores spread load by the first letters. Manifests of topics and shards have a
separate prefix, so that a cluster is found without listing its segments.
"""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple

from firnmq.config.names import check_topic_name
from firnmq.engines.catalog.segments import SegmentMeta
from firnmq.errors import InvalidArgument
from firnmq.tiering.format.fields import NUMBER_MAX
from firnmq.tiering.stores.api import KEY_LENGTH_MAX

SEGMENT, INDEX, MANIFEST = ".seg", ".idx", ".mf"
MANIFESTS = "manifests/"
_PLAIN = re.compile(r"[A-Za-z0-9._-]+")
_TOPIC_ID = r"[A-Za-z0-9]+"
_UPLOAD_ID = r"[0-9a-f]{16}"
_NUMBER = r"[0-9]{20}"

_NAME = r"(?:=(?=\.))?([A-Za-z0-9._-]+)"
"""Names of clusters and topics. Stores refuse a leading dot; an equals sign escapes it."""

_SEGMENT_KEY = re.compile(
    rf"(?P<hash8>[0-9a-f]{{8}})/(?P<cluster>{_NAME})"
    rf"/(?P<topic>{_NAME})-(?P<topic_id>{_TOPIC_ID})"
    rf"/(?P<shard>{_TOPIC_ID}_[0-9]+)"
    rf"/(?P<base>{_NUMBER})-(?P<end>{_NUMBER})-e(?P<epoch>[0-9]+)-(?P<upload_id>{_UPLOAD_ID})"
    r"(?P<suffix>\.seg|\.idx|\.mf)?",
    re.ASCII,
)
_MANIFEST_KEY = re.compile(
    rf"manifests/(?P<cluster>{_NAME})"
    rf"/(?P<topic>{_NAME})-(?P<topic_id>{_TOPIC_ID})"
    rf"/(?P<what>topic|{_TOPIC_ID}_[0-9]+)-(?P<number>{_NUMBER})\.mf",
    re.ASCII,
)


_GROUPS_KEY = re.compile(rf"groups/(?P<cluster>{_NAME})/(?P<number>{_NUMBER})\.mf", re.ASCII)


class SegmentObject(NamedTuple):
    """The parsed name of a segment's object."""

    cluster: str
    topic: str
    topic_id: str
    shard: str
    base_offset: int
    end_offset: int
    epoch: int
    upload_id: str
    suffix: str
    """.seg, .idx, .mf, or nothing for the name that the three share."""


class ManifestObject(NamedTuple):
    """The parsed name of a topic's or a shard's manifest."""

    cluster: str
    topic: str
    topic_id: str
    shard: str | None
    """None: the manifest is the topic's."""
    number: int
    """The one with the highest number counts."""


def object_key(
    cluster: str, topic: str, topic_id: str, shard: str, meta: SegmentMeta, upload_id: str
) -> str:
    """The name that an upload's three objects share, without a suffix."""
    if re.fullmatch(_UPLOAD_ID, upload_id) is None:
        raise InvalidArgument("upload id", f"{upload_id!r} is not 16 hexadecimal digits")
    if not 0 <= meta.base_offset <= meta.end_offset:
        raise InvalidArgument(
            "segment", f"[{meta.base_offset}, {meta.end_offset}) is no sealed segment's range"
        )
    prefix = shard_prefix(cluster, topic, topic_id, shard)
    return _checked_length(
        f"{prefix}{meta.base_offset:020d}-{meta.end_offset:020d}-e{meta.epoch}-{upload_id}"
    )


def shard_prefix(cluster: str, topic: str, topic_id: str, shard: str) -> str:
    """What the names of all segments' objects of a shard begin with."""
    folder = _topic_folder(cluster, topic, topic_id)
    _check_shard(shard, topic_id)
    return f"{_hash8(cluster, topic_id, shard)}/{folder}/{shard}/"


def topic_manifest_key(cluster: str, topic: str, topic_id: str, number: int) -> str:
    return _checked_length(f"{manifest_prefix(cluster, topic, topic_id)}topic-{number:020d}.mf")


def shard_manifest_key(cluster: str, topic: str, topic_id: str, shard: str, number: int) -> str:
    _check_shard(shard, topic_id)
    return _checked_length(f"{manifest_prefix(cluster, topic, topic_id)}{shard}-{number:020d}.mf")


def manifest_prefix(cluster: str, topic: str, topic_id: str) -> str:
    """What the names of a topic's and its shards' manifests begin with."""
    return f"{MANIFESTS}{_topic_folder(cluster, topic, topic_id)}/"


def cluster_manifest_prefix(cluster: str) -> str:
    """What the names of all topics' and shards' manifests of a cluster begin with."""
    _check_cluster(cluster)
    return f"{MANIFESTS}{_guarded(cluster)}/"


def groups_prefix(cluster: str) -> str:
    """What the names of objects with the groups' offsets of a cluster begin with."""
    _check_cluster(cluster)
    return f"groups/{_guarded(cluster)}/"


def groups_key(cluster: str, number: int) -> str:
    return _checked_length(f"{groups_prefix(cluster)}{number:020d}.mf")


def parse_groups(key: str) -> tuple[str, int] | None:
    """Cluster and number of an object with groups' offsets; None if it is not one of ours."""
    found = _GROUPS_KEY.fullmatch(key)
    cluster = None if found is None else _unguarded(found["cluster"])
    if found is None or cluster is None or int(found["number"]) > NUMBER_MAX:
        return None
    return cluster, int(found["number"])


def parse(key: str) -> SegmentObject | None:
    """The parsed name of a segment's object; None if it is not one of ours."""
    found = _SEGMENT_KEY.fullmatch(key)
    if found is None or len(key) > KEY_LENGTH_MAX:
        return None
    cluster, topic = _unguarded(found["cluster"]), _unguarded(found["topic"])
    topic_id, shard = found["topic_id"], found["shard"]
    if cluster is None or topic is None:
        return None
    is_ours = (
        shard.rpartition("_")[0] == topic_id
        and found["hash8"] == _hash8(cluster, topic_id, shard)
        and int(found["base"]) <= int(found["end"]) < 2**63
    )
    if not is_ours:
        return None
    return SegmentObject(
        cluster,
        topic,
        topic_id,
        shard,
        int(found["base"]),
        int(found["end"]),
        int(found["epoch"]),
        found["upload_id"],
        found["suffix"] or "",
    )


def parse_manifest(key: str) -> ManifestObject | None:
    """The parsed name of a topic's or shard's manifest; None if it is not one of ours."""
    found = _MANIFEST_KEY.fullmatch(key)
    if found is None or len(key) > KEY_LENGTH_MAX:
        return None
    cluster, topic = _unguarded(found["cluster"]), _unguarded(found["topic"])
    if cluster is None or topic is None:
        return None
    shard = None if found["what"] == "topic" else found["what"]
    if shard is not None and shard.rpartition("_")[0] != found["topic_id"]:
        return None
    if int(found["number"]) > NUMBER_MAX:  # No newer manifest could follow.
        return None
    return ManifestObject(cluster, topic, found["topic_id"], shard, int(found["number"]))


def _hash8(cluster: str, topic_id: str, shard: str) -> str:
    name = f"{cluster}/{topic_id}/{shard}".encode()
    return hashlib.blake2b(name, digest_size=4).hexdigest()


def _topic_folder(cluster: str, topic: str, topic_id: str) -> str:
    _check_cluster(cluster)
    check_topic_name(topic)
    if re.fullmatch(_TOPIC_ID, topic_id) is None:
        raise InvalidArgument("topic id", f"{topic_id!r} is not letters and digits")
    return f"{_guarded(cluster)}/{_guarded(topic)}-{topic_id}"


def _check_shard(shard: str, topic_id: str) -> None:
    head, _, seq = shard.rpartition("_")
    if head != topic_id or re.fullmatch("[0-9]+", seq) is None:
        raise InvalidArgument("shard", f"{shard!r} is no shard of topic {topic_id!r}")


def _check_cluster(name: str) -> None:
    if _PLAIN.fullmatch(name) is None or name in (".", ".."):
        raise InvalidArgument(
            "cluster", f"{name!r} is not letters, digits, '.', '_' and '-' alone, or means a folder"
        )


def _guarded(name: str) -> str:
    return f"={name}" if name.startswith(".") else name


def _unguarded(name: str) -> str | None:
    """The name of a cluster or topic from that of a folder; None if it is not one of ours."""
    plain = name.removeprefix("=")
    return plain if _guarded(plain) == name and plain not in (".", "..") else None


def _checked_length(key: str) -> str:
    length = len(key) + len(SEGMENT)  # A segment's name gets a suffix.
    if length > KEY_LENGTH_MAX:
        raise InvalidArgument(
            "cluster", f"makes object names of {length} characters, at most {KEY_LENGTH_MAX}"
        )
    return key
