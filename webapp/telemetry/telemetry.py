"""The telemetry of this process: its observer, its metrics and its tracer.

A tracer provider that the application set comes first. Otherwise OpenTelemetry's own settings
(OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_SERVICE_NAME and so on) say where traces go. The OpenTelemetry
library reads these settings.
"""

import logging
from typing import TYPE_CHECKING

from opentelemetry import trace
from opentelemetry.trace import NoOpTracerProvider, ProxyTracerProvider, Tracer

from webapp.telemetry.observer import UNOBSERVED, Observer

if TYPE_CHECKING:
    from webapp.telemetry.metrics import Metrics

_NAME = "elicit_url"
_log = logging.getLogger(__name__)


class Telemetry:
    """The observer, the metrics and the tracer (None if no traces are collected)."""

    __slots__ = ("metrics", "observer", "tracer")

    def __init__(self, *, metrics: "Metrics | None" = None, tracer: Tracer | None = None) -> None:
        self.metrics = metrics
        self.observer: Observer = metrics or UNOBSERVED
        self.tracer = tracer


NONE = Telemetry()


def tracer_here(*, exports: bool) -> Tracer | None:
    """Return the tracer for our spans, or None if no traces are collected.

    `exports` is True if the environment configures an exporter.
    """
    provider = trace.get_tracer_provider()
    if exports and isinstance(provider, ProxyTracerProvider):
        _export()
        provider = trace.get_tracer_provider()
    if isinstance(provider, ProxyTracerProvider | NoOpTracerProvider):
        return None
    return provider.get_tracer(_NAME)


def _export() -> None:
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415 - an extra
            OTLPSpanExporter,
        )
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415 - an extra
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415 - an extra
    except ModuleNotFoundError:
        why = (
            "OTEL_EXPORTER_OTLP_ENDPOINT is set, but OpenTelemetry is not installed: pip install "
            "'elicit-url[otel]', or unset the variable"
        )
        _log.warning("traces.not_sent", extra={"why": why})
        return
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
