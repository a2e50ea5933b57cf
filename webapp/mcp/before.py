"""The questions before a tool's body: its gate and its needs, by the marks on the tool."""

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
    """Ask the questions that come before the body. `verbs` must already be the current Asker.

    `name` is the tool's name, and `arguments` are its arguments as canonical JSON. `is_inner`:
    another tool calls this tool; `given` are then the arguments as that tool passed them.
    Exceptions of the asking methods propagate, so the body does not start and the model gets the
    error.
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
    # Apps call a tool by a hash. Operators' patterns may use the tool's name or the hash.
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
                # The library will refuse arguments that are not a mapping. Show them as they are.
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
                    described=None if tool is None else tool.described,
                    # Do not remember the approval of an inner call: it would be stored for the
                    # outer tool and approve all other calls that the outer tool makes.
                    can_be_kept=not (is_inner or verbs.call.caller.is_anonymous),
                )
            except InvalidQuestion as refused:
                raise not_shown(one, str(refused)) from None
            await question
            return
