"""Read the functions and marks of a server's tools, for each supported MCP library.

Risks: the server reads the marks of one tool and runs another. That can happen with a list of
tools, because the list may be filtered, and contains only one version of each tool. This module
therefore finds a tool in the same way as the library does when the tool is called.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import ModuleType
from typing import Any, TypeAlias, cast

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server as LowLevelServer

from flows.elicitation.tool_call import DescribedTool
from flows.kinds.gate import Gate, Need, mark_of, needs_of
from flows.shown import looks_of, readable_name
from webapp.mcp.received import validated_by

Context: TypeAlias = ServerRequestContext[Any, Any]
Server: type[Any] = LowLevelServer  # LowLevelServer is generic; the parameter is not needed
_INSIDE_AT_MOST = 20
_PAGES_AT_MOST = 1000
# Limits for the title, the description and the arguments of a tool that a question stores.
_TITLE_CHARACTERS = 200
_DESCRIPTION_CHARACTERS = 1000
_ARGUMENTS_AT_MOST = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """A tool of a mounted server, to which a tool of the outer server delegates its calls."""

    server: Any
    name: str
    version: str | None
    is_given_the_same: bool  # True if no layer between the two tools changes the arguments


@dataclass(frozen=True, kw_only=True)
class ServedTool:
    """A served tool. `function` is the author's innermost function, or None if not known."""

    name: str
    version: str | None  # the version of the tool that runs, if the author gave it one
    function: Callable[..., Any] | None
    is_destructive: bool | None  # the tool's annotation `destructiveHint`, or None
    has_output_schema: bool  # if True, clients refuse a successful result that has only text
    # the functions of all layers, the outermost first
    functions: tuple[Callable[..., Any], ...] = ()
    inside: tuple[Inside, ...] = ()
    schema: Mapping[str, Any] | None = None  # the schema of the tool's arguments
    # Validates arguments as the library does, without running the tool. None if a layer changes the
    # arguments.
    validate: Callable[[dict[str, Any]], Mapping[str, Any]] | None = None
    title: str | None = None
    description: str | None = None

    @property
    def described(self) -> DescribedTool:
        """The tool's name, title, description and arguments, shortened to the limits above."""
        return DescribedTool(
            name=self.name,
            title=title_of(self.title),
            description=(self.description or "")[:_DESCRIPTION_CHARACTERS].strip() or None,
            arguments=tuple(_argument_titles(self.schema))[:_ARGUMENTS_AT_MOST],
            is_destructive=self.is_destructive is True,
        )

    @cached_property
    def gate(self) -> Gate | None:
        """The outermost gate mark that is not `off`, or else the outermost mark."""
        marks = [mark for function in self.functions if (mark := mark_of(function)) is not None]
        return next((mark for mark in marks if not mark.is_off), marks[0] if marks else None)

    @cached_property
    def needs(self) -> tuple[Need, ...]:
        """The needs of all functions. A need that `functools.wraps` copied is listed once."""
        needs = [need for function in self.functions for need in needs_of(function)]
        return tuple({id(need): need for need in needs}.values())


def is_fastmcp(server: Any) -> bool:
    return hasattr(server, "_mcp_server") and hasattr(server, "get_tool")


def low_level_of(server: Any) -> Any:
    """Return the low-level server, which each library stores under a different name."""
    inner = getattr(server, "_mcp_server", None) or getattr(server, "_lowlevel_server", None)
    return inner or server


def middleware_of(server: Any) -> list[object]:
    """Return the middleware of a server of any library. Raises TypeError for another object."""
    found = getattr(low_level_of(server), "middleware", None)
    if isinstance(found, list):
        return cast("list[object]", found)
    kind = f"the module {server.__name__}" if isinstance(server, ModuleType) else None
    inside = [
        f"{server.__name__}.{name}"
        for name, value in (vars(server).items() if kind else ())
        if type(value).__module__.startswith(("mcp.", "fastmcp."))
        and isinstance(getattr(low_level_of(value), "middleware", None), list)
    ]
    instead = f"Pass {' or '.join(inside)}." if inside else "Pass the object of the server."
    raise TypeError(
        f"{kind or type(server).__name__} is not an MCPServer, a FastMCP server or a low-level "
        f"Server. {instead}"
    )


async def tool_of(
    server: Any,
    name: str,
    *,
    meta: object = None,
    is_inner: bool = False,
    context: Context | None = None,
) -> ServedTool | None:
    """Return the tool that a call of this name runs, or None.

    `meta` is the call's own `_meta`, which may name a version. A low-level server lists its tools
    only within a request, because its handler gets the request's `context`.
    """
    if is_fastmcp(server):
        tool = await _found(server, name, version=_version_in(meta, has_ranges=is_inner))
        return None if tool is None else await _served(server, tool)
    manager = getattr(server, "_tool_manager", None)
    tool = manager.get_tool(name) if manager is not None else None
    if tool is None:  # a subclass of the server may list tools that are not in its manager
        tool = next((one for one in await _listed(server, context) if one.name == name), None)
    if tool is None and isinstance(server, Server):  # a low-level server may run unlisted tools
        tool = types.Tool(name=name, input_schema={})
    return None if tool is None else await _served(server, tool)


async def has_tool(server: Any, name: str, *, context: Context) -> bool:
    """Return True if the server has a tool of this name."""
    if isinstance(server, Server):
        return any(one.name == name for one in await _listed(server, context))
    return await tool_of(server, name) is not None


async def tools_of(server: Any, *, context: Context | None = None) -> list[ServedTool]:
    """Return one listed tool of each name. The author's own middleware is not applied."""
    return [await _served(server, tool) for tool in await _listed(server, context)]


async def own_functions(server: Any) -> list[Callable[..., Any]]:
    """Return the functions that are registered at this server, without those of mounted servers."""
    local = getattr(server, "_local_provider", None)
    manager = getattr(server, "_tool_manager", None)
    tools: Sequence[Any] = await local.list_tools() if local is not None else ()
    tools = manager.list_tools() if manager is not None else tools
    found = [getattr(tool, "fn", None) for tool in tools]
    return [each for each in (*found, _function_of(server, "")) if each is not None]


async def functions_without_tools(server: Any) -> list[Callable[..., Any]]:
    """Return the functions of this server's own resources and prompts."""
    found: list[Any] = []
    if (local := getattr(server, "_local_provider", None)) is not None:
        for listed in (local.list_resources, local.list_resource_templates, local.list_prompts):
            found += await listed()
    elif (resources := getattr(server, "_resource_manager", None)) is not None:
        found += [*resources.list_resources(), *resources.list_templates()]
        prompts = getattr(server, "_prompt_manager", None)
        found += [] if prompts is None else prompts.list_prompts()
    return [each.fn for each in found if callable(getattr(each, "fn", None))]


async def _listed(server: Any, context: Context | None) -> Sequence[Any]:
    if isinstance(server, Server):
        return [] if context is None else await _listed_by_handler(server, context)
    if not is_fastmcp(server):
        listed: Sequence[Any] = await server.list_tools()
        return listed
    from fastmcp.utilities.versions import (  # noqa: PLC0415 - an optional library
        dedupe_with_versions,
    )

    tools = await server.list_tools(run_middleware=False)
    return dedupe_with_versions(tools, lambda tool: tool.name)  # the newest of each tool


async def _listed_by_handler(server: Any, context: Context) -> list[types.Tool]:
    """Call a low-level server's `tools/list` handler for all pages, and return the tools."""
    entry, tools = server.get_request_handler("tools/list"), list[types.Tool]()
    cursor: str | None = None
    for _ in range(_PAGES_AT_MOST if entry is not None else 0):
        assert entry is not None
        asked = types.PaginatedRequestParams(cursor=cursor)
        within = replace(context, method="tools/list", params={"cursor": cursor} if cursor else {})
        page = types.ListToolsResult.model_validate(
            await entry.handler(within, asked), from_attributes=True
        )
        tools += page.tools
        cursor = page.next_cursor
        if not cursor:
            break
    return tools


async def _served(server: Any, tool: Any) -> ServedTool:
    annotations = getattr(tool, "annotations", None)
    schema = getattr(tool, "parameters", None) or getattr(tool, "input_schema", None)
    functions, inside, innermost = await _layers_of(tool)
    if not functions and (own := _function_of(server, tool.name)) is not None:
        functions = [own]
    return ServedTool(
        name=tool.name,
        version=_version_of(tool),
        function=functions[-1] if functions else None,
        is_destructive=getattr(annotations, "destructive_hint", None),
        has_output_schema=getattr(tool, "output_schema", None) is not None,
        functions=tuple(functions),
        inside=tuple(inside),
        schema=cast("Mapping[str, Any]", schema)
        if isinstance(schema, Mapping) and schema
        else None,
        validate=_validation_of(inside[-1].server if inside else server, innermost),
        title=getattr(tool, "title", None) or getattr(annotations, "title", None),
        description=getattr(tool, "description", None),
    )


def title_of(title: object) -> str | None:
    """Return a title on one line and of limited length, or None if it has no visible text."""
    if not isinstance(title, str):
        return None
    return " ".join(looks_of(title[:_TITLE_CHARACTERS]).split()) or None


def _argument_titles(schema: Mapping[str, Any] | None) -> Iterator[tuple[str, str]]:
    """Yield the name and the title of each argument.

    If an argument has no title, or only the one that pydantic makes, yield a readable form of its
    name as the title.
    """
    found: Any = (schema or {}).get("properties")
    properties = cast("Mapping[object, Any]", found if isinstance(found, Mapping) else {})
    for name, about in properties.items():
        if not isinstance(name, str) or len(name) > _TITLE_CHARACTERS:
            continue
        given = cast("Any", about).get("title") if isinstance(about, Mapping) else None
        made = name.replace("_", " ").title()  # the title that pydantic makes from a name
        title = title_of(given) if given != made else None
        yield name, title or readable_name(name)


def _validation_of(server: Any, tool: Any) -> Callable[[dict[str, Any]], Mapping[str, Any]] | None:
    """Return the library's validation of the tool's arguments, or None.

    Return None if the arguments that the tool's function receives can differ from the validated
    arguments.
    """
    if (metadata := getattr(tool, "fn_metadata", None)) is not None:
        return cast("Callable[[dict[str, Any]], Mapping[str, Any]]", metadata.validate_arguments)
    if tool is None or not is_fastmcp(server):
        # MCPServer lists its tools without functions, as protocol types. Its manager has functions.
        manager = getattr(server, "_tool_manager", None)
        known = manager.get_tool(tool.name) if manager is not None and tool is not None else None
        return None if known is None else known.fn_metadata.validate_arguments
    from fastmcp.tools import FunctionTool  # noqa: PLC0415 - an optional library

    kind: Any = cast("Any", type)(tool)
    if kind.run is not FunctionTool.run:
        return None
    return validated_by(tool.fn, is_strict=bool(server.strict_input_validation))


async def _layers_of(tool: Any) -> tuple[list[Callable[..., Any]], list[Inside], Any]:
    """Return a tool's functions in all layers, the mounted tools, and the innermost tool.

    A tool may be made from another tool, or belong to a mounted server. A tool that only delegates
    has no marks of its own, so the marks of the tool that it delegates to must be read too. The
    innermost tool is None if a layer changes the arguments.
    """
    functions: list[Callable[..., Any]] = []
    inside: list[Inside] = []
    is_given_the_same = True
    for _ in range(_INSIDE_AT_MOST):
        if callable(function := getattr(tool, "fn", None)):
            functions.append(function)
        if (parent := getattr(tool, "parent_tool", None)) is not None:
            tool, is_given_the_same = parent, False
        elif (mounted := getattr(tool, "_server", None)) is not None:
            name = str(getattr(tool, "_original_name", None))
            version = _version_of(tool)
            inside.append(
                Inside(
                    server=mounted,
                    name=name,
                    version=version,
                    is_given_the_same=is_given_the_same,
                )
            )
            tool = await _found(mounted, name, version={"eq": version} if version else None)
        else:
            break
    return functions, inside, tool if is_given_the_same else None


def _version_of(tool: Any) -> str | None:
    version = getattr(tool, "version", None)
    return version if isinstance(version, str) and version else None


def _version_in(meta: object, *, has_ranges: bool) -> Mapping[str, str] | None:
    """Return the requested version, as FastMCP reads it from `_meta`.

    The version is a text. With `has_ranges` (nested calls), it can also be a range.
    """
    own = cast("Mapping[str, object]", meta).get("fastmcp") if isinstance(meta, Mapping) else None
    version = cast("Mapping[str, object]", own).get("version") if isinstance(own, Mapping) else None
    if isinstance(version, str) and version:
        return {"eq": version}
    is_range = has_ranges and isinstance(version, Mapping)
    return cast("Mapping[str, str]", version) if is_range else None


async def _found(server: Any, name: str, *, version: Mapping[str, str] | None) -> Any:
    """Return the tool that FastMCP's `call_tool` would run.

    The name is a tool's name, or an app tool's name with the hash that FastMCP puts before it.
    """
    from fastmcp.server.providers.addressing import (  # noqa: PLC0415 - an optional library
        parse_hashed_backend_name,
    )
    from fastmcp.utilities.versions import VersionSpec  # noqa: PLC0415 - as above

    asked = None
    if version is not None:
        asked = VersionSpec(gte=version.get("gte"), lt=version.get("lt"), eq=version.get("eq"))
    tool = await server.get_tool(name, asked)
    if tool is None and (hashed := parse_hashed_backend_name(name)) is not None:
        return await server.get_tool_by_hash(*hashed)
    return tool


def _function_of(server: Any, name: str) -> Callable[..., Any] | None:
    if isinstance(server, Server):  # One handler runs all tools, so its marks apply to each tool
        entry = server.get_request_handler("tools/call")
        return None if entry is None else entry.handler
    # MCPServer lists its tools as protocol types. Its manager has the functions.
    manager = getattr(server, "_tool_manager", None)
    tool = manager.get_tool(name) if manager is not None else None
    return getattr(tool, "fn", None)


def version_of(tool: ServedTool | None, params: Mapping[str, Any]) -> str | None:
    """Return the version of the tool that a call runs, or None if the tool has no version.

    If a person accepts a call of one version, no other version may run. The version is therefore
    part of the call, even if the client requested no version. If no tool is found, return the
    version that the client requested.
    """
    if tool is not None:
        return tool.version
    asked = _own(params).get("version")
    return asked if isinstance(asked, str) and asked else None


def with_version(params: Mapping[str, Any], version: str | None) -> dict[str, Any]:
    """Return a copy of a call's parameters that requests `version`. None requests no version."""
    own = {name: value for name, value in _own(params).items() if name != "version"}
    if version is not None:
        own["version"] = version
    meta = {name: value for name, value in _meta(params).items() if name != "fastmcp"}
    if own:
        meta["fastmcp"] = own
    return {**params, "_meta": meta} if meta or "_meta" in params else dict(params)


def _meta(params: Mapping[str, Any]) -> Mapping[str, Any]:
    return as_mapping(params.get("_meta"))


def _own(params: Mapping[str, Any]) -> Mapping[str, Any]:
    return as_mapping(_meta(params).get("fastmcp"))


def as_mapping(value: object) -> Mapping[str, Any]:
    """Return a JSON object of the client, or an empty one for another value."""
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}
