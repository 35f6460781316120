"""The pipeline: topic → enriched topic → hourly topic by Structured Streaming, and to the lake.

What a user of FirnMQ would write, and nothing more: plain Spark with the data source `firn`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from examples.clickstream.events import PRODUCTS
from firnmq.lake.jobs.runner import SparkRunner
from firnmq.lake.jobs.sync import RoundDone, SyncDone, SyncSettings, TopicSync
from firnmq.lake.plans.source import OptionsSource

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

CLICKS, ENRICHED, HOURLY = "shop.clicks", "shop.enriched", "shop.hourly"
TOPICS: Mapping[str, dict[str, str]] = {
    # The log keeps a month and the lake everything: nothing goes before its table has it.
    CLICKS: {"retention.ms": str(30 * 86_400_000), "lake.required": "true"},
    ENRICHED: {"retention.ms": "-1"},
    HOURLY: {"retention.ms": "-1"},
}
EVENT = (
    "event STRING, at TIMESTAMP, user STRING, session STRING, country STRING, product STRING, "
    "quantity INT, _corrupt_record STRING"
)
ENRICHED_EVENT = "event STRING, country STRING, category STRING, quantity INT, revenue DOUBLE"
RESTARTS_MAX = 10
TRIGGER = "5 seconds"
"""A micro-batch starts some Python processes; on two cores, two streams need this long."""
SCHEMA_FILE = Path(__file__).with_name("enriched.schema.json")


class Pipeline:
    """Two streams that run until they are stopped."""

    def __init__(
        self, spark: SparkSession, bootstrap: str, checkpoints: Path, trigger: str = TRIGGER
    ) -> None:
        self._spark = spark
        self._bootstrap = bootstrap
        self._checkpoints = checkpoints
        self._trigger = trigger
        self._starts: list[Callable[[], StreamingQuery]] = []
        self.queries: list[StreamingQuery] = []
        self.restarts = 0

    def start(self) -> None:
        """Starts both, the second when the first has worked through what there is."""
        clicks = self._stream(CLICKS)
        self._begin("enrich", enriched(clicks, products(self._spark)), ENRICHED)
        self.process_all()
        self._begin("aggregate", hourly(self._stream(ENRICHED)), HOURLY)
        self.process_all()

    def process_all(self) -> None:
        """Waits until they have worked through what is there now, the first one first.

        A stream that failed is started again: its checkpoint says where it was, and what it had
        written is not written twice.
        """
        from pyspark.errors import StreamingQueryException

        for number, start in enumerate(self._starts):
            while True:
                try:
                    self.queries[number].processAllAvailable()
                    break
                except StreamingQueryException:
                    if self.restarts == RESTARTS_MAX:
                        raise
                    self.restarts += 1
                    self.queries[number] = start()

    def stop(self) -> None:
        for query in self.queries:
            query.stop()

    def rows_done(self) -> int:
        """Events that the first stream has seen in its recent batches."""
        return sum(progress["numInputRows"] for progress in self.queries[0].recentProgress)

    def _stream(self, topic: str) -> DataFrame:
        reader = self._spark.readStream.format("firn").option("bootstrap", self._bootstrap)
        # Records as they are, also when the lake has a topic's values as columns by now.
        reader = reader.option("values", "raw")
        return reader.option("topic", topic).option("startingOffsets", "earliest").load()

    def _begin(self, name: str, rows: DataFrame, topic: str) -> None:
        def start() -> StreamingQuery:
            return (
                rows.writeStream.format("firn")
                .queryName(f"shop-{name}")
                .option("bootstrap", self._bootstrap)
                .option("topic", topic)
                .option("checkpointLocation", (self._checkpoints / name).as_uri())
                .outputMode("append")
                .trigger(processingTime=self._trigger)
                .start()
            )

        self._starts.append(start)
        self.queries.append(start())


def products(spark: SparkSession) -> DataFrame:
    rows = [(each.product, each.category, each.price) for each in PRODUCTS]
    return spark.createDataFrame(rows, "product STRING, category STRING, price DOUBLE")


def parsed(value: Column) -> Column:
    """An event, with `_corrupt_record` where it is none.

    Naming the mode keeps Spark from parsing only the fields that a query uses, and so from not
    seeing that another one is broken.
    """
    from pyspark.sql import functions as F  # noqa: N812

    return F.from_json(value.cast("string"), EVENT, {"mode": "PERMISSIVE"})


def enriched(clicks: DataFrame, products: DataFrame) -> DataFrame:
    """Clicks with the product's category and what they earned. What is no click goes on as it is,
    for the lake to judge: nothing gets lost without a trace."""
    from pyspark.sql import functions as F  # noqa: N812

    events = clicks.select("key", "timestamp", "value", parsed(F.col("value")).alias("e"))
    joined = events.join(F.broadcast(products), F.col("e.product") == F.col("product"), "left")
    names = ("event", "at", "user", "session", "country", "product")
    revenue = F.when(
        F.col("e.event") == "purchase",
        (F.col("price") * F.col("e.quantity")).cast("decimal(12,2)"),
    )
    known = F.to_json(
        F.struct(
            *(F.col(f"e.{name}").alias(name) for name in names),
            "category",
            F.col("e.quantity").alias("quantity"),
            revenue.alias("revenue"),
        )
    )
    is_whole = F.col("e._corrupt_record").isNull() & F.col("category").isNotNull()
    value = F.when(is_whole, known.cast("binary")).otherwise(F.col("value"))
    return joined.select("key", "timestamp", value.alias("value"))


def hourly(enriched: DataFrame) -> DataFrame:
    """Events, purchases, revenue per hour and country. An hour is written once it is over."""
    from pyspark.sql import functions as F  # noqa: N812

    event = F.from_json(F.col("value").cast("string"), ENRICHED_EVENT).alias("e")
    events = enriched.select("timestamp", event).where("e.category IS NOT NULL")
    hours = (
        events.withWatermark("timestamp", "1 hour")
        .groupBy(F.window("timestamp", "1 hour").alias("hour"), "e.country")
        .agg(
            F.count("*").alias("events"),
            F.sum((F.col("e.event") == "purchase").cast("int")).alias("purchases"),
            F.round(F.sum("e.revenue"), 2).alias("revenue"),
        )
    )
    value = F.to_json(F.struct("hour.start", "country", "events", "purchases", "revenue"))
    return hours.select(
        F.col("country").alias("key"), F.col("hour.start").alias("timestamp"), value.alias("value")
    )


def sync(
    spark: SparkSession,
    bootstrap: str,
    topic: str,
    watch: Callable[[int, int], None] | None = None,
    tell: Callable[[RoundDone], None] | None = None,
) -> SyncDone:
    """`firn lake sync` for one of the topics: clicks as they are, enriched ones by their schema."""
    options = {"bootstrap": bootstrap, "topic": topic}
    settings = SyncSettings()
    if topic == ENRICHED:
        settings = SyncSettings(schema_document=SCHEMA_FILE.read_text("utf-8"))
    work = TopicSync(
        source=OptionsSource(options),
        runner=SparkRunner(spark, watch),
        options=options,
        settings=settings,
    )
    try:
        return work.run(tell)
    finally:
        work.close()
