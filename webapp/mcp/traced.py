"""The trace of an HTTP request, for the span that the MCP library starts for each message.

The library reads the trace from the message itself (`_meta`) and ignores headers. A caller whose
trace is only in the headers, like a gateway's, would lose it.
"""

from collections.abc import Mapping
from typing import Any

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from opentelemetry import context as ambient
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

_HEADERS = ("traceparent", "tracestate")
_W3C = TraceContextTextMapPropagator()


class InTraceOfRequest:
    """Middleware before the library's own: a trace in the message takes precedence."""

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
