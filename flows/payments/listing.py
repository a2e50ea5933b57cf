"""Lists of a provider's sessions, refunds and disputes, including those unknown to this server.

Risks: another program's session is treated as a session that this server lost. Each listed session
therefore says whether only a holder of our API key can have set its reference.
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
    """Some of the sessions that name a question of this server, the latest first.

    `next` is the provider's cursor for older sessions.
    """

    sessions: tuple[ProviderSession, ...]
    next: str | None = None


@runtime_checkable
class Lists(Gateway, Protocol):
    """A gateway whose provider lists the sessions of our account."""

    def list_sessions(self, since: datetime, *, after: str | None = None) -> Talk[SessionPage]:
        """List the sessions created at or after `since`.

        `after` is the previous page's `next`.

        Raises Failed.
        """
        ...


@runtime_checkable
class ReportsRefunds(Gateway, Protocol):
    """A gateway whose provider reports the status of accepted refunds."""

    def refunds(self, payment: Payment) -> Talk[Sequence[RefundChange]]:
        """Return all refunds of the payment with their current status. Raises Failed."""
        ...


@runtime_checkable
class ReportsDisputes(Gateway, Protocol):
    """A gateway whose provider reports the status of each dispute."""

    def claims(self, payment: Payment) -> Talk[Sequence[ProviderClaim]]:
        """Return all disputes of the payment with their current status. Raises Failed."""
        ...
