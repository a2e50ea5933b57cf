"""hold by a form: the call stays open while the client's form is filled in (2025-11-25)."""

from functools import partial

from mcp_types import ElicitRequestFormParams

from flows.elicitation.states import Elicitation, Json, Status
from webapp.calls.clients import FORM, Deed
from webapp.calls.presenter import Leg, PresentedQuestion
from webapp.elicitations.waiters import Waiter
from webapp.kinds.quotas import NO_FORM
from webapp.mcp.asks import ClientAnswer
from webapp.mcp.forms import (
    acted,
    acted_late,
    fits,
    is_valid,
    may_be_asked,
    message_of,
    schema_of,
)
from webapp.mcp.presenters.on_stream import OnStream


class HoldForm(OnStream):
    """Presents questions with the client's own form."""

    mode = FORM

    def asks_in_client(self, kind: str, arguments: Json) -> bool:
        return may_be_asked(kind) and fits(arguments)

    async def wait(self, call: Leg, shown: PresentedQuestion, waiter: Waiter) -> Elicitation | None:
        asked = shown.elicitation
        await self._unless_draining(call, shown)
        if await self._goes_by_link(asked):
            return await self._by_link(call, shown, waiter)
        form = ElicitRequestFormParams(
            message=message_of(asked), requested_schema=schema_of(call, asked)
        )
        silence = await self._silence(call, asked)
        async with self._asking(call, asked, lambda: self._send(call, form), waiter) as asking:
            until = self._at_most(asked.expires_at, now=call.now)
            if silence is not None:
                until = min(until, silence.at(call.now))
            stops = partial(self._stops, shown, asking)
            current = await call.hold(asked, waiter, until=until, stops=stops)
            if not call.is_waiting_for(current):
                self._leave_to_newer(call, current, asking)
                return current
            if not asking.done():
                await self._unless_draining(call, shown, is_out=True)
                if silence is not None and silence.has_ended:
                    await self._client.drew_nothing(asked, self.mode, Deed.SILENT)
                elif silence is None and self._is_held_enough:
                    await self._client.was_silent(asked, self.mode)
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

    async def _settle_late(self, call: Leg, asked: Elicitation, answer: ClientAnswer) -> bool:
        return await acted_late(call, asked, answer.action, answer.content)
