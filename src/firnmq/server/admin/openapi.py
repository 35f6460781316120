"""The OpenAPI document, made from the table of endpoints and the types of their documents."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from firnmq.server.admin.endpoint import Endpoint
from firnmq.server.documents import Failure, Readiness

_REFERENCE = "#/components/schemas/{name}"


def openapi(endpoints: Sequence[Endpoint], version: str) -> dict[str, Any]:
    kinds: list[Any] = [Failure, Readiness]
    for each in endpoints:
        kinds += [kind for kind in (each.takes, each.gives) if kind is not None]
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_REFERENCE)
    by_kind = dict(zip(map(repr, kinds), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for each in endpoints:
        paths.setdefault(each.path, {})[each.method.lower()] = _operation(each, by_kind)
    for path, summary in (("live", "Whether the process works."), ("ready", "Whether it serves.")):
        content = {"application/json": {"schema": by_kind[repr(Readiness)]}}
        answer = {"description": summary, "content": content}
        paths[f"/health/{path}"] = {"get": {"summary": summary, "responses": {"200": answer}}}
    metrics = {"description": "Prometheus text format.", "content": {"text/plain": {}}}
    paths["/metrics"] = {"get": {"summary": "Metrics.", "responses": {"200": metrics}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "FirnMQ node", "version": version},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def _operation(endpoint: Endpoint, by_kind: dict[str, Any]) -> dict[str, Any]:
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)}", endpoint.path)
    ]
    parameters += [
        {"name": name, "in": "query", "description": each.text, "schema": {"type": each.kind}}
        for name, each in endpoint.query.items()
    ]
    answer = _content(by_kind[repr(endpoint.gives)])
    if endpoint.stream is not None:
        answer = {"application/x-ndjson": answer["application/json"]}
    if endpoint.events is not None:
        answer = {"text/event-stream": answer["application/json"]}
    operation: dict[str, Any] = {
        "summary": endpoint.summary,
        "x-role": endpoint.role.name.lower(),
        "parameters": parameters,
        "responses": {
            "200": {"description": "Done.", "content": answer},
            "default": {"description": "Refused.", "content": _content(by_kind[repr(Failure)])},
        },
    }
    if endpoint.takes is not None:
        body = _content(by_kind[repr(endpoint.takes)])
        operation["requestBody"] = {"required": True, "content": body}
    return operation


def _content(schema: Any) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
