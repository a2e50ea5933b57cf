"""Units of work and the telemetry of this process: its observer, its metrics and its tracer.

A unit of work is one request of a browser or a provider, one call of a tool, or one row of the
sweeper. The first question that the work reads is its subject.

Risks: a call asks two questions at once, and a log line gets the id of the wrong one. Each question
of a call is therefore a unit of work of its own. Tasks inherit the unit of work that starts them.

The record of a question stores the trace of the call that asked it (W3C Trace Context), so work on
the question in any process continues that trace. If a call that already has a trace joins a
question of another trace, the two are linked.

Traces go to the tracer provider that the application has set. If it has set none, they go to the
exporter of OpenTelemetry's own settings (OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_SERVICE_NAME and so on),
which the OpenTelemetry library reads.
"""

import logging
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol

from opentelemetry import trace
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    NoOpTracerProvider,
    ProxyTracerProvider,
    Span,
    SpanKind,
    StatusCode,
    Tracer,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from webapp.telemetry.families import UNOBSERVED, Observer

if TYPE_CHECKING:
    from opentelemetry.util.types import AttributeValue

    from webapp.telemetry.metrics import Metrics


_W3C = TraceContextTextMapPropagator()
_PARENT = "traceparent"


class About(Protocol):
    """The fields of a question that telemetry reads."""

    @property
    def id(self) -> str: ...
    @property
    def owner(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def waiter(self) -> str | None: ...
    @property
    def trace(self) -> str | None: ...


class Work:
    """A unit of work. `tracer` is None if no traces are collected."""

    __slots__ = ("call", "id", "is_sought", "name", "span", "tracer")

    def __init__(self, name: str | None, *, tracer: Tracer | None, call: str | None) -> None:
        """Start a unit of work.

        `name` is the name of the span. None means that the enclosing work already has a span.
        """
        self.name = name
        self.tracer = tracer
        self.is_sought = True  # until the question of this work is set
        self.call = call
        self.id: str | None = None
        self.span: Span | None = None

    def child(self, name: str, *, about: "dict[str, AttributeValue]") -> Span | None:
        """Start a span for a request to another server."""
        if self.tracer is None:
            return None
        parent = None if self.span is None else set_span_in_context(self.span)
        return self.tracer.start_span(name, parent, SpanKind.CLIENT, attributes=about)

    @property
    def trace_id(self) -> str | None:
        if self.tracer is None:
            return None
        context = _span_of(self).get_span_context()
        return f"{context.trace_id:032x}" if context.is_valid else None


# A ContextVar, not a field of the Asker: pages, webhooks and the sweeper log without an Asker.
_current: ContextVar[Work | None] = ContextVar("elicit_work", default=None)


@contextmanager
def working(
    name: str | None = None, *, tracer: Tracer | None = None, call: str | None = None
) -> Generator[Work]:
    """Run the block as a unit of work. Nested work inherits the tracer and the call."""
    around = _current.get()
    if around is not None:
        tracer, call = tracer or around.tracer, call or around.call
    work = Work(name, tracer=tracer, call=call)
    before = _current.set(work)
    try:
        yield work
    except BaseException as error:
        if work.span is not None:  # record only the type: the message can contain an answer
            work.span.set_status(StatusCode.ERROR, type(error).__name__)
        raise
    finally:
        if work.span is not None:
            work.span.end()
        _current.reset(before)


def current_work() -> Work | None:
    return _current.get()


def note(question: About) -> None:
    """Set the question that the current work is about, unless one is already set."""
    work = _current.get()
    if work is None or not work.is_sought:
        return
    work.is_sought = False
    work.id, work.call = question.id, work.call or question.waiter
    if work.name is not None and work.tracer is not None and question.trace is not None:
        work.span = _begun(work.name, work.tracer, question)


def traceparent() -> str | None:
    """Return the trace of the current work, in the form in which a record stores it."""
    work = _current.get()
    if work is None or work.tracer is None:
        return None
    carrier = dict[str, str]()
    _W3C.inject(carrier, set_span_in_context(_span_of(work)))
    return carrier.get(_PARENT)


def _begun(name: str, tracer: Tracer, question: About) -> Span:
    """Start a span in the trace of the question, linked to the current trace if they differ."""
    here = get_current_span()
    asked = get_current_span(_W3C.extract({_PARENT: question.trace or ""})).get_span_context()
    short_id = question.id.removeprefix(question.owner)  # without the owner's tag
    is_elsewhere = (
        here.get_span_context().is_valid and here.get_span_context().trace_id != asked.trace_id
    )
    if is_elsewhere:
        here.add_link(asked)
    return tracer.start_span(
        name,
        set_span_in_context(NonRecordingSpan(asked)),
        SpanKind.INTERNAL if here.get_span_context().is_valid else SpanKind.SERVER,
        attributes={"elicit.id": short_id, "elicit.kind": question.kind},
        links=[Link(here.get_span_context())] if is_elsewhere else [],
    )


def _span_of(work: Work) -> Span:
    return get_current_span() if work.span is None else work.span


_NAME = "elicit_url"
# The logger has the former name of this module, which operators may filter by.
_log = logging.getLogger("webapp.telemetry.telemetry")


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
