"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs: topic options under Kafka's names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from firnmq.adapter import ConfigChange
from firnmq.brokers.kafka.config import KafkaConfig
from firnmq.brokers.kafka.failures import code_of
from firnmq.brokers.kafka.protocol import ErrorCode
from firnmq.brokers.kafka.protocol.messages.admin import (
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from firnmq.brokers.kafka.storage import KafkaStorage
from firnmq.brokers.net.loop_turns import Turns
from firnmq.config import TopicConfig
from firnmq.errors import FirnError, InvalidArgument

_TOPIC, _BROKER = 2, 4
_TOPIC_SOURCE, _DEFAULT_SOURCE = 1, 5
_SET, _DELETE, _APPEND, _SUBTRACT = range(4)
_NO_LIMIT = "-1"
"""How Kafka writes that there is no limit."""
_NOT_LIMITS = {"expire.header": "none"}
"""What has no value otherwise is shown like this."""

_VALUE_CHARS_MAX = 4_096
"""Characters of an option's value. Options are judged in one step, which cannot give way."""

_ALIASES = {"max.message.bytes": "max.batch.bytes"}
"""Kafka's name for an option, and ours."""

_FIXED: dict[str, str] = {
    "min.insync.replicas": "1",
    "message.timestamp.type": "CreateTime",
    "message.format.version": "3.0-IV1",
}
"""Options Kafka clients ask about whose one value this broker has."""

_UNCHANGEABLE = frozenset(
    {"storage.type", "index.key", "index.tag", "tag.headers", "expire.header"}
)
"""They say what stored bytes mean, so they are fixed when the topic is made."""


def topic_config(base: TopicConfig, options: Mapping[str, str | None]) -> TopicConfig:
    """Kafka topic configs as our options; InvalidArgument by name and reason."""
    ours: dict[str, object] = {}
    for name, value in options.items():
        _check_length(name, value)
        if name in _FIXED:
            if value not in (None, _FIXED[name]):
                raise InvalidArgument(name, f"can only be {_FIXED[name]}, not {value!r}")
            continue
        if value is None:
            continue
        if name == "compression.type" and value in ("producer", "uncompressed"):
            value = "none"  # Client batches are stored as they come in any case.
        ours[_ALIASES.get(name, name)] = value
    return base.with_options(ours)


def _check_length(name: str, value: str | None) -> None:
    if value is not None and len(value) > _VALUE_CHARS_MAX:
        raise InvalidArgument(name, f"may have {_VALUE_CHARS_MAX:,} characters, not {len(value):,}")


class ConfigHandler:
    def __init__(
        self,
        storage: KafkaStorage,
        config: KafkaConfig,
        turns: Turns,
        shown: Mapping[str, str] | None = None,
    ) -> None:
        """`shown`: what clients are told of the broker beside its own settings."""
        self._turns = turns
        self._storage = storage
        self._config = config
        self._shown = shown or {}

    async def describe(self, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
        # Each resource is described once, with all the keys that were asked for.
        wanted: dict[tuple[int, str], set[str] | None] = {}
        async for each in self._turns.over(request.resources):
            resource = (each.resource_type, each.resource_name)
            keys = wanted.setdefault(resource, set())
            if each.configuration_keys is None:
                wanted[resource] = None
            elif keys is not None:
                keys.update(each.configuration_keys)
        results = [
            self._describe(kind, name, keys, request)
            async for (kind, name), keys in self._turns.over(wanted.items())
        ]
        return DescribeConfigsResponse(results=results)

    async def alter(self, request: AlterConfigsRequest) -> AlterConfigsResponse:
        responses = []
        async for resource in self._turns.over(request.resources):
            changes = {each.name: each.value for each in resource.configs}
            responses.append(
                await self._alter(
                    resource.resource_type,
                    resource.resource_name,
                    partial(self._replaced, changes=changes),
                    request.validate_only,
                )
            )
        return AlterConfigsResponse(responses=responses)

    async def alter_some(
        self, request: IncrementalAlterConfigsRequest
    ) -> IncrementalAlterConfigsResponse:
        responses = []
        async for resource in self._turns.over(request.resources):
            responses.append(
                await self._alter(
                    resource.resource_type,
                    resource.resource_name,
                    partial(
                        _changed,
                        changes=resource.configs,
                        defaults=self._config.topic_defaults,
                    ),
                    request.validate_only,
                )
            )
        return IncrementalAlterConfigsResponse(responses=responses)

    def _replaced(self, current: TopicConfig, changes: Mapping[str, str | None]) -> TopicConfig:
        """Everything not named goes back to its default, but for what cannot change."""
        shown = _kafka_view(current)
        kept = {name: shown[name] for name in _UNCHANGEABLE}
        return topic_config(self._config.topic_defaults, {**kept, **changes})

    async def _alter(
        self, kind: int, name: str, change: ConfigChange, validate_only: bool
    ) -> AlterConfigsResourceResponse:
        code, message = ErrorCode.NONE, None
        try:
            if kind != _TOPIC:
                raise InvalidArgument("resource type", f"{kind} has no configs that can change")
            manager = self._storage.manager
            act = manager.check_change if validate_only else manager.reconfigure_topic
            await act(name, lambda current: _altered(current, change))
        except InvalidArgument as error:
            code, message = ErrorCode.INVALID_CONFIG, str(error)
        except FirnError as error:
            code, message = code_of(error), str(error)
        return AlterConfigsResourceResponse(
            error_code=code, error_message=message, resource_type=kind, resource_name=name
        )

    def _describe(
        self, kind: int, name: str, wanted: set[str] | None, request: DescribeConfigsRequest
    ) -> DescribeConfigsResult:
        if kind == _BROKER:
            options = self._broker_options()
            defaults = options
        elif kind == _TOPIC:
            topic = self._storage.find(name)
            if topic is None:
                return DescribeConfigsResult(
                    error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    error_message=f"no topic {name!r}",
                    resource_type=kind,
                    resource_name=name,
                    configs=[],
                )
            options, defaults = _kafka_view(topic.config), _kafka_view(self._config.topic_defaults)
        else:
            return DescribeConfigsResult(
                error_code=ErrorCode.INVALID_REQUEST,
                error_message=f"resource type {kind} has no configs",
                resource_type=kind,
                resource_name=name,
                configs=[],
            )
        return DescribeConfigsResult(
            resource_type=kind,
            resource_name=name,
            configs=[
                _shown(option, value, defaults[option], request.include_synonyms, kind == _BROKER)
                for option, value in options.items()
                if wanted is None or option in wanted
            ],
        )

    def _broker_options(self) -> dict[str, str]:
        return {
            "auto.create.topics.enable": str(self._config.auto_create_topics).lower(),
            "num.partitions": str(self._config.auto_create_shards),
            "message.max.bytes": str(self._config.topic_defaults.max_batch_bytes),
            "broker.id": str(self._config.node_id),
            "offsets.retention.minutes": str(self._config.groups.offsets_retention_ms // 60_000),
            **self._shown,
        }


def _kafka_view(config: TopicConfig) -> dict[str, str]:
    options = {
        name: _NOT_LIMITS.get(name, _NO_LIMIT) if value is None else value
        for name, value in config.options().items()
    }
    options.update(_FIXED)
    for alias, ours in _ALIASES.items():
        options[alias] = options[ours]
    return dict(sorted(options.items()))


def _altered(current: TopicConfig, change: ConfigChange) -> TopicConfig:
    altered = change(current)
    before, after = current.options(), altered.options()
    for option in _UNCHANGEABLE:
        if before[option] != after[option]:
            raise InvalidArgument(option, "is fixed when a topic is made")
    return altered


def _changed(
    current: TopicConfig, changes: Sequence[IncrementalAlterableConfig], defaults: TopicConfig
) -> TopicConfig:
    options: dict[str, str | None] = {}
    shown, original = _kafka_view(current), _kafka_view(defaults)
    for change in changes:
        if change.name not in shown:
            raise InvalidArgument(change.name, "is not a topic option")
        if change.name in options:
            raise InvalidArgument(change.name, "is named twice for one topic")
        _check_length(change.name, change.value)
        if change.config_operation == _SET:
            options[change.name] = change.value
        elif change.config_operation == _DELETE:
            options[change.name] = original[change.name]
        elif change.config_operation in (_APPEND, _SUBTRACT):
            items = [item for item in shown[change.name].split(",") if item]
            given = dict.fromkeys((change.value or "").split(","))
            if change.config_operation == _APPEND:
                items = list(dict.fromkeys(items) | given)
            else:
                items = [item for item in items if item not in given]
            options[change.name] = ",".join(items)
        else:
            raise InvalidArgument(change.name, f"unknown operation {change.config_operation}")
    return topic_config(current, options)


def _shown(
    option: str, value: str, default: str, with_synonyms: bool, is_broker: bool
) -> DescribeConfigsResourceResult:
    source = _DEFAULT_SOURCE if value == default else _TOPIC_SOURCE
    synonyms = []
    if with_synonyms:
        if source == _TOPIC_SOURCE:
            synonyms.append(DescribeConfigsSynonym(name=option, value=value, source=source))
        synonyms.append(DescribeConfigsSynonym(name=option, value=default, source=_DEFAULT_SOURCE))
    return DescribeConfigsResourceResult(
        name=option,
        value=value,
        read_only=is_broker or option in _FIXED or option in _UNCHANGEABLE,
        config_source=source,
        synonyms=synonyms,
    )
