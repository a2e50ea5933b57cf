"""The questions before a tool's body: the gate and the needs that are marked on the tool.

The answers to the needs (`needs`) are passed to the body's awaits.

Risks: a tool that runs again asks a question twice, or does its work twice. Each request therefore
asks the same questions at the same places in the run, where earlier answers are found. Functions
that run on completion run in `once`.

On FastMCP, tools call other tools. A model must not reach a gated tool through a tool without a
gate (FastMCP's search transforms serve a `call_tool`), and no person is asked twice for one call.
Therefore this middleware is added to the served FastMCP server and to every server mounted below
it, as the innermost middleware, before any tool of a call runs. For the client's own call, and for
the tools on mounted servers to which that call delegates, `ask_first` has asked already. If an
author's middleware changes the arguments, the person is asked about both the sent and the changed
arguments, and each acceptance is stored. Not every call reaches this middleware, so the sent
arguments are always asked about.

Not covered: calls of a body that bypass the middleware (`run_middleware=False`, `Tool.run`), calls
on a server that is not served and not mounted, calls on a server that a body mounts while it runs,
changes by an extension's interceptor, and `MCPServer.call_tool`, which has no middleware. A server
that only an author's own provider knows is covered after the first call of one of its tools.
Resources and prompts cannot ask questions. If a tool calls itself, an acceptance is stored as for
the client's call.

The operator's ELICIT_GATE and approvers are checked against the served tools.

Risks: a misspelled name gates nothing, and the intended tool runs without a question. So the server
does not start with a name that matches no tool. If the server's own list is incomplete (tools of
another server behind it, or a list made for each caller), an unknown name is only logged.
"""

import copy
import difflib
import inspect
import json
import logging
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache, partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from flows.elicitation.misuse import InvalidUse, Unasked
from flows.elicitation.once_work import OnceWork
from flows.elicitation.states import Json
from flows.errors import (
    Cancelled,
    Declined,
    Denied,
    ElicitError,
    Expired,
    InvalidQuestion,
    NoAsker,
    NotAccepted,
    NotAsked,
)
from flows.kinds.gate import GatePolicy, Need, arguments_text, digest_of_arguments, gate_question
from flows.question import (
    Asker,
    Outcome,
    Question,
    asking,
    current_asker,
    current_body,
    reporting_errors,
)
from webapp.calls.leases import Fact
from webapp.calls.unasked import all_were_asked
from webapp.calls.verbs import Verbs
from webapp.importing import raised_at
from webapp.mcp.received import not_shown, received
from webapp.mcp.tools import ServedTool, tool_of, tools_of

_OF_QUESTION = re.compile(r"\bQuestion\b|\(\d+ sub-exceptions?\)$")  # Python's texts for misuses
# Errors whose message is replaced by a need's `decline_message`. Other errors are not changed.
_OF_THE_PERSON = (Declined, Denied, Cancelled, Expired)
# The names in the log lines of earlier versions.
_log = logging.getLogger("webapp.mcp.needing")
_gate_log = logging.getLogger("webapp.mcp.gated_names")


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
    another tool calls this tool; `given` then has the arguments that the other tool passed.
    Exceptions of the asking methods propagate, so the body does not start and the model gets the
    error.
    """
    await _ask_gate(verbs, tool, name=name, arguments=arguments, given=given, is_inner=is_inner)
    needs = tool.needs if tool is not None else ()
    passed: Mapping[str, Json] = json.loads(arguments) if needs else {}
    # Within one call, each nested tool's completion function runs once.
    prefix = f"{name}:{digest_of_arguments(arguments)}:" if is_inner else ""
    for number, need in enumerate(needs):
        await _ask_need(verbs, need, passed, need_id=f"{prefix}{number}")


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
        gate = verbs.call.kinds.gates.policy.gate_of(
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
                    can_be_stored=not (is_inner or verbs.call.caller.is_anonymous),
                )
            except InvalidQuestion as refused:
                raise not_shown(one, str(refused)) from None
            await question
            return


async def _ask_need(
    verbs: Verbs, need: Need, arguments: Mapping[str, Json], *, need_id: str
) -> None:
    with reporting_errors(need.place):
        facts = [verbs.fact(question.request) for question in need.questions]
    # A need that this call has asked is not skipped later: the places in the run would change.
    skip_if = need.skip_if if need.skip_if and not await _has_asked(verbs, facts) else None
    if skip_if is not None and await _author(verbs, skip_if, arguments, name="skip_if"):
        return
    outcomes = [await _yes(verbs, question, need) for question in need.questions]
    pairs = list(zip(need.questions, outcomes, strict=True))
    # Convert the answers before the body: an answer that the author's type refuses does not count.
    answers = [question.answer(outcome.content) for question, outcome in pairs]
    if need.on_complete is not None and await _has_asked(verbs, facts):
        await _complete(verbs, need.on_complete, answers, name=f"needs:{need_id}:{facts}")
    for (question, outcome), fact in zip(pairs, facts, strict=True):
        verbs.prefetched.put(fact, outcome, key=question.key)


async def _yes(verbs: Verbs, question: Question[Any], need: Need) -> Outcome[Json]:
    """Return the outcome with the unconverted answer. Raise the outcome's error if it has one."""
    place = question.place or need.place
    unconverted: Question[Json] = replace(question, answer=_unchanged, place=place)
    outcome = await unconverted.outcome()
    if outcome.error is not None:
        verbs.failed(error := _reworded(outcome.error, need.decline_message))
        raise error
    return outcome


async def _has_asked(verbs: Verbs, facts: list[Fact]) -> bool:
    """Return True if a person was asked one of these questions in this call."""
    run = await verbs.call.run.load()
    return any((asking.place.kind, asking.place.digest) in facts for asking in run.asked)


async def _complete(
    verbs: Verbs, on_complete: Callable[..., object], answers: list[object], *, name: str
) -> None:
    async def work(_: str) -> None:
        await _author(verbs, on_complete, *answers, name="on_complete")

    await verbs.once(OnceWork(name, work, again=None))


async def _author(
    verbs: Verbs, function: Callable[..., object], *given: object, name: str
) -> object:
    """Run an author's function and return its result. Its exceptions become ElicitErrors."""
    try:
        result = function(*given)
        return await result if inspect.isawaitable(result) else result
    except ElicitError:
        raise
    except Exception as error:
        tool = verbs.call.tool.tool
        _log.exception("needs.failed", extra={"tool": tool})
        file, _, line = raised_at(error).rpartition(":")
        raise InvalidUse(
            f"The tool {tool} could not start: its {name} raised {type(error).__name__}. The "
            "server's log has the details.",
            place=f"{Path(file).name}:{line}",
        ) from error


def _reworded(error: NotAccepted, message: str | None) -> NotAccepted:
    if message is None or not isinstance(error, _OF_THE_PERSON):
        return error
    copied = copy.copy(error)
    copied.args = (message,)
    return copied


def _unchanged(content: Json) -> Json:
    return content


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """A call whose gate and needs were asked. `arguments` is None if any arguments match."""

    server: Any
    name: str
    version: str | None
    arguments: str | None
    is_clients: bool  # the client's own call, or a tool that it delegates to
    marks: object = None  # None: any marks match

    def is_of(self, server: Any, name: str, tool: ServedTool | None) -> bool:
        """Return True if this is a call of the same tool, with any arguments."""
        return (
            self.server is server
            and self.name == name
            and self.version == (None if tool is None else tool.version)
            and self.marks in (None, _marks_of(tool))
        )


_asked: WeakKeyDictionary[Verbs, list[_Asked]] = WeakKeyDictionary()


def watch_inner_calls(server: Any) -> None:
    """Add the middleware to a FastMCP server and the servers mounted below it.

    This is repeated at each call, because the author may have mounted another server or added a
    middleware in the meantime.
    """
    if not hasattr(server, "_mcp_server"):
        return
    for one in _with_mounted(server):
        parts: list[object] = one.middleware
        own_parts = [part for part in parts if isinstance(part, _middleware())]
        if len(own_parts) != 1 or parts[-1] is not own_parts[0]:
            parts[:] = [part for part in parts if part not in own_parts]
            parts.append(_middleware()())


def enter_call(verbs: Verbs, server: Any, tool: ServedTool | None) -> None:
    """Register the client's own call, so that its gate and needs are not asked twice."""
    if not hasattr(server, "_mcp_server"):
        return  # only a tool of a FastMCP server calls another tool through our middleware
    watch_inner_calls(server)
    own = _Asked(
        server=server,
        name=verbs.call.tool.tool,
        version=None if tool is None else tool.version,
        arguments=verbs.call.tool.arguments,
        is_clients=True,
        marks=_marks_of(tool),
    )
    _asked[verbs] = [own]
    _enter_inside(verbs, tool, arguments=verbs.call.tool.arguments, is_clients=True)


async def _ask(server: Any, message: Any) -> None:
    try:
        verbs = current_asker()
    except NoAsker:
        return
    if not isinstance(verbs, Verbs):
        return
    arguments = arguments_text(message.arguments or {})
    tool = await tool_of(server, message.name, meta=message.meta, is_inner=True)
    alike = [one for one in _asked.get(verbs, ()) if one.is_of(server, message.name, tool)]
    if any(asked.arguments in (None, arguments) for asked in alike):
        return
    is_clients = any(asked.is_clients for asked in alike)
    await ask_first(
        verbs,
        tool,
        name=message.name,
        arguments=arguments,
        given=message.arguments or {},
        is_inner=not is_clients,
    )
    # The person has accepted, otherwise `ask_first` raises.
    _enter_inside(verbs, tool, arguments=arguments, is_clients=is_clients)


async def _run(context: Any, call_next: Any) -> Any:
    """Run a nested call and return its result.

    Raises NotAsked, as the tool's own error, if the tool created a question and did not ask it.
    """
    from fastmcp.tools.base import InputRequiredToolResult, ToolResult  # noqa: PLC0415 - optional

    try:
        asker = current_asker()
    except NoAsker:
        return await call_next(context)
    message = context.message
    digest = digest_of_arguments(arguments_text(message.arguments or {}))
    body = current_body().inner(f"{message.name} {digest}")
    check = partial(_all_were_asked, asker, tool=str(message.name))
    with asking(asker, body=body) as unasked:
        try:
            result = await call_next(context)
        except Exception as raised:
            if not isinstance(raised, ElicitError) and _OF_QUESTION.search(str(raised)):
                await check(unasked)
            raise
    is_final = isinstance(result, ToolResult) and not isinstance(result, InputRequiredToolResult)
    if is_final and not result.is_error:
        await check(unasked)
    return result


async def _all_were_asked(asker: Asker, unasked: Unasked, *, tool: str) -> None:
    try:
        await all_were_asked(unasked, tool=tool)
    except NotAsked as error:
        asker.failed(error)
        raise


def _enter_inside(
    verbs: Verbs, tool: ServedTool | None, *, arguments: str, is_clients: bool
) -> None:
    for inside in tool.inside if tool is not None else ():
        _asked.setdefault(verbs, []).append(
            _Asked(
                server=inside.server,
                name=inside.name,
                version=inside.version,
                arguments=arguments if inside.is_given_the_same else None,
                is_clients=is_clients,
            )
        )
        watch_inner_calls(inside.server)


def servers_below(server: Any) -> list[Any]:
    """Return the server and the servers mounted below it. Each lists tools by its own names."""
    return _with_mounted(server) if hasattr(server, "_mcp_server") else [server]


def _with_mounted(server: Any) -> list[Any]:
    """Return the server and the FastMCP servers below it: mounted, proxied or wrapped."""
    from fastmcp.server.providers import Provider  # noqa: PLC0415 - an optional library

    found: list[Any] = []
    ahead, seen = [server], set[int]()
    while ahead:
        one = ahead.pop()
        if not isinstance(one, Provider) or id(one) in seen:
            continue
        seen.add(id(one))
        if hasattr(one, "_mcp_server"):
            found.append(one)
        if isinstance(below := getattr(one, "providers", None), list):  # a server or an aggregate
            ahead += below
        # The provider that `one` wraps (a namespace, renamed tools), or the server behind it.
        ahead += [getattr(one, "_inner", None), getattr(one, "server", None)]
    return found


def _marks_of(tool: ServedTool | None) -> object:
    """Return the tool's marks, which may differ between versions and between sessions."""
    if tool is None:
        return ()
    return tool.gate, tool.is_destructive is True, tuple(map(id, tool.needs))


@cache
def _middleware() -> Any:
    from fastmcp.server.middleware import Middleware  # noqa: PLC0415 - an optional library

    class InnerCalls(Middleware):
        async def on_call_tool(self, context: Any, call_next: Any) -> Any:
            await _ask(context.fastmcp_context.fastmcp, context.message)
            return await _run(context, call_next)

    return InnerCalls


_SIGNS_OF_A_PATTERN = frozenset("*?[")


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
        _gate_log.warning("gate.names_no_tool", extra={"word": word})


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
        _gate_log.debug("gate.tools_not_listed", exc_info=True)
        return
    for tool in tools:
        name = None if tool.gate is None else tool.gate.approver
        if name is not None and name not in approvers:
            needs = f"[approvers.{name}] in elicit.toml"
            _gate_log.warning("gate.names_no_approver", extra={"tool": tool.name, "needs": needs})


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
