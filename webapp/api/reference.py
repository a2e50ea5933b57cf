"""The reference of the API: its OpenAPI document as a page, in plain HTML.

What could go wrong: a page of documentation that loads a script from another host, into the origin
of people's own pages. So there is none on it, nor a style.
"""

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any, cast

from litestar.connection import Request
from litestar.openapi.plugins import OpenAPIRenderPlugin

_Json = Mapping[str, Any]


class ReferencePage(OpenAPIRenderPlugin):
    """Renders it."""

    def __init__(self) -> None:
        super().__init__(path="/")

    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:
        return page(openapi_schema).encode()


def page(document: _Json) -> str:
    """The whole page of an OpenAPI document."""
    title = escape(document["info"]["title"])
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}: HTTP API'
        '</title><meta name="viewport" content="width=device-width, initial-scale=1"></head><body>'
        f"<main><h1>{title}: HTTP API</h1><p>{escape(document['info'].get('summary') or '')}</p>"
        "<p>Each request brings a key: <code>Authorization: Bearer KEY</code>. The same as an "
        '<a href="reference/openapi.json">OpenAPI document</a>.</p>'
        f"{''.join(_operations(document))}<h2>What travels</h2>{''.join(_schemas(document))}"
        "</main></body></html>"
    )


def _operations(document: _Json) -> Iterator[str]:
    for path, item in cast("Mapping[str, _Json]", document["paths"]).items():
        for method, operation in item.items():
            yield f"<h2><code>{method.upper()} {escape(path)}</code></h2>"
            yield f"<p>{escape(operation.get('description') or '')}</p>"
            if parameters := operation.get("parameters"):
                yield f"<ul>{''.join(map(_parameter, parameters))}</ul>"
            sent = cast("list[_Json]", [operation.get("requestBody") or {}])
            answers = cast("list[_Json]", list(operation["responses"].values()))
            named = [name for body in (*sent, *answers) if (name := _named(body))]
            if named:
                yield f"<p>{', '.join(map(escape, dict.fromkeys(named)))}</p>"


def _parameter(parameter: _Json) -> str:
    needed = ", required" if parameter.get("required") else ""
    return f"<li><code>{escape(parameter['name'])}</code> ({parameter['in']}{needed})</li>"


def _schemas(document: _Json) -> Iterator[str]:
    schemas = cast("Mapping[str, _Json]", document["components"].get("schemas", {}))
    for name, schema in schemas.items():
        yield f"<h3>{escape(_last(name))}</h3><p>{escape(schema.get('description') or '')}</p><ul>"
        needed = schema.get("required", ())
        for field in schema.get("properties", {}):
            yield f"<li><code>{escape(field)}</code>{', required' if field in needed else ''}</li>"
        yield "</ul>"


def _named(body: _Json) -> str:
    """Of a body, what its schema is called; nothing where it has none of ours."""
    for media in cast("Mapping[str, Mapping[str, _Json]]", body.get("content", {})).values():
        return _last(str(media.get("schema", {}).get("$ref", "")))
    return ""


def _last(name: str) -> str:
    return name.rpartition("/")[2].rpartition("_")[2]
