"""Checks of the operator's ELICIT_GATE and approvers against the served tools.

Risks: a misspelled name gates nothing, and the intended tool runs without a question. So the server
does not start with a name that matches no tool. If the server's own list is incomplete (tools of
another server behind it, or a list made for each caller), an unknown name is only logged.
"""

import difflib
import logging
from collections.abc import Collection
from fnmatch import fnmatchcase
from typing import Any

from flows.kinds.gate import GatePolicy
from webapp.mcp.before import servers_below
from webapp.mcp.tools import tools_of

_SIGNS_OF_A_PATTERN = frozenset("*?[")
_log = logging.getLogger(__name__)


class GateWithoutTool(ValueError):
    """A name in ELICIT_GATE matches no tool. The message suggests a similar name."""


async def must_name_tools(policy: GatePolicy, server: Any) -> None:
    """Check the names in ELICIT_GATE. Raises GateWithoutTool for a name that matches no tool.

    A pattern that matches no tool is only logged, and so is a name if the tool list is incomplete.
    """
    if not policy.patterns:
        return
    names, are_all = await _names(server)
    for word in policy.patterns:
        if any(fnmatchcase(name, word) for name in names):
            continue
        if are_all and not _SIGNS_OF_A_PATTERN & set(word):
            near = difflib.get_close_matches(word, names, n=1)
            meant = f"; perhaps {near[0]} is meant" if near else ""
            raise GateWithoutTool(f"ELICIT_GATE: this server has no tool {word!r}{meant}.")
        _log.warning("gate.names_no_tool", extra={"word": word})


async def warn_of_approvers(approvers: Collection[str], server: Any) -> None:
    """Log each gate of the server's own tools whose approver is not configured.

    Skip servers with mounted servers or other tool providers, because their list of tools may
    differ for each request.
    """
    if len(servers_below(server)) > 1 or _changes_its_list(server):
        return
    try:
        tools = await tools_of(server)
    except Exception:  # noqa: BLE001 - the author's own code
        _log.debug("gate.tools_not_listed", exc_info=True)
        return
    for tool in tools:
        name = None if tool.gate is None else tool.gate.approver
        if name is not None and name not in approvers:
            needs = f"[approvers.{name}] in elicit.toml"
            _log.warning("gate.names_no_approver", extra={"tool": tool.name, "needs": needs})


async def _names(server: Any) -> tuple[list[str], bool]:
    """Return the tools' names, also of mounted servers, and whether the list is complete."""
    found, are_all = list[str](), True
    for one in servers_below(server):
        try:
            found += [str(tool.name) for tool in await one.list_tools()]
        except Exception:  # noqa: BLE001 - the author's own code
            are_all = False
        are_all = are_all and not _changes_its_list(one)
    return sorted(set(found)), are_all


def _changes_its_list(server: Any) -> bool:
    """Return True if FastMCP providers or transforms may add tools to the server's own."""
    providers: list[Any] = getattr(server, "providers", [])
    local = getattr(server, "_local_provider", None)
    foreign = [one for one in providers if one is not local and not _is_mounted(one)]
    return bool(foreign or getattr(server, "transforms", []))


def _is_mounted(provider: Any) -> bool:
    inner = getattr(provider, "_inner", provider)
    return hasattr(getattr(inner, "server", None), "_mcp_server")
