"""Plugins: the operator's own objects, whose hooks run as questions are asked and settled.

A hook that runs before a write can refuse the write: if the hook raises or takes too long, nothing
is written. Hooks that run after a write cannot undo it: their exceptions are logged and ignored.
They run at most once, and not at all if the process dies after the write.

A *stage* is a step that hooks can run before, around or after, such as the check of an answer.

Risks: an `around` hook hides an error of its stage, skips the stage, or runs the stage twice. So
this module records what the stage did, whatever the hook returns. A hook could change a value in
place, so each hook gets a copy, and the value that the hook returns is copied and checked.
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

from flows.elicitation.states import Elicitation, Json, Status
from flows.elicitation.tool_call import ToolCall
from flows.elicitation.traits import Proof, traits_of
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
    must_only_reduce,
)
from flows.question import Question
from flows.schema.schema import Schema
from webapp.importing import imported

T = TypeVar("T")
ValueT = TypeVar("ValueT", bound=HookFacts)
PATIENCE: Final = timedelta(seconds=5)
HOOKS_AT_ONCE: Final = 1000  # the maximum of settled questions whose hooks run at the same time
NOT_ASKED: Final = (
    "Nobody was asked: a rule of the server's operator failed. Call this tool again once the "
    "operator has fixed it; the server's log has the reason."
)
NOT_CHECKED: Final = (
    "This answer could not be checked, so nothing was sent. Try again; if the error persists, tell "
    "the server's operator."
)
_Does: TypeAlias = Callable[[ValueT], Awaitable[ValueT]]
_Checks: TypeAlias = Callable[[ValueT, ValueT], object]
_log = logging.getLogger(__name__)


class Plugins:
    """The plugins of one process.

    `before` hooks run in the order of the plugins, and `after` hooks in reverse order. The `around`
    hook of the first plugin is the outermost.

    Raises:
        BadPlugin: A plugin is invalid, or two hooks replace the same stage.
    """

    def __init__(self, plugins: Sequence[object] = (), *, patience: timedelta = PATIENCE) -> None:
        hooks = [hook for plugin in plugins for hook in hooks_of(plugin)]
        replacing = [f"{hook.plugin}.{hook.method}" for hook in hooks if hook.moment == "replace"]
        if len(replacing) > 1:
            raise BadPlugin(
                f"{' and '.join(replacing)} replace the same stage. Only one hook can do that: use "
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
        self._running = set[asyncio.Task[None]]()
        self.see_starts = bool(self._hooks["after", "start"])
        self.see_ends = bool(self._hooks["after", "settle"])
        handled = {hook.stage.value for hook in hooks if not hook.is_too_late}
        self.see_questions, self.see_answers = ProposedQuestion in handled, GivenAnswer in handled

    async def asking(
        self,
        question: Question[Any],
        *,
        tool: ToolCall,
        owner: str,
        is_for_user: bool,
        admit: Callable[[], Awaitable[T]],
    ) -> tuple[Question[Any], T]:
        """Run the hooks for a question. Return the question to ask, and the result of `admit`.

        `admit` checks that the quotas allow one more question.

        Raises:
            HookRefused: A hook refused the question, or failed.
            ElicitError: An error of `admit`.
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
                raise HookMisused("It sets a longer timeout than the tool does.")
            _worded(question, changed).discard()

        async def describe(value: ProposedQuestion) -> ProposedQuestion:
            for hook in self._hooks["replace", "describe"]:
                value = await self._call_hook(hook, value, must_be_askable)
            return value

        async def admitting(value: ProposedQuestion) -> ProposedQuestion:
            admitted.append(await admit())
            return value

        proposed = await self._run_stage("describe", proposed, describe, must_be_askable)
        proposed = await self._run_stage("admit", proposed, admitting)
        await self._ask(proposed, "start")
        return _worded(question, proposed), admitted[0]

    async def started(self, elicitation: Elicitation) -> None:
        """Run the hooks for a stored question, before its link is shown. Errors are logged."""
        question = StartedQuestion(
            **_facts_of(elicitation),
            id=elicitation.id,
            asked_at=elicitation.created_at,
            expires_at=elicitation.expires_at,
        )
        await self._run_after_hooks(question, "start")

    async def answering(
        self,
        elicitation: Elicitation,
        content: Json,
        proof: Proof,
        *,
        schema: Schema[Any],
        verify: Callable[[Json], Awaitable[None]],
    ) -> Json:
        """Run the hooks for an answer. Return the answer, which hooks may have shortened.

        `verify` checks the answer, and checks it again if a hook changed it.

        Raises:
            HookRefused: A hook refused the answer, or failed.
            ElicitError: An error of `verify`.
        """
        given = GivenAnswer(
            **_facts_of(elicitation),
            id=elicitation.id,
            by=type(proof).__name__,
            content=cast("Mapping[str, Json]", content),
        )

        def must_be_less(original: GivenAnswer, reduced: GivenAnswer) -> None:
            must_only_reduce(schema, original.content, reduced.content)

        async def verified(value: GivenAnswer) -> GivenAnswer:
            await verify(value.content)
            return value

        async def as_it_is(value: GivenAnswer) -> GivenAnswer:
            return value

        given = await self._run_stage("verify", given, verified)
        given = await self._run_stage("shorten", given, as_it_is, must_be_less)
        if given.content != content:
            await verify(given.content)
        await self._ask(given, "settle")
        return given.content

    def settled(self, elicitation: Elicitation) -> None:
        """Start the hooks for a settled and stored question, without waiting for them."""
        if len(self._running) >= HOOKS_AT_ONCE:
            _log.error(
                "hook.failed", extra={"id": elicitation.id, "why": "too many hooks are running"}
            )
            return
        assert elicitation.settled_at is not None
        is_visible = elicitation.status is Status.ACCEPTED and is_seen_by_hooks(elicitation.kind)
        question = SettledQuestion(
            **_facts_of(elicitation),
            id=elicitation.id,
            asked_at=elicitation.created_at,
            settled_at=elicitation.settled_at,
            status=elicitation.status.value,
            is_late=elicitation.is_late,
            by=elicitation.proof,
            content=elicitation.content if is_visible else None,
        )
        task = asyncio.create_task(self._run_after_hooks(question, "settle"))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def aclose(self) -> None:
        """Wait for the running hooks, each within its time limit."""
        if self._running:
            await asyncio.wait(tuple(self._running))

    async def _run_stage(
        self, stage: str, value: ValueT, do: _Does[ValueT], check: _Checks[ValueT] | None = None
    ) -> ValueT:
        value = await self._ask(value, stage, check)
        value = await self._around(self._hooks["around", stage], value, do, check)
        for hook in reversed(self._hooks["after", stage]):
            await self._call_hook(hook, value)
        return value

    async def _ask(self, value: ValueT, stage: str, check: _Checks[ValueT] | None = None) -> ValueT:
        for hook in self._hooks["before", stage]:
            value = await self._call_hook(hook, value, check)
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

    async def _call_hook(
        self, hook: PluginHook[ValueT], value: ValueT, check: _Checks[ValueT] | None = None
    ) -> ValueT:
        """Call the hook with a copy of the value. Return the value that the hook passes on.

        Raises HookRefused if the hook refuses, fails or takes too long.
        """
        with _blamed(hook):
            if not hook.is_for(deepcopy(value)):
                return value
            async with asyncio.timeout(self._patience.total_seconds()):
                given = hook.call(deepcopy(value))
                if isawaitable(given):
                    given = await given
            return _handed_on(hook, value, given, check)

    async def _run_after_hooks(self, value: HookFacts, stage: str) -> None:
        for hook in reversed(self._hooks["after", stage]):
            with suppress(HookRefused):  # the write cannot be undone
                await self._call_hook(hook, value)


class _Onward(Generic[ValueT]):
    """The implementation of flows.hooks.CallOn, which records what the stage did."""

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
        self._result: ValueT | None = None
        self._calls = 0

    async def __call__(self, value: ValueT | None = None) -> ValueT:
        self._calls += 1
        self._must_be_once()
        handed = _handed_on(self._hook, self._value, value, self._check)
        with self._stopped():
            try:
                result = await self._do(handed)
            except BaseException as error:
                self.failed = error
                raise
        self._result = result
        return deepcopy(result)

    def passed(self) -> ValueT:
        """Return the result of the stage.

        Raises the error of the stage, or HookMisused if the hook skipped the stage or ran it more
        than once.
        """
        if self.failed is not None:
            raise self.failed
        self._must_be_once()
        if self._result is None:
            raise HookMisused("It does not await the stage: write `await call_on()`, once.")
        return self._result

    def _must_be_once(self) -> None:
        if self._calls > 1:
            raise HookMisused("It runs the stage twice: await call_on() once.")

    @contextmanager
    def _stopped(self) -> Generator[None]:
        """Stop the hook's time limit while the stage runs."""
        limit, loop = self.limit, asyncio.get_running_loop()
        until = None if limit is None else limit.when()
        if limit is None or until is None:
            yield
            return
        remaining = until - loop.time()
        limit.reschedule(None)
        try:
            yield
        finally:
            with suppress(RuntimeError):  # the hook returned without awaiting the stage
                limit.reschedule(loop.time() + remaining)


def is_seen_by_hooks(kind: str) -> bool:
    """Return True if hooks see the answers to questions of this kind.

    Hooks see only answers that a client's own form may collect, and never secrets.
    """
    traits = traits_of(kind)
    return traits.fits_client_form and not traits.is_secret


def plugin_named(name: str) -> object:
    """Return the object that `module:object` names. Raises BadPlugin."""
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
            f"({last.filename}:{last.lineno}). Fix it, or remove it from --plugin or "
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
    """Return the question with the proposed message and timeout. Raises InvalidQuestion."""
    message, timeout = proposed.message, proposed.timeout
    if (message, timeout) == (question.message, question.timeout):
        return question
    worded = replace(question, message=message, timeout=timeout)
    worded.discard()  # only the tool's own question has to be awaited, so do not track this copy
    return worded


def _handed_on(
    hook: PluginHook[ValueT], value: ValueT, given: object, check: _Checks[ValueT] | None
) -> ValueT:
    """Return the value that a hook passes on. Raises HookMisused, or the error of `check`."""
    handed = hook.checked_result(value, given)
    if handed is value:
        return value
    handed = deepcopy(handed)
    if check is not None:
        check(value, handed)
    return handed


def _facts_of(elicitation: Elicitation) -> dict[str, Any]:
    asked = elicitation.request
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
    """Convert errors of the hook in the block to HookRefused. Errors of the stage propagate."""
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
        raise HookRefused(NOT_ASKED if is_asking else NOT_CHECKED) from error


def _about(hook: PluginHook[Any]) -> dict[str, str]:
    return {
        "plugin": hook.plugin,
        "hook": hook.method,
        "stage": f"{hook.moment} {hook.stage.name}",
    }
