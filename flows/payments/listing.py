"""Lists of sessions: what a provider has for our account, whether this server knows it or not.

What could go wrong: somebody else's session taken for one that this server has lost. So a page of a
list says of each session whether only a holder of our key can have written whose it is.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, runtime_checkable

from flows.elicitation.flow import Talk
from flows.payments.gateway import Gateway, ProviderSession


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
