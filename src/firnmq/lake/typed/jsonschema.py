"""JSON Schema into columns and a decoder: the part of it that says what a column holds.

Keywords that would have to be checked and are not known here are refused with the schema, so that
no record passes that the schema forbids. Two things are stricter than the standard: an integer is
written without a point (1.0 is none), and a `date-time` has an offset, as RFC 3339 says.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from operator import attrgetter
from types import GenericAlias
from typing import Annotated, Any, Final, Literal

import msgspec
import pyarrow as pa

from firnmq.lake.reading.schema import TIME
from firnmq.lake.typed.columns import (
    Column,
    Field,
    Getter,
    Listing,
    Record,
    Scalar,
    column_names,
)
from firnmq.lake.typed.columns import Mapping as MappingColumn
from firnmq.lake.typed.failures import SchemaRefused

_ANNOTATIONS: Final = frozenset(
    ("$schema", "$id", "$comment", "$defs", "definitions", "title", "description")
) | {"default", "examples", "deprecated", "readOnly", "writeOnly"}
_BOUNDS: Final = {
    "minimum": "ge",
    "exclusiveMinimum": "gt",
    "maximum": "le",
    "exclusiveMaximum": "lt",
}
_UUID: Final = r"^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"
_INT32: Final = (-(2**31), 2**31 - 1)
_INT64: Final = (-(2**63), 2**63 - 1)
_FLOAT32_MAX: Final = 3.4028234663852886e38
_TIME_UNITS: Final = {"timestamp-seconds": 1_000_000, "timestamp-millis": 1_000} | {
    "timestamp-micros": 1
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonSchema:
    record: Record
    struct: type[msgspec.Struct]
    getter: Getter


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """One place of the schema: its column, and the type that msgspec decodes it by."""

    column: Column
    annotation: Any
    is_nullable: bool = False

    @property
    def is_text(self) -> bool:
        """Any JSON at all, kept as its text."""
        return self.annotation is msgspec.Raw


def compile_json_schema(document: str) -> JsonSchema:
    try:
        schema = msgspec.json.decode(document)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SchemaRefused("#", f"is not JSON: {error}") from None
    part = _Compiler(schema).part(schema, "#", ())
    if not isinstance(part.column, Record) or part.is_nullable:
        raise SchemaRefused("#", "must be an object with `properties`: they become the columns")
    return JsonSchema(record=part.column, struct=part.annotation, getter=attrgetter)


class _Compiler:
    """Walks one document. `within` are the references it is inside of."""

    def __init__(self, root: object) -> None:
        self._root = root

    def part(self, schema: object, where: str, within: tuple[str, ...]) -> _Part:
        if schema is True or schema == {}:
            return _TEXT
        if not isinstance(schema, dict):
            raise SchemaRefused(where, "must be an object")
        if "$ref" in schema:
            return self._referred(schema, where, within)
        for word in ("anyOf", "oneOf"):
            if word in schema:
                return self._one_or_null(schema, word, where, within)
        if "enum" in schema or "const" in schema:
            return _enum(schema, where)
        kind, is_nullable = _kind(schema, where)
        match kind:
            case "object":
                part = self._object(schema, where, within)
            case "array":
                part = self._array(schema, where, within)
            case "string":
                part = _string(schema, where)
            case "integer":
                part = _integer(schema, where)
            case "number":
                part = _number(schema, where)
            case "boolean":
                _refuse_others(schema, (), where)
                part = _Part(column=Scalar(arrow=pa.bool_()), annotation=bool)
            case _:
                _refuse_others(schema, (), where)
                return _TEXT
        return _nullable(part) if is_nullable else part

    def _referred(self, schema: dict[str, Any], where: str, within: tuple[str, ...]) -> _Part:
        _refuse_others(schema, ("$ref",), where)
        reference = schema["$ref"]
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise SchemaRefused(where, f"$ref {reference!r} is not within this document (#/…)")
        if reference in within or reference == "#":
            raise SchemaRefused(
                where, f"{reference} refers to itself; columns cannot. Use {{}} to keep it as JSON"
            )
        found: Any = self._root
        for step in reference[1:].split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, dict) or step not in found:
                raise SchemaRefused(where, f"$ref {reference!r}: there is nothing there")
            found = found[step]
        return self.part(found, reference, (*within, reference))

    def _one_or_null(
        self, schema: dict[str, Any], word: str, where: str, within: tuple[str, ...]
    ) -> _Part:
        _refuse_others(schema, (word,), where)
        choices = schema[word]
        others = [c for c in choices if c != {"type": "null"}] if isinstance(choices, list) else []
        if len(others) != 1:
            raise SchemaRefused(
                where, f"{word} can only be one schema or null; use {{}} to keep any JSON as text"
            )
        part = self.part(others[0], f"{where}/{word}", within)
        return _nullable(part) if len(choices) > 1 else part

    def _object(self, schema: dict[str, Any], where: str, within: tuple[str, ...]) -> _Part:
        _refuse_others(schema, ("properties", "required", "additionalProperties"), where)
        properties = schema.get("properties")
        more = schema.get("additionalProperties", True)
        if not properties:
            if "required" in schema:
                raise SchemaRefused(where, "has `required` without `properties`")
            if more is True or more == {}:
                return _TEXT
            if more is False:
                raise SchemaRefused(where, "an object without properties has no columns")
            value = self.part(more, f"{where}/additionalProperties", within)
            annotation = value.annotation | None if value.is_nullable else value.annotation
            return _Part(
                column=MappingColumn(value=value.column),
                annotation=GenericAlias(dict, (str, annotation)),
            )
        if not isinstance(properties, dict):
            raise SchemaRefused(where, "properties must be an object")
        if not isinstance(more, bool) and more != {}:
            raise SchemaRefused(
                where,
                "has `properties` and a schema for others; columns need names: use one of the two",
            )
        return self._record(schema, properties, where, within, is_closed=more is False)

    def _record(
        self,
        schema: dict[str, Any],
        properties: dict[str, Any],
        where: str,
        within: tuple[str, ...],
        *,
        is_closed: bool,
    ) -> _Part:
        required = schema.get("required", [])
        if not isinstance(required, list) or not set(required) <= properties.keys():
            raise SchemaRefused(where, "`required` must be a list of names from `properties`")
        names = column_names(list(properties), where, is_top=where == "#")
        fields: list[Field] = []
        attributes: list[tuple[str, Any, Any]] = []
        for number, (name, inner) in enumerate(properties.items()):
            place = f"{where}/properties/{name}"
            part = self.part(inner, place, within)
            given = inner if isinstance(inner, dict) else {}
            annotation, default = _attribute(part, given, place, is_required=name in required)
            source = f"f{number}"
            attributes.append((source, annotation, default))
            fields.append(
                Field(
                    name=names[number],
                    source=source,
                    column=part.column,
                    may_be_unset=default is msgspec.UNSET,
                )
            )
        struct = msgspec.defstruct(
            "Value",
            attributes,
            rename={f"f{number}": name for number, name in enumerate(properties)},
            kw_only=True,
            forbid_unknown_fields=is_closed,
            frozen=True,
            gc=False,
        )
        return _Part(column=Record(fields=tuple(fields)), annotation=struct)

    def _array(self, schema: dict[str, Any], where: str, within: tuple[str, ...]) -> _Part:
        _refuse_others(schema, ("items", "minItems", "maxItems"), where)
        if "items" not in schema:
            raise SchemaRefused(where, "an array needs `items`, to know what its column holds")
        element = self.part(schema["items"], f"{where}/items", within)
        inner = element.annotation | None if element.is_nullable else element.annotation
        limits = _limits(schema, {"minItems": "min_length", "maxItems": "max_length"}, where)
        return _Part(
            column=Listing(element=element.column),
            annotation=_annotated(GenericAlias(list, (inner,)), limits, where),
        )


def _kind(schema: dict[str, Any], where: str) -> tuple[str, bool]:
    """The type besides null, or "" for any; and whether null is one of them."""
    kinds = schema.get("type")
    if kinds is None:
        if "properties" in schema:
            return "object", False
        if "items" in schema:
            return "array", False
        return "", False
    kinds = kinds if isinstance(kinds, list) else [kinds]
    others = {kind for kind in kinds if kind != "null"}
    if others == {"integer", "number"}:
        others = {"number"}
    known = {"object", "array", "string", "integer", "number", "boolean"}
    if len(others) != 1 or not others <= known:
        said = msgspec.json.encode(schema["type"]).decode()
        raise SchemaRefused(
            where, f"type {said} is not one type, or one and null; use {{}} to keep any as text"
        )
    return others.pop(), "null" in kinds


def _nullable(part: _Part) -> _Part:
    return _Part(column=part.column, annotation=part.annotation, is_nullable=not part.is_text)


def _attribute(
    part: _Part, schema: Mapping[str, Any], where: str, *, is_required: bool
) -> tuple[Any, Any]:
    """Type and default of a struct's attribute."""
    annotation = part.annotation | None if part.is_nullable else part.annotation
    if "default" in schema and not is_required:
        text = msgspec.json.encode(schema["default"])
        try:
            default = msgspec.json.decode(text, type=annotation)
        except msgspec.ValidationError as error:
            raise SchemaRefused(where, f"the default does not fit: {error}") from None
        return annotation, msgspec.field(default_factory=lambda: default)
    if is_required:
        return annotation, msgspec.NODEFAULT
    if part.is_text:
        return annotation, msgspec.Raw()
    if part.is_nullable:
        return annotation, None
    return annotation | msgspec.UnsetType, msgspec.UNSET


def _refuse_others(schema: dict[str, Any], known: Sequence[str], where: str) -> None:
    for word in schema.keys() - _ANNOTATIONS - {"type", *known}:
        kind = schema.get("type", "this place")
        raise SchemaRefused(where, f"keyword {word!r} is not supported for {kind}; remove it")


def _limits(schema: dict[str, Any], words: Mapping[str, str], where: str) -> dict[str, Any]:
    """msgspec's names of limits for JSON Schema's."""
    limits = {}
    for word, name in words.items():
        if word in schema:
            value = schema[word]
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise SchemaRefused(where, f"{word} must be a number")
            limits[name] = value
    return limits


def _annotated(annotation: Any, limits: Mapping[str, Any], where: str = "#") -> Any:
    if not limits:
        return annotation
    try:
        return Annotated[annotation, msgspec.Meta(**limits)]
    except (TypeError, ValueError) as error:
        raise SchemaRefused(where, str(error)) from None


def _enum(schema: dict[str, Any], where: str) -> _Part:
    _refuse_others(schema, ("enum", "const"), where)
    choices = schema.get("enum", [schema.get("const")])
    if not isinstance(choices, list):
        raise SchemaRefused(where, "enum must be a list")
    values = [choice for choice in choices if choice is not None]
    low, high = _INT64
    if values and all(isinstance(value, str) for value in values):
        arrow = pa.string()
    elif values and all(type(value) is int and low <= value <= high for value in values):
        arrow = pa.int64()
    else:
        raise SchemaRefused(where, "enum and const can only be texts, or only integers")
    kinds = schema.get("type")
    if kinds is not None:
        kind, _ = _kind(schema, where)
        if kind not in (("string",) if arrow == pa.string() else ("integer", "number")):
            raise SchemaRefused(where, f"the values are not of type {kind}")
    part = _Part(column=Scalar(arrow=arrow), annotation=Literal[tuple(values)])
    return _nullable(part) if len(values) < len(choices) else part


def _string(schema: dict[str, Any], where: str) -> _Part:
    if schema.get("contentEncoding") == "base64":
        _refuse_others(schema, ("contentEncoding", "contentMediaType"), where)
        return _Part(column=Scalar(arrow=pa.binary()), annotation=bytes)
    match schema.get("format"):
        case "date-time":
            _refuse_others(schema, ("format",), where)
            return _Part(
                column=Scalar(arrow=TIME), annotation=Annotated[datetime, msgspec.Meta(tz=True)]
            )
        case "date":
            _refuse_others(schema, ("format",), where)
            return _Part(column=Scalar(arrow=pa.date32()), annotation=date)
        case "decimal":
            return _decimal(schema, where)
        case "uuid":
            _refuse_others(schema, ("format",), where)
            return _Part(
                column=Scalar(arrow=pa.string()),
                annotation=Annotated[str, msgspec.Meta(pattern=_UUID)],
            )
    # Other formats are annotations, as the standard has it.
    _refuse_others(schema, ("format", "minLength", "maxLength", "pattern"), where)
    limits = _limits(schema, {"minLength": "min_length", "maxLength": "max_length"}, where)
    if "pattern" in schema:
        try:
            re.compile(schema["pattern"])
        except (re.error, TypeError) as error:
            raise SchemaRefused(where, f"pattern: {error}") from None
        limits["pattern"] = schema["pattern"]
    return _Part(column=Scalar(arrow=pa.string()), annotation=_annotated(str, limits, where))


def _integer(schema: dict[str, Any], where: str) -> _Part:
    _refuse_others(schema, ("format", "multipleOf", *_BOUNDS), where)
    limits = _limits(schema, _BOUNDS | {"multipleOf": "multiple_of"}, where)
    if any(int(value) != value for value in limits.values()):
        raise SchemaRefused(where, "limits of an integer must be integers")
    limits = {name: int(value) for name, value in limits.items()}
    unit = _TIME_UNITS.get(schema.get("format", ""))
    low, high = _INT32 if schema.get("format") == "int32" else _INT64
    # msgspec takes one lower and one upper limit; the type's own hold as well.
    if "gt" in limits:
        limits["ge"] = max(limits.pop("gt") + 1, limits.get("ge", low))
    if "lt" in limits:
        limits["le"] = min(limits.pop("lt") - 1, limits.get("le", high))
    limits["ge"] = max(limits.get("ge", low), low)
    limits["le"] = min(limits.get("le", high), high)
    annotation = _annotated(int, limits, where)
    if unit is not None:
        return _Part(column=Scalar(arrow=TIME, factor=unit), annotation=annotation)
    arrow = pa.int32() if schema.get("format") == "int32" else pa.int64()
    return _Part(column=Scalar(arrow=arrow), annotation=annotation)


def _number(schema: dict[str, Any], where: str) -> _Part:
    if schema.get("format") == "decimal":
        return _decimal(schema, where)
    _refuse_others(schema, ("format", *_BOUNDS), where)
    limits = {k: float(v) for k, v in _limits(schema, _BOUNDS, where).items()}
    for pair in (("ge", "gt"), ("le", "lt")):
        if pair[0] in limits and pair[1] in limits:
            raise SchemaRefused(where, "give one lower and one upper limit")
    arrow = pa.float64()
    if schema.get("format") == "float":
        arrow = pa.float32()
        if not limits.keys() & {"ge", "gt"}:
            limits["ge"] = -_FLOAT32_MAX
        if not limits.keys() & {"le", "lt"}:
            limits["le"] = _FLOAT32_MAX
    return _Part(column=Scalar(arrow=arrow), annotation=_annotated(float, limits, where))


def _decimal(schema: dict[str, Any], where: str) -> _Part:
    """Written as a number or as a text, and never rounded."""
    _refuse_others(schema, ("format", "precision", "scale"), where)
    precision, scale = schema.get("precision", 38), schema.get("scale")
    if type(precision) is not int or type(scale) is not int:
        raise SchemaRefused(where, "a decimal needs `scale`, the digits after the point")
    if not 1 <= precision <= 38 or not 0 <= scale <= precision:
        raise SchemaRefused(where, f"decimal({precision}, {scale}) is beyond decimal(38, 38)")
    return _Part(column=Scalar(arrow=pa.decimal128(precision, scale)), annotation=Decimal)


def _text(raw: msgspec.Raw) -> str | None:
    text = bytes(raw).decode()
    return None if text in ("", "null") else text


_prepare_text: Callable[[Any], Any] = _text
_TEXT: Final = _Part(
    column=Scalar(arrow=pa.string(), prepare=_prepare_text), annotation=msgspec.Raw
)
