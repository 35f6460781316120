from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ListRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Done(_message.Message):
    __slots__ = ("revision",)
    REVISION_FIELD_NUMBER: _ClassVar[int]
    revision: int
    def __init__(self, revision: _Optional[int] = ...) -> None: ...

class RegisterNodeRequest(_message.Message):
    __slots__ = ("node", "ttl_ms")
    NODE_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    node: int
    ttl_ms: int
    def __init__(self, node: _Optional[int] = ..., ttl_ms: _Optional[int] = ...) -> None: ...

class RegisteredNode(_message.Message):
    __slots__ = ("node", "incarnation", "session_id", "revision")
    NODE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    node: int
    incarnation: int
    session_id: int
    revision: int
    def __init__(self, node: _Optional[int] = ..., incarnation: _Optional[int] = ..., session_id: _Optional[int] = ..., revision: _Optional[int] = ...) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("node", "incarnation", "session_id")
    NODE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    node: int
    incarnation: int
    session_id: int
    def __init__(self, node: _Optional[int] = ..., incarnation: _Optional[int] = ..., session_id: _Optional[int] = ...) -> None: ...

class HeartbeatResponse(_message.Message):
    __slots__ = ("revision",)
    REVISION_FIELD_NUMBER: _ClassVar[int]
    revision: int
    def __init__(self, revision: _Optional[int] = ...) -> None: ...

class Node(_message.Message):
    __slots__ = ("node", "incarnation", "registered_ms")
    NODE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    REGISTERED_MS_FIELD_NUMBER: _ClassVar[int]
    node: int
    incarnation: int
    registered_ms: int
    def __init__(self, node: _Optional[int] = ..., incarnation: _Optional[int] = ..., registered_ms: _Optional[int] = ...) -> None: ...

class NodeList(_message.Message):
    __slots__ = ("nodes",)
    NODES_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedCompositeFieldContainer[Node]
    def __init__(self, nodes: _Optional[_Iterable[_Union[Node, _Mapping]]] = ...) -> None: ...

class CreateTopicRequest(_message.Message):
    __slots__ = ("name", "topic_id", "shard_count", "options")
    class OptionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    SHARD_COUNT_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    name: str
    topic_id: str
    shard_count: int
    options: _containers.ScalarMap[str, str]
    def __init__(self, name: _Optional[str] = ..., topic_id: _Optional[str] = ..., shard_count: _Optional[int] = ..., options: _Optional[_Mapping[str, str]] = ...) -> None: ...

class AwaitTopicRequest(_message.Message):
    __slots__ = ("name", "topic_id", "timeout_ms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    name: str
    topic_id: str
    timeout_ms: int
    def __init__(self, name: _Optional[str] = ..., topic_id: _Optional[str] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class TopicRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class Topic(_message.Message):
    __slots__ = ("name", "topic_id", "shard_count", "options", "options_without_limit", "state", "created_ms", "revision")
    class OptionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    SHARD_COUNT_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_WITHOUT_LIMIT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    name: str
    topic_id: str
    shard_count: int
    options: _containers.ScalarMap[str, str]
    options_without_limit: _containers.RepeatedScalarFieldContainer[str]
    state: str
    created_ms: int
    revision: int
    def __init__(self, name: _Optional[str] = ..., topic_id: _Optional[str] = ..., shard_count: _Optional[int] = ..., options: _Optional[_Mapping[str, str]] = ..., options_without_limit: _Optional[_Iterable[str]] = ..., state: _Optional[str] = ..., created_ms: _Optional[int] = ..., revision: _Optional[int] = ...) -> None: ...

class TopicList(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[Topic]
    def __init__(self, topics: _Optional[_Iterable[_Union[Topic, _Mapping]]] = ...) -> None: ...

class Shard(_message.Message):
    __slots__ = ("name", "uid", "active", "epoch", "start", "leader")
    NAME_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    name: str
    uid: int
    active: int
    epoch: int
    start: int
    leader: int
    def __init__(self, name: _Optional[str] = ..., uid: _Optional[int] = ..., active: _Optional[int] = ..., epoch: _Optional[int] = ..., start: _Optional[int] = ..., leader: _Optional[int] = ...) -> None: ...

class ShardList(_message.Message):
    __slots__ = ("shards",)
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    shards: _containers.RepeatedCompositeFieldContainer[Shard]
    def __init__(self, shards: _Optional[_Iterable[_Union[Shard, _Mapping]]] = ...) -> None: ...

class SegmentsRequest(_message.Message):
    __slots__ = ("shard",)
    SHARD_FIELD_NUMBER: _ClassVar[int]
    shard: str
    def __init__(self, shard: _Optional[str] = ...) -> None: ...

class Segment(_message.Message):
    __slots__ = ("seq", "state", "epoch", "leader", "replicas", "start", "end", "length")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    seq: int
    state: str
    epoch: int
    leader: int
    replicas: _containers.RepeatedScalarFieldContainer[int]
    start: int
    end: int
    length: int
    def __init__(self, seq: _Optional[int] = ..., state: _Optional[str] = ..., epoch: _Optional[int] = ..., leader: _Optional[int] = ..., replicas: _Optional[_Iterable[int]] = ..., start: _Optional[int] = ..., end: _Optional[int] = ..., length: _Optional[int] = ...) -> None: ...

class SegmentList(_message.Message):
    __slots__ = ("segments",)
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    segments: _containers.RepeatedCompositeFieldContainer[Segment]
    def __init__(self, segments: _Optional[_Iterable[_Union[Segment, _Mapping]]] = ...) -> None: ...

class Offset(_message.Message):
    __slots__ = ("offset", "metadata", "committed_ms")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_MS_FIELD_NUMBER: _ClassVar[int]
    offset: int
    metadata: str
    committed_ms: int
    def __init__(self, offset: _Optional[int] = ..., metadata: _Optional[str] = ..., committed_ms: _Optional[int] = ...) -> None: ...

class CommitOffsetsRequest(_message.Message):
    __slots__ = ("group", "offsets")
    class OffsetsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Offset
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Offset, _Mapping]] = ...) -> None: ...
    GROUP_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    group: str
    offsets: _containers.MessageMap[str, Offset]
    def __init__(self, group: _Optional[str] = ..., offsets: _Optional[_Mapping[str, Offset]] = ...) -> None: ...

class GetOffsetsRequest(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: str
    def __init__(self, group: _Optional[str] = ...) -> None: ...

class Offsets(_message.Message):
    __slots__ = ("offsets",)
    class OffsetsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Offset
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Offset, _Mapping]] = ...) -> None: ...
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    offsets: _containers.MessageMap[str, Offset]
    def __init__(self, offsets: _Optional[_Mapping[str, Offset]] = ...) -> None: ...

class Controller(_message.Message):
    __slots__ = ("name", "create_revision")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CREATE_REVISION_FIELD_NUMBER: _ClassVar[int]
    name: str
    create_revision: int
    def __init__(self, name: _Optional[str] = ..., create_revision: _Optional[int] = ...) -> None: ...

class Entry(_message.Message):
    __slots__ = ("key", "value", "create_revision", "mod_revision")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    CREATE_REVISION_FIELD_NUMBER: _ClassVar[int]
    MOD_REVISION_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: bytes
    create_revision: int
    mod_revision: int
    def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ..., create_revision: _Optional[int] = ..., mod_revision: _Optional[int] = ...) -> None: ...

class SnapshotRequest(_message.Message):
    __slots__ = ("prefix",)
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    prefix: str
    def __init__(self, prefix: _Optional[str] = ...) -> None: ...

class SnapshotPage(_message.Message):
    __slots__ = ("revision", "entries")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    revision: int
    entries: _containers.RepeatedCompositeFieldContainer[Entry]
    def __init__(self, revision: _Optional[int] = ..., entries: _Optional[_Iterable[_Union[Entry, _Mapping]]] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("prefix", "from_revision")
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    FROM_REVISION_FIELD_NUMBER: _ClassVar[int]
    prefix: str
    from_revision: int
    def __init__(self, prefix: _Optional[str] = ..., from_revision: _Optional[int] = ...) -> None: ...

class Change(_message.Message):
    __slots__ = ("key", "revision", "entry")
    KEY_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    key: str
    revision: int
    entry: Entry
    def __init__(self, key: _Optional[str] = ..., revision: _Optional[int] = ..., entry: _Optional[_Union[Entry, _Mapping]] = ...) -> None: ...

class Changes(_message.Message):
    __slots__ = ("revision", "changes")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    revision: int
    changes: _containers.RepeatedCompositeFieldContainer[Change]
    def __init__(self, revision: _Optional[int] = ..., changes: _Optional[_Iterable[_Union[Change, _Mapping]]] = ...) -> None: ...
