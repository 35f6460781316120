"""The sources of plans: a node, an object store, or a data directory without a running node.

All take the same options, which are those of the Spark data source as well.
"""

from __future__ import annotations

import http.client
import json
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import entry_points
from typing import Any, Final, Protocol
from urllib.parse import quote, urlsplit

import msgspec

from firnmq.config import Durability, StorageType
from firnmq.errors import (
    FirnError,
    InvalidArgument,
    NodeUnavailable,
    NotLeader,
    PeerTimedOut,
    ShardNotFound,
    TopicNotFound,
)
from firnmq.lake.plans.plan import (
    OFFSET_END,
    Plan,
    SegmentPlan,
    ShardPlan,
    TablePlace,
    Wanted,
    is_rest,
)
from firnmq.lake.plans.wire import EARLIEST, HTTP_URL, LATEST, WireClient, split_address

DIRECTORY_GROUP: Final = "firnmq.directories"
"""Entry points of this group open a data directory; the server brings the one there is."""
_TIMEOUT_S: Final = 120.0
_LEADER_OFFSETS: Final = 2**18
_RECORD_BYTES_GUESS: Final = 256
"""Offsets per part of a shard, if only its leader knows the segments."""
_NO_SUCH_PATH: Final = "NoSuchPath"
"""The answer of an older node, which cannot make plans."""
_AWAY: Final = (NodeUnavailable.__name__, NotLeader.__name__, PeerTimedOut.__name__)
"""The leader of a shard is away: it cannot be read in any other way, either."""
_WILDCARDS: Final = ("0.0.0.0", "::", "[::]")


class PlanRefused(FirnError):
    """The node's HTTP listener refused a request."""

    def __init__(self, url: str, status: int, message: str, kind: str = "") -> None:
        super().__init__(f"{url} answered {status}: {message}")
        self.status = status
        self.kind = kind
        """The error's name, if the node gave one."""


class HttpUnreachable(FirnError):
    """The node's HTTP listener cannot be reached from here."""


class PlanNotDurable(FirnError):
    """The reader needs durable records, and only the node's HTTP listener can tell which are."""

    def __init__(self, topic: str, because: str, reason: str) -> None:
        super().__init__(
            f"{topic!r} {because}, and the node's HTTP listener, which sees to it that a table "
            f"gets nothing that the log can lose, cannot be asked ({reason}). Give its address by "
            "the option admin, or let the topic have durability=fsync and not be in memory"
        )
        self.topic = topic


class PlanWarning(UserWarning):
    """Something works, but not as well as it could."""


class OpenedDirectory(Protocol):
    """A data directory served by this process until it is closed."""

    @property
    def bootstrap(self) -> str: ...

    @property
    def admin(self) -> str: ...

    @property
    def token(self) -> str | None: ...

    def close(self) -> None: ...


def make_plan(options: Mapping[str, str], wanted: Wanted | None = None) -> Plan:
    """What of the topic that the options name there is to read, and from where.

    `bootstrap` asks a node; `store` without it looks into a bucket; `data` opens a directory for
    as long as the plan is being made, see `resolved` for longer.
    """
    wanted = wanted or Wanted()
    if "bootstrap" in options:
        return _with_table(_node_plan(options, wanted), options)
    if "data" in options:
        with resolved(options) as served:
            # No node will be there to ask when the plan is read.
            return _without_leader(_with_table(_node_plan(served, wanted), options))
    if "store" in options:
        from firnmq.lake.plans.bucket import bucket_plan

        return bucket_plan(options, wanted)
    raise InvalidArgument("options", "name no source; give bootstrap, store or data")


@contextmanager
def resolved(options: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """The options with a node in them: while inside, a directory named by `data` is served by this
    process on addresses of its own, with the settings of the file that `config` names. Other
    options stay as they are."""
    if "data" not in options or "bootstrap" in options:
        yield dict(options)
        return
    found = list(entry_points(group=DIRECTORY_GROUP))
    if not found:
        raise InvalidArgument("data", "cannot be opened: firnmq is not installed as a whole")
    opened: OpenedDirectory = found[0].load()(options["data"], options.get("config"))
    try:
        others = {name: text for name, text in options.items() if name not in ("data", "config")}
        node = {"bootstrap": opened.bootstrap, "admin": opened.admin}
        if opened.token is not None:
            node["admin.token"] = opened.token
        yield {**others, **node}
    finally:
        opened.close()


def report_progress(
    options: Mapping[str, str],
    topic_id: str,
    ends: Mapping[int, int],
    applied: Mapping[int, str] | None = None,
) -> bool:
    """Tells the node how far the topic's table is: shard → first offset that is not in it; and that
    all deletions of a plan are applied below it: shard → what the plan had as `retired`. Whether
    there was a node to tell; one that is there and cannot be reached raises HttpUnreachable."""
    if "bootstrap" not in options:
        return False
    with WireClient.from_options(options) as client:
        url = _admin_url(options, client)
    if url is None:
        raise HttpUnreachable("the node has no HTTP listener, so it cannot be told the progress")
    body: dict[str, Any] = {
        "topic_id": topic_id,
        "ends": {str(shard): end for shard, end in ends.items()},
    }
    if applied:
        body["applied"] = {str(shard): text for shard, text in applied.items()}
    path = f"/v1/topics/{quote(_topic(options), safe='')}/lake"
    _request(options, url, "PUT", path, json.dumps(body).encode())
    return True


# A node -------------------------------------------------------------------------------------------


def _node_plan(options: Mapping[str, str], wanted: Wanted) -> Plan:
    topic = _topic(options)
    with WireClient.from_options(options) as client:
        reason = "it has no HTTP listener"
        url = _admin_url(options, client)
        if url is not None:
            try:
                return _http_plan(options, url, topic, wanted)
            except HttpUnreachable as error:
                reason = str(error)
            except PlanRefused as error:
                # Who gave neither address nor token meant to use the Kafka listener alone.
                is_told = not options.get("admin") and "admin.token" not in options
                is_closed = error.status == 401 and is_told
                is_final = error.status < 500 and error.kind != _NO_SUCH_PATH and not is_closed
                if is_final or error.kind in _AWAY:
                    raise
                reason = str(error)
        if wanted.is_durable:
            _require_durable(client, topic, reason)
        warnings.warn(
            f"no plan from the node ({reason}); all of {topic!r} is read through the Kafka "
            "listener, which is slower, and its table only if catalog and warehouse are given",
            PlanWarning,
            stacklevel=3,
        )
        plan = _leader_plan(client, topic, wanted)
        return msgspec.structs.replace(plan, no_table_because=reason)


def _require_durable(client: WireClient, topic: str, reason: str) -> None:
    """PlanNotDurable for a topic whose records are visible before they are durable. For other
    topics the offsets of ListOffsets are durable."""
    kept = client.topic_configs(topic, ("durability", "storage.type"))
    if kept.get("storage.type") == StorageType.MEMORY.value:
        raise PlanNotDurable(topic, "is kept in memory", reason)
    durability = kept.get("durability")
    if durability in (Durability.OS.value, Durability.INTERVAL.value):
        raise PlanNotDurable(topic, f"has durability={durability}", reason)


def _http_plan(options: Mapping[str, str], url: str, topic: str, wanted: Wanted) -> Plan:
    path = f"/v1/topics/{quote(topic, safe='')}/plan"
    try:
        content = _request(options, url, "POST", path, msgspec.json.encode(wanted))
    except PlanRefused as error:
        if error.kind == TopicNotFound.__name__:
            raise TopicNotFound(topic) from error
        raise
    try:
        return msgspec.json.decode(content, type=Plan)
    except msgspec.MsgspecError as error:
        raise PlanRefused(url + path, 200, f"no plan: {error}") from error


def _admin_url(options: Mapping[str, str], client: WireClient) -> str | None:
    """The address of the HTTP listener: from the options, otherwise from the node."""
    named = options.get("admin")
    if named:
        return named if "://" in named else f"http://{named}"
    told = client.broker_config(HTTP_URL)
    if told is None:
        return None
    parts = urlsplit(told)
    if (parts.hostname or "") in _WILDCARDS:
        host = split_address(client.addresses[0])[0]
        host = f"[{host}]" if ":" in host else host
        return f"{parts.scheme}://{host}:{parts.port}"
    return told


def _request(options: Mapping[str, str], url: str, method: str, path: str, body: bytes) -> bytes:
    parts = urlsplit(url)
    kind: Any = http.client.HTTPConnection
    if parts.scheme == "https":
        kind = http.client.HTTPSConnection
    connection = kind(parts.hostname or "", parts.port, timeout=_TIMEOUT_S)
    headers = {"Content-Type": "application/json"}
    # The token is only for an address that the user gave: a server could name any address.
    if "admin.token" in options and options.get("admin"):
        headers["Authorization"] = f"Bearer {options['admin.token']}"
    try:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        content: bytes = response.read()
    except (OSError, http.client.HTTPException) as error:
        raise HttpUnreachable(f"{url} cannot be reached: {error}") from error
    finally:
        connection.close()
    if response.status != 200:
        kind, message = _failure(content)
        if response.status == 401 and not options.get("admin"):
            message += "; admin.token is sent only to an address that the option admin gives"
        raise PlanRefused(url + path, response.status, message, kind)
    return content


def _failure(content: bytes) -> tuple[str, str]:
    """The name and the text of an error; something other than a node may have answered."""
    try:
        document = json.loads(content)
        return str(document["error"]), str(document["message"])
    except (ValueError, KeyError, TypeError):
        return "", content[:200].decode("utf-8", "replace")


def _leader_plan(client: WireClient, topic: str, wanted: Wanted) -> Plan:
    """A plan from ListOffsets: everything is read from the leaders, by offset."""
    place = client.place(topic)
    shards = sorted(place.leaders) if wanted.shards is None else wanted.shards
    found = []
    for shard in shards:
        leader = place.leaders.get(shard)
        if leader is None:
            raise ShardNotFound(str(shard), within=f"topic {topic!r}")
        start = client.list_offsets(topic, [shard], EARLIEST, leader)[shard]
        end = client.list_offsets(topic, [shard], LATEST, leader)[shard]
        first = max(start, wanted.start_offsets.get(shard, 0))
        last = min(end, wanted.end_offsets.get(shard, OFFSET_END))
        if wanted.min_timestamp_ms is not None and wanted.min_timestamp_ms >= 0:
            younger = client.list_offsets(topic, [shard], wanted.min_timestamp_ms, leader)[shard]
            first = max(first, last if younger < 0 else younger)
        found.append(
            ShardPlan(
                shard=shard,
                start_offset=start,
                end_offset=end,
                leader=leader,
                segments=tuple(
                    SegmentPlan(
                        base_offset=at,
                        end_offset=min(at + _LEADER_OFFSETS, last),
                        is_sealed=False,
                        length=(min(at + _LEADER_OFFSETS, last) - at) * _RECORD_BYTES_GUESS,
                    )
                    for at in range(first, last, _LEADER_OFFSETS)
                ),
            )
        )
    return Plan(
        cluster="",
        topic=topic,
        topic_id=place.topic_id,
        made_ms=time.time_ns() // 1_000_000,
        options=client.topic_options(topic),
        shards=tuple(found),
    )


def _topic(options: Mapping[str, str]) -> str:
    topic = options.get("topic")
    if not topic:
        raise InvalidArgument("topic", "is missing")
    return topic


def _with_table(plan: Plan, options: Mapping[str, str]) -> Plan:
    """The plan with the catalog and the warehouse that the options name, if they do."""
    if "catalog" not in options and "warehouse" not in options:
        return plan
    before = plan.table
    catalog = options.get("catalog", "" if before is None else before.catalog)
    warehouse = options.get("warehouse")
    # What a REST catalog calls a warehouse is its own; no other catalog knows it.
    if (warehouse is None and before is not None) and (
        catalog == before.catalog or not (is_rest(catalog) or is_rest(before.catalog))
    ):
        warehouse = before.warehouse
    if warehouse is None and is_rest(catalog):
        warehouse = ""
    if not catalog or warehouse is None:
        raise InvalidArgument("catalog", "give both catalog and warehouse, or neither")
    name = f"topics.{plan.topic.replace('.', '_')}"
    table = TablePlace(catalog=catalog, warehouse=warehouse, name=before.name if before else name)
    return msgspec.structs.replace(plan, table=table)


def _without_leader(plan: Plan) -> Plan:
    return msgspec.structs.replace(
        plan,
        shards=tuple(msgspec.structs.replace(shard, leader=None) for shard in plan.shards),
    )
