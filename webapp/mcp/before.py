"""What stands before a tool's body: the gate, and what the tool needs, by the marks on it."""

from flows.gating import gate_question
from webapp.call import Call
from webapp.mcp.needing import ask_needs
from webapp.mcp.tools import ServedTool


async def ask_first(
    call: Call, tool: ServedTool | None, *, name: str, arguments: str, is_inner: bool = False
) -> None:
    """Ask what is to be asked before the body starts; `call` is the Asker already.

    `name` and `arguments`, as canonical JSON, are the tool's own: one that another tool calls
    (`is_inner`) runs within the call of that one. Raises what the verbs raise: the model is told,
    and the body does not start.
    """
    await _ask_gate(call, tool, name=name, arguments=arguments, is_inner=is_inner)
    await ask_needs(call, tool, name=name, arguments=arguments, is_inner=is_inner)


async def _ask_gate(
    call: Call, tool: ServedTool | None, *, name: str, arguments: str, is_inner: bool
) -> None:
    # What an app calls by a hash is named by its name: so do the operator's patterns.
    names = [name] if tool is None or tool.name == name else [tool.name, name]
    for one in names:
        gate = call.kinds.gates.before(
            one,
            mark=tool.gate if tool is not None else None,
            is_destructive=tool is not None and tool.is_destructive is True,
        )
        if gate is not None:
            await gate_question(
                gate,
                tool=one,
                arguments=arguments,
                # A yes is kept for the tool that was called: it would hold for all that it calls.
                can_be_kept=not (is_inner or call.caller.is_anonymous),
            )
            return
