"""Random schemas with random values, against a plain check that knows nothing of the parser."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from firnmq.lake.typed import Parser
from tests.properties.lake.plain import Misfit, avro_bytes, shown_json

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
NAMES = st.text("abcxyz", min_size=1, max_size=3)
INTEGERS = st.integers(-(2**70), 2**70) | st.integers(-5, 5)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
DATES = st.dates().map(date.isoformat) | st.sampled_from(["2023-02-29", "2024-2-1", "0000-01-01"])
DECIMALS = st.decimals(-1000, 1000, places=3).map(str) | st.sampled_from(["1e2", "NaN", "-0.0"])
ANYTHING = st.recursive(
    st.none() | st.booleans() | INTEGERS | FLOATS | TEXTS | DATES | DECIMALS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
SCALARS = (
    st.sampled_from(
        [
            {"type": "string"},
            {"type": "string", "minLength": 1, "maxLength": 3},
            {"type": "string", "format": "date"},
            {"type": "string", "format": "decimal", "precision": 5, "scale": 2},
            {"type": "number", "format": "decimal", "precision": 38, "scale": 9},
            {"type": "integer"},
            {"type": "integer", "minimum": -3, "maximum": 3},
            {"type": "number"},
            {"type": "boolean"},
            {"enum": ["a", "b", "xyz"]},
            {"enum": [1, 2, None]},
            {"type": ["string", "null"]},
            {"type": ["integer", "null"], "minimum": 0},
            {"type": "integer", "default": 7},
            {},
        ]
    )
)  # fmt: skip


@st.composite
def objects(draw: st.DrawFn, inner: st.SearchStrategy[dict[str, object]]) -> dict[str, object]:
    properties = draw(st.dictionaries(NAMES, inner, min_size=1, max_size=4))
    required = draw(st.lists(st.sampled_from(sorted(properties)), unique=True))
    schema: dict[str, object] = {
        "type": draw(st.sampled_from(["object", ["object", "null"]])),
        "properties": properties,
        "required": required,
    }
    if draw(st.booleans()):
        schema["additionalProperties"] = False
    return schema


SCHEMAS = st.recursive(
    SCALARS,
    lambda inner: (
        objects(inner)
        | st.fixed_dictionaries({"type": st.just("array"), "items": inner})
        | st.fixed_dictionaries({"type": st.just("object"), "additionalProperties": inner}).filter(
            lambda schema: schema["additionalProperties"] != {}
        )
    ),
    max_leaves=8,
)


def values_of(schema: dict[str, object], *, is_loose: bool = False) -> st.SearchStrategy[object]:
    """Values that fit; where loose, with something else here and there."""
    return _fitting(schema, is_loose) | ANYTHING if is_loose else _fitting(schema, is_loose)


def _fitting(schema: dict[str, object], is_loose: bool) -> st.SearchStrategy[object]:
    if "enum" in schema:
        return st.sampled_from(schema["enum"])  # type: ignore[arg-type]
    kinds = schema.get("type", "anything")
    if isinstance(kinds, list):
        return st.none() | _fitting({**schema, "type": kinds[0]}, is_loose)
    low, high = schema.get("minimum", -(2**63)), schema.get("maximum", 2**63 - 1)
    match kinds, schema.get("format"):
        case "string", "date":
            return st.dates().map(date.isoformat)
        case _, "decimal":
            return st.decimals(-999, 999, places=2).map(str) | st.integers(-999, 999)
        case "string", _:
            return st.text(
                st.characters(exclude_categories=["Cs"]),
                min_size=schema.get("minLength", 0),  # type: ignore[arg-type]
                max_size=schema.get("maxLength", 6),  # type: ignore[arg-type]
            )
        case "integer", _:
            return st.integers(low, high)  # type: ignore[arg-type]
        case "number", _:
            return INTEGERS | FLOATS
        case "boolean", _:
            return st.booleans()
        case "array", _:
            items: dict[str, object] = schema["items"]  # type: ignore[assignment]
            return st.lists(values_of(items, is_loose=is_loose), max_size=3)
        case "object", _ if "properties" in schema:
            properties: dict[str, dict[str, object]] = schema["properties"]  # type: ignore[assignment]
            inner = {n: values_of(s, is_loose=is_loose) for n, s in properties.items()}
            required = {n: v for n, v in inner.items() if n in schema["required"]}  # type: ignore[operator]
            optional = {n: v for n, v in inner.items() if n not in required}
            return st.fixed_dictionaries(required, optional=optional)
        case "object", _:
            others: dict[str, object] = schema["additionalProperties"]  # type: ignore[assignment]
            return st.dictionaries(NAMES, values_of(others, is_loose=is_loose), max_size=3)
    return ANYTHING


@st.composite
def json_cases(draw: st.DrawFn) -> tuple[dict[str, object], list[object]]:
    schema = draw(objects(SCHEMAS)) | {"type": "object"}
    values = st.just(...) | values_of(schema) | values_of(schema, is_loose=True)
    return schema, draw(st.lists(values, max_size=6))


@given(json_cases())
def test_json_is_what_a_plain_check_says(case: tuple[dict[str, object], list[object]]) -> None:
    schema, values = case
    expected: list[object] = []
    fits = []
    for value in values:
        try:
            expected.append(_nothing(schema) if value is ... else shown_json(schema, value))
            fits.append(True)
        except Misfit:
            fits.append(False)
    encoded = [None if value is ... else json.dumps(value).encode() for value in values]
    parsed = Parser.from_document(json.dumps(schema), "json").parse(pa.array(encoded, pa.binary()))
    assert parsed.fits.to_pylist() == fits, parsed.reasons
    assert len(parsed.reasons) == fits.count(False)
    assert all(parsed.reasons)
    parsed.columns.validate(full=True)
    assert parsed.columns.to_pylist() == expected


def _nothing(schema: dict[str, object]) -> dict[str, object]:
    """The row of a record without a value."""
    return dict.fromkeys(schema["properties"])  # type: ignore[call-overload,no-any-return]


@given(json_cases(), st.data())
def test_no_bytes_make_it_fail(
    case: tuple[dict[str, object], list[object]], data: st.DataObject
) -> None:
    schema, values = case
    encoded = [json.dumps(None if value is ... else value).encode() for value in values]
    damaged = [data.draw(_damaged(value)) for value in encoded]
    parsed = Parser.from_document(json.dumps(schema), "json").parse(pa.array(damaged, pa.binary()))
    parsed.columns.validate(full=True)
    assert parsed.columns.num_rows + len(parsed.reasons) == len(damaged)


def _damaged(value: bytes) -> st.SearchStrategy[bytes]:
    places = st.integers(0, len(value))
    flipped = st.tuples(places, st.integers(0, 255)).map(
        lambda change: value[: change[0]] + bytes([change[1]]) + value[change[0] + 1 :]
    )
    return flipped | places.map(lambda place: value[:place]) | st.binary(max_size=20)


# --- Avro ---

MOMENTS = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)).map(
    lambda moment: moment.replace(tzinfo=UTC)
)
AVRO_SCALARS: dict[str, tuple[object, st.SearchStrategy[object]]] = {
    "int": ("int", st.integers(-(2**31), 2**31 - 1)),
    "long": ("long", st.integers(-(2**63), 2**63 - 1)),
    "double": ("double", FLOATS),
    "boolean": ("boolean", st.booleans()),
    "string": ("string", TEXTS),
    "bytes": ("bytes", st.binary(max_size=5)),
    "date": ({"type": "int", "logicalType": "date"}, st.dates()),
    "time": ({"type": "long", "logicalType": "timestamp-micros"}, MOMENTS),
    "decimal": (
        {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        st.decimals("-9999999.99", "9999999.99", places=2),
    ),
}
AvroCase = tuple[object, st.SearchStrategy[object]]


@st.composite
def avro_types(draw: st.DrawFn, depth: int = 2) -> AvroCase:
    """A type and its values. Names of records count up, so that no two are the same."""
    choices = ["scalar", "null"] + (["array", "map", "record"] if depth else [])
    match draw(st.sampled_from(choices)):
        case "scalar":
            return AVRO_SCALARS[draw(st.sampled_from(sorted(AVRO_SCALARS)))]
        case "null":
            kind, values = AVRO_SCALARS[draw(st.sampled_from(sorted(AVRO_SCALARS)))]
            return draw(st.permutations(["null", kind])), st.none() | values
        case "array":
            kind, values = draw(avro_types(depth - 1))
            return {"type": "array", "items": kind}, st.lists(values, max_size=3)
        case "map":
            kind, values = draw(avro_types(depth - 1))
            return {"type": "map", "values": kind}, st.dictionaries(NAMES, values, max_size=3)
    return draw(avro_records(depth - 1))


@st.composite
def avro_records(draw: st.DrawFn, depth: int = 2) -> AvroCase:
    fields = draw(st.dictionaries(NAMES, avro_types(depth), min_size=1, max_size=4))
    name = "R" + draw(st.uuids()).hex
    schema = {
        "type": "record",
        "name": name,
        "fields": [{"name": field, "type": kind} for field, (kind, _) in fields.items()],
    }
    return schema, st.fixed_dictionaries({field: values for field, (_, values) in fields.items()})


@given(avro_records(), st.data(), st.sampled_from([b"", b"\x00\x00\x00\x00\x07"]))
def test_avro_comes_back_as_written(case: AvroCase, data: st.DataObject, prefix: bytes) -> None:
    schema, values = case
    written = data.draw(st.lists(values, max_size=4))
    encoded = [prefix + avro_bytes(schema, value) for value in written]
    kind = "avro-confluent" if prefix else "avro"
    parsed = Parser.from_document(json.dumps(schema), kind).parse(pa.array(encoded, pa.binary()))
    assert parsed.reasons == []
    parsed.columns.validate(full=True)
    assert parsed.columns.to_pylist() == [_shown_avro(schema, value) for value in written]


@given(avro_records(), st.data())
def test_no_bytes_make_avro_fail(case: AvroCase, data: st.DataObject) -> None:
    schema, values = case
    encoded = [avro_bytes(schema, value) for value in data.draw(st.lists(values, max_size=4))]
    damaged = [data.draw(_damaged(value)) for value in encoded]
    parsed = Parser.from_document(json.dumps(schema), "avro").parse(pa.array(damaged, pa.binary()))
    parsed.columns.validate(full=True)
    assert parsed.columns.num_rows + len(parsed.reasons) == len(damaged)


def _shown_avro(schema: object, value: object) -> object:
    """Maps are shown as pairs, everything else as it was given."""
    if value is None:
        return None
    if isinstance(schema, list):
        return _shown_avro(next(kind for kind in schema if kind != "null"), value)
    if isinstance(schema, dict):
        match schema["type"], value:
            case "map", dict():
                return [(key, _shown_avro(schema["values"], item)) for key, item in value.items()]
            case "array", list():
                return [_shown_avro(schema["items"], item) for item in value]
            case "record", dict():
                kinds = {field["name"]: field["type"] for field in schema["fields"]}
                return {name: _shown_avro(kinds[name], item) for name, item in value.items()}
    return value


def test_the_plain_check_can_fail() -> None:
    """A reference that lets everything pass would prove nothing."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    for value in ({}, {"a": "x"}, {"a": 1.0}, {"a": 2**63}, [], None):
        try:
            shown_json(schema, value)
        except Misfit:
            continue
        raise AssertionError(value)
    assert shown_json(schema, {"a": 1, "b": 2}) == {"a": 1}
    assert avro_bytes("long", -65) == b"\x81\x01"
    assert Decimal("1.5") == Decimal("1.50")
