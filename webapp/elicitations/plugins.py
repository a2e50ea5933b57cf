"""Plugins: an operator's own objects, whose hooks run as questions are asked and settled.

Before something is written, a hook that raises, or takes too long, refuses it, and nothing stands.
What comes after a write can undo nothing, so what it raises is logged and harms nobody; it runs at
most once, and not at all where the process dies in between.

What could go wrong: a hook that has the stage on its way, and swallows what a guard has raised, or
never asks it, or asks it twice. So what a stage did is remembered here, whatever a hook makes of
it. Or one that changes what is in a value: so each has a copy of its own, and what it hands on is
copied again and checked.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import replace
from datetime import timedelta
from inspect import isawaitable
from traceback import extract_tb
from typing import Any, Final, Generic, TypeAlias, TypeVar, cast

from flows.elicitation.proof import Proof
from flows.elicitation.states import Elicitation, Json, Status
from flows.elicitation.tool_call import ToolCall
from flows.elicitation.traits import traits_of
from flows.hooks import (
    STAGES,
    BadPlugin,
    GivenAnswer,
    HookFacts,
    HookMisused,
    HookRefused,
    PluginHook,
    ProposedQuestion,
    SettledQuestion,
    StartedQuestion,
    hooks_of,
    must_say_no_more,
)
from flows.question import Question
from flows.schema.schema import Schema
from webapp.importing import imported

T = TypeVar("T")
ValueT = TypeVar("ValueT", bound=HookFacts)
PATIENCE: Final = timedelta(seconds=5)
TOLD_AT_ONCE: Final = 1000  # settled questions whose hooks are at work
NOT_ASKED: Final = (
    "Nobody was asked: a rule of whoever runs this server could not be applied. Calling it again "
    "helps once that is mended; whoever runs the server finds the reason in its log."
)
NOT_TAKEN: Final = (
    "This could not be looked at, so nothing was sent. Try again; if it stays so, tell whoever "
    "runs this server."
)
_Does: TypeAlias = Callable[[ValueT], Awaitable[ValueT]]
_Checks: TypeAlias = Callable[[ValueT, ValueT], object]
_log = logging.getLogger(__name__)


class Plugins:
    """Those of one process; the first of them is asked first, and told last.

    Raises BadPlugin.
    """

    def __init__(self, plugins: Sequence[object] = (), *, patience: timedelta = PATIENCE) -> None:
        hooks = [hook for plugin in plugins for hook in hooks_of(plugin)]
        replacing = [f"{hook.plugin}.{hook.method}" for hook in hooks if hook.moment == "replace"]
        if len(replacing) > 1:
            raise BadPlugin(
                f"{' and '.join(replacing)} replace the same stage: keep one of them, and write "
                "before for the others."
            )
        self._hooks: Mapping[tuple[str, str], tuple[PluginHook[Any], ...]] = {
            (moment, stage.name): tuple(
                hook for hook in hooks if (hook.moment, hook.stage) == (moment, stage)
            )
            for stage in STAGES.values()
            for moment in stage.moments
        }
        self._patience = patience
        self._telling = set[asyncio.Task[None]]()
        self.hear_starts = bool(self._hooks["after", "start"])
        self.hear_ends = bool(self._hooks["after", "settle"])
        said = {hook.stage.value for hook in hooks if not hook.is_too_late}
        self.hear_asking, self.hear_answers = ProposedQuestion in said, GivenAnswer in said

    async def asking(
        self,
        question: Question[Any],
        *,
        tool: ToolCall,
        owner: str,
        is_for_user: bool,
        admit: Callable[[], Awaitable[T]],
    ) -> tuple[Question[Any], T]:
        """The question as it is to be asked, and what `admit` gave, the guard itself.

        Raises HookRefused, and what `admit` raises.
        """
        request, admitted = question.request, list[T]()
        proposed = ProposedQuestion(
            kind=request.kind,
            server=tool.server,
            tool=tool.tool,
            client=tool.client,
            client_id=tool.client_id,
            owner=owner,
            is_for_user=is_for_user,
            message=question.message,
            arguments=getattr(request, "arguments", None),
            timeout=question.timeout,
            price=getattr(request, "price", None),
        )

        def must_be_askable(_: ProposedQuestion, changed: ProposedQuestion) -> None:
            if changed.timeout > question.timeout:
                raise HookMisused("It asks for longer than the tool does.")
            _worded(question, changed).discard()

        async def describe(value: ProposedQuestion) -> ProposedQuestion:
            for hook in self._hooks["replace", "describe"]:
                value = await self._hand(hook, value, must_be_askable)
            return value

        async def admitting(value: ProposedQuestion) -> ProposedQuestion:
            admitted.append(await admit())
            return value

        proposed = await self._pass("describe", proposed, describe, must_be_askable)
        proposed = await self._pass("admit", proposed, admitting)
        await self._ask(proposed, "start")
        return _worded(question, proposed), admitted[0]

    async def started(self, elicitation: Elicitation) -> None:
        """It stands, and nobody has seen its link; what a hook raises is logged."""
        question = StartedQuestion(
            **_facts_of(elicitation),
            id=elicitation.id,
            asked_at=elicitation.created_at,
            expires_at=elicitation.expires_at,
        )
        await self._tell(question, "start")

    async def answering(
        self,
        elicitation: Elicitation,
        content: Json,
        proof: Proof,
        *,
        schema: Schema[Any],
        verify: Callable[[Json], Awaitable[None]],
    ) -> Json:
        """What is left of an answer; `verify` is the guard, which is asked again of a change.

        Raises HookRefused, and what `verify` raises.
        """
        given = GivenAnswer(
            **_facts_of(elicitation),
            id=elicitation.id,
            by=type(proof).__name__,
            content=cast("Mapping[str, Json]", content),
        )

        def must_be_less(before: GivenAnswer, left: GivenAnswer) -> None:
            must_say_no_more(schema, before.content, left.content)

        async def verified(value: GivenAnswer) -> GivenAnswer:
            await verify(value.content)
            return value

        async def as_it_is(value: GivenAnswer) -> GivenAnswer:
            return value

        given = await self._pass("verify", given, verified)
        given = await self._pass("shorten", given, as_it_is, must_be_less)
        if given.content != content:
            await verify(given.content)
        await self._ask(given, "settle")
        return given.content

    def settled(self, elicitation: Elicitation) -> None:
        """It is over, and that is written; nobody waits for the hooks that are told."""
        if len(self._telling) >= TOLD_AT_ONCE:
            _log.error("hook.failed", extra={"id": elicitation.id, "why": "too many are at work"})
            return
        assert elicitation.settled_at is not None
        is_told = elicitation.status is Status.ACCEPTED and is_heard(elicitation.kind)
        question = SettledQuestion(
            **_facts_of(elicitation),
            id=elicitation.id,
            asked_at=elicitation.created_at,
            settled_at=elicitation.settled_at,
            status=elicitation.status.value,
            is_late=elicitation.is_late,
            by=elicitation.proof,
            content=elicitation.content if is_told else None,
        )
        task = asyncio.create_task(self._tell(question, "settle"))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def aclose(self) -> None:
        """Whoever is being told is told to the end, each within its time."""
        if self._telling:
            await asyncio.wait(tuple(self._telling))

    async def _pass(
        self, stage: str, value: ValueT, do: _Does[ValueT], check: _Checks[ValueT] | None = None
    ) -> ValueT:
        value = await self._ask(value, stage, check)
        value = await self._around(self._hooks["around", stage], value, do, check)
        for hook in reversed(self._hooks["after", stage]):
            await self._hand(hook, value)
        return value

    async def _ask(self, value: ValueT, stage: str, check: _Checks[ValueT] | None = None) -> ValueT:
        for hook in self._hooks["before", stage]:
            value = await self._hand(hook, value, check)
        return value

    async def _around(
        self,
        hooks: Sequence[PluginHook[ValueT]],
        value: ValueT,
        do: _Does[ValueT],
        check: _Checks[ValueT] | None,
    ) -> ValueT:
        if not hooks:
            return await do(value)
        hook, *further_in = hooks
        with _blamed(hook):
            is_for_it = hook.is_for(deepcopy(value))
        if not is_for_it:
            return await self._around(further_in, value, do, check)
        onward = _Onward(hook, value, check, lambda v: self._around(further_in, v, do, check))
        with _blamed(hook, onward):
            async with asyncio.timeout(self._patience.total_seconds()) as onward.limit:
                given = await cast("Awaitable[object]", hook.call(deepcopy(value), onward))
            return _handed_on(hook, onward.passed(), given, check)

    async def _hand(
        self, hook: PluginHook[ValueT], value: ValueT, check: _Checks[ValueT] | None = None
    ) -> ValueT:
        """Let the hook have it; what goes on. Raises HookRefused."""
        with _blamed(hook):
            if not hook.is_for(deepcopy(value)):
                return value
            async with asyncio.timeout(self._patience.total_seconds()):
                given = hook.call(deepcopy(value))
                if isawaitable(given):
                    given = await given
            return _handed_on(hook, value, given, check)

    async def _tell(self, value: HookFacts, stage: str) -> None:
        for hook in reversed(self._hooks["after", stage]):
            with suppress(HookRefused):  # it is written
                await self._hand(hook, value)


class _Onward(Generic[ValueT]):
    """Implements flows.hooks.CallOn, and remembers how the stage went."""

    def __init__(
        self,
        hook: PluginHook[ValueT],
        value: ValueT,
        check: _Checks[ValueT] | None,
        do: _Does[ValueT],
    ) -> None:
        self._hook, self._value, self._check, self._do = hook, value, check, do
        self.limit: asyncio.Timeout | None = None
        self.failed: BaseException | None = None
        self._came_to: ValueT | None = None
        self._calls = 0

    async def __call__(self, value: ValueT | None = None) -> ValueT:
        self._calls += 1
        self._must_be_once()
        handed = _handed_on(self._hook, self._value, value, self._check)
        with self._stopped():
            try:
                came_to = await self._do(handed)
            except BaseException as error:
                self.failed = error
                raise
        self._came_to = came_to
        return deepcopy(came_to)

    def passed(self) -> ValueT:
        """What the stage gave. Raises what that raised, and HookMisused."""
        if self.failed is not None:
            raise self.failed
        self._must_be_once()
        if self._came_to is None:
            raise HookMisused("It does not await the stage: write `await call_on()`, once.")
        return self._came_to

    def _must_be_once(self) -> None:
        if self._calls > 1:
            raise HookMisused("It goes through the stage twice: await call_on() once.")

    @contextmanager
    def _stopped(self) -> Generator[None]:
        """What the stage takes is not counted as the hook's own time."""
        limit, loop = self.limit, asyncio.get_running_loop()
        until = None if limit is None else limit.when()
        if limit is None or until is None:
            yield
            return
        left = until - loop.time()
        limit.reschedule(None)
        try:
            yield
        finally:
            with suppress(RuntimeError):  # the hook has not waited, and is over
                limit.reschedule(loop.time() + left)


def is_heard(kind: str) -> bool:
    """Whether hooks hear the answer before it is written: what a client's own form may ask."""
    traits = traits_of(kind)
    return traits.fits_client_form and not traits.is_secret


def plugin_named(name: str) -> object:
    """The object that `module:object` names. Raises BadPlugin."""
    module_name, _, attribute = name.partition(":")
    try:
        module = imported(module_name)
    except ImportError as error:
        raise BadPlugin(f"The plugin {name}: {error}") from error
    except BadPlugin as error:
        raise BadPlugin(f"The plugin {name}: {error}") from None
    except Exception as error:
        last = extract_tb(error.__traceback__)[-1]
        raise BadPlugin(
            f"The plugin {name} could not be imported: {type(error).__name__}: {error} "
            f"({last.filename}:{last.lineno}). Mend it, or take it out of --plugin or "
            "ELICIT_PLUGINS."
        ) from error
    found = getattr(module, attribute, None)
    if found is None:
        raise BadPlugin(f"The plugin {name}: {module_name} has no {attribute!r}.")
    try:
        hooks_of(found)
    except BadPlugin as error:
        raise BadPlugin(f"The plugin {name}: {error}") from None
    return found


def _worded(question: Question[Any], proposed: ProposedQuestion) -> Question[Any]:
    """The question in those words. Raises InvalidQuestion."""
    message, timeout = proposed.message, proposed.timeout
    if (message, timeout) == (question.message, question.timeout):
        return question
    worded = replace(question, message=message, timeout=timeout)
    worded.discard()  # it stands for the one that was made, and is asked
    return worded


def _handed_on(
    hook: PluginHook[ValueT], value: ValueT, given: object, check: _Checks[ValueT] | None
) -> ValueT:
    """Raises what `check` does, and HookMisused."""
    handed = hook.handed_on(value, given)
    if handed is value:
        return value
    handed = deepcopy(handed)
    if check is not None:
        check(value, handed)
    return handed


def _facts_of(elicitation: Elicitation) -> dict[str, Any]:
    asked = elicitation.asked
    terms = asked.terms
    return {
        "kind": elicitation.kind,
        "server": asked.server,
        "tool": asked.tool,
        "client": asked.client,
        "client_id": asked.client_id,
        "owner": elicitation.owner,
        "is_for_user": elicitation.is_for_user,
        "message": asked.message,
        "arguments": terms.get("arguments") if isinstance(terms, Mapping) else None,
    }


@contextmanager
def _blamed(hook: PluginHook[Any], onward: _Onward[Any] | None = None) -> Generator[None]:
    """What is raised within is the hook's, unless the stage that it stands around raised it."""
    try:
        yield
    except (Exception, SystemExit) as error:  # a hook must not end the server
        if onward is not None and onward.failed is not None:
            if onward.failed is error:
                raise
            raise onward.failed from None
        if isinstance(error, HookRefused) and not hook.is_too_late:
            _log.info("hook.refused", extra=_about(hook))
            raise
        _log.exception("hook.failed", extra=_about(hook))
        is_asking = hook.stage.value is ProposedQuestion
        raise HookRefused(NOT_ASKED if is_asking else NOT_TAKEN) from error


def _about(hook: PluginHook[Any]) -> dict[str, str]:
    return {
        "plugin": hook.plugin,
        "hook": hook.method,
        "stage": f"{hook.moment} {hook.stage.name}",
    }
