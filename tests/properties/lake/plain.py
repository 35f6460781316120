"""What the parser is compared with: a plain check of JSON values by a schema, and Avro by hand."""

import json
import re
import struct
from datetime import date, datetime, timedelta
from decimal import Decimal, InvalidOperation

Json = object


class Misfit(Exception):
    """The value does not fit the schema."""


def shown_json(schema: dict[str, Json], value: Json) -> object:
    """The value as a row of the table shows it, or Misfit."""
    kinds = schema.get("type")
    if kinds is None and "enum" not in schema:
        return None if value is None else json.dumps(value)
    if "enum" in schema:
        choices: list[Json] = schema["enum"]  # type: ignore[assignment]
        _require(any(type(value) is type(c) and value == c for c in choices))
        return value
    assert isinstance(kinds, str | list)
    names = [kinds] if isinstance(kinds, str) else kinds
    if value is None:
        _require("null" in names)
        return None
    (name,) = [name for name in names if name != "null"]
    return _SHOWN[name](schema, value)


def _require(holds: bool) -> None:
    if not holds:
        raise Misfit


def _string(schema: dict[str, Json], value: Json) -> object:
    if schema.get("format") == "decimal":
        return _decimal(schema, value)
    _require(isinstance(value, str))
    text = str(value)
    if schema.get("format") == "date":
        _require(re.fullmatch(r"\d{4}-\d\d-\d\d", text, re.ASCII) is not None)
        try:
            return date.fromisoformat(text)
        except ValueError:
            raise Misfit from None
    low, high = schema.get("minLength", 0), schema.get("maxLength", 10**9)
    _require(low <= len(text) <= high)  # type: ignore[operator]
    return text


def _decimal(schema: dict[str, Json], value: Json) -> object:
    _require(isinstance(value, str | int | float) and not isinstance(value, bool))
    try:
        number = Decimal(value if isinstance(value, str) else json.dumps(value))
    except InvalidOperation:
        raise Misfit from None
    _require(number.is_finite())
    precision, scale = int(str(schema["precision"])), int(str(schema["scale"]))
    scaled = number.scaleb(scale)
    _require(scaled == scaled.to_integral_value() and abs(scaled) < 10**precision)
    return number


def _integer(schema: dict[str, Json], value: Json) -> object:
    _require(type(value) is int)
    low, high = schema.get("minimum", -(2**63)), schema.get("maximum", 2**63 - 1)
    _require(low <= value <= high)  # type: ignore[operator]
    return value


def _number(schema: dict[str, Json], value: Json) -> object:
    if schema.get("format") == "decimal":
        return _decimal(schema, value)
    _require(type(value) in (int, float))
    return float(value)  # type: ignore[arg-type]


def _boolean(_schema: dict[str, Json], value: Json) -> object:
    _require(type(value) is bool)
    return value


def _array(schema: dict[str, Json], value: Json) -> object:
    _require(isinstance(value, list))
    return [shown_json(schema["items"], item) for item in value]  # type: ignore[arg-type,attr-defined]


def _object(schema: dict[str, Json], value: Json) -> object:
    _require(isinstance(value, dict))
    assert isinstance(value, dict)
    if "properties" not in schema:
        inner = schema["additionalProperties"]
        return [(key, shown_json(inner, item)) for key, item in value.items()]  # type: ignore[arg-type]
    properties: dict[str, dict[str, Json]] = schema["properties"]  # type: ignore[assignment]
    _require(schema.get("additionalProperties") is not False or value.keys() <= properties.keys())
    shown = {}
    for name, inner in properties.items():
        if name in value:
            shown[name] = shown_json(inner, value[name])
        elif name in schema["required"]:  # type: ignore[operator]
            raise Misfit
        else:
            shown[name] = shown_json(inner, inner["default"]) if "default" in inner else None
    return shown


_SHOWN = {
    "string": _string,
    "integer": _integer,
    "number": _number,
    "boolean": _boolean,
    "array": _array,
    "object": _object,
}


def avro_bytes(schema: object, value: object) -> bytes:
    """Avro's binary encoding, written down from its specification."""
    if isinstance(schema, list):
        (other,) = [choice for choice in schema if choice != "null"]
        picked = schema.index("null" if value is None else other)
        return _long(picked) + (b"" if value is None else avro_bytes(other, value))
    kind = schema["type"] if isinstance(schema, dict) else schema
    match kind, value:
        case "record", dict():
            fields = schema["fields"]  # type: ignore[call-overload]
            return b"".join(avro_bytes(f["type"], value[f["name"]]) for f in fields)
        case "array", list():
            items = b"".join(avro_bytes(schema["items"], item) for item in value)  # type: ignore[call-overload]
            # The other form of a block: a negative count, and then its size.
            head = _long(-len(value)) + _long(len(items)) if value else b""
            return head + items + _long(0)
        case "map", dict():
            pairs = b"".join(
                avro_bytes("string", key) + avro_bytes(schema["values"], item)  # type: ignore[call-overload]
                for key, item in value.items()
            )
            return (_long(len(value)) if value else b"") + pairs + _long(0)
        case "enum", str():
            return _long(schema["symbols"].index(value))  # type: ignore[call-overload]
        case "boolean", bool():
            return b"\x01" if value else b"\x00"
        case "double", float():
            return struct.pack("<d", value)
        case "string", str():
            text = value.encode()
            return _long(len(text)) + text
        case "bytes", Decimal():
            whole = int(value.scaleb(schema["scale"]))  # type: ignore[call-overload]
            length = whole.bit_length() // 8 + 1
            return _long(length) + whole.to_bytes(length, "big", signed=True)
        case "bytes", bytes():
            return _long(len(value)) + value
        case "long", datetime():
            epoch = datetime(1970, 1, 1, tzinfo=value.tzinfo)
            return _long((value - epoch) // timedelta(microseconds=1))
        case "int", date():
            return _long((value - date(1970, 1, 1)).days)
        case (("int" | "long"), int()):
            return _long(value)
    raise AssertionError((schema, value))


def _long(number: int) -> bytes:
    zigzag = (number << 1) ^ (number >> 63)
    encoded = bytearray()
    while zigzag > 0x7F:
        encoded.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    encoded.append(zigzag)
    return bytes(encoded)
