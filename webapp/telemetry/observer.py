"""The observer: what the other rooms tell of what happened, in few words.

What could go wrong: a label without bounds, or a person's data in one. So what is told is a kind, a
status, the name of an operation or of a configured provider: words of the code and the settings.
"""

from collections.abc import Sequence
from datetime import datetime


class Observer:
    """Hears everything, and does nothing about it: what nobody watches costs a call."""

    def store_answered(self, operation: str, *, seconds: float, result: str) -> None:
        """One operation of the store is over: `ok`, `conflict`, `unavailable` or `failed`."""

    def asked(self, kind: str) -> None:
        """A question stands that nobody was asked before."""

    def settled(self, kind: str, status: str) -> None:
        """A question has ended; `late`: it had ended before, and was paid all the same."""

    def woken(self, kind: str, *, seconds: float) -> None:
        """A call that waits has seen the end of its question, so long after it."""

    def held(self, change: int) -> None:
        """So many more calls, or fewer, are held while somebody is asked."""

    def taken_over(self) -> None:
        """An outcome was taken whose lease had run out: whoever had it is gone."""

    def provider_answered(
        self, provider: str, operation: str, *, seconds: float, result: str
    ) -> None:
        """A request to a provider is over: `ok`, `4xx`, `5xx` or `failed`."""

    def account_failed(self, provider: str, *, step: str, reason: str) -> None:
        """A code exchange, a refresh or a way back failed; `reason` is the class of the refusal."""

    def webhook_came(self, provider: str, result: str) -> None:
        """A delivery was answered; what became of it, or why it was turned away."""

    def event_sent(self, address: str, result: str) -> None:
        """What became of an event out: `sent`, `failed`, `given_up` or `not_kept`."""

    def api_refused(self, why: str) -> None:
        """A request to the HTTP API brought no key or token that works: why not."""

    def swept(self, *, at: datetime, lag_seconds: float) -> None:
        """The sweeper went round; the oldest of what was due had waited so long."""

    def wrote(self, values: Sequence[object]) -> None:
        """These were written by this process, as they now stand."""


UNOBSERVED = Observer()
