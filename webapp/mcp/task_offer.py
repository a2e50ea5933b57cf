"""The offer of tasks: which clients get tasks, and how each protocol revision declares them.

Risks: a client without support for tasks sees a difference, or a client gets a task and shows its
person nothing. So only a client that declares tasks, shows links and has an identity gets tasks. A
caller who needs user codes in the chat gets no tasks, because the codes need an open call. If a
server has its own tasks (for example from an extension of its library), this module offers none.
"""

from collections.abc import Callable, Mapping
from typing import Any, cast

import mcp_types as types

from flows.elicitation.capabilities import modes_of
from webapp.identity.identity import Caller
from webapp.mcp.declared import TASKS, Declared, has_tasks
from webapp.mcp.results import MODERN, Result
from webapp.mcp.tools import low_level_of


class TaskOffer:
    """The offer of tasks of one served server."""

    def __init__(self, server: Any, *, is_on: bool) -> None:
        self._server = server
        self._is_on = is_on

    @property
    def is_ours(self) -> bool:
        """True if the operator allows tasks and the server has no tasks of its own."""
        has_own = low_level_of(self._server).get_request_handler("tasks/get") is not None
        return self._is_on and not has_own

    def is_for(self, declared: Declared, caller: Callable[[], Caller]) -> bool:
        """Return True if this client gets tasks. `caller` is called only if the rest is true."""
        shows = declared.has_tasks and "url" in declared.modes
        return shows and self.is_ours and _has_name(caller())

    def promised(
        self, result: Result, params: Mapping[str, Any] | None, caller: Callable[[], Caller]
    ) -> Result:
        """Return the result of `initialize` or `server/discover`, and declare tasks if offered.

        At this point the client's declaration is only in `params`.
        """
        params = params or {}
        meta = _mapping(params.get("_meta"))
        version = str(result.get("protocolVersion") or MODERN)
        key = types.CLIENT_CAPABILITIES_META_KEY
        declared = _mapping(meta.get(key) if version >= MODERN else params.get("capabilities"))
        shows = has_tasks(declared, version) and "url" in modes_of(declared)
        if not (shows and self.is_ours and _has_name(caller())):
            return result
        capabilities = dict(_mapping(result.get("capabilities")))
        if version >= MODERN:
            capabilities["extensions"] = {**_mapping(capabilities.get("extensions")), TASKS: {}}
        else:
            capabilities["tasks"] = {"cancel": {}, "requests": {"tools": {"call": {}}}}
        return {**result, "capabilities": capabilities}

    def listed(self, result: Result, declared: Declared, caller: Callable[[], Caller]) -> Result:
        """Return a list of tools, each marked as a possible task on 2025-11-25."""
        if declared.is_modern or not self.is_for(declared, caller):
            return result
        may_be = {"execution": {"taskSupport": "optional"}}
        return {**result, "tools": [{**may_be, **tool} for tool in result.get("tools", [])]}


def _has_name(caller: Caller) -> bool:
    return caller.owner is not None and caller.refusal is None and not caller.by_code


def _mapping(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}
