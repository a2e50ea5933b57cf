"""The choice of a presenter for a call, by protocol revision and the client's declaration."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cache, partial
from typing import Any, Protocol

from mcp.server.context import ServerRequestContext

from flows.elicitation.states import Elicitation, Json
from flows.elicitation.traits import traits_of
from webapp.calls.call import Call, Presenter
from webapp.calls.clients import AskedClient
from webapp.calls.presenter import PresentedQuestion
from webapp.deadline import Deadline
from webapp.elicitations.waiters import Waiter
from webapp.identity.identity import Caller
from webapp.kinds.page_kind import arguments_in
from webapp.mcp.callers import Declared
from webapp.mcp.forms import fits
from webapp.mcp.presenters.hold import Hold, HoldForm
from webapp.mcp.presenters.in_task import InTask
from webapp.mcp.presenters.link import LinkInResult
from webapp.mcp.presenters.on_stream import ConnectionAsks
from webapp.mcp.presenters.retry import Retry
from webapp.mcp.request_state import Chain
from webapp.mcp.results import Result, busy_result
from webapp.service import Service


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
