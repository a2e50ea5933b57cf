"""The needs of a tool (`needs`): asked before its body, and passed to the body's awaits.

Risks: a tool that runs again asks or acts twice. Each request therefore asks the same questions at
the same places in the run, where earlier answers are found. Functions that run on completion run in
`once`.
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
from webapp.calls.used import Fact
from webapp.calls.verbs import Verbs
from webapp.mcp.tools import ServedTool

# Errors for what the person did or did not do. Technical failures keep their own message.
_OF_THE_PERSON = (Declined, Denied, Cancelled, Expired)
_log = logging.getLogger(__name__)


async def ask_needs(
    verbs: Verbs, tool: ServedTool | None, *, name: str, arguments: str, is_inner: bool
) -> None:
    """Ask for the needs in the tool's marks. Exceptions of the asking methods propagate."""
    marks = tool.needs if tool is not None else ()
    given: Mapping[str, Json] = json.loads(arguments) if marks else {}
    # Within one call, each nested tool's completion function runs once.
    prefix = f"{name}:{digest_of_arguments(arguments)}:" if is_inner else ""
    for number, need in enumerate(marks):
        await _ask(verbs, need, given, need_id=f"{prefix}{number}")


async def _ask(verbs: Verbs, need: Need, arguments: Mapping[str, Json], *, need_id: str) -> None:
    facts = [verbs.fact(question.request) for question in need.questions]
    # A need that this call has asked is not skipped later: the places in the run would change.
    skip_if = need.skip_if if need.skip_if and not await _has_asked(verbs, facts) else None
    if skip_if is not None and await _author(verbs, skip_if, arguments):
        return
    outcomes = [await _yes(verbs, question, need.decline_message) for question in need.questions]
    pairs = list(zip(need.questions, outcomes, strict=True))
    # Convert the answers before the body: an answer that the author's type refuses does not count.
    answers = [question.answer(outcome.content) for question, outcome in pairs]
    if need.on_complete is not None and await _has_asked(verbs, facts):
        await _complete(verbs, need.on_complete, answers, name=f"needs:{need_id}:{facts}")
    for (question, outcome), fact in zip(pairs, facts, strict=True):
        verbs.prefetched.put(fact, outcome, key=question.key)


async def _yes(verbs: Verbs, question: Question[Any], decline_message: str | None) -> Outcome[Json]:
    """Return the outcome with the unconverted answer. Raise the error for a refusal."""
    unconverted: Question[Json] = replace(question, answer=_unchanged)
    unconverted.discard()  # nobody awaits this copy: `ask` below asks the question
    outcome = await verbs.ask(unconverted)
    if outcome.error is not None:
        verbs.last_error = _in_other_words(outcome.error, decline_message)
        raise verbs.last_error
    return outcome


async def _has_asked(verbs: Verbs, facts: list[Fact]) -> bool:
    """Return True if a person was asked one of these questions in this call."""
    run = await verbs.call.run.load()
    return any((asking.place.kind, asking.place.digest) in facts for asking in run.asked)


async def _complete(
    verbs: Verbs, on_complete: Callable[..., object], answers: list[object], *, name: str
) -> None:
    async def work(_: str) -> None:
        await _author(verbs, on_complete, *answers)

    await verbs.once(name, work, again=None)


async def _author(verbs: Verbs, function: Callable[..., object], *given: object) -> object:
    """Run an author's function and return its result. Its exceptions become ElicitErrors."""
    try:
        result = function(*given)
        return await result if inspect.isawaitable(result) else result
    except ElicitError:
        raise
    except Exception as error:
        tool = verbs.call.tool.tool
        _log.exception("needs.failed", extra={"tool": tool})
        raise ElicitError(
            f"The tool {tool} could not start, because its code raised an error: see the server's "
            "log."
        ) from error


def _in_other_words(error: NotAccepted, message: str | None) -> NotAccepted:
    if message is None or not isinstance(error, _OF_THE_PERSON):
        return error
    said = copy.copy(error)
    said.args = (message,)
    return said


def _unchanged(content: Json) -> Json:
    return content
