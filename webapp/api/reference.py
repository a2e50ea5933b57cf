"""The API reference: the OpenAPI document, and the same content as a plain HTML page.

The framework generates the document from the routes. This module adds the parts that the framework
cannot know: problem details for every error, the resource of each route, and the body of the proxy.

Risks: a documentation page loads a script from another host, and the script then runs in the origin
of the pages where people answer questions. So the reference page has no scripts, and loads only
this server's style sheet.
"""

import re
from collections.abc import Iterator, Mapping
from html import escape
from inspect import cleandoc
from typing import Any, Final, cast

from litestar import Router
from litestar.connection import Request
from litestar.openapi.plugins import OpenAPIRenderPlugin
from litestar.openapi.spec import (
    OpenAPI,
    OpenAPIMediaType,
    OpenAPIResponse,
    Operation,
    PathItem,
    Reference,
    RequestBody,
    Schema,
    Tag,
)
from litestar.openapi.spec.enums import OpenAPIFormat, OpenAPIType
from msgspec import Struct

PATH: Final = "/api/reference"
PROBLEM: Final = "Problem"
_PROXY: Final = "/proxy"
_METHODS: Final = ("get", "head", "post", "put", "patch", "delete")
_TYPED: Final = ("post", "put", "patch")  # methods whose requests have a body
_POLICY: Final = "default-src 'none'; style-src 'self'; frame-ancestors 'none'; base-uri 'none'"
_TEXT, _NUMBER = Schema(type=OpenAPIType.STRING), Schema(type=OpenAPIType.INTEGER)
_ANYTHING: Final = RequestBody(
    description="A body of any content type, which the proxy sends to the provider unchanged.",
    content={
        "application/octet-stream": OpenAPIMediaType(
            schema=Schema(type=OpenAPIType.STRING, format=OpenAPIFormat.BINARY)
        )
    },
)
_THE_PROVIDERS: Final = OpenAPIResponse(
    description="The provider's status, headers and body, or problem details if no response came.",
    content={"*/*": OpenAPIMediaType(schema=Schema())},
)
_CODE: Final = re.compile(r"`([^`]+)`")
_Json = Mapping[str, Any]


class ReferencePage(OpenAPIRenderPlugin):
    """The renderer of the HTML page."""

    def __init__(self) -> None:
        super().__init__(path="/")

    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:
        return page(openapi_schema).encode()


def reference_router() -> Router:
    """Return the router of the page and the document. The page may load our style sheet."""
    return Router(
        PATH,
        route_handlers=[],
        include_in_schema=False,
        response_headers={"content-security-policy": _POLICY},
    )


def complete(document: OpenAPI) -> None:
    """Add the descriptions, errors and resources that the framework leaves out."""
    assert document.components is not None
    schemas = document.components.schemas or {}
    for described in _described_structs(
        Struct
    ):  # the framework does not read the docstring of a Struct
        if isinstance(schema := schemas.get(described.__name__), Schema):
            schema.description = cleandoc(described.__doc__ or "")
    document.components.schemas = {**schemas, PROBLEM: _problem()}
    problem = OpenAPIResponse(
        description="Problem details (RFC 9457); `detail` says what to do.",
        content={
            "application/problem+json": OpenAPIMediaType(
                schema=Reference(ref=f"#/components/schemas/{PROBLEM}")
            )
        },
    )
    resources = dict[str, None]()
    for path, item in (document.paths or {}).items():
        resource = path.split("/")[2]
        resources[resource] = None
        for method, operation in _operations_of(item):
            operation.tags = [resource]
            answers = dict(operation.responses or {})
            answers.pop("400", None)  # the framework's own error format
            operation.responses = {**answers, "default": problem}
            if path.endswith(_PROXY):
                operation.responses = {"default": _THE_PROVIDERS}
                operation.request_body = _ANYTHING if method in _TYPED else None
    document.tags = [Tag(name=resource) for resource in resources]


def page(document: _Json) -> str:
    """Return the HTML page of an OpenAPI document."""
    title = escape(document["info"]["title"])
    resources = [str(tag["name"]) for tag in document["tags"]]
    links = "".join(f'<li><a href="#{name}">{name.capitalize()}</a></li>' for name in resources)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}: HTTP API'
        '</title><meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="stylesheet" href="../static/elicit.css"></head><body>'
        f"<main><h1>{title}: HTTP API</h1><p>{escape(document['info'].get('summary') or '')}</p>"
        "<p>Each request needs a key, or the access token of a person who acts: "
        "<code>Authorization: Bearer KEY</code>. There is also an "
        '<a href="reference/openapi.json">OpenAPI document</a>.</p>'
        f'<nav><ul>{links}<li><a href="#schemas">Schemas</a></li></ul></nav>'
        f"{''.join(part for name in resources for part in _resource(document, name))}"
        f'<h2 id="schemas">Schemas</h2>{"".join(_schemas(document))}</main></body></html>'
    )


def _described_structs(base: type[Struct]) -> Iterator[type[Struct]]:
    """Yield the Structs of this package; Structs of other packages may have the same names."""
    for described in base.__subclasses__():
        if described.__module__.startswith(f"{__package__}."):
            yield described
        yield from _described_structs(described)


def _problem() -> Schema:
    return Schema(
        type=OpenAPIType.OBJECT,
        description="What went wrong, and what to do.",
        properties={
            "type": _TEXT,
            "title": _TEXT,
            "status": _NUMBER,
            "detail": _TEXT,
            "code": _TEXT,
        },
        required=["type", "title", "status", "detail"],
    )


def _operations_of(item: PathItem) -> Iterator[tuple[str, Operation]]:
    for method in _METHODS:
        operation: Operation | None = getattr(item, method)
        if operation is not None:
            yield method, operation


def _resource(document: _Json, name: str) -> Iterator[str]:
    yield f'<h2 id="{name}">{name.capitalize()}</h2>'
    for path, item in cast("Mapping[str, _Json]", document["paths"]).items():
        same = dict[str, list[str]]()  # several methods with the same description are shown as one
        for method in _METHODS:
            if method in item and name in item[method]["tags"]:
                same.setdefault(str(item[method].get("description")), []).append(method)
        for methods in same.values():
            yield from _operation(path, [method.upper() for method in methods], item[methods[-1]])


def _operation(path: str, methods: list[str], operation: _Json) -> Iterator[str]:
    yield f"<h3>{' '.join(methods)} <code>{escape(path)}</code></h3>"
    yield _prose(operation.get("description"))
    if parameters := operation.get("parameters"):
        yield f"<ul>{''.join(map(_parameter, parameters))}</ul>"
    sent = _named(operation.get("requestBody") or {})
    received = [
        _named(answer) for code, answer in operation["responses"].items() if code != "default"
    ]
    for word, names in (("Body", [sent]), ("Answer", received)):
        if links := ", ".join(map(_link, dict.fromkeys(filter(None, names)))):
            yield f"<p>{word}: {links}</p>"


def _parameter(parameter: _Json) -> str:
    needed = ", required" if parameter.get("required") else ""
    where = f"{parameter['in']}, {_type(parameter['schema'])}{needed}"
    return f"<li><code>{escape(parameter['name'])}</code> ({where})</li>"


def _schemas(document: _Json) -> Iterator[str]:
    schemas = cast("Mapping[str, _Json]", document["components"].get("schemas", {}))
    for name, schema in schemas.items():
        yield f'<h3 id="{escape(_last(name))}">{escape(_last(name))}</h3>'
        yield _prose(schema.get("description"))
        if words := schema.get("enum"):
            yield f"<p>{', '.join(f'<code>{escape(str(word))}</code>' for word in words)}</p>"
        needed = schema.get("required", ())
        fields = [
            f"<li><code>{escape(field)}</code> ({_type(its)}"
            f"{', required' if field in needed else ''})</li>"
            for field, its in cast("Mapping[str, _Json]", schema.get("properties", {})).items()
        ]
        if fields:
            yield f"<ul>{''.join(fields)}</ul>"


def _prose(text: str | None) -> str:
    """Return the paragraphs of a docstring as HTML, with text between backticks as code."""
    parts = [_CODE.sub(r"<code>\1</code>", part) for part in escape(text or "").split("\n\n")]
    return "".join(f"<p>{part}</p>" for part in parts if part)


def _type(schema: _Json) -> str:
    """Return a short name of the type; for a union, the first type that is not null."""
    for one in cast("list[_Json]", schema.get("oneOf", [schema])):
        if one.get("type") == "null":
            continue
        if reference := one.get("$ref"):
            return _link(_last(str(reference)))
        if one.get("type") == "array":
            return f"list of {_type(one.get('items', {}))}"
        return escape(str(one.get("format") or one.get("type") or "any JSON"))
    return "null"


def _link(name: str) -> str:
    return f'<a href="#{escape(name)}">{escape(name)}</a>'


def _named(body: _Json) -> str:
    """Return the schema name of a body, or "" if the body has no schema of this API."""
    for media in cast("Mapping[str, Mapping[str, _Json]]", body.get("content", {})).values():
        return _last(str(media.get("schema", {}).get("$ref", "")))
    return ""


def _last(name: str) -> str:
    return name.rpartition("/")[2].rpartition("_")[2]
