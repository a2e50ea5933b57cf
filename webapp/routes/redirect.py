"""The press of Continue, from the form to the address that the browser is redirected to.

Risks: the browser returns from the provider before the attempt is stored. So the attempt, with all
data that the return needs, is stored before any request is sent to the provider. The provider's
reply is stored before the browser is redirected.
"""

import hashlib
import logging
import secrets
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import msgspec

from flows.crypto.tokens import Claims, Purpose
from flows.elicitation import flow as attempts
from flows.elicitation.flow import Flow, Redirect, RedirectContext
from flows.elicitation.states import Attempt, Completion, Elicitation, Json, Status, Trouble
from flows.elicitation.traits import OnPage
from flows.errors import Failed, InvalidToken, NotConfigured, NotPossible
from flows.oauth.provider import Client
from flows.oauth.token_errors import TokenRefused, needs_operator
from flows.payments.gateway import has_open_page_elsewhere
from flows.payments.responses import KeyUsed
from flows.payments.session import StoredCheckout, checkout_of
from webapp.elicitations.complete import complete_elicitation
from webapp.elicitations.question_kind import QuestionKind
from webapp.service import Service

STATE_BYTES = 16
_log = logging.getLogger(__name__)


def state_hash(rest: str) -> str:
    return hashlib.sha256(b"elicit-url state" + rest.encode()).hexdigest()


async def depart(
    service: Service,
    elicitation: Elicitation,
    *,
    cookie: str,
    switches: bool = False,
    tenant: str | None = None,
) -> str:
    """Start an attempt and return the address to redirect the browser to.

    `switches`: the person wants to use a different account at the provider than last time. `tenant`
    is the address of the person's tenant at the provider, if the page asked for it.

    Raises:
        InvalidQuestion: `tenant` is no address of the provider's tenants, or is missing.
        Failed: The provider did not respond, or refused. The elicitation stays open.
        NotConfigured: The provider lacks settings here. The elicitation stays open.
        NotPossible: The elicitation has ended.
        TooManyAttempts: No attempt is left.
    """
    kind = service.kinds[elicitation.kind]
    flow = kind.redirect_flow()
    if flow is None:
        raise NotPossible(status=elicitation.status, wanted="sent to another site")
    press = _Press(
        service=service,
        kind=kind,
        flow=flow,
        browser=service.browser.hash(cookie),
        rest=secrets.token_urlsafe(STATE_BYTES),
        switches=switches,
        tenant=tenant,
    )
    if not kind.needs_closing:
        return await press.depart(elicitation.id)
    checkouts = service.kinds.payments.checkouts
    async with checkouts.one_at_a_time(elicitation.id):
        await checkouts.close_earlier_page(elicitation.id, browser=press.browser)
        return await press.depart(elicitation.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Press:
    """A press of Continue. `browser` is the hash of the browser's cookie.

    `rest` is the random part of the attempt's state token.
    """

    service: Service
    kind: QuestionKind
    flow: Flow
    browser: str
    rest: str = field(repr=False)
    switches: bool
    tenant: str | None

    async def depart(self, id: str, *, tries: int = attempts.ATTEMPTS_AT_MOST) -> str:
        elicitations, kind = self.service.elicitations, self.kind
        opened = await elicitations.change(id, self._opened)
        self.service.kinds.payments.checkouts.expect_turn(opened)
        assert opened.attempt is not None
        context = self._redirect(opened, number=opened.attempt.number)
        number, client = context.number, self.service.kinds.client(opened)
        is_asked = False  # True once the provider was asked for this press
        try:
            if client is not None:
                await self.service.kinds.accounts.failures.check(client, owner=opened.owner)
            is_asked = True
            departure = await self._begun(opened, context, client)
        except (Failed, NotConfigured) as error:
            trouble = trouble_of(error)
            with suppress(KeyError):  # erased in the meantime
                await elicitations.change(
                    id, lambda e: attempts.record_failed_start(e, number=number, trouble=trouble)
                )
            if kind.needs_closing and isinstance(error, Failed) and error.is_refusal and tries:
                checkouts = self.service.kinds.payments.checkouts
                if await checkouts.can_be_requested_again(id, error):
                    return await self.depart(id, tries=tries - 1)
            if is_asked and self._is_final(error):
                # Every further press would fail, so the question ends and the waiting call receives
                # the reason.
                self._log_final(error, id=id)
                why = str(error).rstrip(".")
                ended = await elicitations.end(opened, Status.FAILED, why=why)
                raise _has_ended_error(ended) from error
            raise
        stored = departure.attempt_data
        if stored is not None:
            opened = await elicitations.change(
                id, lambda e: attempts.keep(e, number=number, attempt_data=stored)
            )
            # The question ended in the meantime, or another process superseded this checkout. In
            # both cases, the person must not pay there any more.
            if opened.status.is_final or (kind.needs_closing and _is_superseded(opened, stored)):
                raise _has_ended_error(opened)
        if not opened.request.waits:
            done = await complete_elicitation(elicitations, id, {}, OnPage())
            if done is not Completion.ACCEPTED:
                raise _has_ended_error(opened)
        return departure.url

    def _is_final(self, error: Exception) -> bool:
        if self.kind.needs_closing:
            return isinstance(error, Failed) and error.is_permanent
        return needs_operator(error)

    def _log_final(self, error: Exception, *, id: str) -> None:
        about = {"id": id, "why": getattr(error, "why", str(error))}
        if self.kind.needs_closing:
            _log.warning("payment.refused", extra=about)
        else:
            _log.warning("provider.unusable", extra=about)

    async def _begun(
        self, opened: Elicitation, context: RedirectContext, client: Client | None
    ) -> Redirect:
        """Run the flow's requests. Record a refused request like a refused code exchange."""
        try:
            return await self.service.outbound.run(self.flow.begin(opened, context), to=client)
        except TokenRefused as error:
            failures = self.service.kinds.accounts.failures
            raise await failures.note(
                error, step="push", id=opened.id, owner=opened.owner, client=client
            ) from error

    def _opened(self, current: Elicitation) -> Elicitation:
        context = self._redirect(current, number=attempts.next_attempt(current))
        prepared, browser = self.flow.prepare(current, context), self.browser
        if self.kind.needs_closing and has_open_page_elsewhere(
            current, browser=browser, now=context.now
        ):
            # Another process handles a press at this moment. The page says so, and the person can
            # press again.
            raise NotPossible(status=current.status, wanted="continued while another page is open")
        state = state_hash(self.rest)
        opened = attempts.open_attempt(
            current, browser=browser, state=state, attempt_data=prepared, now=context.now
        )
        if not self.kind.needs_closing:
            return opened
        return self.service.kinds.payments.checkouts.plan_turn(attempts.hold_open(opened))

    def _redirect(self, elicitation: Elicitation, *, number: int) -> RedirectContext:
        now = self.service.clock()
        claims = Claims(
            purpose=Purpose.STATE,
            id=elicitation.id,
            attempt=number,
            rest=self.rest,
            expires_at=elicitation.expires_at + timedelta(days=1),
        )
        return RedirectContext(
            number=number,
            return_url=self.service.public_url + self.kind.return_path(elicitation),
            state=self.service.links.state(claims, now=now),
            now=now,
            switches=self.switches,
            tenant=self.tenant,
        )


def _has_ended_error(elicitation: Elicitation) -> NotPossible:
    return NotPossible(status=elicitation.status, wanted="continued")


def trouble_of(error: Failed | NotConfigured) -> Trouble:
    """Return the reason of a failed press of Continue, for the attempt's record."""
    if isinstance(error, NotConfigured) or needs_operator(error):
        return "not set up"
    # KeyUsed means that the provider has an earlier checkout, whose state is not known yet.
    return "refused" if error.is_refusal and not isinstance(error, KeyUsed) else "silent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned:
    """A browser's return with a state token. `attempt` is None if a newer attempt exists."""

    elicitation: Elicitation
    number: int
    attempt: Attempt | None
    state: str  # the hash of the token's random part


async def returned(service: Service, states: list[str], *, now: datetime) -> Returned:
    """Return the elicitation and attempt of a state token.

    Raises:
        InvalidToken: The token is missing, repeated or invalid, or the question is not stored.
    """
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


def _is_superseded(elicitation: Elicitation, stored: Json) -> bool:
    """Return True if the latest attempt has another checkout than `stored`, or none."""
    mine, latest = msgspec.convert(stored, StoredCheckout), checkout_of(elicitation.attempt)
    return latest is None or latest.url is None or latest.session != mine.session
