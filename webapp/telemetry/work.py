"""Work: what a task is at, so that a line of the log and a span have the id that they belong to.

One request of a browser's or a provider's, one call of a tool, one row of the sweeper's. The first
question that it reads is what it is about. What could go wrong: a line under another person's id,
where two questions are asked at once. So each question of a call is a piece of work of its own, and
a task that is started meanwhile inherits it.

The record of a question has the trace of the call that asked it (W3C Trace Context), so whatever is
about it in any process goes on with that trace. A call that was traced already when it joins a
question of another trace is linked to it.
"""

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol

from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanKind,
    StatusCode,
    Tracer,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

if TYPE_CHECKING:
    from opentelemetry.util.types import AttributeValue

_W3C = TraceContextTextMapPropagator()
_PARENT = "traceparent"


class About(Protocol):
    """A question, as far as it is told of."""

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
    """A piece of it; `tracer` is None where nobody collects traces."""

    __slots__ = ("_is_sought", "_name", "call", "id", "span", "tracer")

    def __init__(self, name: str | None, *, tracer: Tracer | None, call: str | None) -> None:
        """`name` is its span's; None: it has none, as what it is part of has one."""
        self._name = name
        self.tracer = tracer
        self._is_sought = True
        self.call = call
        self.id: str | None = None
        self.span: Span | None = None

    def note(self, question: About) -> None:
        """It is about this question, unless it is about another one already."""
        if not self._is_sought:
            return
        self._is_sought = False
        self.id, self.call = question.id, self.call or question.waiter
        if self._name is not None and self.tracer is not None and question.trace is not None:
            self.span = _begun(self._name, self.tracer, question)

    def end(self, error: BaseException | None = None) -> None:
        if self.span is not None:
            if error is not None:  # by its type alone: its text may quote a person
                self.span.set_status(StatusCode.ERROR, type(error).__name__)
            self.span.end()

    def child(self, name: str, *, about: "dict[str, AttributeValue]") -> Span | None:
        """A span of something that is asked of another server meanwhile."""
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


# Beside the Asker of a call: a page, a webhook and the sweeper have none, and log all the same.
_current: ContextVar[Work | None] = ContextVar("elicit_work", default=None)


@contextmanager
def working(
    name: str | None = None, *, tracer: Tracer | None = None, call: str | None = None
) -> Generator[Work]:
    """Work from here to the end of the block; a piece of other work has its tracer and its call."""
    around = _current.get()
    if around is not None:
        tracer, call = tracer or around.tracer, call or around.call
    work = Work(name, tracer=tracer, call=call)
    before = _current.set(work)
    try:
        yield work
    except BaseException as error:
        work.end(error)
        raise
    else:
        work.end()
    finally:
        _current.reset(before)


def current_work() -> Work | None:
    return _current.get()


def note(question: About) -> None:
    """What is worked at here is about this question."""
    work = _current.get()
    if work is not None:
        work.note(question)


def traceparent() -> str | None:
    """The trace that whatever is asked here belongs to, as a record keeps it."""
    work = _current.get()
    if work is None or work.tracer is None:
        return None
    carrier = dict[str, str]()
    _W3C.inject(carrier, set_span_in_context(_span_of(work)))
    return carrier.get(_PARENT)


def _begun(name: str, tracer: Tracer, question: About) -> Span:
    """In the trace that the question was asked in; tied to the one of here, if that is another."""
    here = get_current_span()
    asked = get_current_span(_W3C.extract({_PARENT: question.trace or ""})).get_span_context()
    short_id = question.id.removeprefix(question.owner)  # not whose it is
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
