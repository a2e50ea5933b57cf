"""The table of all metric families: their names, kinds, labels and help texts.

`metrics` exports only the families of this table. The table in docs/how-to/monitoring.md is written
from this table.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypeAlias

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# The values of one family, by the values of its labels.
Samples: TypeAlias = Mapping[tuple[str, ...], float]
# Buckets in seconds. A store answers within milliseconds, a provider within seconds.
_STORE = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_WAKE = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_PROVIDER = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricFamily:
    """A metric family. `pooled` says how the gauges of several processes are combined."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    says: str
    labels: tuple[str, ...] = ()
    buckets: Sequence[float] = ()
    pooled: Literal["livesum", "livemax", "max"] = "livesum"

    @property
    def exported_names(self) -> tuple[str, ...]:
        """The names in the exported text and in a query."""
        if self.kind != "histogram":
            return (self.name,)
        return tuple(f"{self.name}_{part}" for part in ("bucket", "sum", "count"))


# These families are counted in each process, and pooled across the workers of one machine.
ASKED = MetricFamily(
    name="elicit_questions_total",
    kind="counter",
    labels=("kind",),
    says="Questions that were asked.",
)
OUTCOMES = MetricFamily(
    name="elicit_outcomes_total",
    kind="counter",
    labels=("kind", "status"),
    says="How questions ended; `late` is a payment that arrived after its question had ended.",
)
WAKE = MetricFamily(
    name="elicit_wake_seconds",
    kind="histogram",
    labels=("kind",),
    buckets=_WAKE,
    says="The time from the end of a question, in any process, until the waiting call has noticed "
    "it.",
)
HELD = MetricFamily(
    name="elicit_calls_held",
    kind="gauge",
    says="Requests that are open at the moment while a person is asked.",
)
TAKEN_OVER = MetricFamily(
    name="elicit_leases_taken_over_total",
    kind="counter",
    says="Outcomes that a call claimed after another call's claim had expired.",
)
STORE = MetricFamily(
    name="elicit_store_operation_seconds",
    kind="histogram",
    labels=("operation",),
    buckets=_STORE,
    says="The duration of store operations.",
)
STORE_RESULTS = MetricFamily(
    name="elicit_store_operations_total",
    kind="counter",
    labels=("operation", "result"),
    says="Results of store operations: `ok`, `conflict` (another writer was first, which is "
    "normal), `unavailable` or `failed`.",
)
PROVIDER = MetricFamily(
    name="elicit_provider_request_seconds",
    kind="histogram",
    labels=("provider", "operation"),
    buckets=_PROVIDER,
    says="The duration of requests to account and payment providers.",
)
PROVIDER_RESULTS = MetricFamily(
    name="elicit_provider_requests_total",
    kind="counter",
    labels=("provider", "operation", "result"),
    says="Responses of account and payment providers: `ok`, `4xx`, `5xx`, or `failed` (no usable "
    "response).",
)
ACCOUNT_FAILURES = MetricFamily(
    name="elicit_account_failures_total",
    kind="counter",
    labels=("provider", "step", "reason"),
    says="Accounts that could not be connected or refreshed. `step` is `push` (a pushed "
    "authorization request), `callback`, `exchange` or `refresh`. `reason` is `ended` (a code or "
    "refresh token is no longer valid), `client` "
    "(the provider refuses the server's client id or secret) or `redirect` (its redirect "
    "URI), which only the operator can correct, `passing` (the provider has an outage), "
    "`unsure` (another refusal) or `other` (no usable response).",
)
WEBHOOKS = MetricFamily(
    name="elicit_webhooks_total",
    kind="counter",
    labels=("provider", "result"),
    says="Incoming webhooks by outcome. Webhooks that could not be verified have the reason; "
    "`not_kept` was answered with 503, because the store could not be written.",
)
EVENTS = MetricFamily(
    name="elicit_events_total",
    kind="counter",
    labels=("address", "result"),
    says="Attempts to send an event to the addresses of `ELICIT_EVENTS_{NAME}_URL`: `sent`, "
    "`failed` (will be retried), `given_up`, or `not_kept` (too many were waiting). See "
    "[events](../how-to/webhooks.md).",
)
NOTIFICATIONS = MetricFamily(
    name="elicit_notifications_total",
    kind="counter",
    labels=("table", "result"),
    says="Attempts to send a message to an address of a table `[notify.NAME]`: `sent`, `failed` "
    "(will be retried) or `given_up`. See [notifications](../how-to/approvals.md#notifications).",
)
API_REFUSED = MetricFamily(
    name="elicit_api_refused_total",
    kind="counter",
    labels=("why",),
    says="Requests to the HTTP API without a valid key or token: `missing`, `unknown`, `revoked` "
    "or `expired` (API keys), `invalid_token`, `insufficient_scope` or `invalid_request` "
    "(access tokens), `held_back` (rejected because its address sent too many such requests).",
)
SWEEPER_LAG = MetricFamily(
    name="elicit_sweeper_lag_seconds",
    kind="gauge",
    pooled="livemax",
    says="How long the oldest row had been due when the sweeper last ran.",
)
SWEPT = MetricFamily(
    name="elicit_sweeper_last_round_timestamp_seconds",
    kind="gauge",
    pooled="max",
    says="The time of the sweeper's last run.",
)
COUNTED = (
    *(ASKED, OUTCOMES, WAKE, HELD, TAKEN_OVER, STORE, STORE_RESULTS, PROVIDER, PROVIDER_RESULTS),
    *(ACCOUNT_FAILURES, API_REFUSED, WEBHOOKS, EVENTS, NOTIFICATIONS),
    *(SWEEPER_LAG, SWEPT),
)

# The values of these families are read from the store. All processes share the store, so any
# process can report them.
READY = MetricFamily(
    name="elicit_ready",
    kind="gauge",
    says="1 if `/ready` answers 200: the store accepts writes and has room, and the process is not "
    "shutting down.",
)
OPEN = MetricFamily(
    name="elicit_questions_open",
    kind="gauge",
    labels=("kind", "age"),
    says="Questions that nobody has answered yet, by how long ago they were asked: up to `1m`, "
    "`10m`, `1h`, `1d`, or `older`.",
)
UNSPENT = MetricFamily(
    name="elicit_receipts_unspent",
    kind="gauge",
    says="Payments that arrived and are not used yet.",
)
UNRESOLVED = MetricFamily(
    name="elicit_payments_unresolved",
    kind="gauge",
    labels=("status",),
    says="Payments with an unknown outcome: `waiting` (the server polls the provider), "
    "`unanswered` (the server stopped polling) or `otherwise` (the payment differs from the "
    "request). See [elicit payments](../reference/commands.md#elicit-payments).",
)
UNRESOLVED_AGE = MetricFamily(
    name="elicit_payments_unresolved_oldest_seconds",
    kind="gauge",
    says="The age of the oldest payment with an unknown outcome; 0 if there is none.",
)
EVENTS_WAITING = MetricFamily(
    name="elicit_events_waiting",
    kind="gauge",
    labels=("address",),
    says="Events that an address has not received yet, because they are retried or wait for an "
    "earlier event.",
)
DISK = MetricFamily(
    name="elicit_store_disk_free_bytes",
    kind="gauge",
    says="Free space on the disk of a store that is a file.",
)
STEPPED_BACK = MetricFamily(
    name="elicit_store_stepped_back_timestamp_seconds",
    kind="gauge",
    says="When a loss of acknowledged data in the store was last noticed; 0 if never. See "
    "[failover](../how-to/stores.md#failover).",
)
LOOKED_UP = MetricFamily(
    name="elicit_store_counted_timestamp_seconds",
    kind="gauge",
    says="When the store was last read completely for the gauges above; later changes are added. "
    "The gauges are missing until the first complete read.",
)
OF_THE_STORE = (
    *(READY, OPEN, UNSPENT, UNRESOLVED, UNRESOLVED_AGE, EVENTS_WAITING),
    *(DISK, STEPPED_BACK, LOOKED_UP),
)
FAMILIES = (*COUNTED, *OF_THE_STORE)


# The observer: the interface through which other packages report what happened.
#
# Risks: a label with unbounded values, or with a person's data. So the arguments are a kind, a
# status, or the name of an operation or a configured provider, all from the code or the settings.


class Observer:
    """A receiver of telemetry events. This base class ignores all events."""

    def store_answered(self, operation: str, *, seconds: float, result: str) -> None:
        """Record the end of a store operation: `ok`, `conflict`, `unavailable` or `failed`."""

    def asked(self, kind: str) -> None:
        """Record a question that is asked for the first time."""

    def settled(self, kind: str, status: str) -> None:
        """Record the end of a question. Status `late`: a payment arrived after the end."""

    def woken(self, kind: str, *, seconds: float) -> None:
        """Record that a waiting call saw the end of its question, `seconds` after the end."""

    def held(self, change: int) -> None:
        """Add `change` to the number of requests that are open while a person is asked."""

    def taken_over(self) -> None:
        """Record that a call claimed an outcome after another call's claim had expired."""

    def provider_answered(
        self, provider: str, operation: str, *, seconds: float, result: str
    ) -> None:
        """Record the end of a request to a provider: `ok`, `4xx`, `5xx` or `failed`."""

    def account_failed(self, provider: str, *, step: str, reason: str) -> None:
        """Record a failed code exchange, refresh or callback.

        `reason` is the class of the refusal.
        """

    def webhook_answered(self, provider: str, result: str) -> None:
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

    def after_write(self, values: Sequence[object]) -> None:
        """Record the values that this process wrote to the store, in their current state."""


UNOBSERVED = Observer()
