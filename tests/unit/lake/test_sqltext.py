"""What is wrong with a query is told before Spark starts, and no valid query is refused."""

from __future__ import annotations

import pytest

from firnmq.errors import InvalidArgument, TopicNotFound
from firnmq.lake.jobs.sqltext import check_tables, check_text, names_in

KNOWN = {"orders", "web.clicks", "orders__dead_letters"}

VALID = (
    "SELECT 1",
    "select * from orders",
    "SELECT * FROM `web.clicks` JOIN ORDERS USING (key) WHERE value = 'it''s (here'",
    "SELECT * FROM orders -- it's a comment with a ( and FROM nowhere",
    "SELECT /* FROM nowhere ' */ count(*) FROM orders",
    "SELECT extract(DAY FROM timestamp), trim(BOTH ' ' FROM key) FROM orders",
    "SELECT * FROM orders WHERE key IS DISTINCT FROM value",
    "SELECT r'a\\', \"double 'quoted'\", 'back\\'slash' FROM orders",
    "WITH recent AS (SELECT * FROM orders), few(k, n) AS (SELECT key, 1 FROM recent) "
    "SELECT * FROM few JOIN recent ON k = key",
    "SELECT * FROM range(10)",
    "SELECT * FROM VALUES (1), (2)",
    "SELECT * FROM (SELECT key FROM orders) AS inner_query",
    "SELECT * FROM orders, LATERAL explode(tags)",
    "SELECT * FROM parquet.`/a/folder`",
    "SELECT * FROM default.something",
    "FROM orders SELECT key",
    "SHOW COLUMNS FROM anything",
    "EXPLAIN SELECT * FROM orders",
    "DESC orders",
    "SET spark.sql.shuffle.partitions",
    "SELECT tags[0], map('a', 1)['a'] FROM orders__dead_letters",
)


@pytest.mark.parametrize("query", VALID)
def test_valid_queries_are_left_to_spark(query: str) -> None:
    check_text(query)
    check_tables(query, KNOWN)


@pytest.mark.parametrize(
    "query, reason",
    [
        ("", "is empty"),
        ("  -- only a comment", "is empty"),
        ("SELEC * FROM orders", "did you mean SELECT?"),
        ("SELECT count(* FROM orders", "has a ( that is not closed"),
        ("SELECT count(*)) FROM orders", "has a ) that closes nothing"),
        ("SELECT tags[0) FROM orders", "closes nothing"),
        ("SELECT 'ann FROM orders", "has a ' that is not closed"),
        ('SELECT "ann FROM orders', 'has a " that is not closed'),
        ("SELECT * FROM `web.clicks", "has a ` that is not closed"),
    ],
)
def test_text_that_no_parser_accepts_is_refused(query: str, reason: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        check_text(query)
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    "query, name",
    [
        ("SELECT * FROM ordrs", "ordrs"),
        ("SELECT * FROM ordrs AS o", "ordrs"),
        ("SELECT * FROM orders LEFT JOIN `web.click` USING (key)", "web.click"),
        ("SELECT * FROM (SELECT key FROM ordrs)", "ordrs"),
        ("WITH x AS (SELECT * FROM ordrs) SELECT * FROM x", "ordrs"),
        ("FROM ordrs", "ordrs"),
        ("SELECT * FROM orders WHERE key IN (SELECT key FROM ordrs)", "ordrs"),
    ],
)
def test_a_table_that_cannot_exist_is_refused(query: str, name: str) -> None:
    check_text(query)
    with pytest.raises(TopicNotFound) as refused:
        check_tables(query, KNOWN)
    assert repr(name) in str(refused.value)


def test_names_are_words_and_what_stands_in_backticks() -> None:
    query = "SELECT `a``b`, c FROM `web.clicks` WHERE d = 'text' -- e"
    assert names_in(query) == {"SELECT", "a`b", "c", "FROM", "web.clicks", "WHERE", "d"}
