"""Questions to a year of history and the last second, and a picture of the answer."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from examples.clickstream.pipeline import CLICKS, ENRICHED, HOURLY, parsed, products

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# One query: what is in the table comes from Parquet, the rest from the node, each record once.
YEAR = """
SELECT date_trunc('DAY', timestamp) AS day, category,
       count(*) AS events,
       sum(if(event = 'purchase', price * quantity, 0)) AS revenue,
       max(timestamp) AS newest
FROM clicks JOIN products USING (product)
GROUP BY day, category ORDER BY day, category
"""
NOW = """
SELECT count(*) AS events, min(timestamp) AS oldest, max(timestamp) AS newest FROM clicks
"""
# The condition reaches the data source: days before that are not even opened.
SECONDS = """
SELECT date_trunc('SECOND', timestamp) AS second, count(*) AS events
FROM clicks WHERE timestamp >= timestamp_millis({since_ms})
GROUP BY second ORDER BY second
"""


class Answer(NamedTuple):
    days: list[Any]
    """day, category, events, revenue, newest"""
    seconds: list[Any]
    """second, events"""

    @property
    def newest(self) -> datetime:
        return max(row.newest for row in self.days)

    @property
    def events(self) -> int:
        return sum(row.events for row in self.days)


def ask_now(spark: SparkSession, bootstrap: str) -> Any:
    """How many events there are at this moment: events, oldest, newest."""
    _views(spark, bootstrap)
    return spark.sql(NOW).collect()[0]


def ask(spark: SparkSession, bootstrap: str) -> Answer:
    """The topic's whole history, cold and hot together, by Spark SQL."""
    _views(spark, bootstrap)
    days = spark.sql(YEAR).collect()
    since_ms = int(max(row.newest for row in days).timestamp() * 1000) - 60_000
    return Answer(days=days, seconds=spark.sql(SECONDS.format(since_ms=since_ms)).collect())


def _views(spark: SparkSession, bootstrap: str) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    raw = spark.read.format("firn").option("bootstrap", bootstrap).option("topic", CLICKS).load()
    event = parsed(F.col("value")).alias("e")
    clicks = raw.select("timestamp", event).where("e._corrupt_record IS NULL")
    clicks.select("timestamp", "e.*").createOrReplaceTempView("clicks")
    products(spark).createOrReplaceTempView("products")


def hours_written(spark: SparkSession, bootstrap: str) -> list[Any]:
    """What the second stream wrote: a row per hour and country that is over."""
    schema = "start TIMESTAMP, country STRING, events LONG, purchases LONG, revenue DOUBLE"
    reader = spark.read.format("firn").option("bootstrap", bootstrap).option("topic", HOURLY)
    rows = reader.load().selectExpr(f"from_json(CAST(value AS STRING), '{schema}') AS h")
    found: list[Any] = rows.select("h.*").collect()
    return found


def typed_rows(bootstrap: str) -> tuple[Any, Any]:
    """The enriched topic's own table and its dead letters, by PyIceberg, without any Spark."""
    from firnmq.lake.plans.places import make_plan
    from firnmq.lake.plans.plan import Wanted
    from firnmq.lake.tables.catalogs.catalog import DEAD_LETTERS, OpenCatalog
    from firnmq.lake.tables.table import find_table

    options = {"bootstrap": bootstrap, "topic": ENRICHED}
    plan = make_plan(options, Wanted(shards=()))
    assert plan.table is not None
    with OpenCatalog(plan.table, options) as catalog:
        table = find_table(catalog, ENRICHED, plan.topic_id)
        dead = find_table(catalog, ENRICHED, plan.topic_id, namespace=DEAD_LETTERS)
        assert table is not None
        assert dead is not None
        columns = ("event", "at", "country", "category", "quantity", "revenue")
        return (
            table.iceberg.scan(selected_fields=columns).to_arrow(),
            dead.iceberg.scan(selected_fields=("value", "reason")).to_arrow(),
        )


def plot(answer: Answer, path: Path) -> None:
    """Revenue per day and category over the year; events per second over the last minute."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    days = sorted({row.day for row in answer.days})
    categories = sorted({row.category for row in answer.days})
    revenue = {(row.day, row.category): row.revenue for row in answer.days}
    figure, (above, below) = pyplot.subplots(2, 1, figsize=(11, 7), height_ratios=(2, 1))
    above.stackplot(
        days,
        [[revenue.get((day, category), 0.0) for day in days] for category in categories],
        labels=categories,
    )
    above.set_title("Revenue per day: a year of history and today, one query")
    above.legend(loc="upper right", frameon=False)
    above.margins(x=0)
    above.set_ylabel("CHF")
    newest = answer.newest
    ages = [(row.second - newest).total_seconds() for row in answer.seconds]
    below.bar(ages, [row.events for row in answer.seconds], width=0.8, color="tab:red")
    below.set_title("Events per second: the last minute of the same topic")
    below.set_xlabel("seconds before the newest event")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
