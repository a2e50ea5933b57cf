"""hold: the call stays open while the person is away (2025-11-25 with URL mode).

The client's answer and the store are awaited together. An accept only means that the person goes
to the link; it never means that it is done.
"""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import UrlElicitationRequiredError
from mcp_types import ElicitRequestFormParams, ElicitRequestURLParams

from flows.elicitation.states import Elicitation, Status
from flows.elicitation.user_code import CHAT_WORDS
from webapp.calls.batch import REQUIRED
from webapp.calls.presenter import Leg, PresentedQuestion, Prompt
from webapp.deadline import Deadline
from webapp.elicitations.waiters import Waiter
from webapp.identity.user_codes import UserCodes
from webapp.mcp.asks import ClientAsks
from webapp.mcp.forms import agreed
from webapp.mcp.presenters.on_stream import OnStream
from webapp.mcp.user_code import LETTERS_SCHEMA, user_code_in

FORMS_AT_MOST = 60  # a client that fills them by itself must not do so for ever


class Hold(OnStream):
    """Presents by a server-to-client request on the call's own stream."""

    def __init__(
        self,
        context: ServerRequestContext[Any, Any],
        *,
        modes: frozenset[str],
        asks: ClientAsks,
        held_until: Deadline | None,
        is_error: bool,
        progress: timedelta,
        user_codes: UserCodes,
    ) -> None:
        super().__init__(context, modes=modes, asks=asks, held_until=held_until, is_error=is_error)
        self._user_codes = user_codes
        self._progress = progress

    async def wait(self, call: Leg, shown: PresentedQuestion, waiter: Waiter) -> Elicitation | None:
        if not self._context.session.can_send_request:
            part = Prompt(shown=shown)
            parts = await shown.group.park(part, way=REQUIRED, is_urgent=True)
            call.interrupt(_required(parts))
        await self._unless_draining(call, shown)
        id = shown.elicitation.id
        async with self._asking(id, lambda: self._ask(call, shown), waiter) as asking:
            current = await self._wait(call, shown, waiter, asking)
        if current is not None and current.status.is_final:
            await self._context.session.send_elicit_complete(
                current.id, related_request_id=self._context.request_id
            )
            self._asks.end(current.id)
        return current

    async def _wait(
        self, call: Leg, shown: PresentedQuestion, waiter: Waiter, asking: asyncio.Task[str | None]
    ) -> Elicitation | None:
        current = shown.elicitation
        is_answered = False
        step = 0
        while call.is_waiting_for(current):
            until = self._at_most(call.now + self._progress, now=call.now)
            stops = asking.done if not is_answered else _never
            current = await call.hold(current, waiter, until=until, stops=stops)
            if not call.is_waiting_for(current):
                break
            await self._unless_draining(call, shown, is_out=True)
            if asking.done() and not is_answered:
                is_answered = True
                action = asking.result()
                if action == "cancel":
                    return None
                if action is None:
                    await self._link_instead(call, shown)
                if action == "decline":
                    current = await call.elicitations.end(current, Status.DECLINED)
                elif action == "accept" and not current.asked.waits:
                    current = await agreed(call, current)
            elif self._held_until is not None and self._held_until.is_over:
                await self._still_waiting(call, shown, asking)
            else:
                step += 1
                await self._report(step, current)
        return current

    async def _ask(self, call: Leg, shown: PresentedQuestion) -> str:
        """What the client answered; an accept comes after the letters, where there are any."""
        asked = shown.elicitation
        if self._asks.has_accepted(asked.id):
            return "accept"
        action = (await self._send(_link_to(shown))).action
        if action == "accept" and asked.is_by_code:
            action = await self._ask_user_code(call, asked)
        if action == "accept":
            self._asks.accept(asked.id)
        return action

    async def _ask_user_code(self, call: Leg, asked: Elicitation) -> str:
        words = CHAT_WORDS
        for _ in range(FORMS_AT_MOST):
            form = ElicitRequestFormParams(message=words, requested_schema=LETTERS_SCHEMA)
            answer = await self._send(form)
            if answer.action != "accept":
                return answer.action
            typed = user_code_in(answer.content)
            wrong = await self._user_codes.wrong(asked, typed)
            if wrong is None:
                return "accept"
            words = wrong
        return "cancel"

    async def _report(self, step: int, current: Elicitation) -> None:
        await self._context.session.report_progress(
            float(step), None, f"Waiting for the person: {current.asked.message}"
        )


def _never() -> bool:
    return False


def _required(parts: Sequence[Prompt]) -> UrlElicitationRequiredError:
    """-32042: the client opens the links and calls again (no way to ask it here)."""
    return UrlElicitationRequiredError([_link_to(part.shown) for part in parts])


def _link_to(shown: PresentedQuestion) -> ElicitRequestURLParams:
    elicitation = shown.elicitation
    return ElicitRequestURLParams(
        message=elicitation.asked.message, url=shown.url, elicitation_id=elicitation.id
    )
