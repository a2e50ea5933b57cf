"""hold by a form: the call stays open while the client's own form is filled in (2025-11-25)."""

from mcp_types import ElicitRequestFormParams

from flows.elicitation import Elicitation, Status
from flows.form import FORM_KINDS
from webapp.call import Call
from webapp.mcp.forms import acted, message_of, schema_of
from webapp.mcp.on_stream import OnStream
from webapp.policies import NO_FORM
from webapp.presenter import Shown
from webapp.waiters import Waiter


class HoldForm(OnStream):
    """Presents by a form of the client's."""

    def asks_in_client(self, kind: str) -> bool:
        return kind in FORM_KINDS

    async def wait(self, call: Call, shown: Shown, waiter: Waiter) -> Elicitation | None:
        asked = shown.elicitation
        if call.is_draining:
            await self._link_instead(call, shown)
        form = ElicitRequestFormParams(
            message=message_of(call, asked), requested_schema=schema_of(call, asked)
        )
        async with self._asking(self._send(form), waiter) as asking:
            current = await call.hold(asked, waiter, until=asked.expires_at, stops=asking.done)
            if not call.is_waiting_for(current):
                return current
            if call.is_draining and not asking.done():
                await self._link_instead(call, shown, is_out=True)
            if not asking.done():
                return current
            answer = asking.result()
        if answer is not None:
            return await acted(call, current, answer.action, answer.content)
        if call.kinds.policies.is_for_client_only(current.kind):
            return await call.elicitations.end(current, Status.FAILED, why=NO_FORM)
        return await self._link_instead(call, shown)
