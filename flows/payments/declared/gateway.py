"""The gateway for declared providers: it executes a declaration.

Risks: the same as for a gateway that is written in code, and also errors in the declaration. Money
only counts if the provider reports it, in a fetch or a signed notice, for our session and with
exactly the terms of the question. A repeated refund request has the same idempotency key.
"""

import hashlib
from datetime import timedelta

import httpx
import msgspec
from msgspec.structs import replace

from flows.elicitation.flow import RedirectContext, Talk
from flows.elicitation.states import Attempt, Elicitation, Json
from flows.errors import Failed, InvalidQuestion
from flows.payments.checkout_page import HostedCheckout, asking, return_urls, stored_request
from flows.payments.declared.declaration import DeclaredAccount
from flows.payments.declared.reader import (
    answer_in,
    given_in,
    id_at,
    notice_in,
    refund_in,
    refusal_code_in,
    session_in,
)
from flows.payments.declared.templates import Values, fill, fill_path, fill_text, text_at
from flows.payments.gateway import Notice, ProviderSession, payment_of, terms_for
from flows.payments.money import Money
from flows.payments.receipt import Payment, Refund, RefundStatus
from flows.payments.responses import (
    GIVING_BACK,
    KeyUsed,
    json_request,
    refund_key,
    unreadable,
    with_session,
    written,
)
from flows.payments.session import Malformed, SessionStatus, StoredCheckout, checkout_of, terms_of
from flows.webhooks.signatures import Scheme

OPENING = "open its payment page"
REASON_AT_MOST = 190  # Square, in examples/payments, allows 192 characters
FETCHING = "report the status of the payment"


class DeclaredGateway(HostedCheckout[DeclaredAccount]):
    """The gateway for a declared provider. Implements Gateway and Signs."""

    pace: tuple[timedelta, ...]
    scheme: Scheme

    def __init__(self, seller: DeclaredAccount) -> None:
        super().__init__(seller)
        self._declared = declared = seller.declaration
        self.pace = declared.pace
        self.scheme = declared.scheme
        self.webhook_secrets: tuple[str, ...] = seller.webhook_secrets

    def check(self, price: Money) -> None:
        written(price, digits=self._declared.unit_digits)
        if self._declared.currencies and price.currency not in self._declared.currencies:
            raise InvalidQuestion(f"{self.seller.label} does not accept {price.currency}.")

    def repeat(self, elicitation: Elicitation, attempt: Attempt) -> Talk[StoredCheckout]:
        stored, key = stored_request(elicitation, attempt, self.seller)
        values: Values = {**self.seller.own, **_keys(key), "reference": elicitation.id}
        reply = yield self._request(self._declared.create, values, body=stored.request, key=key)
        if (word := refusal_code_in(reply, self.seller)) in self._declared.key_used:
            raise KeyUsed(self.seller, why=word)
        data = answer_in(reply, self.seller, doing=OPENING)
        session = self._opened(data, elicitation, key=key)
        stored = with_session(stored, elicitation, session, self.seller)
        try:
            handle = id_at(data, self._declared.created.handle)
        except Malformed:
            raise unreadable(self.seller, doing=OPENING) from None
        return replace(stored, handle=handle)

    def fetch(self, elicitation: Elicitation, session: str) -> Talk[ProviderSession]:
        terms_for(elicitation, self.seller)
        if self._declared.fetch is None:
            raise Failed(f"{self.seller.label} reports payments only by webhook.")
        reply = yield self._request(
            self._declared.fetch, self._session_values(elicitation, session)
        )
        data = answer_in(reply, self.seller, doing=FETCHING)
        try:
            found = session_in(data, self._declared.fetched, self.seller)
        except Malformed:
            raise unreadable(self.seller, doing=FETCHING) from None
        if found.id != session:
            raise unreadable(self.seller, doing=FETCHING)
        return found

    def close(self, elicitation: Elicitation, session: str) -> Talk[bool]:
        """Close the payment page. Return False if it is already paid, or its payment is pending.

        Raises:
            Failed: The provider could not be reached, or the page is still open. A page that the
                provider cannot close stays open until it expires.
        """
        found = yield from self.fetch(elicitation, session)
        if found.state is SessionStatus.OPEN and self._declared.close is not None:
            body = None
            if self._declared.close_body is not None:
                values = self._session_values(elicitation, session)
                body = msgspec.json.encode(fill(self._declared.close_body, values)).decode()
            yield self._request(
                self._declared.close, self._session_values(elicitation, session), body=body
            )
            # The page is closed now, unless it was paid before the request arrived: fetch it again.
            found = yield from self.fetch(elicitation, session)
        if found.state is SessionStatus.OPEN:
            raise Failed(f"{self.seller.label} did not close its payment page.", is_refusal=True)
        return found.state not in (SessionStatus.PAID, SessionStatus.PENDING)

    def refund(
        self, payment: Payment, *, reason: str | None, up_to: int | None = None
    ) -> Talk[Refund]:
        payment_id = payment_of(payment, self.seller)
        if self._declared.refund is None:
            advice = f" Refund it there: {self._declared.manage}." if self._declared.manage else ""
            raise Failed(f"{self.seller.label} cannot make refunds for this server.{advice}")
        given, remaining = yield from self._refunded_so_far(payment, payment_id)
        total = payment.amount if up_to is None else up_to
        if given >= total:
            price = Money.from_minor_units(min(given, payment.amount), payment.currency)
            return Refund(id=payment_id, price=price, status=RefundStatus.SUCCEEDED)
        rest = Money.from_minor_units(total - given, payment.currency)
        key = f"{refund_key(payment)}:{rest.minor_units}"
        if up_to is not None:
            key = f"{key}:{up_to}"  # two partial refunds of the same size are different refunds
        requested = (
            rest if remaining is None else Money.from_minor_units(remaining, payment.currency)
        )
        if not 0 < requested.minor_units <= rest.minor_units:
            raise unreadable(self.seller, doing=GIVING_BACK)
        values: Values = {
            **self.seller.own,
            **self._money(requested),
            "payment": payment_id,
            "reason": (reason or "")[:REASON_AT_MOST] or None,
            **_keys(key),
        }
        body = msgspec.json.encode(fill(self._declared.refund_body, values)).decode()
        reply = yield self._request(self._declared.refund, values, body=body, key=key)
        return refund_in(reply, self.seller, price=rest)

    def read_notice(self, body: bytes) -> Notice:
        return notice_in(body, self.seller)

    def trace(self, payment: str) -> Talk[str | None]:
        """Return None: every event of a declared provider names the elicitation already."""
        yield from ()
        return None

    def new_request(self, elicitation: Elicitation, context: RedirectContext) -> StoredCheckout:
        terms, (back, cancelled) = terms_of(elicitation), return_urls(context)
        expires_at = (context.now + self._declared.life).replace(microsecond=0)
        values: Values = {
            **self.seller.own,
            **self._money(terms.price),
            "what": terms.what[: self._declared.what_at_most],
            "reference": elicitation.id,
            **_keys(f"{elicitation.id}:{context.number}"),
            "return_url": back,
            "cancel_url": cancelled,
            "expires_at": expires_at.isoformat(),
        }
        return asking(fill(self._declared.create_body, values), until=expires_at)

    def _refunded_so_far(self, payment: Payment, payment_id: str) -> Talk[tuple[int, int | None]]:
        """Return the amount refunded so far, and the amount left to refund if it is known.

        Fetch the amounts from the provider if the declaration says how (see `Holding`). Otherwise
        return the stored amount of the refunds. Without this check, a provider without idempotency
        keys would refund twice.
        """
        holding, fetch = self._declared.holding, self._declared.fetch
        if holding is not None:
            call = holding.call
        elif fetch is not None and self._declared.reports_refunds:
            call = fetch
        else:
            return payment.refunded, None
        values: Values = {**self.seller.own, "payment": payment_id, "session": payment.session}
        reply = yield self._request(call, values)
        data = answer_in(reply, self.seller, doing=GIVING_BACK)
        try:
            if holding is not None:
                given, remaining = given_in(data, holding, payment)
                return max(given, payment.refunded), remaining
            found = session_in(data, self._declared.fetched, self.seller)
        except Malformed:
            raise unreadable(self.seller, doing=GIVING_BACK) from None
        if (found.id, found.currency) != (payment.session, payment.currency):
            raise unreadable(self.seller, doing=GIVING_BACK)
        return max(found.refunded, payment.refunded), None

    def _opened(self, data: Json, elicitation: Elicitation, *, key: str) -> ProviderSession:
        """Return the new session. Values missing in the response are filled in from the request."""
        reading, terms = self._declared.created, terms_of(elicitation)
        try:
            id = (
                text_at(data, reading.reference)
                if reading.has_own_session_ids
                else id_at(data, reading.session)
            )
            found = None if reading.amount is None else session_in(data, reading, self.seller)
            url = text_at(data, reading.url)
        except Malformed:
            raise unreadable(self.seller, doing=OPENING) from None
        if id is None or (reading.has_own_session_ids and id != key):
            raise unreadable(self.seller, doing=OPENING)
        return found or ProviderSession(
            id=id,
            state=SessionStatus.OPEN,
            amount=terms.amount,
            currency=terms.currency,
            reference=elicitation.id,
            is_live=self.seller.is_live,
            url=url,
        )

    def _session_values(self, elicitation: Elicitation, session: str) -> Values:
        attempts = (elicitation.attempt, *elicitation.earlier_attempts)
        stored = [one for one in map(checkout_of, attempts) if one and one.session == session]
        return {
            **self.seller.own,
            "session": session,
            "handle": next((one.handle for one in stored), None) or session,
        }

    def _money(self, price: Money) -> Values:
        return {
            "minor": str(price.minor_units) if self._declared.text_minor else price.minor_units,
            "decimal": written(price, digits=self._declared.unit_digits),
            "currency": price.currency,
            "currency_lower": price.currency.lower(),
        }

    def _request(
        self, call: str, values: Values, *, body: str | None = None, key: str | None = None
    ) -> httpx.Request:
        method, _, path = call.partition(" ")
        known = {**self.seller.own, "secret": self.seller.secret}
        headers = {name: fill_text(value, known) for name, value in self._declared.headers}
        if key is not None and self._declared.idempotency is not None:
            headers[self._declared.idempotency] = _keys(key)["digest"]
        url = self.seller.api + fill_path(path, values)
        return json_request(method, url, headers=headers, body=body)


def _keys(key: str) -> dict[str, str]:
    """Return the key and a digest of it, for providers that allow only about 40 characters."""
    return {"key": key, "digest": hashlib.sha256(key.encode()).hexdigest()[:32]}
