"""Prometheus metrics in a registry of our own, separate from an application's own metrics.

Several processes can share one folder (PROMETHEUS_MULTIPROC_DIR, which the library reads when it is
first imported). The process that serves the request then pools the counts of all processes.

Risks:
- The gauges of an ended process still count, for example the calls that it held. Each read
  therefore removes the live gauges of ended processes.
- The files of ended workers fill the folder. Each read merges these files into one file if we
  created the folder. In any other folder, no files are merged.
"""

import fcntl
import os
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import datetime
from operator import add
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, cast

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
    multiprocess,
)
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.registry import Collector

from webapp.telemetry import families
from webapp.telemetry.families import MetricFamily, Observer, Samples

SHARED = "PROMETHEUS_MULTIPROC_DIR"
_OUR_FOLDER = "elicit-metrics-"
# The kinds of the library's files without a process label, and how to merge two values.
_ADDED_BY: Final[Mapping[str, Callable[[float, float], float]]] = {
    **dict.fromkeys(("counter", "histogram", "summary"), add),
    "gauge_max": max,
}


class Metrics(Observer):
    """The metrics of one process."""

    def __init__(self, *, folder: str | None = None) -> None:
        """Create the metrics. `folder` is the shared folder if there are several processes."""
        self._folder = folder
        # called with the values that this process wrote to the store
        self.follow: Callable[[Sequence[object]], None] = lambda _: None
        self._registry = registry = CollectorRegistry()
        self._asked = _counter(families.ASKED, registry)
        self._outcomes = _counter(families.OUTCOMES, registry)
        self._wake = _histogram(families.WAKE, registry)
        self._held = _gauge(families.HELD, registry)
        self._taken_over = _counter(families.TAKEN_OVER, registry)
        self._store = _histogram(families.STORE, registry)
        self._store_results = _counter(families.STORE_RESULTS, registry)
        self._provider = _histogram(families.PROVIDER, registry)
        self._provider_results = _counter(families.PROVIDER_RESULTS, registry)
        self._account_failures = _counter(families.ACCOUNT_FAILURES, registry)
        self._webhooks = _counter(families.WEBHOOKS, registry)
        self._events = _counter(families.EVENTS, registry)
        self._notifications = _counter(families.NOTIFICATIONS, registry)
        self._refused = _counter(families.API_REFUSED, registry)
        self._lag = _gauge(families.SWEEPER_LAG, registry)
        self._swept = _gauge(families.SWEPT, registry)

    def page(self, stored: Mapping[MetricFamily, Samples]) -> bytes:
        """Return all metrics in Prometheus's text format, with the current gauges of the store."""
        counted = self._registry.collect() if self._folder is None else _pooled(self._folder)
        page = CollectorRegistry()
        page.register(_Page([*counted, *(_stored(*each) for each in stored.items())]))
        return generate_latest(page)

    def store_answered(self, operation: str, *, seconds: float, result: str) -> None:
        self._store.labels(operation).observe(seconds)
        self._store_results.labels(operation, result).inc()

    def asked(self, kind: str) -> None:
        self._asked.labels(kind).inc()

    def settled(self, kind: str, status: str) -> None:
        self._outcomes.labels(kind, status).inc()

    def woken(self, kind: str, *, seconds: float) -> None:
        # The clocks of two machines differ, so the difference can be negative.
        self._wake.labels(kind).observe(max(seconds, 0.0))

    def held(self, change: int) -> None:
        self._held.inc(change)

    def taken_over(self) -> None:
        self._taken_over.inc()

    def provider_answered(
        self, provider: str, operation: str, *, seconds: float, result: str
    ) -> None:
        self._provider.labels(provider, operation).observe(seconds)
        self._provider_results.labels(provider, operation, result).inc()

    def account_failed(self, provider: str, *, step: str, reason: str) -> None:
        self._account_failures.labels(provider, step, reason).inc()

    def webhook_answered(self, provider: str, result: str) -> None:
        self._webhooks.labels(provider, result).inc()

    def event_sent(self, address: str, result: str) -> None:
        self._events.labels(address, result).inc()

    def notified(self, table: str, result: str) -> None:
        self._notifications.labels(table, result).inc()

    def api_refused(self, why: str) -> None:
        self._refused.labels(why).inc()

    def swept(self, *, at: datetime, lag_seconds: float) -> None:
        self._lag.set(max(lag_seconds, 0.0))
        self._swept.set(at.timestamp())

    def after_write(self, values: Sequence[object]) -> None:
        self.follow(values)


@contextmanager
def counted_together() -> Generator[None]:
    """Set a shared metrics folder for processes started in this block, and delete it at the end.

    Use this in a parent that counts nothing: its workers read the folder from their environment.
    """
    if SHARED in os.environ:  # the folder was set by somebody else, who also deletes it
        yield
        return
    with TemporaryDirectory(prefix=_OUR_FOLDER) as folder:
        os.environ[SHARED] = folder
        try:
            yield
        finally:
            del os.environ[SHARED]


def metrics_here() -> Metrics:
    """Return the metrics of this process, in the shared folder if one is set."""
    return Metrics(folder=os.environ.get(SHARED))


class _Page(Collector):
    """A collector of our metrics only. The folder can also contain an application's metrics."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = [one for one in families if one.name.startswith("elicit_")]
        for family in self._families:  # without creation times, which no dashboard needs
            family.samples = [s for s in family.samples if not s.name.endswith("_created")]

    def collect(self) -> Iterable[Metric]:
        return self._families


def _stored(family: MetricFamily, samples: Samples) -> Metric:
    gauge = GaugeMetricFamily(family.name, _help(family), labels=family.labels)
    for values, value in samples.items():
        gauge.add_metric(values, value)
    return gauge


def _pooled(folder: str) -> Iterable[Metric]:
    is_own_folder = Path(folder).name.startswith(_OUR_FOLDER)
    with _alone_in(folder) if is_own_folder else nullcontext():
        for file in Path(folder).glob("*_*.db"):
            kind, _, written = file.stem.rpartition("_")
            if not written.isdecimal() or _is_running(int(written)):
                continue
            if kind.startswith("gauge_live"):
                multiprocess.mark_process_dead(int(written), folder)  # type: ignore[no-untyped-call]
            elif is_own_folder and kind in _ADDED_BY:
                _add_to_ended(file, kind)
        pooled = multiprocess.MultiProcessCollector(None, folder)  # type: ignore[no-untyped-call]
        return cast("Iterable[Metric]", pooled.collect())  # type: ignore[no-untyped-call]


@contextmanager
def _alone_in(folder: str) -> Generator[None]:
    """Lock the folder while files are merged, so that no reader counts a file twice."""
    # closing the file releases the lock, also when the process is killed
    with Path(folder, "lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _add_to_ended(file: Path, kind: str) -> None:
    """Merge the counts of an ended process into one file for all ended processes."""
    # Rename first: if this process is killed in between, the counts are lost rather than added
    # twice.
    taken = file.rename(file.with_suffix(".taken"))
    ended = MmapedDict(str(file.with_name(f"{kind}_ended.db")))  # type: ignore[no-untyped-call]
    values = cast(
        "Iterable[tuple[str, float, float, int]]",
        MmapedDict.read_all_values_from_file(str(taken)),  # type: ignore[no-untyped-call]
    )
    for key, value, at, _ in values:
        before, _ = ended.read_value(key)  # type: ignore[no-untyped-call]
        ended.write_value(key, _ADDED_BY[kind](before, value), at)  # type: ignore[no-untyped-call]
    ended.close()  # type: ignore[no-untyped-call]
    taken.unlink()


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _help(family: MetricFamily) -> str:
    return family.says.replace("`", "")


def _counter(family: MetricFamily, registry: CollectorRegistry) -> Counter:
    return Counter(family.name, _help(family), family.labels, registry=registry)


def _gauge(family: MetricFamily, registry: CollectorRegistry) -> Gauge:
    return Gauge(
        family.name,
        _help(family),
        family.labels,
        registry=registry,
        multiprocess_mode=family.pooled,
    )


def _histogram(family: MetricFamily, registry: CollectorRegistry) -> Histogram:
    return Histogram(
        family.name, _help(family), family.labels, registry=registry, buckets=family.buckets
    )
