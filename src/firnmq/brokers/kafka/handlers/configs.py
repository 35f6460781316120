"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from firnmq.adapter import ConfigChange
from firnmq.brokers.kafka.config import KafkaConfig
from firnmq.brokers.kafka.configs import (
    DELETE,
    UNCHANGEABLE,
    ConfigKey,
    ConfigSource,
    broker_configs,
    changed_config,
    is_own,
    kafka_view,
    key_of,
    topic_config,
)
from firnmq.brokers.kafka.failures import code_of
from firnmq.brokers.kafka.protocol import ErrorCode
from firnmq.brokers.kafka.protocol.messages.admin import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
)
from firnmq.brokers.kafka.storage import KafkaStorage
from firnmq.brokers.net.address import Address
from firnmq.brokers.net.loop_turns import Turns
from firnmq.config import TopicConfig
from firnmq.errors import FirnError, InvalidArgument

_TOPIC, _BROKER, _BROKER_LOGGER, _CLIENT_METRICS = 2, 4, 8, 16


class ConfigHandler:
    def __init__(
        self,
        storage: KafkaStorage,
        config: KafkaConfig,
        address: Address,
        turns: Turns,
        shown: Mapping[str, str] | None = None,
    ) -> None:
        """`shown`: what clients are told of the broker beside its own settings."""
        self._turns = turns
        self._storage = storage
        self._config = config
        self._address = address
        self._shown = shown or {}
        self._builtin = kafka_view(KafkaConfig().topic_defaults)

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
            if not changes and self._is_here(resource.resource_type, resource.resource_name):
                responses.append(_unchanged(resource))
                continue
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
            is_nothing = all(each.config_operation == DELETE for each in resource.configs)
            if is_nothing and self._is_here(resource.resource_type, resource.resource_name):
                responses.append(_unchanged(resource))
                continue
            responses.append(
                await self._alter(
                    resource.resource_type,
                    resource.resource_name,
                    partial(
                        changed_config,
                        changes=[
                            (each.name, each.config_operation, each.value)
                            for each in resource.configs
                        ],
                        defaults=self._config.topic_defaults,
                    ),
                    request.validate_only,
                )
            )
        return IncrementalAlterConfigsResponse(responses=responses)

    def _is_here(self, kind: int, name: str) -> bool:
        """Whether it is this broker, or all of them: nothing is set there that could be deleted, so
        deleting is all that can be done, as tools do after moving partitions."""
        return kind == _BROKER and name in ("", str(self._config.node_id))

    def _replaced(self, current: TopicConfig, changes: Mapping[str, str | None]) -> TopicConfig:
        """Everything not named goes back to its default, but for what cannot change."""
        shown = kafka_view(current)
        kept = {name: shown[name] for name in UNCHANGEABLE}
        return topic_config(self._config.topic_defaults, {**kept, **changes})

    async def _alter(
        self, kind: int, name: str, change: ConfigChange, validate_only: bool
    ) -> AlterConfigsResourceResponse:
        code, message = ErrorCode.NONE, None
        try:
            if kind != _TOPIC:
                reason = f"{kind} has no configs that can change; a node has a configuration file"
                raise InvalidArgument("resource type", reason)
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
        code, message = ErrorCode.NONE, None
        configs: list[DescribeConfigsResourceResult] = []
        if kind == _TOPIC:
            topic = self._storage.find(name)
            if topic is None:
                code, message = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"no topic {name!r}"
            else:
                configs = self._describe_topic(topic.config, wanted, request)
        elif kind in (_BROKER, _BROKER_LOGGER) and name not in ("", str(self._config.node_id)):
            code = ErrorCode.INVALID_REQUEST
            message = f"this is broker {self._config.node_id}, not {name!r}"
        elif kind == _BROKER:
            # Without a name, what was changed for all brokers while they run: nothing.
            configs = self._describe_broker(wanted, request) if name else []
        elif kind not in (_BROKER_LOGGER, _CLIENT_METRICS):  # Of which there are none.
            code, message = ErrorCode.INVALID_REQUEST, f"resource type {kind} has no configs"
        return DescribeConfigsResult(
            error_code=code,
            error_message=message,
            resource_type=kind,
            resource_name=name,
            configs=configs,
        )

    def _describe_topic(
        self, config: TopicConfig, wanted: set[str] | None, request: DescribeConfigsRequest
    ) -> list[DescribeConfigsResourceResult]:
        options, defaults = kafka_view(config), kafka_view(self._config.topic_defaults)
        shown = []
        for name, value in options.items():
            key = key_of(name)
            if key is None or not (wanted is None or name in wanted):
                continue
            builtin = self._builtin.get(name, key.default)
            default = defaults.get(name, key.default)
            broker_name = key.broker_name or name
            sources = [(broker_name, builtin, ConfigSource.DEFAULT)]
            if default != builtin:
                sources.insert(0, (broker_name, default, ConfigSource.STATIC_BROKER))
            if is_own(name, value, default):
                sources.insert(0, (name, value, ConfigSource.TOPIC))
            shown.append(_shown(key, value, sources, name in UNCHANGEABLE, request))
        return shown

    def _describe_broker(
        self, wanted: set[str] | None, request: DescribeConfigsRequest
    ) -> list[DescribeConfigsResourceResult]:
        shown = []
        configs = broker_configs(self._config, self._address, self._shown)
        for name, (key, value, default) in configs.items():
            if wanted is None or name in wanted:
                sources = [(name, default, ConfigSource.DEFAULT)]
                if value != default:
                    sources.insert(0, (name, value, ConfigSource.STATIC_BROKER))
                shown.append(_shown(key, value, sources, True, request))
        return shown


def _unchanged(
    resource: AlterConfigsResource | IncrementalAlterConfigsResource,
) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(
        resource_type=resource.resource_type, resource_name=resource.resource_name
    )


def _altered(current: TopicConfig, change: ConfigChange) -> TopicConfig:
    altered = change(current)
    before, after = current.options(), altered.options()
    for option in UNCHANGEABLE:
        if before[option] != after[option]:
            raise InvalidArgument(option, "is fixed when a topic is made")
    return altered


def _shown(
    key: ConfigKey,
    value: str,
    sources: Sequence[tuple[str, str, ConfigSource]],
    is_read_only: bool,
    request: DescribeConfigsRequest,
) -> DescribeConfigsResourceResult:
    """`sources`: where the value comes from, and what it would be without that, and so on."""
    synonyms = []
    if request.include_synonyms:
        synonyms = [
            DescribeConfigsSynonym(name=name, value=each, source=source)
            for name, each, source in sources
        ]
    return DescribeConfigsResourceResult(
        name=key.name,
        value=value,
        read_only=is_read_only,
        config_source=sources[0][2],
        synonyms=synonyms,
        config_type=key.type,
        documentation=key.documentation if request.include_documentation else None,
    )
