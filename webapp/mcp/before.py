"""What stands before a tool's body: the gate, and what the tool needs, by the marks on it."""

from flows.gating import gate_question, mark_of
from webapp.call import Call
from webapp.mcp.needing import ask_needs
from webapp.mcp.tools import ServedTool


async def ask_first(call: Call, tool: ServedTool | None) -> None:
    """Ask what is to be asked before the body starts; `call` is the Asker already.

    Raises what the verbs raise: the model is told, and the body does not start.
    """
    await _ask_gate(call, tool)
    await ask_needs(call, tool)


async def _ask_gate(call: Call, tool: ServedTool | None) -> None:
    name = call.tool.tool
    gate = call.kinds.gates.before(
        name,
        mark=mark_of(tool.function) if tool is not None else None,
        is_destructive=tool is not None and tool.is_destructive is True,
    )
    if gate is not None:
        await gate_question(
            gate,
            tool=name,
            arguments=call.tool.arguments,
            can_be_kept=not call.caller.is_anonymous,
        )
