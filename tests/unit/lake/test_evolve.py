"""A table gets the columns of a newer schema, and refuses what would change those it has."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from threading import Barrier, Thread

import pyarrow as pa
import pytest

from firnmq.lake.tables.catalogs.catalog import OpenCatalog
from firnmq.lake.tables.evolve import add_columns, missing_columns
from firnmq.lake.tables.table import Advance, TopicTable, make_table
from firnmq.lake.typed import Parser, SchemaConflict, typed_rows, typed_schema
from tests.unit.lake.rows import open_catalog, raw_rows, written

POINT = {"type": "object", "properties": {"x": {"type": "integer"}}}
WIDER = {"type": "object", "properties": {"x": {"type": "integer"}, "y": {"type": "string"}}}


def parser_of(point: object, **more: object) -> Parser:
    properties = {
        "n": {"type": "integer"},
        "at": {"type": "string", "format": "date-time"},
        "price": {"type": "string", "format": "decimal", "precision": 9, "scale": 2},
        "one": point,
        "many": {"type": "array", "items": {"type": "array", "items": point}},
        "named": {"type": "object", "additionalProperties": point},
        **more,
    }
    return Parser.from_document(json.dumps({"properties": properties}), "json")


OLD = parser_of(POINT)
NEW = parser_of(WIDER, tag={"type": "string"}, more=WIDER)


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[OpenCatalog]:
    with open_catalog(tmp_path) as catalog:
        yield catalog


def typed_table(catalog: OpenCatalog, parser: Parser) -> TopicTable:
    return make_table(
        catalog,
        topic="clicks",
        topic_id="a1",
        cluster="c1",
        schema=typed_schema(parser),
        mode="typed",
    )


def add_rows(table: TopicTable, parser: Parser, offsets: range, value: dict[str, object]) -> None:
    raw = raw_rows(0, offsets)
    values = pa.array([json.dumps(value).encode()] * len(offsets), pa.binary())
    raw = raw.set_column(raw.schema.get_field_index("value"), raw.schema.field("value"), values)
    both = typed_rows(raw, parser)
    assert both.misfits.num_rows == 0
    advance = Advance(
        base={0: offsets.start}, ends={0: offsets.stop}, files=written(table, both.rows)
    )
    assert table.advance(advance).row_count == len(offsets)


def shown(table: TopicTable, *columns: str) -> list[dict[str, object]]:
    rows = table.reload().iceberg.scan(selected_fields=("offset", *columns)).to_arrow()
    found: list[dict[str, object]] = rows.sort_by("offset").select(list(columns)).to_pylist()
    return found


def test_columns_are_added_at_every_depth_and_old_rows_show_null(catalog: OpenCatalog) -> None:
    table = typed_table(catalog, OLD)
    old = {"n": 1, "one": {"x": 1}, "many": [[{"x": 2}]], "named": {"k": {"x": 3}}}
    add_rows(table, OLD, range(2), old)
    assert [each.name for each in missing_columns(table, typed_schema(NEW))] == [
        *("one.y", "many.element.element.y", "named.value.y", "tag", "more")
    ]
    add_columns(table, typed_schema(NEW))
    new = {
        "n": 2,
        "one": {"x": 1, "y": "a"},
        "many": [[{"y": "b"}]],
        "named": {"k": {"y": "c"}},
        "tag": "t",
        "more": {"x": 5},
    }
    add_rows(table, NEW, range(2, 3), new)
    assert shown(table, "n", "one", "many", "named", "tag", "more") == [
        *(
            {
                "n": 1,
                "one": {"x": 1, "y": None},
                "many": [[{"x": 2, "y": None}]],
                "named": [("k", {"x": 3, "y": None})],
                "tag": None,
                "more": None,
            },
        )
        * 2,
        {
            "n": 2,
            "one": {"x": 1, "y": "a"},
            "many": [[{"x": None, "y": "b"}]],
            "named": [("k", {"x": None, "y": "c"})],
            "tag": "t",
            "more": {"x": 5, "y": None},
        },
    ]
    assert table.ends() == {0: 3}


def test_the_same_schema_changes_nothing(catalog: OpenCatalog) -> None:
    table = typed_table(catalog, NEW)
    before = table.iceberg.metadata_location
    add_columns(table, typed_schema(NEW))
    assert table.reload().iceberg.metadata_location == before


@pytest.mark.parametrize(
    ("wanted", "column"),
    [
        (OLD, "many.element.element.y"),
        (parser_of(WIDER, tag={"type": "integer"}, more=WIDER), "tag"),
        (parser_of({"type": "string"}, tag={"type": "string"}, more=WIDER), "one"),
    ],
)
def test_what_would_change_a_column_is_refused(
    catalog: OpenCatalog, wanted: Parser, column: str
) -> None:
    table = typed_table(catalog, NEW)
    before = table.iceberg.metadata_location
    with pytest.raises(SchemaConflict) as refused:
        add_columns(table, typed_schema(wanted))
    assert refused.value.column in (column, "one.y", "named.value.y", "tag", "more")
    assert table.reload().iceberg.metadata_location == before


def test_two_may_add_the_same_columns_at_once(catalog: OpenCatalog, tmp_path: Path) -> None:
    typed_table(catalog, OLD)
    barrier, failures = Barrier(4), []

    def add() -> None:
        with open_catalog(tmp_path) as own:
            table = typed_table(own, OLD)
            barrier.wait()
            try:
                add_columns(table, typed_schema(NEW))
            except BaseException as error:
                failures.append(error)
                raise

    threads = [Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    table = typed_table(catalog, NEW)
    assert missing_columns(table, typed_schema(NEW)) == []
    names = [field.name for field in table.iceberg.schema().fields]
    assert len(names) == len(set(names))


def test_a_sync_with_the_older_schema_goes_on(catalog: OpenCatalog, tmp_path: Path) -> None:
    # 1. One sync has begun with the old schema; another adds columns.
    table = typed_table(catalog, OLD)
    with open_catalog(tmp_path) as own:
        add_columns(typed_table(own, OLD), typed_schema(NEW))
    # 2. The first commits what it has, without them.
    add_rows(table, OLD, range(1), {"n": 1})
    assert shown(table, "n", "tag") == [{"n": 1, "tag": None}]
