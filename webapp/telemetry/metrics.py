"""Metrics for Prometheus, in a registry of our own: an application's own metrics stay its own.

Of several processes that have one folder (PROMETHEUS_MULTIPROC_DIR, which the library reads when it
is first imported), what each has counted is pooled by whichever is asked. What could go wrong: a
process that has ended and is counted on, as one that holds calls. So its gauges are taken out when
somebody looks. Files of workers that came and went fill the folder: in ours they are added up in
one. In another's they stay, as the library has them.
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
from webapp.telemetry.families import MetricFamily, Samples
from webapp.telemetry.observer import Observer

SHARED = "PROMETHEUS_MULTIPROC_DIR"
_OUR_FOLDER = "elicit-metrics-"
# Of the library's files those that do not say which process it was, and what makes one of two.
_ADDED_BY: Final[Mapping[str, Callable[[float, float], float]]] = {
    **dict.fromkeys(("counter", "histogram", "summary"), add),
    "gauge_max": max,
}


class Metrics(Observer):
    """Counts for one process."""

    def __init__(self, *, folder: str | None = None) -> None:
        """`folder` is what its processes share, if there are several."""
        self._folder = folder
        self.follow: Callable[[Sequence[object]], None] = _nobody  # whoever adds up what is written
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
        self._refused = _counter(families.API_REFUSED, registry)
        self._lag = _gauge(families.SWEEPER_LAG, registry)
        self._swept = _gauge(families.SWEPT, registry)

    def page(self, stored: Mapping[MetricFamily, Samples]) -> bytes:
        """All of it as Prometheus reads it, with what the store says at the moment."""
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
        # Clocks of two machines differ: nobody is woken before the end.
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

    def webhook_came(self, provider: str, result: str) -> None:
        self._webhooks.labels(provider, result).inc()

    def event_sent(self, address: str, result: str) -> None:
        self._events.labels(address, result).inc()

    def api_refused(self, why: str) -> None:
        self._refused.labels(why).inc()

    def swept(self, *, at: datetime, lag_seconds: float) -> None:
        self._lag.set(max(lag_seconds, 0.0))
        self._swept.set(at.timestamp())

    def wrote(self, values: Sequence[object]) -> None:
        self.follow(values)


@contextmanager
def counted_together() -> Generator[None]:
    """What is started within counts into one folder, which is nobody else's and ends with it.

    For a parent that counts nothing: its workers find the folder's name in their environment.
    """
    if SHARED in os.environ:  # somebody else's, who keeps it
        yield
        return
    with TemporaryDirectory(prefix=_OUR_FOLDER) as folder:
        os.environ[SHARED] = folder
        try:
            yield
        finally:
            del os.environ[SHARED]


def metrics_here() -> Metrics:
    """For this process, which may be one of several that share a folder."""
    return Metrics(folder=os.environ.get(SHARED))


class _Page(Collector):
    """Ours alone: the folder may hold an application's own, which it shows where it chooses."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = [one for one in families if one.name.startswith("elicit_")]
        for family in self._families:  # when each began is no metric that somebody watches
            family.samples = [s for s in family.samples if not s.name.endswith("_created")]

    def collect(self) -> Iterable[Metric]:
        return self._families


def _stored(family: MetricFamily, samples: Samples) -> Metric:
    gauge = GaugeMetricFamily(family.name, _help(family), labels=family.labels)
    for values, value in samples.items():
        gauge.add_metric(values, value)
    return gauge


def _pooled(folder: str) -> Iterable[Metric]:
    is_ours = Path(folder).name.startswith(_OUR_FOLDER)
    with _alone_in(folder) if is_ours else nullcontext():
        for file in Path(folder).glob("*_*.db"):
            kind, _, written = file.stem.rpartition("_")
            if not written.isdecimal() or _is_running(int(written)):
                continue
            if kind.startswith("gauge_live"):
                multiprocess.mark_process_dead(int(written), folder)  # type: ignore[no-untyped-call]
            elif is_ours and kind in _ADDED_BY:
                _add_to_ended(file, kind)
        pooled = multiprocess.MultiProcessCollector(None, folder)  # type: ignore[no-untyped-call]
        return cast("Iterable[Metric]", pooled.collect())  # type: ignore[no-untyped-call]


@contextmanager
def _alone_in(folder: str) -> Generator[None]:
    """Nobody reads what is being added up, or it would count twice."""
    with Path(folder, "lock").open("ab") as lock:  # closed, it is free; so it is after a kill
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _add_to_ended(file: Path, kind: str) -> None:
    """What a process counted that has ended goes into one file for all of those."""
    # By another name first: killed in between, we rather lose what it counted than add it twice.
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


def _nobody(_: Sequence[object]) -> None:
    pass


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
