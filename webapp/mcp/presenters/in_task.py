"""in_task: no request is held. The task shows the question, and its client polls.

Risks: a client does not show the link to anybody. If a client was seen to show nothing, its call
does not become a task for the question, and the result has the link, as for any other call.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from flows.elicitation.states import Elicitation, Json, Status
from webapp.calls.call import Call, Presenter
from webapp.calls.clients import FORM, LINK, AskedClient, Mode, Reaction
from webapp.calls.presenter import RETRY, PresentedQuestion, Prompt
from webapp.elicitations.waiters import Waiter
from webapp.kinds.page_kind import arguments_in
from webapp.mcp.forms import HasKinds, acted, agreed, fits, is_valid, message_of, schema_of
from webapp.mcp.presenters.on_stream import ACTIONS
from webapp.mcp.results import Result


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class InTask(Presenter):
    """Presents questions for polling: the request ends at the first unanswered question.

    `otherwise` presents questions until the call becomes a task. If `otherwise` is None, the call
    already is a task. A call becomes a task for a question that may take long. For other questions
    the call waits, and the client can repeat the call.
    """

    modes: frozenset[str]
    client: AskedClient
    in_form: Callable[[str], bool]
    created: Callable[[Call], Result]
    is_long: Callable[[Elicitation], bool]
    otherwise: Presenter | None
    # names of questions that the client no longer waits for
    dismissed: set[str] = field(default_factory=set[str], init=False)

    def can(self, mode: str) -> bool:
        return mode in self.modes

    def asks_in_client(self, kind: str, arguments: Json) -> bool:
        return self.in_form(kind) and fits(arguments)

    def limit(self, kind: str, *, now: datetime, timeout: timedelta) -> datetime:
        if self.otherwise is None:
            return now
        return self.otherwise.limit(kind, now=now, timeout=timeout)

    def busy(self) -> object:
        return {} if self.otherwise is None else self.otherwise.busy()

    async def wait(
        self, call: Call, shown: PresentedQuestion, waiter: Waiter
    ) -> Elicitation | None:
        if shown.name in self.dismissed:
            return None
        current = await call.hold(shown.elicitation, waiter, until=call.clock())
        if not call.is_waiting_for(current):
            return current
        if self.otherwise is not None and not await self._makes_a_task(call, current):
            return await self.otherwise.wait(call, shown, waiter)
        await call.links.prove()
        await shown.group.collect_prompts(Prompt(shown=shown), ending=RETRY, is_urgent=True)
        return call.interrupt(self.created(call))

    def mode_of(self, asked: Elicitation) -> Mode:
        return FORM if self.in_form(asked.kind) and fits(arguments_in(asked)) else LINK

    def request(self, service: HasKinds, asked: Elicitation, *, url: str) -> dict[str, Any]:
        """Return the client's request for this question, in the format of `inputRequests`."""
        params: dict[str, Any] = {"mode": "url", "message": asked.request.message, "url": url}
        if self.mode_of(asked) == FORM:
            schema = schema_of(service, asked)
            params = {
                "mode": "form",
                "message": message_of(service, asked),
                "requestedSchema": schema,
            }
        return {"method": "elicitation/create", "params": params}

    async def apply_answer(
        self, call: Call, asked: Elicitation, response: Mapping[str, Any], *, shown_at: datetime
    ) -> bool:
        """Act on the client's answer. Return False if the client dismissed the question.

        If the client accepts a link, the person only agrees to open the link. The question then
        stays open, unless its tool waits only for this agreement.
        """
        mode, action, content = self.mode_of(asked), response.get("action"), response.get("content")
        if action not in ACTIONS:
            return True
        after = (call.clock() - shown_at).total_seconds()
        if self.client.is_automatic(asked, mode, action, content, after=after):
            await self.client.drew_nothing(asked, mode, Reaction.AT_ONCE)
            return True
        settled: Elicitation | None = None
        if mode == FORM:
            settled = await acted(call, asked, action, content)
        await self.client.answered(
            asked, mode, after=after, content=content, is_valid=is_valid(settled)
        )
        if action == "cancel":
            return False
        if mode == FORM:
            return True
        if action == "decline":
            await call.elicitations.end(asked, Status.DECLINED)
        elif not asked.request.waits:
            await agreed(call, asked)
        return True

    async def _makes_a_task(self, call: Call, asked: Elicitation) -> bool:
        is_long = self.is_long(asked) and call.run.can_go_on
        return is_long and not await self._uses_link(asked)

    async def _uses_link(self, asked: Elicitation) -> bool:
        is_for_page = self.client.has_page(asked.kind)
        return is_for_page and await self.client.draws_nothing(asked, self.mode_of(asked))
