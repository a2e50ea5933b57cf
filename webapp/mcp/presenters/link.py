"""link: the result itself carries the link (for a client without URL mode).

An identical call continues: the call is held for a while, and then its result has the link again.
The model can wait or give up, and cannot accept for the person.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from flows.elicitation.states import Elicitation
from flows.payments.events import ON_ITS_WAY
from webapp.calls.call import Call
from webapp.calls.clients import AskedClient
from webapp.calls.presenter import RESULT, PresentedQuestion, Prompt
from webapp.deadline import Deadline
from webapp.elicitations.waiters import Waiter
from webapp.mcp.results import Result, form_result, link_result


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class LinkInResult:
    """Presents questions with an ordinary result."""

    client: AskedClient
    held: timedelta  # how long one request waits for one question
    held_until: Deadline
    has_result_tool: bool
    dismissed: str | None  # id of a question to stop waiting for

    def limit(self, kind: str, *, now: datetime, timeout: timedelta) -> datetime:
        return min(now + self.held, self.held_until.at(now))

    async def wait(
        self, call: Call, shown: PresentedQuestion, waiter: Waiter
    ) -> Elicitation | None:
        if shown.elicitation.id == self.dismissed:
            return None
        now = call.clock()
        limit = self.limit(shown.elicitation.kind, now=now, timeout=self.held)
        limit = limit if shown.is_again else now
        current = await call.hold(
            shown.elicitation, waiter, until=limit, stops=lambda: shown.group.is_urgent
        )
        if call.is_waiting_for(current):
            part = Prompt(shown=replace(shown, elicitation=current), is_unanswered=shown.is_again)
            await call.links.prove()
            parts = await shown.group.collect_prompts(
                part, ending=RESULT, is_urgent=not shown.is_again
            )
            call.interrupt(
                pending_result(call, parts, self.client, has_result_tool=self.has_result_tool)
            )
        return current


def pending_result(
    call: Call,
    parts: Sequence[Prompt],
    client: AskedClient,
    *,
    has_result_tool: bool = False,
) -> Result:
    """Return the result for a call that waits for a person.

    If any of the questions has a page, the result has the links to those pages. Otherwise the
    result says that the client has to ask.
    """
    asked = [(part, part.shown.elicitation) for part in parts]
    with_page = [
        part for part, one in asked if client.has_page(one.kind) or one.progress == ON_ITS_WAY
    ]
    for part in with_page if not call.has_ended else ():  # an ended request has another result
        client.linked(part.shown.elicitation)
    if with_page:
        return link_result(with_page, has_result_tool=has_result_tool)
    return form_result(parts[0])
