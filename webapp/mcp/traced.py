"""The trace of an HTTP request, for the span that the MCP library starts for each message.

The library reads the trace from the message itself (`_meta`) and ignores headers. A gateway may put
its trace only into the headers, and its spans would not be connected with this server's.
"""

from collections.abc import Mapping
from typing import Any

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from opentelemetry import context as ambient
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

_HEADERS = ("traceparent", "tracestate")
_W3C = TraceContextTextMapPropagator()


class InTraceOfRequest:
    """Middleware that uses the trace in the headers, unless the message has a trace.

    It must come before the library's own tracing middleware.
    """

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
