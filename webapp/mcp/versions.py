"""The version of a tool that a call is for: FastMCP can have several of one name.

Risks: an acceptance for one version lets another version run. A call therefore has the version of
the tool that runs, even if the client named none. If no tool is found, the requested version is
used.
"""

from collections.abc import Mapping
from typing import Any, cast

from webapp.mcp.tools import ServedTool

_META, _OWN, _VERSION = "_meta", "fastmcp", "version"


def version_of(tool: ServedTool | None, params: Mapping[str, Any]) -> str | None:
    """Return the version that a call with these parameters runs, or None without versions."""
    if tool is not None:
        return tool.version
    asked = _own(params).get(_VERSION)
    return asked if isinstance(asked, str) and asked else None


def with_version(params: Mapping[str, Any], version: str | None) -> dict[str, Any]:
    """Return the parameters with this version in place of any version that they name."""
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
