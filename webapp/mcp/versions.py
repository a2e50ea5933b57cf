"""Which version of a tool a call is for (FastMCP has many of one name), read and put back.

What could go wrong: a yes to one version that lets another one run. It is the version that is found
to run, also where the client named none; what is not found has the one that was asked for.
"""

from collections.abc import Mapping
from typing import Any, cast

from webapp.mcp.tools import ServedTool

_META, _OWN, _VERSION = "_meta", "fastmcp", "version"


def version_of(tool: ServedTool | None, params: Mapping[str, Any]) -> str | None:
    """The version that a call with these parameters runs; None where there is but one."""
    if tool is not None:
        return tool.version
    asked = _own(params).get(_VERSION)
    return asked if isinstance(asked, str) and asked else None


def with_version(params: Mapping[str, Any], version: str | None) -> dict[str, Any]:
    """The parameters of a call for that version, whichever they named before."""
    own = {name: value for name, value in _own(params).items() if name != _VERSION}
    if version is not None:
        own[_VERSION] = version
    meta = {name: value for name, value in _meta(params).items() if name != _OWN}
    if own:
        meta[_OWN] = own
    return {**params, _META: meta} if meta or _META in params else dict(params)


def _meta(params: Mapping[str, Any]) -> Mapping[str, Any]:
    return _mapping(params.get(_META))


def _own(params: Mapping[str, Any]) -> Mapping[str, Any]:
    return _mapping(_meta(params).get(_OWN))


def _mapping(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}
