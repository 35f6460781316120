"""What a query of Spark gives, as JSON can say it, and what was wrong with the query."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from firnmq.errors import FirnError, InvalidArgument, TopicNotFound


@contextmanager
def named_errors() -> Iterator[None]:
    """What is wrong with the query, in Spark's words but without its plans and stacks."""
    from pyspark.errors import PySparkException

    logging.getLogger("SQLQueryContextLogger").disabled = True  # It would say the same as JSON.
    try:
        yield
    except PySparkException as error:
        if error.getCondition() == "TABLE_OR_VIEW_NOT_FOUND":
            raise no_such_topic(error.getMessageParameters() or {}) from error
        raise InvalidArgument("query", spark_reason(str(error))) from error


def no_such_topic(parameters: Mapping[str, str]) -> FirnError:
    """Of a name that Spark does not know, as it quotes it: `a`.`b` where the query has a.b."""
    name = parameters.get("relationName", "").replace("`.`", ".").strip("`")
    if "." not in name:
        return TopicNotFound(name)
    return InvalidArgument(
        "query", f"has no table {name}; a topic's name with a dot stands in backticks: `{name}`"
    )


def spark_reason(text: str) -> str:
    """The part of Spark's message that is for the author of the query."""
    if "Traceback (most recent call last)" in text:
        ours = re.findall(r"^(?:pyspark|firnmq)\.[\w.]+: (.+)$", text, re.MULTILINE)
        if ours:
            return str(ours[-1])
    return text.partition(";\n")[0].strip()


def plain(value: Any, kind: Any) -> Any:
    """A value of a Spark type as JSON can say it. Bytes are text where they can be; a moment is in
    UTC and says so, a timestamp without a zone has none."""
    from datetime import UTC, date, datetime
    from decimal import Decimal

    from pyspark.sql.types import TimestampType

    if isinstance(value, bytes | bytearray):
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            return bytes(value).hex()
    if isinstance(value, tuple):  # A Row.
        fields = zip(kind.fields, value, strict=True)
        return {field.name: plain(each, field.dataType) for field, each in fields}
    if isinstance(value, dict):
        return {
            str(plain(name, kind.keyType)): plain(each, kind.valueType)
            for name, each in value.items()
        }
    if isinstance(value, list):
        return [plain(each, kind.elementType) for each in value]
    if isinstance(value, datetime) and isinstance(kind, TimestampType):
        # Spark gives moments in the local time of this machine, without a zone.
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, datetime | date):
        return value.isoformat()
    return str(value) if isinstance(value, Decimal) else value
