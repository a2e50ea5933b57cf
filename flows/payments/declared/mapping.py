"""Places: where a declared provider's answers say what of a session and of a payment.

What could go wrong: a place that is read as something else than what the provider writes there. So
a place only leads to a text or a whole number, and what that must be is checked where it is read.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from flows.payments.session import SessionStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Where an answer says what of a session: names and places in lists, joined by full stops.

    `states` are rules such as "data.status=paid", the first that holds counts; `live` the same. An
    amount is a whole number in minor units or, as `decimal`, figures such as "9.00"; `refunded` and
    `charged_back` are places to be added up, joined by a plus. Where
    `session` is "{key}", a session goes by our own key for its attempt, which stands at
    `reference`, and what the provider calls it is its `handle`.
    """

    session: str = "id"
    handle: str | None = None
    states: Mapping[str, SessionStatus] = field(
        default_factory=lambda: {f"state={state}": state for state in SessionStatus}
    )
    amount: str | None = "amount"
    unit: Literal["minor", "decimal"] = "minor"
    currency: str | None = "currency"
    reference: str | None = "reference"
    live: Mapping[str, bool] = field(
        default_factory=lambda: {"live=true": True, "live=false": False}
    )
    payment: str | None = "payment"
    account: str | None = None
    refunded: str | None = None
    charged_back: str | None = None
    url: str | None = None
    closes_at: str | None = None

    @property
    def is_ours(self) -> bool:
        """Whether its sessions go by our own key."""
        return self.session == "{key}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """Where a payment's own answer says what went back of it, in minor units.

    `given` are places to be added up, joined by a plus. `left` is what a refund can name, where a
    provider counts refunds otherwise than prices (without the taxes in them).
    """

    call: str
    id: str
    currency: str
    given: str
    left: str | None = None


OURS: Final = Reading(refunded="refunded", charged_back="charged_back")
OURS_OPENED: Final = Reading(url="url", closes_at="closes_at")
OURS_TOLD: Final = Reading(
    session="data.id",
    states={f"data.state={state}": state for state in SessionStatus},
    amount="data.amount",
    currency="data.currency",
    reference="data.reference",
    live={"data.live=true": True, "data.live=false": False},
    payment="data.payment",
    refunded="data.refunded",
    charged_back="data.charged_back",
)
