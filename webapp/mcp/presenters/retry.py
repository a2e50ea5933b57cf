"""retry: the tool runs again until the person has answered (2026-07-28 with URL mode).

The first request returns InputRequiredResult with the link. Each later request is held open, so
that a client that retries at once does not use up its rounds: clients limit the number of retries.
The last round returns an ordinary result with the link. This server's part of requestState is a
sealed token; the rest belongs to the tool.

Risks: a client shows nothing, and answers automatically or makes no further request. The token
therefore records when each question was first sent, which no client can change. If a client does
not answer for a long time, the result has the link for the person. If a client agrees to a link
sooner than a person can read, it may not have opened a browser, so its request ends with the link
in the result.

An engine that replays (LangGraph and others) repeats the call from its first request before it
brings the person's answer. The repeated first request therefore gets the same question under the
same key. If there are several questions, the engine gets the same rounds in the same order,
including rounds whose questions are already settled. An answer to a settled question changes
nothing.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, NoReturn, cast

from msgspec.json import encode

from flows.elicitation.run import store_responses
from flows.elicitation.states import Elicitation, Status
from flows.elicitation.user_code import CHAT_WORDS
from flows.errors import InvalidAnswer
from webapp.calls.call import Call
from webapp.calls.clients import FORM, LINK, Mode, Reaction
from webapp.calls.presenter import AUTOMATIC, RESULT, RETRY, PresentedQuestion, Prompt, name_at
from webapp.deadline import Deadline
from webapp.elicitations.links import LINK_OUTLIVES
from webapp.elicitations.waiters import Waiter
from webapp.kinds.page_kind import arguments_in
from webapp.mcp.forms import (
    USER_CODE_SCHEMA,
    acted,
    acted_late,
    agreed,
    fits,
    is_valid,
    message_of,
    schema_of,
    user_code_in,
)
from webapp.mcp.presenters.link import LinkInResult, pending_result
from webapp.mcp.request_state import (
    BY_FORM,
    BY_LINK,
    KEY,
    MARK,
    Chain,
    Out,
    as_round,
    in_hex,
    merged_responses,
    settled_round,
    write_shown,
)
from webapp.mcp.results import Result
from webapp.service import Service

_USER_CODE_SUFFIX = "-code"
_ACCOUNTS_AT_MOST = 8  # in one token
_RESPONSES_BYTES_AT_MOST = 40 * 1024  # bytes of the sealed form: JSON text inside JSON
_SECOND = timedelta(seconds=1)


class Retry:
    """Presents questions with InputRequiredResult and the client's retries."""

    def __init__(
        self,
        service: Service,
        *,
        chain: Chain,
        in_result: LinkInResult,
        in_form: Callable[[str], bool],
    ) -> None:
        self._service = service
        self._chain = chain
        self._client = in_result.client
        self._in_result = in_result
        self._in_form = in_form
        self._limits = limits = service.clients.limits
        self._request_until = Deadline(limits.retry, ticks=service.elicitations.ticks)
        self._dismissed = set(chain.dismissed)
        self._answered = set[int]()  # indexes of questions answered in this request
        self._began_again_at = chain.began_again_at
        self._replayed = chain.replayed

    def _asks_in_client(self, asked: Elicitation) -> bool:
        return self._in_form(asked.kind) and fits(arguments_in(asked))

    def limit(self, kind: str, *, now: datetime, timeout: timedelta) -> datetime:
        wanted = max(self._request_until.at(now), now + self._limits.request_at_least)
        return min(wanted, self._in_result.held_until.at(now))

    async def wait(
        self, call: Call, shown: PresentedQuestion, waiter: Waiter
    ) -> Elicitation | None:
        out, current = self._out(call).get(shown.index), shown.elicitation
        if out is None or not shown.is_again or self._client.is_invalid(current.id):
            if await self._uses_link(call, shown):
                is_again = self._client.has_link(current.id)
                return await self._in_result.wait(call, replace(shown, is_again=is_again), waiter)
            await self._suspend(call, shown, is_shown=False)
        if shown.name in self._chain.dismissed:
            return None
        if out.mode == BY_FORM:
            return await self._form_answer(call, shown, out)
        action = await self._answer(call, shown)
        is_unread = False
        if action is not None:
            after = await self._must_be_somebodys(call, shown, out, action=action)
            await self._client.answered(current, LINK, after=after)
            # LangChain's adapter fails on an InputRequiredResult without a question, so the
            # request of a replaying engine ends with the link in the result.
            is_unread = self._client.is_too_soon(after) or self._is_replayed
        if action == "decline":
            return await call.elicitations.end(current, Status.DECLINED)
        if action == "cancel":
            self._dismissed.add(shown.name)
            return None
        if action == "accept" and not current.request.waits:
            return await agreed(call, current)
        return await self._held(call, shown, waiter, is_unread=is_unread)

    async def _held(
        self, call: Call, shown: PresentedQuestion, waiter: Waiter, *, is_unread: bool
    ) -> Elicitation:
        """Hold this request, and end it with a retry or the link if no answer comes.

        `is_unread`: the client agreed sooner than a person can read the question.
        """
        asked = shown.elicitation
        current = await call.hold(
            asked,
            waiter,
            until=self.limit(asked.kind, now=call.clock(), timeout=timedelta()),
            stops=lambda: shown.group.is_urgent,
        )
        if call.is_waiting_for(current):
            shown = replace(shown, elicitation=current)
            if is_unread and self._client.has_page(current.kind):
                await self._end_with(call, Prompt(shown=shown, is_unanswered=True), ending=RESULT)
            await self._suspend(call, shown, is_shown=True)
        return current

    async def _form_answer(
        self, call: Call, shown: PresentedQuestion, out: Out
    ) -> Elicitation | None:
        """Act on the answer in the client's form. Without an answer, send the form again."""
        response = self._chain.answers.get(_key(shown.name))
        action = _action(response)
        if action is None:
            await self._suspend(call, shown, is_shown=False)
        content = cast("Mapping[str, Any]", response).get("content")
        after = await self._must_be_somebodys(call, shown, out, action=action, content=content)
        settled = await acted(call, shown.elicitation, action, content)
        if settled is None:
            self._dismissed.add(shown.name)
        await self._client.answered(
            shown.elicitation, FORM, after=after, content=content, is_valid=is_valid(settled)
        )
        if settled is not None and not settled.status.is_final:  # the author's check refused it
            await self._suspend(call, shown, is_shown=False)
        return settled

    @property
    def _is_replayed(self) -> bool:
        return bool(self._replayed) or self._began_again_at is not None

    async def _uses_link(self, call: Call, shown: PresentedQuestion) -> bool:
        """Return True if the person gets the link and the client is not sent this question.

        Return True also if this question replaces an expired one that the client was sent and never
        answered: an engine that replays can only bring an answer to the old question.
        """
        asked = shown.elicitation
        if not self._client.has_page(asked.kind):
            return False
        if shown.replaces is not None and not call.run.is_continued:
            previous = await call.elicitations.get(shown.replaces)
            has_expired = previous is not None and previous.status is Status.EXPIRED
            if has_expired and not self._client.is_known_question(shown.replaces):
                return True
        mode: Mode = FORM if self._asks_in_client(asked) else LINK
        return await self._client.needs_link(asked, mode)

    async def _must_be_somebodys(
        self,
        call: Call,
        shown: PresentedQuestion,
        out: Out,
        *,
        action: str,
        content: object = None,
    ) -> float:
        """Return the seconds between the question and the client's answer.

        If no person can have given the answer, end the call with the link.
        """
        asked, mode = shown.elicitation, _mode(out)
        after = _seconds_since(out, asked, now=call.clock())
        if self._client.is_automatic(asked, mode, action, content, after=after):
            await self._client.drew_nothing(asked, mode, Reaction.AT_ONCE)
            part = Prompt(shown=shown, is_unanswered=True, is_automatic=True)
            await self._end_with(call, part, ending=AUTOMATIC)
        self._answered.add(shown.index)
        return after

    async def _end_with(self, call: Call, part: Prompt, *, ending: str) -> NoReturn:
        """End the request with the link as the call's result."""
        await call.links.prove()
        parts = await part.shown.group.collect_prompts(
            part, ending=ending, is_urgent=ending == AUTOMATIC
        )
        call.interrupt(self._last(call, parts))

    async def _answer(self, call: Call, shown: PresentedQuestion) -> str | None:
        """Return the client's action, or None. If the link needs a user code, check it first.

        If the code is missing or wrong, end the request with another form for the code, or with the
        link.
        """
        asked = shown.elicitation
        action = _action(self._chain.answers.get(_key(shown.name)))
        if action in ("decline", "cancel") or not asked.is_by_code or _is_confirmed(asked):
            return action
        response = self._chain.answers.get(_key(shown.name) + _USER_CODE_SUFFIX)
        answered = _action(response)
        if answered in ("decline", "cancel"):
            return answered
        words: str | None = CHAT_WORDS
        if answered == "accept":
            typed = user_code_in(cast("Mapping[str, Any]", response).get("content"))
            if not typed and self._client.has_page(asked.kind):
                self._answered.add(shown.index)
                await self._client.answered(asked, LINK, after=0, is_valid=False)
                await self._end_with(call, Prompt(shown=shown, is_unanswered=True), ending=RESULT)
            words = await self._service.identity.user_codes.wrong(asked, typed)
        if words is not None:
            await self._suspend(call, shown, is_shown=True, user_code=words)
        return action

    async def apply_client_answers(self, call: Call) -> None:
        """Apply the client's answers from this request.

        The client sends them only once, so an answer that is not applied now is lost.
        """
        if not (self._chain.answers and call.run.is_continued):
            return
        for index, asking in enumerate(call.run.value.asked):
            name = name_at(index, asking.elicitation_id)
            response, out = self._chain.answers.get(_key(name)), self._chain.shown.get(index)
            action = None if name in self._chain.dismissed else _action(response)
            if out is not None and action is not None:
                asked = await call.elicitations.get(asking.elicitation_id)
                if asked is not None and asked.status.is_final:
                    if not self._replayed:  # a replaying engine sends each answer repeatedly
                        self._client.has_replied(asked)
                elif asked is not None and index not in self._answered:
                    content = cast("Mapping[str, Any]", response).get("content")
                    await self._apply_client_answer(call, asked, out, action, content)

    async def _apply_client_answer(
        self, call: Call, asked: Elicitation, out: Out, action: str, content: object
    ) -> None:
        mode, after = _mode(out), _seconds_since(out, asked, now=call.clock())
        if self._client.is_automatic(asked, mode, action, content, after=after):
            return
        fits_form = True
        if mode == FORM or action == "decline":
            fits_form = await acted_late(call, asked, action, content)
        await self._client.answered(
            asked, mode, after=after, content=content, is_valid=fits_form or mode != FORM
        )

    def carry(self, call: Call, state: object) -> object:
        """Return the tool's own requestState together with this server's token."""
        if not call.run.is_loaded:
            return state
        foreign = state if isinstance(state, str) else None
        return self._state(call, shown=self._out(call), foreign=foreign)

    async def _store_responses(self, call: Call) -> None:
        stored = call.run.value.responses
        merged = json.dumps(merged_responses(stored, self._chain.responses))
        if self._chain.responses and merged != stored:
            if (size := len(encode(merged))) > _RESPONSES_BYTES_AT_MOST:
                why = (
                    f"The client's responses to the tool's own requests have {size} bytes; at most "
                    f"{_RESPONSES_BYTES_AT_MOST} can be stored while a person is asked."
                )
                raise InvalidAnswer([("", why)])
            await call.run.change(lambda run: store_responses(run, merged))

    def _out(self, call: Call) -> Mapping[int, Out]:
        """Return the run's questions that the client was sent, or {} for another run's token."""
        return self._chain.shown if call.run.is_continued else {}

    async def _suspend(
        self, call: Call, shown: PresentedQuestion, *, is_shown: bool, user_code: str | None = None
    ) -> NoReturn:
        part = Prompt(shown=shown, is_unanswered=is_shown, user_code=user_code)
        is_urgent = not is_shown or user_code is not None
        await call.links.prove()
        parts = await shown.group.collect_prompts(part, ending=RETRY, is_urgent=is_urgent)
        await self._store_responses(call)
        if self._chain.rounds >= self._limits.rounds or call.is_draining:
            # No retry: the client has no rounds left, or would retry while this process ends.
            call.interrupt(self._last(call, parts))
        # Use one timestamp for all questions: the token groups questions by timestamp, which keeps
        # it short.
        now = call.clock()
        again = await settled_round(call, parts, done=self._replayed, client=self._client)
        parts = tuple(again) or parts
        before = self._out(call)
        out = {**before, **{n: before[n]._replace(at=None) for n in self._answered if n in before}}
        for part in parts:
            if not part.is_unanswered:
                out[part.shown.index] = self._record_sent(part.shown, before, now=now)
                # If the call has already ended, the client gets the result of another group of
                # questions instead of this result.
                if not (call.has_ended or again):
                    self._client.sent(part.shown.elicitation, is_again=part.shown.is_again, now=now)
        if again or self._replayed:
            self._replayed = (*self._replayed, as_round(part.index for part in parts))
        elif not call.run.is_continued and any(part.shown.is_again for part in parts):
            self._began_again_at = now
        result: Result = {
            "resultType": "input_required",
            "requestState": self._state(call, shown=out, foreign=self._chain.foreign),
        }
        requests: dict[str, Any] = {}
        for part in parts:
            requests |= self._requests(call, part, out[part.shown.index])
        if requests:
            result["inputRequests"] = requests
        call.interrupt(result)

    def _last(self, call: Call, parts: Sequence[Prompt]) -> Result:
        """Return the result that ends the call with the links to the questions."""
        return pending_result(call, parts, self._client)

    def _requests(self, call: Call, part: Prompt, out: Out) -> dict[str, Any]:
        """Return the client's requests for one question, by the keys of the expected answers.

        `out` says how the question is sent.
        """
        shown, user_code = part.shown, part.user_code
        requests: dict[str, Any] = {}
        if not part.is_unanswered:
            asked, is_link = shown.elicitation, out.mode == BY_LINK
            requests[_key(shown.name)] = (
                _asks_for(mode="url", message=asked.request.message, url=shown.url)
                if is_link
                else _asks_for(
                    mode="form",
                    message=message_of(call, asked),
                    requestedSchema=schema_of(call, asked),
                )
            )
            user_code = CHAT_WORDS if is_link and asked.is_by_code else None
        if user_code is not None:
            requests[_key(shown.name) + _USER_CODE_SUFFIX] = _asks_for(
                mode="form", message=user_code, requestedSchema=USER_CODE_SCHEMA
            )
        return requests

    def _record_sent(
        self, shown: PresentedQuestion, before: Mapping[int, Out], *, now: datetime
    ) -> Out:
        """Return how the question is sent, and when it was first sent to the client.

        A question that was sent before keeps the time of its first sending.
        """
        known = before.get(shown.index) if shown.is_again else None
        mode = BY_FORM if self._asks_in_client(shown.elicitation) else BY_LINK
        if known is not None and known.at is not None:
            return Out(mode, known.at)
        return Out(
            mode, self._client.first_sent_at(shown.elicitation, is_again=shown.is_again, now=now)
        )

    def _state(self, call: Call, *, shown: Mapping[int, Out], foreign: str | None) -> str:
        run = call.run.value
        got = [f"{digest}:{id}" for digest, id in call.used.accounts.items()]
        lists = [
            write_shown(shown),
            sorted(self._dismissed),
            got[:_ACCOUNTS_AT_MOST],
            [run.key] if got else [],
            [in_hex(self._began_again_at)],
            self._replayed,
        ]
        rest = ";".join([str(self._chain.rounds + 1), *map(",".join, lists)])
        token = call.links.run(
            run_id=run.id,
            rest=rest,
            expires_at=run.open_until + LINK_OUTLIVES,
            now=call.clock(),
        )
        return f"{MARK}{token}" + (f":{foreign}" if foreign is not None else "")


def _key(name: str) -> str:
    return f"{KEY}{name}"


def _mode(out: Out) -> Mode:
    return FORM if out.mode == BY_FORM else LINK


def _seconds_since(out: Out, asked: Elicitation, *, now: datetime) -> float:
    """Return the seconds since the question was sent, but not more than since its creation.

    If the time in the token is earlier than the creation, it belongs to an earlier question at the
    same place.
    """
    return (now - max(out.at or asked.created_at, asked.created_at)) / _SECOND


def _asks_for(**params: Any) -> dict[str, Any]:
    return {"method": "elicitation/create", "params": params}


def _is_confirmed(current: Elicitation) -> bool:
    return current.binding is not None and current.binding.confirmed_at is not None


def _action(response: Any) -> str | None:
    if isinstance(response, Mapping):
        action = cast("Mapping[str, Any]", response).get("action")
        return action if isinstance(action, str) else None
    return None
