"""The table of all metric families: their names, kinds, labels and help texts.

`metrics` exports only these, and docs/reference/metrics.md is written from this table.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    """A metric family. `pooled` says how a gauge of several processes is combined."""

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


# Counted in each process, and pooled across the workers of one machine.
ASKED = MetricFamily(
    name="elicit_questions_total",
    kind="counter",
    labels=("kind",),
    says="Questions that somebody was asked.",
)
OUTCOMES = MetricFamily(
    name="elicit_outcomes_total",
    kind="counter",
    labels=("kind", "status"),
    says="How questions ended; `late` is a payment that arrived after its question was over.",
)
WAKE = MetricFamily(
    name="elicit_wake_seconds",
    kind="histogram",
    labels=("kind",),
    buckets=_WAKE,
    says="From the end of a question, in whichever process, until the call that waits has seen it.",
)
HELD = MetricFamily(
    name="elicit_calls_held",
    kind="gauge",
    says="Calls that are held at this moment while somebody is asked.",
)
TAKEN_OVER = MetricFamily(
    name="elicit_leases_taken_over_total",
    kind="counter",
    says="Outcomes that were taken after the lease of whoever had them ran out.",
)
STORE = MetricFamily(
    name="elicit_store_operation_seconds",
    kind="histogram",
    labels=("operation",),
    buckets=_STORE,
    says="How long the store takes, by operation.",
)
STORE_RESULTS = MetricFamily(
    name="elicit_store_operations_total",
    kind="counter",
    labels=("operation", "result"),
    says="What the store answered: `ok`, `conflict` (somebody else was first, which is normal), "
    "`unavailable` or `failed`.",
)
PROVIDER = MetricFamily(
    name="elicit_provider_request_seconds",
    kind="histogram",
    labels=("provider", "operation"),
    buckets=_PROVIDER,
    says="How long providers of accounts and payments take.",
)
PROVIDER_RESULTS = MetricFamily(
    name="elicit_provider_requests_total",
    kind="counter",
    labels=("provider", "operation", "result"),
    says="What they answered: `ok`, `4xx`, `5xx`, or `failed` for no answer that could be used.",
)
ACCOUNT_FAILURES = MetricFamily(
    name="elicit_account_failures_total",
    kind="counter",
    labels=("provider", "step", "reason"),
    says="Accounts that could not be connected or refreshed. `step` is `callback`, `exchange` or "
    "`refresh`. `reason` is `ended` (a code or refresh token that is not valid any more), `client` "
    "(the provider refuses our client id or secret) or `redirect` (our redirect address), both of "
    "which only the operator can correct, `passing` (the provider is out of order), `unsure` "
    "(refused in other words) or `other` (no answer, or one that cannot be used).",
)
WEBHOOKS = MetricFamily(
    name="elicit_webhooks_total",
    kind="counter",
    labels=("provider", "result"),
    says="Webhooks, by what became of them. Those that could not be verified have the reason, and "
    "`not_kept` was answered 503, as the store could not be written.",
)
EVENTS = MetricFamily(
    name="elicit_events_total",
    kind="counter",
    labels=("address", "result"),
    says="Tries to tell the addresses of `ELICIT_EVENTS_{NAME}_URL` of an event: `sent`, `failed` "
    "(it is tried again), `given_up`, or `not_kept`, as too many waited. See "
    "[events](../how-to/webhooks.md).",
)
API_REFUSED = MetricFamily(
    name="elicit_api_refused_total",
    kind="counter",
    labels=("why",),
    says="Requests to the HTTP API without a key or token that works: `missing`, `unknown`, "
    "`revoked` or `expired` (API keys), `invalid_token`, `insufficient_scope` or `invalid_request` "
    "(access tokens), `held_back` (a guess from an address with too many of these).",
)
SWEEPER_LAG = MetricFamily(
    name="elicit_sweeper_lag_seconds",
    kind="gauge",
    pooled="livemax",
    says="How long the oldest row had been due when the sweeper last went round.",
)
SWEPT = MetricFamily(
    name="elicit_sweeper_last_round_timestamp_seconds",
    kind="gauge",
    pooled="max",
    says="When a sweeper last went round.",
)
COUNTED = (
    *(ASKED, OUTCOMES, WAKE, HELD, TAKEN_OVER, STORE, STORE_RESULTS, PROVIDER, PROVIDER_RESULTS),
    *(ACCOUNT_FAILURES, API_REFUSED, WEBHOOKS, EVENTS, SWEEPER_LAG, SWEPT),
)

# Read from the store, which all processes share. The process that serves the request reports them.
READY = MetricFamily(
    name="elicit_ready",
    kind="gauge",
    says="1 if `/ready` says 200: the store takes a write and has room, and the process does not "
    "end.",
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
    says="Payments that arrived and that no call has used.",
)
UNRESOLVED = MetricFamily(
    name="elicit_payments_unresolved",
    kind="gauge",
    labels=("status",),
    says="Payments of which nobody knows what became: `waiting` (the provider is asked again), "
    "`unanswered` (it is asked no more) or `otherwise` (paid, and not as asked). See "
    "[elicit payments](commands.md#elicit-payments).",
)
UNRESOLVED_AGE = MetricFamily(
    name="elicit_payments_unresolved_oldest_seconds",
    kind="gauge",
    says="How long ago the oldest of these was found; 0 if there is none.",
)
EVENTS_WAITING = MetricFamily(
    name="elicit_events_waiting",
    kind="gauge",
    labels=("address",),
    says="Events that an address was not told of yet, whether they are tried again or wait for one "
    "before them.",
)
DISK = MetricFamily(
    name="elicit_store_disk_free_bytes",
    kind="gauge",
    says="Room on the disk of a store that is a file.",
)
STEPPED_BACK = MetricFamily(
    name="elicit_store_stepped_back_timestamp_seconds",
    kind="gauge",
    says="When it was noticed last that the store had lost what it had acknowledged; 0 if it never "
    "was. See [failover](../how-to/stores.md#failover).",
)
LOOKED_UP = MetricFamily(
    name="elicit_store_counted_timestamp_seconds",
    kind="gauge",
    says="When the store was last read through for the gauges above; the changes since are added. "
    "Until that is done for the first time they are left out.",
)
OF_THE_STORE = (
    *(
        READY,
        OPEN,
        UNSPENT,
        UNRESOLVED,
        UNRESOLVED_AGE,
        EVENTS_WAITING,
        DISK,
        STEPPED_BACK,
        LOOKED_UP,
    ),
)
FAMILIES = (*COUNTED, *OF_THE_STORE)
