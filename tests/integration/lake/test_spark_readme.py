"""The Spark example of docs/lake.md, run as it stands but for the address."""

from __future__ import annotations

import contextlib
import io
import re
from typing import TYPE_CHECKING

from firnmq.lake.spark.options import CONNECTION, READ, WRITE
from tests.documents import blocks, text
from tests.integration.kafka.nodes import QUICK, NodeProcess
from tests.integration.lake.topics import Sent, make_topic, send

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def test_the_example(spark: SparkSession, tmp_path: Path) -> None:
    code = blocks("docs/lake.md", "py")[0]
    node = NodeProcess(tmp_path / "data", QUICK)
    node.start()
    try:
        make_topic(node.address, "clicks", 2)
        hour = 3_600_000
        send(
            node.address,
            "clicks",
            [
                Sent(value=b"/", key=b"ann", timestamp_ms=0),
                Sent(value=b"/", key=b"ben", timestamp_ms=hour, shard=1),
                Sent(value=b"/buy", key=b"ann", timestamp_ms=hour + 1),
                Sent(value=b"/help", key=b"ben", timestamp_ms=2 * hour - 1, shard=1),
            ],
        )
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown):
            exec(code.replace("127.0.0.1:9092", node.address), {})
    finally:
        node.close()
    assert shown.getvalue().splitlines() == re.findall(r"^print\(.*\)  # (.*)$", code, re.MULTILINE)


def test_every_option_is_documented() -> None:
    page = text("docs/lake.md")
    for option in (*CONNECTION, *READ, *WRITE):
        assert f"`{option}`" in page, option
