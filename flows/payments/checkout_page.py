"""An attempt's payment page, whichever gateway it is at: what is stored of it, and how it opens.

What could go wrong: two pages where one would do, so that a person pays twice; a reply that was
lost. So a page that can still be paid at is opened again, and what is asked for one is stored whole
before it is sent and is sent under one key.
"""

from collections.abc import Callable
from datetime import datetime
from typing import TypeAlias
from urllib.parse import urlencode

import msgspec

from flows.elicitation.flow import Redirect, RedirectContext, Talk
from flows.elicitation.states import Attempt, Elicitation, Json
from flows.errors import Failed
from flows.payments.gateway import Gateway, MerchantAccount, open_page, terms_for
from flows.payments.responses import page_in
from flows.payments.session import StoredCheckout, kept_of

Asking: TypeAlias = Callable[[Elicitation, RedirectContext], StoredCheckout]


def prepared(elicitation: Elicitation, trip: RedirectContext, ask: Asking) -> Json:
    """The page that is open already, or else what `ask` would ask for."""
    kept: Json = msgspec.to_builtins(open_page(elicitation, now=trip.now) or ask(elicitation, trip))
    return kept


def asking(body: object, *, until: datetime) -> StoredCheckout:
    """The body is JSON in the provider's words; `until`: when its page ends."""
    return StoredCheckout(
        request=msgspec.json.encode(body).decode(), expires_at=int(until.timestamp())
    )


def ways_back(trip: RedirectContext) -> tuple[str, str]:
    """Where a person comes back to, and where one does who has cancelled."""
    back = f"{trip.return_url}?{urlencode({'state': trip.state})}"
    return back, f"{back}&cancelled=1"


def begun(elicitation: Elicitation, gateway: Gateway) -> Talk[Redirect]:
    """Off to the page. Raises Failed."""
    assert elicitation.attempt is not None
    terms_for(elicitation, gateway.seller)
    opened = kept_of(elicitation.attempt)
    if opened is not None and opened.url is not None:
        return Redirect(url=opened.url)
    kept = yield from gateway.repeat(elicitation, elicitation.attempt)
    return Redirect(url=page_in(kept, gateway.seller), kept=msgspec.to_builtins(kept))


def asked(
    elicitation: Elicitation, attempt: Attempt, seller: MerchantAccount
) -> tuple[StoredCheckout, str]:
    """What an attempt has asked for, and the key that it goes under each time. Raises Failed."""
    terms_for(elicitation, seller)
    kept = kept_of(attempt)
    if kept is None:
        raise Failed("No payment was begun here.", elicitation_id=elicitation.id)
    return kept, f"{elicitation.id}:{attempt.number}"
