"""Topic configs: Kafka's names and values to our options, and back.

Every name of Kafka 4.3 is known. Most stand for one of our options. The rest is about what FirnMQ
does not have or does not leave to the user: tools set such configs for every topic, so they are
checked, kept and shown, and have no effect. Names that neither Kafka nor FirnMQ has are refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

from firnmq.brokers.kafka.configs.keys import LONG_MAX, ConfigKey, ConfigType
from firnmq.brokers.kafka.configs.topic_keys import KEPT, OLD, OURS, OWN
from firnmq.config import TopicConfig
from firnmq.errors import InvalidArgument

SET, DELETE, APPEND, SUBTRACT = range(4)
_VALUE_CHARS_MAX: Final = 4_096
"""Characters of an option's value. Options are judged in one step, which cannot give way."""
_CONFIGS_MAX: Final = 1_000
"""Configs that one request names for a topic, for the same reason."""
_KEPT_OPTION: Final = "kafka.configs"
_NO_LIMIT: Final = "-1"
"""How Kafka writes that there is no limit."""
_LONGEST: Final = frozenset(
    {
        "segment.ms",
        "max.compaction.lag.ms",
        "message.timestamp.before.max.ms",
        "message.timestamp.after.max.ms",
    }
)
"""Here Kafka has no -1: no limit is the largest number."""
_LIMITS: Final = frozenset({*_LONGEST, "retention.ms", "retention.bytes"})
_LIMIT_MIN: Final = 2**53
"""From this number on, a time or size is as good as none."""
_LOCAL: Final = frozenset({"local.retention.ms", "local.retention.bytes"})
_LIKE_TOTAL: Final = "-2"
"""Records stay on the node for as long as they are kept at all."""
_OPTIONS: Final = {"max.message.bytes": "max.batch.bytes", "remote.storage.enable": "tiering"}
"""Kafka's name for an option, and ours."""
_ONLY_FALSE: Final = frozenset({"remote.log.copy.disable", "remote.log.delete.on.disable"})

UNCHANGEABLE: Final = frozenset(
    {"storage.type", "index.key", "index.tag", "tag.headers", "expire.header"}
)
"""They say what stored bytes mean, so they are fixed when the topic is made."""


_KEYS: Final = OURS | KEPT | OLD | OWN


def is_own(name: str, value: str, default: str | None) -> bool:
    """Whether a config is told as the topic's own, which tools show and copy to other clusters. The
    number of replicas is the topic's in any case, and other brokers have no config for it."""
    return value != default and name != "replication.factor"


def key_of(name: str) -> ConfigKey | None:
    """A topic config by its name; None if there is none."""
    return _KEYS.get(name)


def is_topic_config(name: str) -> bool:
    return name in _KEYS


def check_count(count: int) -> None:
    if count > _CONFIGS_MAX:
        raise InvalidArgument("configs", f"may be {_CONFIGS_MAX:,} for one topic, not {count:,}")


def check_length(name: str, value: str | None) -> None:
    if value is not None and len(value) > _VALUE_CHARS_MAX:
        raise InvalidArgument(name, f"may have {_VALUE_CHARS_MAX:,} characters, not {len(value):,}")


def topic_config(base: TopicConfig, configs: Mapping[str, str | None]) -> TopicConfig:
    """Topic configs of a client as our options; InvalidArgument by name and reason.

    Without a value, a config without effect is no longer kept, and another stays as it is.
    """
    check_count(len(configs))
    options: dict[str, object] = {}
    kept = _kept_of(base.kafka_configs)
    before = dict(kept)
    for name, value in configs.items():
        check_length(name, value)
        if name == _KEPT_OPTION:
            raise InvalidArgument(name, "cannot be set as a whole; set each config by its own name")
        if name in KEPT or name in OLD:
            kept.pop(name, None)
            if value is not None:
                kept[name] = _checked(name, value)
        elif value is not None:
            options[_OPTIONS.get(name, name)] = _our_value(name, value)
    if kept != before:
        options[_KEPT_OPTION] = json.dumps(kept)
    return _named_as_asked(base, options, configs)


def changed_config(
    current: TopicConfig,
    changes: Sequence[tuple[str, int, str | None]],
    defaults: TopicConfig,
) -> TopicConfig:
    """The configuration after some changes: name, operation, value."""
    check_count(len(changes))
    configs: dict[str, str | None] = {}
    shown, original = kafka_view(current), kafka_view(defaults)
    for name, operation, value in changes:
        if name in configs:
            raise InvalidArgument(name, "is named twice for one topic")
        check_length(name, value)
        if operation == DELETE:
            # What nothing is known of is at its default already.
            if is_topic_config(name):
                configs[name] = None if name in KEPT or name in OLD else original[name]
        elif operation == SET:
            if value is None:
                raise InvalidArgument(name, "has no value to be set to")
            configs[name] = value
        elif operation in (APPEND, SUBTRACT):
            configs[name] = _of_list(name, operation, value or "", shown.get(name, ""))
        else:
            raise InvalidArgument(name, f"unknown operation {operation}")
    return topic_config(current, configs)


@lru_cache(maxsize=256)
def kafka_view(config: TopicConfig) -> dict[str, str]:
    """Every config of a topic with its value, as clients are shown them. Not to be changed."""
    options = config.options()
    kept = _kept_of(options.pop(_KEPT_OPTION) or "")
    shown = {name: _their_value(name, value) for name, value in options.items()}
    for name, ours in _OPTIONS.items():
        shown[name] = _their_value(name, options[ours])
    shown.update((name, key.default) for name, key in KEPT.items())
    shown.update(kept)
    return dict(sorted(shown.items()))


def _of_list(name: str, operation: int, value: str, shown: str) -> str:
    """A list with some words more, or some less."""
    key = key_of(name)
    if key is None or key.type is not ConfigType.LIST:
        raise InvalidArgument(name, "is not a list, and can only be set or deleted")
    words = [word for word in shown.split(",") if word]
    given = dict.fromkeys(word.strip() for word in value.split(",") if word.strip())
    if operation == APPEND:
        return ",".join(dict.fromkeys(words) | given)
    return ",".join(word for word in words if word not in given)


def _kept_of(text: str) -> dict[str, str]:
    kept: dict[str, str] = json.loads(text) if text else {}
    return {name: value for name, value in kept.items() if name in KEPT or name in OLD}


def _checked(name: str, value: str) -> str:
    """The value of a config without effect, as Kafka would take it."""
    key = key_of(name)
    assert key is not None
    key.check(value)
    text = value.strip()
    if key.type is ConfigType.BOOLEAN:
        text = text.lower()
    if name in _ONLY_FALSE and text != "false":
        reason = "can only be false: a topic is tiered with all its segments, or not at all"
        raise InvalidArgument(name, reason)
    return text


def _our_value(name: str, value: str) -> str:
    """The value of a config as the option that it stands for takes it."""
    text = value.strip()
    if name == "cleanup.policy" and not text:
        return "none"
    if name == "compression.type" and text in ("producer", "uncompressed"):
        return "none"  # Client batches are stored as they come in any case.
    if name == "remote.storage.enable":
        OURS[name].check(text)
        return "on" if text.lower() == "true" else "off"
    if name in _LOCAL and text == _LIKE_TOTAL:
        return "none"
    is_number = text.isascii() and text.isdigit()
    if name in _LIMITS and is_number and _LIMIT_MIN <= int(text) <= LONG_MAX:
        return "none"
    return text


def _their_value(name: str, value: str | None) -> str:
    """The value of an option as Kafka writes it."""
    if name == "cleanup.policy" and value == "none":
        return ""
    if name == "compression.type" and value == "none":
        return "producer"
    if name == "remote.storage.enable":
        return "true" if value == "on" else "false"
    if value is not None:
        return value
    if name in _LONGEST:
        return str(LONG_MAX)
    if name in _LOCAL:
        return _LIKE_TOTAL
    return "none" if name == "expire.header" else _NO_LIMIT


def _named_as_asked(
    base: TopicConfig, options: dict[str, object], configs: Mapping[str, str | None]
) -> TopicConfig:
    """The base with our options; an error names the config as the client did."""
    try:
        return base.with_options(options)
    except InvalidArgument as error:
        asked = next((name for name, ours in _OPTIONS.items() if ours == error.argument), None)
        if asked is None or asked not in configs or error.argument in configs:
            raise
        raise InvalidArgument(asked, error.reason) from None
