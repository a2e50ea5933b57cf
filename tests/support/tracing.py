"""Traces of this process, collected in memory while a test uses `traces`.

OpenTelemetry allows only one tracer provider for each process, so the provider stays set. It
samples spans only inside `traces`.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult


class _SampleDuringTests(Sampler):
    is_on = False

    def should_sample(self, *about: Any, **more: Any) -> SamplingResult:
        attributes = more.get("attributes", about[4] if len(about) > 4 else None)
        decision = Decision.RECORD_AND_SAMPLE if self.is_on else Decision.DROP
        return SamplingResult(decision, attributes)

    def get_description(self) -> str:
        return "samples while a test uses `traces`"


@cache
def _collecting() -> tuple[_SampleDuringTests, InMemorySpanExporter]:
    sampler, exporter = _SampleDuringTests(), InMemorySpanExporter()
    provider = TracerProvider(sampler=sampler)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return sampler, exporter


class Spans:
    """The spans that have ended."""

    def __init__(self, exporter: InMemorySpanExporter) -> None:
        self._exporter = exporter

    def all(self) -> Sequence[ReadableSpan]:
        return self._exporter.get_finished_spans()

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.all() if span.name == name]

    def in_trace_of(self, span: ReadableSpan) -> set[str]:
        return {one.name for one in self.all() if trace_of(one) == trace_of(span)}

    def text(self) -> str:
        """Return all spans as exported JSON."""
        return "\n".join(span.to_json() for span in self.all())


def trace_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.trace_id)


@contextmanager
def traces() -> Generator[Spans]:
    sampler, exporter = _collecting()
    exporter.clear()
    sampler.is_on = True
    try:
        yield Spans(exporter)
    finally:
        sampler.is_on = False
        exporter.clear()
