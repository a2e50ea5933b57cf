"""The trace of an HTTP request, for the span that the MCP library begins for each message.

It reads what a message itself says of its trace (`_meta`), and no header; so a caller whose trace
stands in the header alone, as a gateway's does, would lose it.
"""

from collections.abc import Mapping
from typing import Any

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from opentelemetry import context as ambient
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

_HEADERS = ("traceparent", "tracestate")
_W3C = TraceContextTextMapPropagator()


class InTraceOfRequest:
    """Stands before the library's own: what the message says comes first."""

    async def __call__(
        self, context: ServerRequestContext[Any, Any], call_next: CallNext
    ) -> HandlerResult:
        headers: Mapping[str, str] = getattr(context.request, "headers", {})
        said = {name: headers[name] for name in _HEADERS if name in headers}
        if not said:
            return await call_next(context)
        token = ambient.attach(_W3C.extract(said))
        try:
            return await call_next(context)
        finally:
            ambient.detach(token)
