"""The payment page of an attempt, for any gateway: the stored request and how the page opens.

Risks: a person sees two pages and pays twice, or a reply is lost. A page that can still be paid is
therefore reused. A request is stored in full before it is sent, and repeated with the same
idempotency key.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, Generic, TypeVar
from urllib.parse import urlencode

import msgspec

from flows.elicitation.flow import Redirect, RedirectContext, Talk
from flows.elicitation.states import Attempt, Elicitation, Json
from flows.errors import Failed
from flows.payments.gateway import MerchantAccount, ProviderSession, open_page, terms_for
from flows.payments.responses import page_in
from flows.payments.session import StoredCheckout, checkout_of

SellerT = TypeVar("SellerT", bound=MerchantAccount)


class HostedCheckout(ABC, Generic[SellerT]):
    """The part of a Gateway that is the same for all providers with their own payment page."""

    def __init__(self, seller: SellerT) -> None:
        self.seller = seller

    @abstractmethod
    def new_request(self, elicitation: Elicitation, context: RedirectContext) -> StoredCheckout:
        """Build the request that opens a page. Raises InvalidQuestion for an impossible price."""

    @abstractmethod
    def repeat(self, elicitation: Elicitation, attempt: Attempt) -> Talk[StoredCheckout]: ...
    @abstractmethod
    def fetch(self, elicitation: Elicitation, session: str) -> Talk[ProviderSession]: ...

    def prepare(self, elicitation: Elicitation, context: RedirectContext) -> Json:
        """Return the checkout whose page is already open, or a new request."""
        stored: Json = msgspec.to_builtins(
            open_page(elicitation, now=context.now) or self.new_request(elicitation, context)
        )
        return stored

    def begin(self, elicitation: Elicitation, context: RedirectContext) -> Talk[Redirect]:
        """Create the payment page, or reuse an open one, and redirect to it. Raises Failed."""
        assert elicitation.attempt is not None
        terms_for(elicitation, self.seller)
        opened = checkout_of(elicitation.attempt)
        if opened is not None and opened.url is not None:
            return Redirect(url=opened.url)
        stored = yield from self.repeat(elicitation, elicitation.attempt)
        return Redirect(url=page_in(stored, self.seller), attempt_data=msgspec.to_builtins(stored))

    def collect(self, elicitation: Elicitation, session: str) -> Talk[ProviderSession]:
        """Fetch the session: most providers capture payments automatically."""
        return self.fetch(elicitation, session)


def asking(body: object, *, until: datetime) -> StoredCheckout:
    """Return the checkout to store for a request.

    `body` is in the provider's format. `until` is when the page expires.
    """
    return StoredCheckout(
        request=msgspec.json.encode(body).decode(), expires_at=int(until.timestamp())
    )


def return_urls(context: RedirectContext) -> tuple[str, str]:
    """Return the URLs for a person who has paid and for a person who has cancelled."""
    back = f"{context.return_url}?{urlencode({'state': context.state})}"
    return back, f"{back}&cancelled=1"


def stored_request(
    elicitation: Elicitation, attempt: Attempt, seller: MerchantAccount
) -> tuple[StoredCheckout, str]:
    """Return an attempt's stored request and its idempotency key. Raises Failed."""
    terms_for(elicitation, seller)
    stored = checkout_of(attempt)
    if stored is None:
        raise Failed("This payment has not been started.", elicitation_id=elicitation.id)
    return stored, f"{elicitation.id}:{attempt.number}"


# The polling intervals for payment pages that are open at a provider.
#
# Risks: too many requests to a provider, or requests that ignore its errors. Each provider declares
# its intervals, and errors make them longer.

PACE: Final = tuple(timedelta(seconds=pause) for pause in (2, 3, 5, 8, 13, 21, 30))
TROUBLED_AT_MOST: Final = timedelta(minutes=5)


def next_turn(pace: Sequence[timedelta], *, begun_at: datetime, now: datetime) -> datetime:
    """Return the time of the next poll, after `now`.

    The last interval is repeated.

    `begun_at` can be after `now` if the clock was set back.
    """
    if begun_at > now:
        return now + pace[-1]
    turn = begun_at
    for pause in pace:
        turn += pause
        if turn > now:
            return turn
    return turn + pace[-1] * ((now - turn) // pace[-1] + 1)


def turn_after_trouble(pace: Sequence[timedelta], *, begun_at: datetime, now: datetime) -> datetime:
    """Return the time of the next poll after a failed poll.

    The pause is as long as the time since `begun_at`, but at most TROUBLED_AT_MOST, and at least
    the last interval of `pace`.
    """
    return now + max(pace[-1], min(now - begun_at, TROUBLED_AT_MOST))
