"""The options of the data source: read once, and checked before any request.

Spark hands options over as text and does not care about upper and lower case, so names are
compared in lower case. What is said about a connection goes to the plan's and the wire's own
functions as it is.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, Literal

from firnmq.config.names import check_topic_name
from firnmq.errors import InvalidArgument
from firnmq.lake.plans.plan import Wanted
from firnmq.lake.tables.history import Values
from firnmq.record import Compression

Edge = Literal["earliest", "latest"]

CONNECTION: Final = (
    *("bootstrap", "admin", "topic", "data", "config", "store", "cluster"),
    *("catalog", "warehouse"),
    *("admin.token", "store.endpoint", "store.region", "store.access_key", "store.secret_key"),
    *("store.session_token", "store.allow_http", "store.skip_gaps"),
    *("kafka.security.protocol", "kafka.sasl.mechanism"),
    *("kafka.sasl.username", "kafka.sasl.password", "kafka.ssl.cafile"),
    *("kafka.ssl.certfile", "kafka.ssl.keyfile"),
)
OPEN: Final = ("warehouse.", "catalog.")
"""What begins like this is for the store with the tables' files and for the catalog."""
READ: Final = (
    *("shards", "startingOffsets", "endingOffsets", "startingTimestamp", "endingTimestamp"),
    *("key", "keys", "tag", "tags", "table", "values", "splitBytes", "pushFilters"),
    *("maxRowsPerTrigger", "availableNow", "failOnDataLoss"),
)
WRITE: Final = ("compression", "batchBytes", "transactionTimeoutMs", "writeId")
VALUES: Final[tuple[Values, ...]] = ("auto", "raw", "typed", "dead_letters")
_OF_SPARK: Final = frozenset({"checkpointlocation", "queryname", "outputmode"})
"""What Spark gives to every sink of a stream."""

_SPLIT_BYTES: Final = 96 * 1024 * 1024
"""A task costs 30–40 ms whatever it reads; more than this much and tasks end unevenly."""
_BATCH_BYTES: Final = 512 * 1024
_BATCH_BYTES_MAX: Final = 16 * 1024 * 1024
_TRANSACTION_TIMEOUT_MS: Final = 900_000
"""As long as nodes allow by default: what a task wrote waits for the whole of its batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offsets:
    """Where to begin or end: an offset or an edge per shard, one edge for all others."""

    edge: Edge
    of_shards: Mapping[int, int | Edge] = field(default_factory=dict)

    def at(self, shard: int) -> int | Edge:
        return self.of_shards.get(shard, self.edge)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    connection: dict[str, str]
    """With the names that `make_plan` knows."""
    starting: Offsets
    ending: Offsets
    wanted: Wanted
    """Everything but the offsets, which may depend on what there is."""
    takes_filters: bool = False
    uses_table: bool = True
    values: Values = "auto"
    """What rows are. `auto` only until it is known what the topic's table has."""
    split_bytes: int = _SPLIT_BYTES
    max_rows: int | None = None
    is_available_now: bool = False
    fails_on_loss: bool = True

    @property
    def topic(self) -> str:
        return self.connection["topic"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    connection: dict[str, str]
    compression: Compression = Compression.ZSTD
    batch_bytes: int = _BATCH_BYTES
    """Encoded bytes of one batch before it is compressed, roughly."""
    transaction_timeout_ms: int = _TRANSACTION_TIMEOUT_MS
    write_id: str | None = None

    @property
    def topic(self) -> str:
        return self.connection["topic"]


def check_names(options: Mapping[str, str]) -> dict[str, str]:
    """The options with names in lower case; one that does not exist is refused."""
    known = {name.lower(): name for name in (*CONNECTION, *READ, *WRITE)}
    found = {}
    for name, value in options.items():
        lowered = name.lower()
        if lowered in _OF_SPARK:
            continue
        if lowered not in known and not lowered.startswith(OPEN):
            close = difflib.get_close_matches(lowered, known, n=1)
            hint = f"; is {known[close[0]]} meant?" if close else ""
            raise InvalidArgument(name, f"the data source firn has no such option{hint}")
        found[lowered] = value
    return found


def shown_options(given: Mapping[str, str]) -> ReadOptions:
    """The options that decide the columns, for callers that do not know yet if it is a stream."""
    options = check_names(given)
    return ReadOptions(
        connection=_connection(options),
        starting=Offsets(edge="earliest"),
        ending=Offsets(edge="latest"),
        wanted=Wanted(),
        uses_table=_choice(options, "table", ("auto", "never")) != "never",
        values=_values(options),
    )


def read_options(given: Mapping[str, str], *, is_stream: bool = False) -> ReadOptions:
    options = check_names(given)
    starting = _offsets(options, "startingOffsets", "earliest")
    ending = _offsets(options, "endingOffsets", "latest")
    if is_stream:
        for name in ("endingoffsets", "endingtimestamp"):
            if name in options:
                raise InvalidArgument(
                    name, "a stream has no end; use trigger(availableNow=True) or a batch read"
                )
        if "pushfilters" in options:
            raise InvalidArgument("pushFilters", "Spark hands no filters to streams; use options")
    for name in ("maxrowspertrigger", "availablenow"):
        if not is_stream and name in options:
            raise InvalidArgument(name, "is for streams; here everything is read at once")
    return ReadOptions(
        connection=_connection(options),
        starting=starting,
        ending=ending,
        wanted=Wanted(
            shards=_shards(options),
            min_timestamp_ms=_time(options, "startingTimestamp"),
            end_timestamp_ms=_time(options, "endingTimestamp"),
            keys=_keys(options),
            tags=_texts(options, "tag", "tags"),
        ),
        takes_filters=_choice(options, "pushFilters", ("false", "true")) == "true",
        uses_table=_choice(options, "table", ("auto", "never")) != "never",
        values=_values(options),
        split_bytes=_number(options, "splitBytes", lowest=1) or _SPLIT_BYTES,
        max_rows=_number(options, "maxRowsPerTrigger", lowest=1),
        is_available_now=_choice(options, "availableNow", ("false", "true")) == "true",
        fails_on_loss=_choice(options, "failOnDataLoss", ("true", "false")) == "true",
    )


def write_options(given: Mapping[str, str]) -> WriteOptions:
    options = check_names(given)
    for name in ("store", "data"):
        if name in options and "bootstrap" not in options:
            raise InvalidArgument(name, "records are written through a node; give bootstrap")
    connection = _connection(options)
    names = [kind.name.lower() for kind in Compression]
    codec = _choice(options, "compression", ("zstd", *names))
    batch_bytes = _number(options, "batchBytes", lowest=1024) or _BATCH_BYTES
    if batch_bytes > _BATCH_BYTES_MAX:
        raise InvalidArgument("batchBytes", f"{batch_bytes:,} is above {_BATCH_BYTES_MAX:,}")
    write_id = options.get("writeid")
    if write_id is not None and not (0 < len(write_id) <= 100 and write_id.isprintable()):
        raise InvalidArgument("writeId", "must be 1 to 100 printable characters")
    return WriteOptions(
        connection=connection,
        compression=Compression[codec.upper()],
        batch_bytes=batch_bytes,
        transaction_timeout_ms=_number(options, "transactionTimeoutMs", lowest=1)
        or _TRANSACTION_TIMEOUT_MS,
        write_id=write_id,
    )


def _connection(options: Mapping[str, str]) -> dict[str, str]:
    if "topic" not in options:
        raise InvalidArgument("topic", 'is missing; say which with .option("topic", …)')
    check_topic_name(options["topic"])
    sources = [name for name in ("bootstrap", "store", "data") if name in options]
    if not sources:
        raise InvalidArgument(
            "bootstrap",
            "is missing; give host:port of a node's Kafka listener, or with `store` the URL of a "
            "bucket, or with `data` a data directory that no node has open",
        )
    if "data" in options and len(sources) > 1:
        other = next(name for name in sources if name != "data")
        raise InvalidArgument("data", f"and {other} cannot be used together")
    return {
        name: value
        for name, value in options.items()
        if name in CONNECTION or name.startswith(OPEN)
    }


def _values(options: Mapping[str, str]) -> Values:
    text = _choice(options, "values", VALUES)
    chosen = next(each for each in VALUES if each == text)
    if _choice(options, "table", ("auto", "never")) != "never":
        return chosen
    if chosen in ("typed", "dead_letters"):
        raise InvalidArgument(
            "values", f"{chosen} needs the topic's table, and table=never leaves it out"
        )
    return "raw"


def _offsets(options: Mapping[str, str], name: str, default: Edge) -> Offsets:
    text = options.get(name.lower())
    if text is None:
        return Offsets(edge=default)
    word = text.strip().lower()
    if word == "earliest":
        return Offsets(edge="earliest")
    if word == "latest":
        return Offsets(edge="latest")
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise InvalidArgument(
            name, f'{text!r} is neither earliest nor latest nor like {{"0": 120, "1": 7}}'
        )
    return Offsets(
        edge=default,
        of_shards={_shard(name, shard): _offset(name, value) for shard, value in found.items()},
    )


def _shard(name: str, text: object) -> int:
    if isinstance(text, str) and text.strip().isdecimal():
        return int(text)
    raise InvalidArgument(name, f"{text!r} is not the number of a shard")


def _offset(name: str, value: object) -> int | Edge:
    if value == "earliest" or value == -2:
        return "earliest"
    if value == "latest" or value == -1:
        return "latest"
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63:
        return value
    raise InvalidArgument(name, f"{value!r} is neither an offset nor earliest nor latest")


def _shards(options: Mapping[str, str]) -> tuple[int, ...] | None:
    text = options.get("shards")
    if text is None:
        return None
    found = {_shard("shards", part) for part in text.strip("[] ").split(",")}
    return tuple(sorted(found))


def _time(options: Mapping[str, str], name: str) -> int | None:
    """Milliseconds since 1970 from such a number or from ISO 8601, UTC where it says no zone."""
    text = options.get(name.lower())
    if text is None:
        return None
    text = text.strip()
    if text.lstrip("-").isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidArgument(
            name, f"{text!r} is neither ISO 8601 (2026-01-31T08:00:00Z) nor milliseconds since 1970"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // _MILLISECOND


def _keys(options: Mapping[str, str]) -> tuple[bytes, ...] | None:
    texts = _texts(options, "key", "keys")
    return None if texts is None else tuple(text.encode() for text in texts)


def _texts(options: Mapping[str, str], one: str, several: str) -> tuple[str, ...] | None:
    """The text of one option, or the texts of a JSON array in the other."""
    if one in options and several in options:
        raise InvalidArgument(one, f"and {several} cannot be used together")
    if one in options:
        return (options[one],)
    if several not in options:
        return None
    try:
        found = json.loads(options[several])
    except ValueError:
        found = None
    if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
        raise InvalidArgument(several, f'{options[several]!r} is not like ["a", "b"]')
    return tuple(dict.fromkeys(found))


def _number(options: Mapping[str, str], name: str, *, lowest: int) -> int | None:
    text = options.get(name.lower())
    if text is None:
        return None
    if not text.strip().isdecimal() or not lowest <= int(text) < 2**63:
        raise InvalidArgument(name, f"{text!r} is not a number of at least {lowest}")
    return int(text)


def _choice(options: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    """One of the choices; the first where nothing is said."""
    text = options.get(name.lower(), choices[0]).strip().lower()
    if text not in choices:
        allowed = ", ".join(dict.fromkeys(choices))
        raise InvalidArgument(name, f"{text!r} is none of {allowed}")
    return text


_MILLISECOND: Final = datetime(1970, 1, 1, 0, 0, 0, 1000) - datetime(1970, 1, 1)
