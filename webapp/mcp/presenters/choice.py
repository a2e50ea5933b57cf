"""The choice of a presenter for a call, and the presenters that hold a call open (2025-11-25).

The protocol revision and the client's declaration choose the presenter. `Hold` waits for the
client's answer and for a change in the store at the same time. If the client accepts a link, the
person has only agreed to open the link: the answer comes from the page. For the client's own form
(`HoldForm`), the answer comes from the client.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cache, partial
from typing import Any, Protocol

from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import UrlElicitationRequiredError
from mcp_types import ElicitRequestFormParams, ElicitRequestURLParams

from flows.elicitation.states import Elicitation, Json, Status
from flows.elicitation.traits import traits_of
from flows.elicitation.user_code import CHAT_WORDS
from webapp.calls.call import Call, Presenter
from webapp.calls.clients import FORM, LINK, AskedClient, Reaction
from webapp.calls.presenter import REQUIRED, PresentedQuestion, Prompt
from webapp.deadline import Deadline
from webapp.elicitations.waiters import Waiter
from webapp.identity.identity import Caller
from webapp.identity.user_codes import UserCodes
from webapp.kinds.page_kind import arguments_in
from webapp.kinds.quotas import NO_FORM
from webapp.mcp.callers import Declared
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
from webapp.mcp.presenters.in_task import InTask
from webapp.mcp.presenters.link import LinkInResult
from webapp.mcp.presenters.on_stream import Asking, ClientAnswer, ConnectionAsks, OnStream
from webapp.mcp.presenters.retry import Retry
from webapp.mcp.request_state import Chain
from webapp.mcp.results import Result, busy_result
from webapp.service import Service

UNFIT = "unfit"  # the client accepted the user-code form but sent no code
# the maximum of forms for one user code, because some clients fill them in automatically
FORMS_AT_MOST = 60


def presenter_of(
    context: ServerRequestContext[Any, Any],
    declared: Declared,
    chain: Chain,
    *,
    caller: Caller,
    service: Service,
    has_result_tool: bool,
    dismissed: str | None,
    connections: ConnectionAsks,
    task_id: str | None = None,
) -> Presenter:
    """Return the presenter of a call. `dismissed` is the id of a question to stop waiting for.

    `task_id` is the id of a task if this request waits for the task's result.
    """
    patience, limits = service.clients.patience, service.clients.limits
    in_form = _in_form(service, caller, is_on=declared.asks)
    call_limit = patience.limit_for(caller, limits.call)
    held_until = Deadline(call_limit, ticks=service.elicitations.ticks)
    shows = declared.shows(by_code=caller.by_code)
    client = _client(declared, caller=caller, service=service)
    in_result = LinkInResult(
        client=client,
        # Do not hold a request with requestState: the client sends such a request after an
        # answered form, and has not received the links of the open questions yet.
        held=patience.limit_for(caller, limits.link) if chain.run_id is None else timedelta(),
        held_until=held_until,
        has_result_tool=has_result_tool,
        dismissed=dismissed,
    )
    by_kind = partial(ByKind, modes=declared.modes, in_form=in_form, waits=in_result)
    if not declared.is_modern:
        is_patient = task_id is not None or patience.is_patient(caller, name=declared.name)
        asks, unless_patient = connections.of(context), None if is_patient else held_until
        links: Shows = in_result
        if shows:
            links = Hold(
                context=context,
                client=client,
                in_result=in_result,
                asks=asks,
                held_until=unless_patient,
                task_id=task_id,
                progress=limits.progress,
                user_codes=service.identity.user_codes,
            )
        forms = HoldForm(
            context=context,
            client=client,
            in_result=in_result,
            asks=asks,
            held_until=unless_patient,
            task_id=task_id,
        )
        return by_kind(forms=forms, links=links)
    if not (shows or declared.asks):
        return by_kind(forms=in_result, links=in_result)
    retry = Retry(service, chain=chain, in_result=in_result, in_form=in_form)
    return by_kind(forms=retry, links=retry if shows else in_result, retry=retry)


def in_task_of(
    declared: Declared,
    *,
    caller: Caller,
    service: Service,
    created: Callable[[Call], Result],
    otherwise: Presenter | None = None,
) -> InTask:
    """Return the presenter for a call that is already a task or may become a task."""
    return InTask(
        modes=declared.modes,
        client=_client(declared, caller=caller, service=service),
        in_form=_in_form(service, caller, is_on="form" in declared.modes),
        created=created,
        is_long=service.kinds.quotas.is_for_task,
        otherwise=otherwise,
    )


class Shows(Protocol):
    """The part of a presenter that differs between the ways to show a question."""

    def limit(self, kind: str, *, now: datetime, timeout: timedelta) -> datetime:
        """Return the time until which a question of this kind may wait; see `Presenter.limit`."""
        ...

    async def wait(
        self, call: Call, shown: PresentedQuestion, waiter: Waiter
    ) -> Elicitation | None:
        """Show the question and wait for its answer; see `Presenter.wait`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class ByKind:
    """The presenter of a call: it shows some questions in a form and the others as links.

    Questions for an approver are not sent to the client, because the person there must not decide
    them. The call waits for a while, and its result says who decides. `retry` is the presenter that
    stores its state in the client's request; None for a client that sends no such requests.
    """

    modes: frozenset[str]
    in_form: Callable[[str], bool]
    forms: Shows
    links: Shows
    waits: Shows
    retry: Retry | None = None

    def can(self, mode: str) -> bool:
        return mode in self.modes

    def asks_in_client(self, kind: str, arguments: Json) -> bool:
        return self.in_form(kind) and fits(arguments)

    def limit(self, kind: str, *, now: datetime, timeout: timedelta) -> datetime:
        return self._of(kind).limit(kind, now=now, timeout=timeout)

    def busy(self) -> Result:
        return busy_result()

    def carry(self, call: Call, state: object) -> object:
        return state if self.retry is None else self.retry.carry(call, state)

    async def apply_client_answers(self, call: Call) -> None:
        if self.retry is not None:
            await self.retry.apply_client_answers(call)

    async def wait(
        self, call: Call, shown: PresentedQuestion, waiter: Waiter
    ) -> Elicitation | None:
        asked = shown.elicitation
        if traits_of(asked.kind).is_anothers:
            return await self.waits.wait(call, replace(shown, is_again=True), waiter)
        in_client = self.in_form(asked.kind) and fits(arguments_in(asked))
        return await (self.forms if in_client else self.links).wait(call, shown, waiter)

    def _of(self, kind: str) -> Shows:
        if traits_of(kind).is_anothers:
            return self.waits
        return self.forms if self.in_form(kind) else self.links


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class Hold(OnStream):
    """Presents questions with a server-to-client request on the call's own stream.

    The wait ends at `in_result.held_until` if the client accepted a link sooner than a person can
    read.
    """

    mode = LINK
    progress: timedelta
    user_codes: UserCodes

    async def wait(
        self, call: Call, shown: PresentedQuestion, waiter: Waiter
    ) -> Elicitation | None:
        if not self.context.session.can_send_request:
            part = Prompt(shown=shown)
            parts = await shown.group.collect_prompts(part, ending=REQUIRED, is_urgent=True)
            call.interrupt(_required(parts))
        await self._unless_draining(call, shown)
        asked = shown.elicitation
        if await self._uses_link(asked):
            return await self._by_link(call, shown, waiter)
        silence = await self._answer_deadline(call, asked)
        async with self._asking(call, asked, lambda: self._ask(call, shown), waiter) as asking:
            current = await self._wait(call, shown, waiter, asking, silence)
            if current is not None:
                self._leave_to_newer(call, current, asking)
        if current is not None and current.status.is_final:
            await self.context.session.send_elicit_complete(
                current.id, related_request_id=self.context.request_id
            )
            self.asks.end(current.id)
        return current

    async def _wait(
        self,
        call: Call,
        shown: PresentedQuestion,
        waiter: Waiter,
        asking: Asking,
        silence: Deadline | None,
    ) -> Elicitation | None:
        current = shown.elicitation
        is_answered = is_unread = False
        while call.is_waiting_for(current):
            until = self._at_most(call.clock() + self.progress, now=call.clock())
            if silence is not None and self.client.is_unanswered(current.id):
                until = min(until, silence.at(call.clock()))
            if is_unread:
                until = min(until, self.in_result.held_until.at(call.clock()))
            is_new = partial(self._stops, shown, None if is_answered else asking)
            current = await call.hold(current, waiter, until=until, stops=is_new)
            if not call.is_waiting_for(current):
                break
            shown = replace(shown, elicitation=current)
            await self._unless_draining(call, shown, is_out=True)
            if asking.done() and not is_answered:
                is_answered = True
                answer = asking.result()
                if answer is None:
                    await self._link_instead(call, shown)
                await self._must_be_usable(call, shown, answer)
                if answer.action == "cancel":
                    return None
                is_unread = silence is not None and self.client.is_too_soon(answer.after)
                current = await self._acted(call, current, answer)
            elif (
                silence is not None and silence.has_ended and self.client.is_unanswered(current.id)
            ):
                await self.client.drew_nothing(current, self.mode, Reaction.SILENT)
                await self._still_waiting(call, shown, asking)
            elif (
                shown.group.has_automatic_answer
                or self._is_held_enough
                or (is_unread and self.in_result.held_until.has_ended)
            ):
                await self._still_waiting(call, shown, asking)
            else:
                await self._report(call.next_step(), current)
        return current

    async def _must_be_usable(
        self, call: Call, shown: PresentedQuestion, answer: ClientAnswer
    ) -> None:
        """Record the client's answer. If it is automatic or invalid, end the call with the link."""
        await self._must_be_somebodys(call, shown, answer)
        is_valid = answer.action != UNFIT
        await self._note(shown.elicitation, answer, is_valid=is_valid)
        if not is_valid:
            await self._link_instead(call, shown, is_out=True)

    async def _acted(self, call: Call, current: Elicitation, answer: ClientAnswer) -> Elicitation:
        if answer.action == "decline":
            return await call.elicitations.end(current, Status.DECLINED)
        if answer.action == "accept" and not current.request.waits:
            return await agreed(call, current)
        return current

    async def _settle_late(self, call: Call, asked: Elicitation, answer: ClientAnswer) -> bool:
        await self._acted(call, asked, answer)
        return answer.action != UNFIT

    async def _ask(self, call: Call, shown: PresentedQuestion) -> ClientAnswer:
        """Return the client's answer.

        If the link needs a user code, return an accept only after the person typed the right code.
        """
        asked = shown.elicitation
        if self.asks.has_accepted(asked.id):
            return ClientAnswer(action="accept")
        answer = await self._send(call, _link_to(shown))
        if answer.action == "accept" and asked.is_by_code:
            await self.client.answered(asked, self.mode, after=answer.after)
            answer = await self._ask_user_code(call, asked)
        if answer.action == "accept":
            self.asks.accept(asked.id)
        return answer

    async def _ask_user_code(self, call: Call, asked: Elicitation) -> ClientAnswer:
        words, answer = CHAT_WORDS, ClientAnswer(action="cancel")
        for _ in range(FORMS_AT_MOST):
            form = ElicitRequestFormParams(message=words, requested_schema=USER_CODE_SCHEMA)
            answer = await self._send(call, form)
            if answer.action != "accept":
                return answer
            typed = user_code_in(answer.content)
            if not typed:
                return replace(answer, action=UNFIT)
            wrong = await self.user_codes.wrong(asked, typed)
            if wrong is None:
                return answer
            words = wrong
        return replace(answer, action="cancel")

    async def _report(self, step: float, current: Elicitation) -> None:
        await self.context.session.report_progress(
            step, None, f"Waiting for the person: {current.request.message}"
        )


class HoldForm(OnStream):
    """Presents questions with the client's own form."""

    mode = FORM

    async def wait(
        self, call: Call, shown: PresentedQuestion, waiter: Waiter
    ) -> Elicitation | None:
        current = await self._by_form(call, shown, waiter)
        while current is not None and call.is_waiting_for(current):
            # The author's check refused the answer: show the form again.
            current = await self._by_form(call, replace(shown, elicitation=current), waiter)
        return current

    async def _by_form(
        self, call: Call, shown: PresentedQuestion, waiter: Waiter
    ) -> Elicitation | None:
        """Show the form once. The returned question is open if the form has to be shown again."""
        asked = shown.elicitation
        await self._unless_draining(call, shown)
        if await self._uses_link(asked):
            return await self._by_link(call, shown, waiter)
        form = ElicitRequestFormParams(
            message=message_of(call, asked), requested_schema=schema_of(call, asked)
        )
        silence = await self._answer_deadline(call, asked)
        async with self._asking(call, asked, lambda: self._send(call, form), waiter) as asking:
            until = self._at_most(asked.expires_at, now=call.clock())
            if silence is not None:
                until = min(until, silence.at(call.clock()))
            stops = partial(self._stops, shown, asking)
            current = await call.hold(asked, waiter, until=until, stops=stops)
            if not call.is_waiting_for(current):
                self._leave_to_newer(call, current, asking)
                return current
            if not asking.done():
                await self._unless_draining(call, shown, is_out=True)
                if silence is not None and silence.has_ended:
                    await self.client.drew_nothing(asked, self.mode, Reaction.SILENT)
                elif silence is None and self._is_held_enough:
                    await self.client.record_silence(asked, self.mode)
                await self._still_waiting(call, shown, asking)
            answer = asking.result()
            if answer is not None:
                await self._must_be_somebodys(call, shown, answer)
                ended = await acted(call, current, answer.action, answer.content)
                await self._note(asked, answer, is_valid=is_valid(ended))
                return ended
        if call.kinds.quotas.is_for_client_only(current.kind):
            return await call.elicitations.end(current, Status.FAILED, why=NO_FORM)
        return await self._link_instead(call, shown)

    async def _settle_late(self, call: Call, asked: Elicitation, answer: ClientAnswer) -> bool:
        return await acted_late(call, asked, answer.action, answer.content)


def _client(declared: Declared, *, caller: Caller, service: Service) -> AskedClient:
    return AskedClient(
        service.clients,
        caller=caller,
        name=declared.name,
        release=declared.release,
        apart=declared.apart,
        has_page=partial(_has_page, service=service, caller=caller),
        is_proxy=declared.is_proxy and declared.is_modern,
    )


def _in_form(service: Service, caller: Caller, *, is_on: bool) -> Callable[[str], bool]:
    """Return a function that returns True if the client's own form can ask a kind of question.

    `is_on`: the client has its own forms.
    """
    # If the owner has to use a paired browser, a client's form may not accept gates: any program
    # could fill it in.
    with_gates = not service.identity.pairs_for_yes(caller.owner)

    @cache
    def may_be_asked(kind: str) -> bool:
        traits = traits_of(kind)
        return is_on and traits.fits_client_form and (with_gates or not traits.is_gate)

    return may_be_asked


def _has_page(kind: str, *, service: Service, caller: Caller) -> bool:
    """Return True if a person can answer this kind on our page.

    The person behind an anonymous caller cannot answer on the page, because the page needs a user
    code. The person would type the code in a later call, and the server cannot know that the later
    call is from the same caller.
    """
    is_found = caller.refusal is None and not caller.is_anonymous
    return is_found and not service.kinds.quotas.is_for_client_only(kind)


def _required(parts: Sequence[Prompt]) -> UrlElicitationRequiredError:
    """Return error -32042, after which the client opens the links and calls the tool again."""
    return UrlElicitationRequiredError([_link_to(part.shown) for part in parts])


def _link_to(shown: PresentedQuestion) -> ElicitRequestURLParams:
    elicitation = shown.elicitation
    return ElicitRequestURLParams(
        message=elicitation.request.message, url=shown.url, elicitation_id=elicitation.id
    )
