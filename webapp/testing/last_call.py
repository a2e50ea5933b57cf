"""The result of a tool's last call, for a test that fails because no question was asked.

A tool can fail before it asks, and only the model sees the cause. For some exceptions the libraries
hide the cause even from the model and only log it. So this module wraps every call, from any
client, and reads those logs.
"""

import logging
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext

from webapp.importing import raised_at
from webapp.logs.events import TOOL_LOGGERS, root_cause
from webapp.mcp.leg import wire_form
from webapp.mcp.tools import low_level_of

_CHARACTERS_AT_MOST = 2000


class LastCall(logging.Handler):
    """The text that the last call returned, and the exception of its tool with file and line."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self._heard: str | None = None
        self._raised: BaseException | None = None

    def __str__(self) -> str:
        if self._heard is None:
            return "No tool call has ended."
        lines = [f"The last call returned: {self._heard[:_CHARACTERS_AT_MOST]}"]
        if self._raised is not None:
            says, at = str(self._raised), raised_at(self._raised)
            is_heard = not says or says in self._heard
            its_own = "" if is_heard else f": {says[:_CHARACTERS_AT_MOST]}"
            where = f" at {at}" if at else ""
            lines.append(f"The tool raised {type(self._raised).__name__}{where}{its_own}")
        return "\n".join(lines)

    @contextmanager
    def listening(self, server: Any) -> Generator[None]:
        """Wrap the calls of a server that is already attached."""
        low_level_of(server).middleware.insert(0, self._called)
        loggers = [logging.getLogger(name) for name in TOOL_LOGGERS]
        for logger in loggers:
            logger.addHandler(self)
        try:
            yield
        finally:
            for logger in loggers:
                logger.removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Store the exception of a tool that the library logs."""
        self._raised = root_cause(record) or self._raised

    async def _called(
        self, context: ServerRequestContext[Any, Any], call_next: CallNext
    ) -> HandlerResult:
        if context.method != "tools/call":
            return await call_next(context)
        self._raised = None
        try:
            result = await call_next(context)
        except Exception as error:
            self._heard, self._raised = str(error), error
            raise
        parts = wire_form(result).get("content", ())
        texts = [part["text"] for part in parts if part.get("type") == "text"]
        if texts:  # a result without text asks the client for input
            self._heard = "\n".join(texts)
        return result
