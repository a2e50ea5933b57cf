"""The mapping of a declared provider's JSON: where the values of a session and a payment are.

Risks: a path finds a value that means something else. A path can therefore only name a text, a
whole number or a boolean, and the code that reads the value validates it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from flows.payments.session import SessionStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The paths of a session's values in a response: names and list indexes, joined by full stops.

    - `states`, `live`: rules such as "data.status=paid". The first matching rule wins.
    - Amounts are whole numbers in minor units, or with `unit` "decimal" text such as "9.00".
    - `refunded`, `charged_back`: several paths joined by a plus are added up.
    - `session`: if it is "{key}", sessions are identified by our own key of the attempt, which is
      found at `reference`. The provider's id is then the `handle`.
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
    def has_own_session_ids(self) -> bool:
        """True if sessions are identified by our own key."""
        return self.session == "{key}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """The paths of a payment's refunded amounts, in minor units.

    `given` are paths to add up, joined by a plus. `left` is the path of the amount that can still
    be refunded, for a provider whose refunds are counted without taxes, unlike its prices.
    """

    call: str
    id: str
    currency: str
    given: str
    left: str | None = None


DEFAULT_FETCHED: Final = Reading(refunded="refunded", charged_back="charged_back")
DEFAULT_OPENED: Final = Reading(url="url", closes_at="closes_at")
DEFAULT_WEBHOOK: Final = Reading(
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
