"""Hooks of plugins: their order, what they can change, and the checks they cannot bypass."""

import asyncio
import logging
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from types import FrameType
from typing import Any

import pytest
from msgspec.structs import replace as changed

from flows import Money, elicit
from flows.elicitation.states import Asked, Elicitation, Json, Status
from flows.elicitation.tool_call import ToolCall
from flows.elicitation.traits import OnPage
from flows.errors import InvalidAnswer, TooManyPending
from flows.hooks import (
    STAGES,
    BadPlugin,
    CallOn,
    GivenAnswer,
    HookFacts,
    HookRefused,
    HookStage,
    ProposedQuestion,
    SettledQuestion,
    StartedQuestion,
    after,
    around,
    before,
)
from flows.hooks import replace as in_place_of
from flows.question import Question, asking
from flows.schema.schema import schema_of
from tests.support.clock import Clock
from tests.support.mcp_server import eventually
from tests.support.service_env import Holding, call_of, process
from webapp.calls.verbs import Verbs
from webapp.deadline import NOON
from webapp.elicitations.plugins import HOOKS_AT_ONCE, NOT_ASKED, NOT_CHECKED, Plugins
from webapp.stores.sqlite import MemoryStore

TOOL = ToolCall(server="s", tool="delete", client="c", arguments="{}")
SCHEMA = schema_of({"type": "object", "properties": {"note": {"type": "string", "minLength": 2}}})
ASKED = Elicitation(
    id="e1",
    owner="ann",
    kind="form",
    request=Asked(server="s", tool="delete", client="c", message="Your address?", digest="d"),
    dedupe_key="j",
    created_at=NOON,
    expires_at=NOON + timedelta(minutes=5),
)
ANSWERED = changed(
    ASKED,
    status=Status.ACCEPTED,
    settled_at=NOON + timedelta(minutes=1),
    content={"note": "Elm Street"},
    proof="OnPage",
)
AT_ONCE = timedelta()  # the time limit of a hook that hangs


class Guards:
    """The checks that no hook can bypass. They record their calls."""

    def __init__(self, *, has_capacity: bool = True) -> None:
        self.has_capacity = has_capacity
        self.admitted = 0
        self.verified = list[Json]()

    async def admit(self) -> str:
        self.admitted += 1
        if not self.has_capacity:
            raise TooManyPending(limit=1)
        return "admission"

    async def verify(self, content: Json) -> None:
        self.verified.append(content)
        if content != {} and len(content["note"]) < 2:  # type: ignore[call-overload,index,arg-type]
            raise InvalidAnswer([("note", "Fill this in.")])


def form() -> Question[Any]:
    return elicit.form(
        "Your address?", {"type": "object", "properties": {"to": {"type": "string"}}}
    )


async def ask(
    *plugins: object,
    question: Question[Any] | None = None,
    guards: Guards | None = None,
    patience: timedelta = timedelta(minutes=1),
) -> Question[Any]:
    """Return the question after all hooks have run. Raise the errors of hooks and checks."""
    worded, admitted = await Plugins(plugins, patience=patience).asking(
        form() if question is None else question,
        tool=TOOL,
        owner="ann",
        is_for_user=False,
        admit=(guards or Guards()).admit,
    )
    assert admitted == "admission"
    return worded


async def answer(
    *plugins: object,
    guards: Guards | None = None,
    note: str = "Elm Street",
    patience: timedelta = timedelta(minutes=1),
) -> Json:
    """Return the answer after all hooks have run. Raise the errors of hooks and checks."""
    return await Plugins(plugins, patience=patience).answering(
        ASKED, {"note": note}, OnPage(), schema=SCHEMA, verify=(guards or Guards()).verify
    )


async def notified(*plugins: object, patience: timedelta = timedelta(minutes=1)) -> None:
    """Start and settle a question, and wait for the hooks that are notified."""
    all_plugins = Plugins(plugins, patience=patience)
    await all_plugins.started(ASKED)
    all_plugins.settled(ANSWERED)
    await all_plugins.aclose()


def traced(name: str, seen: list[str]) -> object:
    """Return a plugin with a hook for each moment of each stage. The hooks record their calls."""

    def note(moment: str, stage: HookStage) -> Any:
        async def hook(self: object, value: HookFacts, *call_on: Any) -> HookFacts | None:
            kind = stage.after if moment == "after" else stage.value
            assert type(value) is kind
            seen.append(f"{name} {moment} {stage.name}")
            if moment == "around":
                value = await call_on[0]()
                seen.append(f"{name} back from {stage.name}")
            return value if moment == "replace" else None

        return hook

    declare: dict[str, Any] = {"before": before, "after": after, "around": around}
    hooks = {
        f"{moment}_{stage.name}": declare[moment](stage.name)(note(moment, stage))
        for stage in STAGES.values()
        for moment in stage.moments
        if moment != "replace"
    }
    return type("Traced", (), hooks)()


def order_of(stage: str, *, writes: bool = False) -> list[str]:
    """Return the order in which the hooks of the plugins a and b should run at a stage."""
    first, last = (
        [f"{one} before {stage}" for one in "ab"],
        [f"{one} after {stage}" for one in "ba"],
    )
    if writes:
        return first + last
    inwards = [f"{one} around {stage}" for one in "ab"]
    return first + inwards + [f"{one} back from {stage}" for one in "ba"] + last


async def test_hooks_of_each_stage_run_in_order() -> None:
    # parity: F9
    seen = list[str]()
    plugins = [traced("a", seen), traced("b", seen)]
    _ = await ask(*plugins)
    assert seen == [
        *order_of("describe"),
        *order_of("admit"),
        *order_of("start", writes=True)[:2],
    ]
    seen.clear()
    await answer(*plugins)
    assert seen == [
        *order_of("verify"),
        *order_of("shorten"),
        *order_of("settle", writes=True)[:2],
    ]
    seen.clear()
    await notified(*plugins)
    assert seen == [
        *order_of("start", writes=True)[2:],
        *order_of("settle", writes=True)[2:],
    ]


async def test_hooks_receive_question_and_its_owner() -> None:
    seen = list[HookFacts]()

    class Looking:
        @before("admit")
        def look(self, question: ProposedQuestion) -> None:
            seen.append(question)

        @after("settle")
        def look_back(self, question: SettledQuestion) -> None:
            seen.append(question)

    plugin = Looking()
    _ = await ask(plugin, question=elicit.payment(Money("9.00", "EUR"), "A report"))
    _ = await ask(plugin, question=elicit.confirm("Delete it?", arguments={"count": 5}))
    await notified(plugin)
    payment, confirm, settled = seen
    assert isinstance(payment, ProposedQuestion)
    assert (payment.kind, payment.tool, payment.owner) == ("payment", "delete", "ann")
    assert payment.price == Money("9.00", "EUR")
    assert confirm.arguments == {"count": 5}
    assert isinstance(settled, SettledQuestion)
    assert (settled.id, settled.status, settled.by) == ("e1", "accepted", "OnPage")
    assert settled.content == {"note": "Elm Street"}
    assert settled.settled_at - settled.asked_at == timedelta(minutes=1)


@pytest.mark.parametrize("kind", ["url", "oauth", "payment", "secret"])
async def test_settled_hook_receives_content_of_forms_only(kind: str) -> None:
    seen = list[SettledQuestion]()

    class Looking:
        @after("settle")
        def look(self, question: SettledQuestion) -> None:
            seen.append(question)

    plugins = Plugins([Looking()])
    plugins.settled(changed(ANSWERED, kind=kind, content={"token": "secret-of-ann"}))
    await plugins.aclose()
    assert (seen[0].kind, seen[0].status, seen[0].content) == (kind, "accepted", None)


async def test_describe_hook_can_change_message_and_timeout() -> None:
    class Words:
        @before("describe")
        def call_it(self, question: ProposedQuestion) -> ProposedQuestion:
            return replace(question, message=f"Shop: {question.message}")

        @around("describe")
        async def hurry(
            self, question: ProposedQuestion, call_on: CallOn[ProposedQuestion]
        ) -> ProposedQuestion:
            described = await call_on(replace(question, message=question.message.upper()))
            return replace(described, timeout=timedelta(minutes=1))

    question = form()
    worded = await ask(Words(), question=question)
    assert (worded.message, worded.timeout) == ("SHOP: YOUR ADDRESS?", timedelta(minutes=1))
    assert worded.request == question.request
    assert worded.digest == question.digest


async def test_replace_hook_sets_message_and_a_second_one_is_refused() -> None:
    class InAuthorsPlace:
        @in_place_of("describe")
        async def say(self, question: ProposedQuestion) -> ProposedQuestion:
            return replace(question, message="Where shall we send it?")

    assert (await ask(InAuthorsPlace())).message == "Where shall we send it?"
    with pytest.raises(BadPlugin, match="Only one hook can do that"):
        Plugins([InAuthorsPlace(), InAuthorsPlace()])


async def test_answer_shortened_by_hook_is_verified_again() -> None:
    class Shorter:
        @before("shorten")
        def leave_out(self, answer: GivenAnswer) -> GivenAnswer:
            return replace(answer, content={"note": answer.content["note"][:3]})  # type: ignore[index]

    guards = Guards()
    assert await answer(Shorter(), guards=guards) == {"note": "Elm"}
    assert guards.verified == [{"note": "Elm Street"}, {"note": "Elm"}]


async def test_answer_shortened_below_minimum_is_returned_to_person() -> None:
    class TooShort:
        @around("shorten")
        async def leave_out(self, answer: GivenAnswer, call_on: CallOn[GivenAnswer]) -> GivenAnswer:
            return replace(await call_on(), content={"note": ""})

    with pytest.raises(InvalidAnswer, match="Fill this in"):
        await answer(TooShort())


async def test_hook_with_unmatched_filter_is_skipped() -> None:
    seen = list[str]()

    class Sometimes:
        @before("describe", when=lambda question: question.kind == "payment")
        def for_payments(self, question: ProposedQuestion) -> None:
            seen.append("payment")

        @around("admit", when=lambda question: question.owner != "ann")
        async def for_others(
            self, question: ProposedQuestion, call_on: CallOn[ProposedQuestion]
        ) -> None:
            seen.append("others")
            await call_on()

        @after("settle", when=lambda question: question.status == "expired")
        def for_the_late(self, question: SettledQuestion) -> None:
            seen.append("expired")

    _ = await ask(Sometimes())
    await notified(Sometimes())
    assert seen == []
    _ = await ask(Sometimes(), question=elicit.payment(Money("9.00", "EUR"), "A report"))
    assert seen == ["payment"]


async def test_filter_receives_value_changed_by_earlier_hook() -> None:
    class Words:
        @before("describe")
        def call_it(self, question: ProposedQuestion) -> ProposedQuestion:
            return replace(question, message="Shop: your address?")

        @before("describe", when=lambda question: question.message.startswith("Shop"))
        def shout(self, question: ProposedQuestion) -> ProposedQuestion:
            return replace(question, message=question.message.upper())

    assert (await ask(Words())).message == "SHOP: YOUR ADDRESS?"


async def test_filter_cannot_change_answer() -> None:
    def meddle(answer: GivenAnswer) -> bool:
        answer.content["note"] = "Oak Street"  # type: ignore[index]
        return True

    class Filtered:
        @before("verify", when=meddle)
        def look(self, answer: GivenAnswer) -> None:
            assert answer.content == {"note": "Elm Street"}

        @around("shorten", when=meddle)
        async def look_on(self, answer: GivenAnswer, call_on: CallOn[GivenAnswer]) -> None:
            assert await call_on() == answer

    assert await answer(Filtered()) == {"note": "Elm Street"}


async def test_hook_refusal_is_raised_with_its_own_message(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Closed:
        @before("start")
        def close(self, question: ProposedQuestion) -> None:
            raise HookRefused("We are closed: ask again on Monday.")

        @before("settle")
        async def shut(self, answer: GivenAnswer) -> None:
            raise HookRefused("We do not go there.", field="note")

    caplog.set_level(logging.INFO)
    with pytest.raises(HookRefused, match="ask again on Monday"):
        _ = await ask(Closed())
    with pytest.raises(HookRefused, match="do not go there") as refused:
        await answer(Closed())
    assert refused.value.field == "note"
    logged = [(record.message, record.stage) for record in caplog.records]  # type: ignore[attr-defined]
    assert logged == [("hook.refused", "before start"), ("hook.refused", "before settle")]


def raising(stage: HookStage, moment: str, raised: type[BaseException] = RuntimeError) -> object:
    async def hook(self: object, value: HookFacts, *call_on: Any) -> None:
        raise raised("no more disk")

    declare: dict[str, Any] = {
        "before": before,
        "after": after,
        "around": around,
        "replace": in_place_of,
    }
    return type("Raising", (), {"hook": declare[moment](stage.name)(hook)})()


PLACES = [(stage, moment) for stage in STAGES.values() for moment in stage.moments]
LATE = [(stage, moment) for stage, moment in PLACES if stage.writes and moment == "after"]


# finding: XS11
@pytest.mark.parametrize("raised", [RuntimeError, SystemExit])
@pytest.mark.parametrize(
    ("stage", "moment"), [place for place in PLACES if place not in LATE], ids=str
)
async def test_exception_of_hook_before_write_refuses_question_or_answer(
    stage: HookStage,
    moment: str,
    raised: type[BaseException],
    caplog: pytest.LogCaptureFixture,
) -> None:
    is_asking = stage.value is ProposedQuestion
    with pytest.raises(HookRefused) as refused:
        await (ask if is_asking else answer)(raising(stage, moment, raised))
    assert str(refused.value) == (NOT_ASKED if is_asking else NOT_CHECKED)
    (logged,) = [record for record in caplog.records if record.message == "hook.failed"]
    assert vars(logged)["stage"] == f"{moment} {stage.name}"
    assert logged.exc_info is not None
    assert "no more disk" in str(logged.exc_info[1])


async def test_exception_of_hook_after_write_is_logged_and_ignored(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen = list[str]()
    raised: list[type[BaseException]] = [RuntimeError, SystemExit]
    failing = [raising(*place, each) for place, each in zip(LATE, raised, strict=True)]

    class Filtered:
        @after("settle", when=lambda question: bool(1 // len(question.tool[:0])))
        def never(self, question: SettledQuestion) -> None:
            raise AssertionError

    await notified(traced("a", seen), *failing, Filtered(), traced("b", seen))
    assert seen == ["b after start", "a after start", "b after settle", "a after settle"]
    assert [record.message for record in caplog.records] == ["hook.failed"] * 3


def hanging(stage: str, moment: str, ended: list[str]) -> object:
    async def hook(self: object, value: HookFacts, *call_on: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(stage)

    declare: dict[str, Any] = {"before": before, "after": after, "around": around}
    return type("Hanging", (), {"hook": declare[moment](stage)(hook)})()


@pytest.mark.parametrize("stage", ["describe", "admit", "start"])
async def test_hanging_hook_refuses_question(stage: str) -> None:
    ended, guards = list[str](), Guards()
    with pytest.raises(HookRefused, match="the server's log has the reason"):
        _ = await ask(hanging(stage, "before", ended), guards=guards, patience=AT_ONCE)
    assert (ended, guards.admitted) == ([stage], int(stage == "start"))


async def test_hanging_hook_before_or_around_answer_refuses_answer() -> None:
    ended, guards = list[str](), Guards()
    with pytest.raises(HookRefused, match="Try again"):
        await answer(hanging("verify", "around", ended), guards=guards, patience=AT_ONCE)
    with pytest.raises(HookRefused, match="Try again"):
        await answer(hanging("settle", "before", ended), guards=guards, patience=AT_ONCE)
    assert ended == ["verify", "settle"]


async def test_hanging_hook_after_write_is_stopped_and_others_run() -> None:
    ended, seen = list[str](), list[str]()

    class Quick:
        @after("settle")
        def note(self, question: SettledQuestion) -> None:
            seen.append(question.id)

    hang = [hanging("start", "after", ended), hanging("settle", "after", ended)]
    await notified(Quick(), *hang, patience=AT_ONCE)
    assert (ended, seen) == (["start", "settle"], ["e1"])


async def test_time_of_stage_does_not_count_for_hook_timeout() -> None:
    ready = asyncio.Event()

    class Slow(Guards):
        async def admit(self) -> str:
            # If these turns of the event loop counted as the hook's time, the hook would time out.
            for _ in range(10):
                await asyncio.sleep(0)
            ready.set()
            return await super().admit()

    class Patient:
        @around("admit")
        async def wait(self, question: ProposedQuestion, call_on: CallOn[ProposedQuestion]) -> None:
            await call_on()
            assert ready.is_set()

    _ = await ask(Patient(), guards=Slow(), patience=AT_ONCE)


async def test_events_above_hook_limit_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    gate = asyncio.Event()
    seen = list[str]()

    class Waiting:
        @after("settle")
        async def note(self, question: SettledQuestion) -> None:
            await gate.wait()
            seen.append(question.id)

    plugins = Plugins([Waiting()], patience=timedelta(minutes=1))
    for _ in range(HOOKS_AT_ONCE + 1):
        plugins.settled(ANSWERED)
    gate.set()
    await plugins.aclose()
    assert len(seen) == HOOKS_AT_ONCE
    assert [record.message for record in caplog.records] == ["hook.failed"]


async def test_changes_to_value_inside_hook_have_no_effect() -> None:
    stored = list[Any]()

    class Meddling:
        @before("describe")
        def change_arguments(self, question: ProposedQuestion) -> None:
            question.arguments["count"] = 1  # type: ignore[index]

        @before("verify")
        def change_content(self, answer: GivenAnswer) -> None:
            answer.content["note"] = "Oak Street"  # type: ignore[index]

        @before("shorten")
        def keep(self, answer: GivenAnswer) -> GivenAnswer:
            mine = replace(answer, content=dict(answer.content))
            stored.append(mine.content)
            return mine

        @before("settle")
        def change_stored_answer(self, answer: GivenAnswer) -> None:
            stored[0]["note"] = "Oak Street"

    question = elicit.confirm("Delete them?", arguments={"count": 5})
    worded = await ask(Meddling(), question=question)
    assert worded.request.arguments == {"count": 5}  # type: ignore[attr-defined]
    assert await answer(Meddling()) == {"note": "Elm Street"}


class Skips:
    """A hook that does not await the stage."""

    @around("admit")
    async def skip(self, question: ProposedQuestion, call_on: CallOn[ProposedQuestion]) -> None:
        pass

    @around("verify")
    async def skip_too(
        self, answer: GivenAnswer, call_on: CallOn[GivenAnswer]
    ) -> GivenAnswer | None:
        return answer


class LeavesBehind:
    """A hook that starts the stage and does not wait for it."""

    def __init__(self) -> None:
        self.tasks = list[Any]()

    @around("admit")
    async def begin(self, question: ProposedQuestion, call_on: CallOn[ProposedQuestion]) -> None:
        self.tasks.append(asyncio.ensure_future(call_on()))

    @around("verify")
    async def begin_too(self, answer: GivenAnswer, call_on: CallOn[GivenAnswer]) -> None:
        self.tasks.append(asyncio.ensure_future(call_on()))


class Twice:
    """A hook that awaits the stage twice and ignores the second result."""

    @around("admit")
    async def twice(self, question: ProposedQuestion, call_on: CallOn[ProposedQuestion]) -> None:
        await asyncio.gather(call_on(), call_on(), return_exceptions=True)

    @around("verify")
    async def twice_too(self, answer: GivenAnswer, call_on: CallOn[GivenAnswer]) -> None:
        await asyncio.gather(call_on(), call_on(), return_exceptions=True)


@pytest.mark.parametrize(
    "plugin", [Skips(), LeavesBehind(), Twice()], ids=lambda p: type(p).__name__
)
async def test_around_hook_must_call_its_stage_exactly_once(
    plugin: object, caplog: pytest.LogCaptureFixture
) -> None:
    guards = Guards()
    with pytest.raises(HookRefused, match="Nobody was asked"):
        _ = await ask(plugin, guards=guards)
    with pytest.raises(HookRefused, match="nothing was sent"):
        await answer(plugin, guards=guards)
    await asyncio.gather(*getattr(plugin, "tasks", ()), return_exceptions=True)
    assert guards.admitted <= 1
    assert [record.message for record in caplog.records] == ["hook.failed"] * 2


class Swallows:
    """A hook that catches the stage's error and returns as if the stage had succeeded."""

    @around("admit")
    async def swallow(self, question: ProposedQuestion, call_on: CallOn[ProposedQuestion]) -> None:
        with suppress(TooManyPending):
            await call_on()

    @around("verify")
    async def swallow_too(self, answer: GivenAnswer, call_on: CallOn[GivenAnswer]) -> GivenAnswer:
        try:
            return await call_on()
        except InvalidAnswer:
            return answer


class Rewords:
    """A hook that replaces the stage's error with another one."""

    @around("admit")
    async def reword(self, question: ProposedQuestion, call_on: CallOn[ProposedQuestion]) -> None:
        try:
            await call_on()
        except TooManyPending as error:
            raise RuntimeError from error

    @around("verify")
    async def reword_too(self, answer: GivenAnswer, call_on: CallOn[GivenAnswer]) -> None:
        try:
            await call_on()
        except InvalidAnswer as error:
            raise HookRefused("Fine.") from error


@pytest.mark.parametrize(
    "plugins",
    [[Swallows()], [Rewords()], [Swallows(), Rewords()], [Rewords(), Swallows()]],
    ids=["swallows", "rewords", "both", "both, in reverse order"],
)
async def test_exception_of_guard_passes_through_surrounding_hooks(
    plugins: Sequence[object], caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(TooManyPending):
        _ = await ask(*plugins, guards=Guards(has_capacity=False))
    with pytest.raises(InvalidAnswer):
        await answer(*plugins, note="x")
    assert caplog.records == []


async def test_work_of_hook_after_guard_is_limited_by_timeout() -> None:
    class Broods:
        @around("admit")
        async def brood(
            self, question: ProposedQuestion, call_on: CallOn[ProposedQuestion]
        ) -> None:
            with suppress(TooManyPending):
                await call_on()
            await asyncio.Event().wait()

    with pytest.raises(TooManyPending):
        _ = await ask(Broods(), guards=Guards(has_capacity=False), patience=AT_ONCE)
    with pytest.raises(HookRefused):
        _ = await ask(Broods(), patience=AT_ONCE)


async def test_cancelled_call_stays_cancelled_although_hook_swallows_cancellation() -> None:
    class Deaf:
        @around("admit")
        async def go_on(
            self, question: ProposedQuestion, call_on: CallOn[ProposedQuestion]
        ) -> None:
            with suppress(asyncio.CancelledError):
                await call_on()

    class Held(Guards):
        async def admit(self) -> str:
            held.set()
            await asyncio.Event().wait()
            raise AssertionError

    held = asyncio.Event()
    task = asyncio.create_task(ask(Deaf(), guards=Held()))
    await held.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        _ = await task


def returning(stage: str, moment: str, **other: Any) -> object:
    """Return a plugin whose hook returns its value with the fields in `other` changed."""

    async def hook(self: object, value: Any, *call_on: Any) -> Any:
        if call_on:
            value = await call_on[0]()
        return replace(value, **other)

    declare: dict[str, Any] = {"before": before, "after": after, "around": around}
    return type("Forging", (), {"hook": declare[moment](stage)(hook)})()


@pytest.mark.parametrize("moment", ["before", "around"])
@pytest.mark.parametrize("stage", ["describe", "admit"])
@pytest.mark.parametrize(
    "other",
    [
        {"owner": "bob"},
        {"kind": "confirm"},
        {"tool": "read"},
        {"server": "another"},
        {"client_id": "proven"},
        {"arguments": {"count": 1}},
        {"price": Money("0.01", "EUR")},
        {"is_for_user": True},
    ],
    ids=str,
)
async def test_hook_cannot_change_terms_of_question(stage: str, moment: str, other: Any) -> None:
    with pytest.raises(HookRefused):
        _ = await ask(
            returning(stage, moment, **other),
            question=elicit.payment(Money("9.00", "EUR"), "A report"),
        )


@pytest.mark.parametrize(
    "other",
    [
        {"message": ""},
        {"message": "x" * 2001},
        {"message": "\ud800"},
        {"timeout": timedelta()},
        {"timeout": timedelta(minutes=6)},
    ],
    ids=str,
)
async def test_message_set_by_hook_is_validated_like_message_of_author(other: Any) -> None:
    with pytest.raises(HookRefused):
        _ = await ask(returning("describe", "before", **other))


@pytest.mark.parametrize("moment", ["before", "around"])
@pytest.mark.parametrize("stage", ["verify", "shorten"])
@pytest.mark.parametrize(
    "other",
    [{"owner": "bob"}, {"id": "e2"}, {"by": "ByModel"}, {"content": {"note": "Oak Street"}}],
    ids=str,
)
async def test_hook_cannot_answer_for_person(stage: str, moment: str, other: Any) -> None:
    with pytest.raises(HookRefused):
        await answer(returning(stage, moment, **other))


@pytest.mark.parametrize("stage", ["admit", "start"])
async def test_message_can_be_changed_only_in_describe_stage(stage: str) -> None:
    with pytest.raises(HookRefused):
        _ = await ask(returning(stage, "before", message="Another question?"))


async def test_hook_with_wrong_return_value_refuses_question(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Odd:
        @before("describe")
        def hand_on_words(self, question: ProposedQuestion) -> Any:
            return "Another question?"

    class Late:
        @after("shorten")
        def hand_on(self, answer: GivenAnswer) -> Any:
            return answer

    class Empty:
        @in_place_of("describe")
        def say(self, question: ProposedQuestion) -> Any:
            return None

    with pytest.raises(HookRefused):
        _ = await ask(Odd())
    with pytest.raises(HookRefused):
        await answer(Late())
    with pytest.raises(HookRefused):
        _ = await ask(Empty())
    errors = [str(record.exc_info[1]) for record in caplog.records if record.exc_info]
    assert [
        "returns a str" in errors[0],
        "must return None" in errors[1],
        "return" in errors[2],
    ] == [True] * 3


async def test_question_without_plugins_enters_no_plugin_code() -> None:
    entered = set[str]()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            entered.add(frame.f_code.co_filename)

    async with process(MemoryStore(), Clock()) as service:
        presenter = Holding()
        call = call_of(service, presenter=presenter)

        async def ask_it() -> str:
            call.begin()
            with asking(Verbs(call)):
                return await elicit.form("Your address?")

        sys.setprofile(note)
        try:
            task = asyncio.create_task(ask_it())
            await eventually(lambda: presenter.shown is not None)
            assert presenter.shown is not None
            answered = {"response": "Elm Street"}
            await service.kinds.complete(presenter.shown.elicitation, answered, OnPage())
            assert await task == "Elm Street"
        finally:
            sys.setprofile(None)
    assert any(name.endswith("webapp/kinds/quotas.py") for name in entered)
    assert [name for name in entered if name.endswith(("/plugins.py", "flows/hooks.py"))] == []


def test_empty_plugins_subscribe_to_no_stage() -> None:
    none = Plugins()
    assert not any((none.see_questions, none.see_starts, none.see_answers, none.see_ends))

    class Last:
        @after("start")
        def note(self, question: StartedQuestion) -> None: ...

    last = Plugins([Last()])
    assert (last.see_starts, last.see_questions, last.see_answers) == (True, False, False)
