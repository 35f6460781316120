"""Names that clients choose: checked before anything is looked up or written."""

from __future__ import annotations

import re

from firnmq.errors import InvalidArgument

TOPIC_NAME_CHARS_MAX = 249
"""The limit Kafka clients know."""
GROUP_NAME_CHARS_MAX = 255

_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]+")


def check_topic_name(name: object) -> str:
    """Returns the name, or raises InvalidArgument saying what is wrong with it."""
    if not isinstance(name, str):
        raise InvalidArgument("topic name", f"must be text, not {type(name).__name__}")
    if not 0 < len(name) <= TOPIC_NAME_CHARS_MAX:
        raise InvalidArgument(
            "topic name", f"has {len(name)} characters, allowed are 1 to {TOPIC_NAME_CHARS_MAX}"
        )
    if name in (".", ".."):
        raise InvalidArgument("topic name", f"{name!r} is not allowed")
    if _TOPIC_NAME.fullmatch(name) is None:
        raise InvalidArgument(
            "topic name", f"{name!r} has characters other than letters, digits, '.', '_' and '-'"
        )
    return name


def check_group_name(name: object) -> str:
    """Returns the consumer group's name, or raises InvalidArgument."""
    if not isinstance(name, str) or not 0 < len(name) <= GROUP_NAME_CHARS_MAX:
        raise InvalidArgument("group", f"must be text of 1 to {GROUP_NAME_CHARS_MAX} characters")
    if not name.isprintable():
        raise InvalidArgument("group", f"{name!r} has unprintable characters")
    return name
