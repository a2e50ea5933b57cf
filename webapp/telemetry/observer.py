"""The observer: the interface through which other packages report what happened.

Risks: a label with unbounded values, or with a person's data. So the arguments are a kind, a
status, or the name of an operation or a configured provider, all from the code or the settings.
"""

from collections.abc import Sequence
from datetime import datetime


class Observer:
    """A receiver of telemetry events. This base class ignores all events."""

    def store_answered(self, operation: str, *, seconds: float, result: str) -> None:
        """Record the end of a store operation: `ok`, `conflict`, `unavailable` or `failed`."""

    def asked(self, kind: str) -> None:
        """Record a new question that was not asked before."""

    def settled(self, kind: str, status: str) -> None:
        """Record the end of a question. Status `late`: a payment arrived after the end."""

    def woken(self, kind: str, *, seconds: float) -> None:
        """Record that a waiting call saw the end of its question, `seconds` after the end."""

    def held(self, change: int) -> None:
        """Change the number of calls that are held while a person is asked."""

    def taken_over(self) -> None:
        """Record a claim of an outcome whose earlier lease had expired."""

    def provider_answered(
        self, provider: str, operation: str, *, seconds: float, result: str
    ) -> None:
        """Record the end of a request to a provider: `ok`, `4xx`, `5xx` or `failed`."""

    def account_failed(self, provider: str, *, step: str, reason: str) -> None:
        """Record a failed code exchange, refresh or callback.

        `reason` is the class of the refusal.
        """

    def webhook_came(self, provider: str, result: str) -> None:
        """Record the response to a webhook: the result, or why it was rejected."""

    def event_sent(self, address: str, result: str) -> None:
        """Record the delivery of an outgoing event: `sent`, `failed`, `given_up` or `not_kept`."""

    def notified(self, table: str, result: str) -> None:
        """Record the attempt to send a notification: `sent`, `failed` or `given_up`."""

    def api_refused(self, why: str) -> None:
        """Record an HTTP API request without a valid key or token. `why` is the reason."""

    def swept(self, *, at: datetime, lag_seconds: float) -> None:
        """Record a round of the sweeper.

        `lag_seconds` is how long the oldest due row had waited.
        """

    def wrote(self, values: Sequence[object]) -> None:
        """Record the values that this process wrote to the store, in their current state."""


UNOBSERVED = Observer()
