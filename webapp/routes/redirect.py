"""Departures: one press of Continue, from the form to the address that the browser is sent to.

What could go wrong: an answer that outruns its record. The attempt, with all that its way back
will need, is stored before anything leaves; what was learned on the way out, before the browser
is sent on.
"""

import hashlib
import logging
import secrets
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec

from flows.crypto.tokens import Claims, Purpose
from flows.elicitation import attempt as attempts
from flows.elicitation.flow import Flow, RedirectContext
from flows.elicitation.proof import OnPage
from flows.elicitation.states import Attempt, Completion, Elicitation, Json, Status, Trouble
from flows.errors import Failed, InvalidToken, NotConfigured, NotPossible
from flows.payments.gateway import stands_in_the_way
from flows.payments.session import StoredCheckout, kept_of
from webapp.elicitations.complete import complete_elicitation
from webapp.elicitations.question_kind import QuestionKind
from webapp.service import Service

STATE_BYTES = 16
_log = logging.getLogger(__name__)


def state_hash(rest: str) -> str:
    return hashlib.sha256(b"elicit-url state" + rest.encode()).hexdigest()


async def depart(
    service: Service, elicitation: Elicitation, *, cookie: str, switches: bool = False
) -> str:
    """The address to send the browser to; `switches`: to another account than the last one there.

    Raises Failed if the provider cannot be talked to (the elicitation goes on), NotPossible if it
    is over, TooManyAttempts.
    """
    kind = service.kinds[elicitation.kind]
    flow = kind.flow
    if flow is None:
        raise NotPossible(status=elicitation.status, wanted="left for elsewhere")
    if not kind.holds_open:
        return await _depart(service, elicitation, kind, flow, cookie=cookie, switches=switches)
    checkouts = service.kinds.payments.checkouts
    async with checkouts.one_at_a_time(elicitation.id):
        await checkouts.make_way(elicitation.id, browser=service.browser.hash(cookie))
        return await _depart(service, elicitation, kind, flow, cookie=cookie, switches=switches)


async def _depart(
    service: Service,
    elicitation: Elicitation,
    kind: QuestionKind,
    flow: Flow,
    *,
    cookie: str,
    switches: bool,
) -> str:
    rest = secrets.token_urlsafe(STATE_BYTES)
    opened = await _open(
        service, elicitation, kind, flow, cookie=cookie, rest=rest, switches=switches
    )
    assert opened.attempt is not None
    trip = _redirect(
        service, opened, kind, number=opened.attempt.number, rest=rest, switches=switches
    )
    try:
        departure = await service.outbound.run(
            flow.begin(opened, trip), to=service.kinds.client(opened)
        )
    except (Failed, NotConfigured) as error:
        number, trouble = trip.number, trouble_of(error)
        with suppress(KeyError):  # erased meanwhile
            await service.elicitations.change(
                opened.id, lambda e: attempts.lead_nowhere(e, number=number, trouble=trouble)
            )
        if kind.holds_open and isinstance(error, Failed) and error.is_permanent:
            # Pressed again it would be refused again: whoever waits hears the provider's reason.
            _log.warning("payment.refused", extra={"id": opened.id, "why": str(error)})
            why = str(error).rstrip(".")
            ended = await service.elicitations.end(opened, Status.FAILED, why=why)
            raise NotPossible(status=ended.status, wanted="gone on with") from error
        raise
    if departure.kept is not None:
        number, kept = trip.number, departure.kept
        opened = await service.elicitations.change(
            opened.id, lambda e: attempts.keep(e, number=number, kept=kept)
        )
        # It ended meanwhile, or made way in another process: nobody is to pay there any more.
        if opened.status.is_final or (kind.holds_open and _has_made_way(opened, kept)):
            raise NotPossible(status=opened.status, wanted="gone on with")
    if not opened.asked.waits:
        done = await complete_elicitation(service.elicitations, opened.id, {}, OnPage())
        if done is not Completion.ACCEPTED:
            raise NotPossible(status=opened.status, wanted="gone on with")
    return departure.url


def trouble_of(error: Failed | NotConfigured) -> Trouble:
    """What a press that led nowhere is to be remembered by."""
    if isinstance(error, NotConfigured):
        return "not set up"
    return "refused" if error.is_refusal else "silent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned:
    """What came back with a state: `attempt` is there if it is still the latest."""

    elicitation: Elicitation
    number: int
    attempt: Attempt | None
    state: str  # its hash


async def returned(service: Service, states: list[str], *, now: datetime) -> Returned:
    """Raises InvalidToken."""
    if len(states) != 1:
        raise InvalidToken("missing or repeated")
    claims = service.links.read(states[0], purpose=Purpose.STATE, now=now)
    elicitation = await service.elicitations.get(claims.id)
    if elicitation is None:
        raise InvalidToken("erased")
    attempt = elicitation.attempt
    is_latest = attempt is not None and attempt.number == claims.attempt
    return Returned(
        elicitation=elicitation,
        number=claims.attempt,
        attempt=attempt if is_latest else None,
        state=state_hash(claims.rest),
    )


async def _open(
    service: Service,
    elicitation: Elicitation,
    kind: QuestionKind,
    flow: Flow,
    *,
    cookie: str,
    rest: str,
    switches: bool,
) -> Elicitation:
    browser, state = service.browser.hash(cookie), state_hash(rest)
    turns = service.kinds.payments.checkouts.turns

    def open_one(current: Elicitation) -> Elicitation:
        number = attempts.next_attempt(current)
        trip = _redirect(service, current, kind, number=number, rest=rest, switches=switches)
        kept: Json = flow.prepare(current, trip)
        if kind.holds_open and stands_in_the_way(current, browser=browser, now=trip.now):
            # Another process was pressed at the same moment: the page tells, and may be used again.
            raise NotPossible(status=current.status, wanted="gone on with beside another page")
        opened = attempts.open_attempt(
            current, browser=browser, state=state, kept=kept, now=trip.now
        )
        return turns.plan(attempts.hold_open(opened)) if kind.holds_open else opened

    opened = await service.elicitations.change(elicitation.id, open_one)
    turns.expect(opened)
    return opened


def _has_made_way(elicitation: Elicitation, kept: Json) -> bool:
    """Whether the latest attempt leads to another page than this one by now."""
    mine, latest = msgspec.convert(kept, StoredCheckout), kept_of(elicitation.attempt)
    return latest is None or latest.url is None or latest.session != mine.session


def _redirect(
    service: Service,
    elicitation: Elicitation,
    kind: QuestionKind,
    *,
    number: int,
    rest: str,
    switches: bool,
) -> RedirectContext:
    now = service.clock()
    claims = Claims(
        purpose=Purpose.STATE,
        id=elicitation.id,
        attempt=number,
        rest=rest,
        expires_at=elicitation.expires_at + timedelta(days=1),
    )
    return RedirectContext(
        number=number,
        return_url=service.public_url + kind.return_path(elicitation),
        state=service.links.state(claims, now=now),
        now=now,
        switches=switches,
    )
