"""A small blocking Kafka client with the requests that drivers and executors need.

Requests and responses are kafka-python's protocol classes; the socket, the login and the choice of
versions are here. One `WireClient` belongs to one thread. Batches come as the bytes the node has
stored, so that the codec can make columns of them.
"""

from __future__ import annotations

import socket
import ssl
import struct
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any, Final, NamedTuple, TypeVar

from firnmq.errors import FirnError, InvalidArgument, OffsetOutOfRange, TopicNotFound

EARLIEST: Final = -2
"""In place of a timestamp: the first offset there is."""
LATEST: Final = -1
"""In place of a timestamp: the end of what is committed."""
PORT_DEFAULT: Final = 9092
HTTP_URL: Final = "firn.http.url"
"""The broker config that tells where the node's HTTP listener is."""

_FRAME_BYTES_MAX: Final = 128 * 1024 * 1024
_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_READ_COMMITTED: Final = 1
_TOPIC_RESOURCE, _BROKER_RESOURCE = 2, 4
_MEANING: Final = ("tag.headers", "expire.header", "ttl.ms")
_NONE: Final = ("-1", "none", None)
"""How Kafka writes, and how we write, that there is none."""
_FETCH_VERSION_MAX: Final = 11
"""Topics by name; later ones have compact encodings, and then ids in place of names."""
_METADATA_VERSION_MAX: Final = 12
_OFFSET_OUT_OF_RANGE: Final = 1
_UNKNOWN_TOPIC: Final = (3, 100)
_PASSING: Final = frozenset({5, 6, 7, 9, 14, 15, 51, 72, 74, 75, 76})
"""Codes that a node answers with while it, or a leader, is on its way."""

T = TypeVar("T")


class NodeUnreachable(FirnError):
    """No connection, or it broke; the outcome of the last request is unknown."""

    def __init__(self, address: str, reason: object) -> None:
        super().__init__(f"node {address} cannot be reached: {reason}")
        self.address = address


class NodeRefused(FirnError):
    """The node answered with an error; `code` is Kafka's."""

    def __init__(self, what: str, code: int, message: str | None = None) -> None:
        super().__init__(f"{what}: {message or _name_of(code)} (Kafka error {code})")
        self.code = code

    @property
    def may_pass(self) -> bool:
        """Whether asking again in a moment may help."""
        return self.code in _PASSING


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """How to log in, from options named like `kafka.sasl.username`."""

    protocol: str = "PLAINTEXT"
    mechanism: str | None = None
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    cafile: str | None = None
    certfile: str | None = None
    keyfile: str | None = None

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Security:
        protocol = options.get("kafka.security.protocol", "PLAINTEXT").upper()
        if protocol not in _PROTOCOLS:
            raise InvalidArgument(
                "kafka.security.protocol", f"{protocol!r} is none of {', '.join(_PROTOCOLS)}"
            )
        found = cls(
            protocol=protocol,
            mechanism=options.get("kafka.sasl.mechanism"),
            username=options.get("kafka.sasl.username"),
            password=options.get("kafka.sasl.password"),
            cafile=options.get("kafka.ssl.cafile"),
            certfile=options.get("kafka.ssl.certfile"),
            keyfile=options.get("kafka.ssl.keyfile"),
        )
        if found.has_login and None in (found.mechanism, found.username, found.password):
            raise InvalidArgument(
                "kafka.security.protocol",
                f"{protocol} needs kafka.sasl.mechanism, kafka.sasl.username, kafka.sasl.password",
            )
        return found

    @property
    def has_tls(self) -> bool:
        return self.protocol.endswith("SSL")

    @property
    def has_login(self) -> bool:
        return self.protocol.startswith("SASL")


class Fetched(NamedTuple):
    """What one fetch gave of a shard."""

    batches: memoryview
    """Whole batches, the last of them perhaps truncated."""
    aborted: tuple[tuple[int, int], ...]
    """Producer id and first offset of each aborted transaction among the batches."""
    start_offset: int
    stable_offset: int
    """End of what is committed."""


class TopicPlace(NamedTuple):
    """The leaders of a topic's shards."""

    topic_id: str
    """As hexadecimal digits."""
    leaders: dict[int, str]
    """Shard → host:port."""


class Connection:
    """One connection, logged in, its versions agreed. Requests go one after the other."""

    def __init__(
        self, address: str, security: Security, *, client_id: str, timeout_s: float
    ) -> None:
        self.address = address
        self._client_id = client_id
        self._correlation = 0
        host, port = split_address(address)
        try:
            self._socket = socket.create_connection((host, port), timeout=timeout_s)
        except OSError as error:
            raise NodeUnreachable(address, error) from error
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if security.has_tls:
                self._socket = _tls(security).wrap_socket(self._socket, server_hostname=host)
            self._versions = self._ask_versions()
            if security.has_login:
                self._log_in(security, host)
        except OSError as error:
            self.close()
            raise NodeUnreachable(address, error) from error
        except BaseException:
            self.close()
            raise

    def call(
        self, request: Any, *, version_max: int | None = None, timeout_s: float | None = None
    ) -> Any:
        """The response to a request of kafka-python's, in the newest version both sides speak.

        A request that expects no answer (produce with acks=0) gives None.
        """
        offered = self._versions.get(request.API_KEY)
        if offered is None:
            raise NodeRefused(f"{self.address} does not speak {request.name}", 35)
        low, high = offered
        version = min(high, request.max_version, high if version_max is None else version_max)
        if version < low:
            raise NodeRefused(f"{self.address} speaks no common version of {request.name}", 35)
        return self._exchange(request, version, timeout_s)

    def close(self) -> None:
        self._socket.close()

    def _exchange(self, request: Any, version: int, timeout_s: float | None = None) -> Any:
        self._correlation = (self._correlation + 1) % 2**31
        request.API_VERSION = version
        request.with_header(correlation_id=self._correlation, client_id=self._client_id)
        if timeout_s is not None:
            self._socket.settimeout(timeout_s)
        try:
            self._socket.sendall(request.encode(framed=True, header=True))
            if not request.expect_response():
                return None
            frame = self._receive()
        except OSError as error:
            raise NodeUnreachable(self.address, error) from error
        if len(frame) < 4 or int.from_bytes(frame[:4], "big") != self._correlation:
            raise NodeUnreachable(self.address, "it answered another request")
        response = request.header.get_response_class()
        body = 4
        if response.flexible_version_q(version) and request.name != "ApiVersionsRequest":
            body = _after_tags(frame, body)
        try:
            return response.decode(frame[body:])
        except (ValueError, IndexError, struct.error, EOFError) as error:
            raise NodeUnreachable(self.address, f"its answer makes no sense: {error}") from error

    def _receive(self) -> memoryview:
        size = int.from_bytes(self._exactly(4), "big")
        if size > _FRAME_BYTES_MAX:
            raise NodeUnreachable(self.address, f"it announced {size:,} bytes: is this Kafka?")
        return self._exactly(size)

    def _exactly(self, size: int) -> memoryview:
        view = memoryview(bytearray(size))
        at = 0
        while at < size:
            got = self._socket.recv_into(view[at:])
            if got == 0:
                raise NodeUnreachable(self.address, "it closed the connection")
            at += got
        return view.toreadonly()

    def _ask_versions(self) -> dict[int, tuple[int, int]]:
        from kafka.protocol.metadata import ApiVersionsRequest

        answer = self._exchange(ApiVersionsRequest(), 0)
        if answer.error_code:
            raise NodeRefused(f"{self.address} did not tell its versions", answer.error_code)
        return {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}

    def _log_in(self, security: Security, host: str) -> None:
        from kafka.errors import KafkaConfigurationError
        from kafka.net.sasl import get_sasl_mechanism
        from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

        mechanism = security.mechanism
        answer = self.call(SaslHandshakeRequest(mechanism=mechanism))
        if answer.error_code:
            offered = ", ".join(answer.mechanisms) or "none"
            raise NodeRefused(
                f"{self.address} takes no logins by {mechanism}; it takes: {offered}",
                answer.error_code,
            )
        try:
            exchange = get_sasl_mechanism(mechanism)(
                host=host,
                security_protocol=security.protocol,
                sasl_mechanism=mechanism,
                sasl_plain_username=security.username,
                sasl_plain_password=security.password,
            )
            while not exchange.is_done():
                request = SaslAuthenticateRequest(auth_bytes=exchange.auth_bytes())
                answer = self.call(request)
                if answer.error_code:
                    raise NodeRefused(
                        f"{self.address} refused the login of {security.username!r}",
                        answer.error_code,
                        answer.error_message,
                    )
                exchange.receive(bytes(answer.auth_bytes))
        except (ValueError, KeyError, KafkaConfigurationError) as error:
            raise NodeRefused(f"login at {self.address} failed: {error}", 58) from error
        if not exchange.is_authenticated():
            raise NodeRefused(f"{self.address} refused the login of {security.username!r}", 58)


class WireClient:
    """Talks to the nodes behind some bootstrap addresses. Not for sharing between threads."""

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        security: Security | None = None,
        *,
        client_id: str = "firn-lake",
        timeout_s: float = 30.0,
    ) -> None:
        named = bootstrap.split(",") if isinstance(bootstrap, str) else list(bootstrap)
        self.addresses = [address.strip() for address in named if address.strip()]
        if not self.addresses:
            raise InvalidArgument("bootstrap", "names no address; give host:port")
        self._security = security or Security()
        self._client_id = client_id
        self._timeout_s = timeout_s
        self._connections: dict[str, Connection] = {}

    @classmethod
    def from_options(
        cls, options: Mapping[str, str], *, bootstrap: str | None = None, client_id: str = "firn"
    ) -> WireClient:
        """A client as the options of a reader say; `bootstrap` in place of the one they name."""
        named = bootstrap or options.get("bootstrap")
        if not named:
            raise InvalidArgument("bootstrap", "is missing; give host:port of a node")
        return cls(named, Security.from_options(options), client_id=client_id)

    def __enter__(self) -> WireClient:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        while self._connections:
            self._connections.popitem()[1].close()

    def call(
        self,
        request: Any,
        address: str | None = None,
        *,
        version_max: int | None = None,
        timeout_s: float | None = None,
    ) -> Any:
        """Sends a request to one node, or to any; a connection that fails is dropped.

        Errors inside the response are the caller's to judge.
        """
        connection = self._connection(address)
        try:
            return connection.call(
                request, version_max=version_max, timeout_s=timeout_s or self._timeout_s
            )
        except NodeUnreachable:
            self._connections.pop(connection.address, connection).close()
            raise

    def place(self, topic: str) -> TopicPlace:
        """The topic's id and who serves its shards."""
        from kafka.protocol.metadata import MetadataRequest

        wanted = MetadataRequest.MetadataRequestTopic(name=topic)
        request = MetadataRequest(topics=[wanted], allow_auto_topic_creation=False)
        answer = self.call(request, version_max=_METADATA_VERSION_MAX)
        addresses = {each.node_id: f"{each.host}:{each.port}" for each in answer.brokers}
        found = answer.topics[0]
        if found.error_code in _UNKNOWN_TOPIC:
            raise TopicNotFound(topic)
        if found.error_code:
            raise NodeRefused(f"topic {topic!r}", found.error_code)
        leaders = {
            each.partition_index: addresses[each.leader_id]
            for each in found.partitions
            if each.leader_id in addresses
        }
        return TopicPlace(_hex(found.topic_id), dict(sorted(leaders.items())))

    def list_offsets(
        self, topic: str, shards: Iterable[int], timestamp_ms: int, address: str | None = None
    ) -> dict[int, int]:
        """Each shard's first offset with this timestamp or a later one, -1 if there is none.

        EARLIEST and LATEST stand for timestamps; nothing that is not committed counts.
        """
        from kafka.protocol.consumer import ListOffsetsRequest

        kind = ListOffsetsRequest.ListOffsetsTopic
        partitions = [
            kind.ListOffsetsPartition(
                partition_index=shard, current_leader_epoch=-1, timestamp=timestamp_ms
            )
            for shard in shards
        ]
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=_READ_COMMITTED,
            topics=[kind(name=topic, partitions=partitions)],
        )
        answer = self.call(request, address, version_max=7)
        found = {}
        for part in answer.topics[0].partitions:
            if part.error_code:
                _refuse(topic, part.partition_index, part.error_code)
            found[part.partition_index] = part.offset
        return found

    def fetch(
        self,
        topic: str,
        shard: int,
        offset: int,
        *,
        address: str | None = None,
        max_bytes: int = 8 * 1024 * 1024,
        wait_ms: int = 500,
    ) -> Fetched:
        """Committed batches from the one that holds the offset on; at least one if there is any."""
        from kafka.protocol.consumer import FetchRequest

        kind = FetchRequest.FetchTopic
        partition = kind.FetchPartition(
            partition=shard,
            current_leader_epoch=-1,
            fetch_offset=offset,
            log_start_offset=-1,
            partition_max_bytes=max_bytes,
        )
        request = FetchRequest(
            replica_id=-1,
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=max_bytes,
            isolation_level=_READ_COMMITTED,
            session_id=0,
            session_epoch=-1,
            topics=[kind(topic=topic, partitions=[partition])],
            forgotten_topics_data=[],
            rack_id="",
        )
        timeout_s = self._timeout_s + wait_ms / 1000
        answer = self.call(request, address, version_max=_FETCH_VERSION_MAX, timeout_s=timeout_s)
        if answer.error_code:
            raise NodeRefused(f"fetch from {topic!r}", answer.error_code)
        part = answer.responses[0].partitions[0]
        if part.error_code == _OFFSET_OUT_OF_RANGE:
            bounds = [
                self.list_offsets(topic, [shard], when, address)[shard]
                for when in (EARLIEST, LATEST)
            ]
            raise OffsetOutOfRange(
                offset,
                start=bounds[0],
                end=bounds[1],
                shard=f"shard {shard} of topic {topic!r}",
            )
        if part.error_code:
            _refuse(topic, shard, part.error_code)
        aborted = part.aborted_transactions or ()
        return Fetched(
            memoryview(part.records or b""),
            tuple((each.producer_id, each.first_offset) for each in aborted),
            part.log_start_offset,
            part.last_stable_offset,
        )

    def broker_config(self, name: str) -> str | None:
        """A setting that a node shows to its clients, None if it has none of this name. Of several
        nodes, the first that answers."""
        from kafka.protocol.metadata import MetadataRequest

        brokers = self.call(MetadataRequest(topics=[]), version_max=7).brokers
        if len(brokers) == 1:
            return self._configs(_BROKER_RESOURCE, str(brokers[0].node_id), [name]).get(name)
        unreachable: NodeUnreachable | None = None
        for broker in brokers:  # Only the node itself tells of its settings.
            address = f"{broker.host}:{broker.port}"
            try:
                found = self._configs(_BROKER_RESOURCE, str(broker.node_id), [name], address)
            except NodeUnreachable as error:
                unreachable = error
            else:
                return found.get(name)
        if unreachable is not None:
            raise unreachable
        return None

    def topic_options(self, topic: str) -> dict[str, str | None]:
        """A topic's options that are needed to read its records; None for no limit."""
        found = self._configs(_TOPIC_RESOURCE, topic, list(_MEANING))
        return {name: None if text in _NONE else text for name, text in found.items()}

    def topic_configs(self, topic: str, names: Sequence[str]) -> dict[str, str | None]:
        """A topic's options as the node says them."""
        return self._configs(_TOPIC_RESOURCE, topic, list(names))

    def _configs(
        self, kind: int, name: str, keys: list[str], address: str | None = None
    ) -> dict[str, str | None]:
        from kafka.protocol.admin import DescribeConfigsRequest

        resource = DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=kind, resource_name=name, configuration_keys=keys
        )
        request = DescribeConfigsRequest(
            resources=[resource], include_synonyms=False, include_documentation=False
        )
        result = self.call(request, address, version_max=3).results[0]
        if result.error_code in _UNKNOWN_TOPIC:
            raise TopicNotFound(name)
        if result.error_code:
            raise NodeRefused(f"configs of {name!r}", result.error_code, result.error_message)
        return {each.name: each.value for each in result.configs}

    def _connection(self, address: str | None) -> Connection:
        if address is not None:
            found = self._connections.get(address)
            return found if found is not None else self._connect(address)
        for each in self.addresses:
            if each in self._connections:
                return self._connections[each]
        failure: NodeUnreachable | None = None
        for each in self.addresses:
            try:
                return self._connect(each)
            except NodeUnreachable as error:
                failure = error
        assert failure is not None, "there is at least one address"
        raise failure

    def _connect(self, address: str) -> Connection:
        load_protocol()
        connection = Connection(
            address, self._security, client_id=self._client_id, timeout_s=self._timeout_s
        )
        self._connections[address] = connection
        return connection


@cache
def load_protocol() -> None:
    """Imports kafka-python's protocol without its DeprecationWarning: it loads its schemas in a way
    that newer Pythons deprecate."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        for name in ("admin", "consumer", "metadata", "producer", "sasl"):
            import_module(f"kafka.protocol.{name}")


def with_retries(call: Callable[[], T], *, timeout_s: float = 30.0) -> T:
    """Calls `call`, with retries and backoff while a node is unreachable or a leader moves."""
    deadline = time.monotonic() + timeout_s
    wait_s = 0.05
    while True:
        try:
            return call()
        except (NodeUnreachable, NodeRefused) as error:
            may_pass = isinstance(error, NodeUnreachable) or error.may_pass
            if not may_pass or time.monotonic() + wait_s > deadline:
                raise
        time.sleep(wait_s)
        wait_s = min(2 * wait_s, 2.0)


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port`, `[v6]:port` or a host alone."""
    host, colon, port = address.rpartition(":")
    if not colon or "]" in port:
        host, port = address, str(PORT_DEFAULT)
    if not port.isdecimal() or not 0 < int(port) < 65536 or not host.strip("[]"):
        raise InvalidArgument("bootstrap", f"{address!r} is not like host:9092")
    return host.strip("[]"), int(port)


def _tls(security: Security) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=security.cafile)
        if security.certfile is not None:
            context.load_cert_chain(security.certfile, security.keyfile)
    except OSError as error:
        raise InvalidArgument("kafka.ssl", f"{security.cafile or ''}: {error}") from error
    return context


def _after_tags(frame: memoryview, at: int) -> int:
    """The position after a response header's tagged fields."""
    count, at = _uvarint(frame, at)
    for _ in range(count):
        _, at = _uvarint(frame, at)
        size, at = _uvarint(frame, at)
        at += size
    return at


def _uvarint(frame: memoryview, at: int) -> tuple[int, int]:
    number = shift = 0
    while at < len(frame):
        byte = frame[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if not byte & 0x80:
            break
        shift += 7
    return number, at


def _hex(topic_id: Any) -> str:
    """A topic's id as hexadecimal digits, whatever form the response has it in."""
    return topic_id.hex if hasattr(topic_id, "int") else bytes(topic_id).hex()


def _refuse(topic: str, shard: int, code: int) -> None:
    if code in _UNKNOWN_TOPIC:
        raise TopicNotFound(topic)
    raise NodeRefused(f"shard {shard} of {topic!r}", code)


def _name_of(code: int) -> str:
    from kafka.errors import for_code

    return str(for_code(code).__name__)
