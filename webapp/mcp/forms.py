"""Forms in the client: what is sent, and what an answer does.

What could go wrong: a client, or the model behind it, answers what was not asked. It is checked
here before it settles anything; what does not fit ends the question and says where and why.
"""

import asyncio
import logging
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, cast

import anyio
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError

from flows.elicitation import Elicitation, Json, Status
from flows.form import FORM_KINDS, on_the_wire
from flows.schema import check
from webapp.call import Call
from webapp.group import RESULT, Part
from webapp.mcp.results import Result, busy_text, link_result, text_result
from webapp.policies import NO_FORM
from webapp.presenter import Presenter, Shown
from webapp.shown_typed import arguments_of
from webapp.waiters import Waiter

DOES_NOT_FIT = "the client's answer did not fit"
_VALUE_AT_MOST = 500
_log = logging.getLogger(__name__)


def message_of(call: Call, asked: Elicitation) -> str:
    """The question, and what it is about: a client shows no arguments by itself."""
    arguments = arguments_of(call.kinds.forms.terms(asked).arguments)
    lines = [f"{_in_a_line(one.name)}: {_in_a_line(one.value)}" for one in arguments]
    return "\n".join([asked.asked.message, *lines])


def _in_a_line(text: str) -> str:
    """A line for each: what stands in one argument must not look like another one's."""
    seen = "".join(
        sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text
    )
    return seen if len(seen) <= _VALUE_AT_MOST else f"{seen[:_VALUE_AT_MOST]}..."


def schema_of(call: Call, asked: Elicitation) -> dict[str, Any]:
    return on_the_wire(cast("Mapping[str, Json]", call.kinds.forms.terms(asked).schema))


async def acted(call: Call, asked: Elicitation, action: str, content: object) -> Elicitation | None:
    """What the client answered; None: it was dismissed."""
    match action:
        case "accept":
            return await answered(call, asked, content)
        case "decline":
            return await call.elicitations.end(asked, Status.DECLINED)
        case _:
            return None


async def answered(call: Call, asked: Elicitation, content: object) -> Elicitation:
    """The client's yes: it settles the question, or ends it where it does not fit."""
    if call.now >= asked.expires_at:  # the sweeper is not there yet
        return await call.elicitations.end(asked, Status.EXPIRED)
    schema = call.kinds.forms.schema(asked)
    given: Json = {}  # a yes says no more than that
    if schema.fields and content is not None:
        given = cast("Json", content)
    faults = check(schema, given)
    if not faults and asked.kind == "gate":
        return await call.kinds.gates.approve(asked)
    if not faults:
        return await call.elicitations.end(asked, Status.ACCEPTED, content=given)
    ended = await call.elicitations.end(asked, Status.FAILED, why=DOES_NOT_FIT)
    if ended.why == DOES_NOT_FIT:
        call.faults[asked.id] = faults
    return ended


class HoldForm:
    """Presents by the client's form, on the call's own stream (2025-11-25)."""

    def __init__(self, context: ServerRequestContext[Any, Any], *, modes: frozenset[str]) -> None:
        self._context = context
        self._modes = modes

    def can(self, mode: str) -> bool:
        return mode in self._modes

    def asks_in_client(self, kind: str) -> bool:
        return kind in FORM_KINDS

    def limit(self, kind: str, *, now: datetime, timeout: timedelta) -> datetime:
        return now + timeout

    def busy(self) -> Result:
        version = self._context.protocol_version
        return text_result(busy_text(), protocol_version=version, is_error=True)

    def carry(self, call: Call, state: object) -> object:
        return state

    async def wait(self, call: Call, shown: Shown, waiter: Waiter) -> Elicitation | None:
        asking = asyncio.create_task(self._ask(call, shown))
        asking.add_done_callback(lambda _: waiter.wake(None))
        try:
            current = await call.hold(
                shown.elicitation,
                waiter,
                until=shown.elicitation.expires_at,
                stops=asking.done,
            )
        finally:
            asking.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.wait({asking})
        if not call.is_waiting_for(current) or asking.cancelled():
            return current
        action, content = asking.result()
        if action == "error":
            if call.kinds.policies.is_for_client_only(current.kind):
                return await call.elicitations.end(current, Status.FAILED, why=NO_FORM)
            call.interrupt(await self._link(shown))
        return await acted(call, current, action, content)

    async def _ask(self, call: Call, shown: Shown) -> tuple[str, object]:
        asked = shown.elicitation
        try:
            answer = await self._context.session.elicit_form(
                message_of(call, asked),
                schema_of(call, asked),
                related_request_id=self._context.request_id,
            )
        except MCPError as error:
            _log.warning("client.elicitation_failed", extra={"code": error.error.code})
            return "error", None
        return answer.action, answer.content

    async def _link(self, shown: Shown) -> Result:
        """What a client gets that cannot show a form after all; the same call goes on."""
        parts = await shown.group.stand(Part(shown=shown), way=RESULT, is_urgent=False)
        version = self._context.protocol_version
        return link_result(parts, protocol_version=version, is_error=True)


class ByKind:
    """Presents what a form can ask in one way, and what needs a link in another."""

    def __init__(self, *, forms: Presenter, links: Presenter) -> None:
        self._forms = forms
        self._links = links

    def can(self, mode: str) -> bool:
        return self._links.can(mode)

    def asks_in_client(self, kind: str) -> bool:
        return self._of(kind).asks_in_client(kind)

    def limit(self, kind: str, *, now: datetime, timeout: timedelta) -> datetime:
        return self._of(kind).limit(kind, now=now, timeout=timeout)

    def busy(self) -> object:
        return self._links.busy()

    def carry(self, call: Call, state: object) -> object:
        return self._forms.carry(call, state)

    async def wait(self, call: Call, shown: Shown, waiter: Waiter) -> Elicitation | None:
        return await self._of(shown.elicitation.kind).wait(call, shown, waiter)

    def _of(self, kind: str) -> Presenter:
        return self._forms if kind in FORM_KINDS else self._links
