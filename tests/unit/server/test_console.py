"""Why a group lags, in the console's words; and the SQL that a node runs for its users."""

from __future__ import annotations

import msgspec
import pytest

from firnmq.errors import InvalidArgument
from firnmq.lake.jobs.restricted import check_reading
from firnmq.server.admin.console.figures import GroupFigures, why_behind, why_lagging
from firnmq.server.documents import GroupOffset

NOW_MS = 1_000_000_000
GROUP = GroupFigures(
    group="g",
    state="Stable",
    protocol_type="consumer",
    member_count=1,
    lag=5,
    shard_count=1,
    topics=["t"],
    committed_ms=NOW_MS - 1_000,
    lags={"t": 5},
    lag_rate=-1.0,
)
SHARD = GroupOffset(
    topic="t",
    shard=0,
    committed_offset=5,
    start_offset=0,
    end_offset=10,
    lag=5,
    committed_ms=NOW_MS - 1_000,
    metadata=None,
    member_id="m",
)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"lag": 0}, None),
        ({"member_count": 0}, "no consumer is connected"),
        ({"committed_ms": None}, "its consumers have committed nothing"),
        (
            {"committed_ms": NOW_MS - 7_200_000},
            "its consumers have committed nothing for 2 h",
        ),
        ({"lag_rate": 3.0}, "records are stored faster than its consumers commit"),
        ({"lag_rate": None}, "its consumers are reading"),
        ({}, "its consumers are catching up"),
    ],
)
def test_why_a_group_lags(changes: dict[str, object], why: str | None) -> None:
    assert why_lagging(msgspec.structs.replace(GROUP, **changes), NOW_MS) == why


@pytest.mark.parametrize(
    ("changes", "member_count", "why"),
    [
        ({"committed_offset": None, "lag": None}, 1, "nothing is committed yet"),
        (
            {"start_offset": 7},
            1,
            "the committed offset is no longer kept: retention has removed its record",
        ),
        ({"lag": 0}, 1, None),
        ({}, 0, "no consumer is connected"),
        ({"member_id": None}, 1, "the shard is assigned to no member"),
        ({"committed_ms": NOW_MS - 120_000}, 1, "its member has committed nothing for 2 min"),
        ({}, 1, "its member is reading"),
    ],
)
def test_why_a_shard_is_behind(
    changes: dict[str, object], member_count: int, why: str | None
) -> None:
    row = msgspec.structs.replace(SHARD, **changes)
    assert why_behind(row, member_count, NOW_MS) == why


@pytest.mark.parametrize(
    "query",
    [
        "SELECT 1",
        "select key, count(*) from orders group by 1;",
        "WITH a AS (SELECT 1 AS x) SELECT * FROM a JOIN b USING (x)",
        "FROM orders SELECT key",
        "VALUES (1), (2)",
        "(SELECT 1) UNION (SELECT 2)",
        "SELECT 'INSERT reflect' AS text -- DELETE",
    ],
)
def test_queries_that_read(query: str) -> None:
    check_reading(query)


@pytest.mark.parametrize(
    "query",
    [
        "",
        "CREATE TABLE t AS SELECT 1",
        "SET a=b",
        "ADD JAR x",
        "EXPLAIN SELECT 1",
        "EXECUTE IMMEDIATE 'DROP TABLE t'",
        "FROM a INSERT INTO b SELECT *",
        "WITH x AS (SELECT 1) INSERT INTO b SELECT * FROM x",
        "SELECT reflect('a', 'b')",
        "SELECT `Java_Method`('a', 'b')",
        "SELECT try_reflect('a', 'b')",
        "SELECT identifier('reflect')('a', 'b')",
        "SELECT TRANSFORM(a) USING 'sh' FROM t",
        "FROM t MAP a USING 'sh' AS b",
        'FROM t REDUCE a USING "sh" AS b',
        "SELECT '${env:HOME}'",
        "SELECT /*+ anything */ 1",
        "SELECT 1; DROP TABLE t",
        "FROM t -- comment\rINSERT INTO x SELECT *",
        "FROM t INSERT INTO $$ ' $$ SELECT *",
        "SELECT $$ ' $$, reflect('a', 'b') '",
        "SELECT " + "1," * 20_000 + "1",
    ],
)
def test_queries_that_may_do_more(query: str) -> None:
    with pytest.raises(InvalidArgument):
        check_reading(query)
