"""What a tool needs (`needs`): asked before its body, handed over to the body's own awaits.

What could go wrong: a tool that runs again asks or acts twice. Each leg asks the same questions at
the same places, so that what was answered is found; what is done on completion is done `once`.
"""

import copy
import inspect
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from flows.elicitation.states import Json
from flows.errors import Cancelled, Declined, Denied, ElicitError, Expired, NotAccepted
from flows.kinds.gate import digest_of_arguments
from flows.kinds.needs import Need
from flows.question import Outcome, Question
from webapp.calls.prefetched import Fact
from webapp.calls.verbs import Verbs
from webapp.mcp.tools import ServedTool

# What the person did or left undone; that something failed is said in its own words.
_OF_THE_PERSON = (Declined, Denied, Cancelled, Expired)
_log = logging.getLogger(__name__)


async def ask_needs(
    verbs: Verbs, tool: ServedTool | None, *, name: str, arguments: str, is_inner: bool
) -> None:
    """Ask for what the marks on the tool say; raises what the verbs raise."""
    marks = tool.needs if tool is not None else ()
    given: Mapping[str, Json] = json.loads(arguments) if marks else {}
    # Within one call, what each tool does on completion is done once for it.
    whose = f"{name}:{digest_of_arguments(arguments)}:" if is_inner else ""
    for number, need in enumerate(marks):
        await _ask(verbs, need, given, place=f"{whose}{number}")


async def _ask(verbs: Verbs, need: Need, arguments: Mapping[str, Json], *, place: str) -> None:
    facts = [verbs.fact(question.request) for question in need.questions]
    # What was asked stays asked: a leg that left it out would not find its own places again.
    skip_if = need.skip_if if need.skip_if and not await _has_asked(verbs, facts) else None
    if skip_if is not None and await _author(verbs, skip_if, arguments):
        return
    outcomes = [await _yes(verbs, question, need.decline_message) for question in need.questions]
    pairs = list(zip(need.questions, outcomes, strict=True))
    # Made here too: what does not fit the author's own type is no answer, whoever awaits it.
    answers = [question.answer(outcome.content) for question, outcome in pairs]
    if need.on_complete is not None and await _has_asked(verbs, facts):
        await _complete(verbs, need.on_complete, answers, name=f"needs:{place}:{facts}")
    for (question, outcome), fact in zip(pairs, facts, strict=True):
        verbs.handed.put(fact, outcome, key=question.key)


async def _yes(verbs: Verbs, question: Question[Any], decline_message: str | None) -> Outcome[Json]:
    """With the answer as it came; raises what stands for a no."""
    as_it_came: Question[Json] = replace(question, answer=_unchanged)
    as_it_came.discard()  # asked past its own await
    outcome = await verbs.ask(as_it_came)
    if outcome.error is not None:
        verbs.last_error = _in_other_words(outcome.error, decline_message)
        raise verbs.last_error
    return outcome


async def _has_asked(verbs: Verbs, facts: list[Fact]) -> bool:
    """Whether a person was asked any of it in this call."""
    run = await verbs.call.run.load()
    return any((asking.place.kind, asking.place.digest) in facts for asking in run.asked)


async def _complete(
    verbs: Verbs, on_complete: Callable[..., object], answers: list[object], *, name: str
) -> None:
    async def work(_: str) -> None:
        await _author(verbs, on_complete, *answers)

    await verbs.once(name, work, again=None)


async def _author(verbs: Verbs, function: Callable[..., object], *given: object) -> object:
    """What a function of the author's gives; what it raises ends the call in our words."""
    try:
        result = function(*given)
        return await result if inspect.isawaitable(result) else result
    except ElicitError:
        raise
    except Exception as error:
        tool = verbs.call.tool.tool
        _log.exception("needs.failed", extra={"tool": tool})
        raise ElicitError(
            f"The tool {tool} could not begin: an error in it, which is in the server's log."
        ) from error


def _in_other_words(error: NotAccepted, message: str | None) -> NotAccepted:
    if message is None or not isinstance(error, _OF_THE_PERSON):
        return error
    said = copy.copy(error)
    said.args = (message,)
    return said


def _unchanged(content: Json) -> Json:
    return content
