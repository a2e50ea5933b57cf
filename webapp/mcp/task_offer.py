"""Who gets tasks, and how they are told: by the capabilities of either revision.

What could go wrong: a client that knows nothing of tasks sees a difference, or one is promised a
task that brings its person nothing. So a client declares them, shows links, and has a name; whoever
is asked by letters in the chat needs a call for them. A server that has tasks of its own (an
extension of its library, for instance) keeps those, and gets none of ours.
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
    """Of one served server."""

    def __init__(self, server: Any, *, is_on: bool) -> None:
        self._server = server
        self._is_on = is_on

    @property
    def is_ours(self) -> bool:
        """Whether they are ours to give: not where the operator says no, or the server has some."""
        has_own = low_level_of(self._server).get_request_handler("tasks/get") is not None
        return self._is_on and not has_own

    def is_for(self, declared: Declared, caller: Callable[[], Caller]) -> bool:
        """Whether this client gets tasks; who calls is asked for only where that matters."""
        shows = declared.has_tasks and "url" in declared.modes
        return shows and self.is_ours and _has_name(caller())

    def promised(
        self, result: Result, params: Mapping[str, Any] | None, caller: Callable[[], Caller]
    ) -> Result:
        """A result of `initialize` or `server/discover`, with tasks for a client that gets them.

        All that is known of it yet is in these parameters.
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
        """A list of tools: on 2025-11-25 each says that it may be a task."""
        if declared.is_modern or not self.is_for(declared, caller):
            return result
        may_be = {"execution": {"taskSupport": "optional"}}
        return {**result, "tools": [{**may_be, **tool} for tool in result.get("tools", [])]}


def _has_name(caller: Caller) -> bool:
    return caller.owner is not None and caller.refusal is None and not caller.by_code


def _mapping(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}
