"""Lists: what a provider has of sessions, refunds and claims, whether this server knows it or not.

What could go wrong: somebody else's session taken for one that this server has lost. So a page of a
list says of each session whether only a holder of our key can have written whose it is.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, runtime_checkable

from flows.elicitation.flow import Talk
from flows.payments.claims import ProviderClaim
from flows.payments.gateway import Gateway, ProviderSession
from flows.payments.receipt import Payment, RefundChange


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionPage:
    """Some of the sessions that name a question of ours, the latest first.

    `next` is what the provider goes on with, if there are older ones.
    """

    sessions: tuple[ProviderSession, ...]
    next: str | None = None


@runtime_checkable
class Lists(Gateway, Protocol):
    """A gateway whose provider lists the sessions of our account."""

    def list_sessions(self, since: datetime, *, after: str | None = None) -> Talk[SessionPage]:
        """List the sessions that were made since then; `after` is the page before's `next`.

        Raises Failed.
        """
        ...


@runtime_checkable
class TellsRefunds(Gateway, Protocol):
    """A gateway whose provider says what became of a refund that it accepted."""

    def refunds(self, payment: Payment) -> Talk[Sequence[RefundChange]]:
        """All refunds of the payment, as they stand now. Raises Failed."""
        ...


@runtime_checkable
class TellsClaims(Gateway, Protocol):
    """A gateway whose provider says how far each claim of a bank is."""

    def claims(self, payment: Payment) -> Talk[Sequence[ProviderClaim]]:
        """All claims of the payment, as they stand now. Raises Failed."""
        ...
