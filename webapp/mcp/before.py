"""What stands before a tool's body: the gate, and what the tool needs, by the marks on it."""

import json
from collections.abc import Mapping
from typing import Any

from flows.errors import InvalidQuestion
from flows.kinds.gate import gate_question
from webapp.calls.verbs import Verbs
from webapp.mcp.needing import ask_needs
from webapp.mcp.received import not_shown, received
from webapp.mcp.tools import ServedTool


async def ask_first(
    verbs: Verbs,
    tool: ServedTool | None,
    *,
    name: str,
    arguments: str,
    given: Mapping[str, Any] | None = None,
    is_inner: bool = False,
) -> None:
    """Ask what is to be asked before the body starts; `verbs` are the Asker already.

    `name` and `arguments`, as canonical JSON, are the tool's own: one that another tool calls
    (`is_inner`) runs within the call of that one; `given` are its own arguments where they are no
    JSON yet. Raises what the verbs raise: the model is told,
    and the body does not start.
    """
    await _ask_gate(verbs, tool, name=name, arguments=arguments, given=given, is_inner=is_inner)
    await ask_needs(verbs, tool, name=name, arguments=arguments, is_inner=is_inner)


async def _ask_gate(
    verbs: Verbs,
    tool: ServedTool | None,
    *,
    name: str,
    arguments: str,
    given: Mapping[str, Any] | None,
    is_inner: bool,
) -> None:
    # What an app calls by a hash is named by its name: so do the operator's patterns.
    names = [name] if tool is None or tool.name == name else [tool.name, name]
    for one in names:
        gate = verbs.call.kinds.gates.before(
            one,
            mark=tool.gate if tool is not None else None,
            is_destructive=tool is not None and tool.is_destructive is True,
        )
        if gate is not None:
            given = json.loads(arguments) if given is None else given
            shown = received(
                # The library refuses what is no mapping; nobody is shown nothing.
                given if isinstance(given, dict) else {"arguments": given},
                tool=one,
                schema=tool.schema if tool is not None and isinstance(given, dict) else None,
                validate=tool.validate if tool is not None and isinstance(given, dict) else None,
            )
            try:
                question = gate_question(
                    gate,
                    tool=one,
                    arguments=arguments,
                    shown=shown,
                    # A yes is kept for the tool that was called: it would hold for all it calls.
                    can_be_kept=not (is_inner or verbs.call.caller.is_anonymous),
                )
            except InvalidQuestion as refused:
                raise not_shown(one, str(refused)) from None
            await question
            return
