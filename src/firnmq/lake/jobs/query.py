"""SQL over topics: a view per topic, with its table and what is not in the table yet."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from firnmq.config.names import check_topic_name
from firnmq.errors import InvalidArgument, TopicNotFound
from firnmq.lake.jobs.spark_internals import analyzed_plan
from firnmq.lake.jobs.sqltext import check_tables, check_text, names_in
from firnmq.lake.plans.wire import WireClient
from firnmq.lake.spark import register
from firnmq.lake.tables.catalogs.catalog import table_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_DEAD_LETTERS: Final = "__dead_letters"
"""Behind a topic's name: the records that do not fit its schema."""
_SCAN: Final = re.compile(r"RelationV2\[[^\]]*\] firn\b")


def known_topics(options: Mapping[str, str]) -> list[str]:
    """The topics of the node."""
    from kafka.protocol.metadata import MetadataRequest

    if "bootstrap" not in options:
        raise InvalidArgument(
            "topic", "without a node it must be said which topics the query is about: --topic NAME"
        )
    with WireClient.from_options(options) as client:
        request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
        return sorted(each.name for each in client.call(request, version_max=7).topics)


def views_for(query: str, topics: Iterable[str]) -> dict[str, str]:
    """View → topic, for the topics that the query names: by their names in backticks, or by those
    of their tables, where a dot is an underscore. Case does not matter, as everywhere in SQL."""
    wanted = {name.lower() for name in names_in(query)}
    found: dict[str, str] = {}
    for topic in topics:
        for view in dict.fromkeys((topic, table_name(topic))):
            if view.lower() not in wanted:
                continue
            if found.setdefault(view.lower(), topic) != topic:
                raise InvalidArgument(
                    "topic", f"both {found[view.lower()]!r} and {topic!r} are called {view!r} here"
                )
    return found


def dead_letter_views(query: str, topics: Iterable[str]) -> dict[str, str]:
    """View → topic, for the dead letters that the query names."""
    topics = list(topics)
    taken = {name.lower() for topic in topics for name in (topic, table_name(topic))}
    names = {
        name.lower().removesuffix(_DEAD_LETTERS): name.lower()
        for name in names_in(query)
        if name.lower().endswith(_DEAD_LETTERS) and name.lower() not in taken
    }
    found = {}
    for name, view in names.items():
        for topic in views_for(f"`{name}`", topics).values():
            found[view] = topic
    return found


def checked_topics(
    query: str,
    options: Mapping[str, str],
    topics: Iterable[str] | None = None,
    *,
    has_other_tables: bool = False,
) -> list[str]:
    """The topics that the query may name, which a node is asked for. Raises what can be known to be
    wrong without Spark. `has_other_tables`: the session may have tables that are no topics."""
    check_text(query)
    given = None if topics is None else [check_topic_name(each) for each in topics]
    if given is not None and "bootstrap" not in options:
        return given
    known = known_topics(options)
    chosen = known if given is None else given
    try:
        for topic in chosen:
            if topic not in known:
                raise TopicNotFound(topic)
        if not has_other_tables:
            check_tables(query, {**views_for(query, chosen), **dead_letter_views(query, chosen)})
    except TopicNotFound as error:
        error.suggest(known)
        raise
    return chosen


def run_query(
    spark: SparkSession,
    query: str,
    options: Mapping[str, str],
    topics: Iterable[str] | None = None,
) -> DataFrame:
    """The query's result, to be used once. Without `topics`, the node is asked which there are."""
    register(spark)
    given = known_topics(options) if topics is None else [check_topic_name(each) for each in topics]
    views = [
        *((view, topic, {}) for view, topic in views_for(query, given).items()),
        *(
            (view, topic, {"values": "dead_letters"})
            for view, topic in dead_letter_views(query, given).items()
        ),
    ]
    _make_views(spark, views, options)
    found = spark.sql(query)
    if views and _reads_each_once(found, len(views)):
        _make_views(spark, views, {**options, "pushFilters": "true"})
        found = spark.sql(query)
    return found


def _make_views(
    spark: SparkSession,
    views: Iterable[tuple[str, str, Mapping[str, str]]],
    options: Mapping[str, str],
) -> None:
    for view, topic, more in views:
        reader = spark.read.format("firn").options(**options).options(**more)
        frame = reader.option("topic", topic).load()
        frame.createOrReplaceTempView(f"`{view}`")


def _reads_each_once(frame: DataFrame, count: int) -> bool:
    """Whether no view is read twice. Spark would mix up the filters of two reads of the same view,
    so they are taken over only where there is one."""
    plan = analyzed_plan(frame)
    return len(_SCAN.findall(plan)) == count and "CTERelationRef" not in plan
