"""Presenting: which way a call shows its questions, by the revision and what was declared."""

from datetime import timedelta
from typing import Any

from mcp.server.context import ServerRequestContext

from webapp.identity import Caller
from webapp.mcp.declared import Declared
from webapp.mcp.forms import ByKind, HoldForm
from webapp.mcp.hold import Hold
from webapp.mcp.link import LinkInResult
from webapp.mcp.retry import Chain, Retry
from webapp.mcp.tools import ServedTool
from webapp.presenter import Presenter
from webapp.service import Service


def presenter_of(
    context: ServerRequestContext[Any, Any],
    declared: Declared,
    chain: Chain,
    *,
    tool: ServedTool | None,
    caller: Caller,
    service: Service,
    has_result_tool: bool,
    dismissed: str | None,
) -> Presenter:
    """`dismissed` is a question that the model no longer waits for."""
    limits, letters, modes = service.limits, service.letters, declared.modes
    shows = declared.shows(by_code=caller.by_code)
    is_error = tool is not None and tool.has_output_schema
    in_result = LinkInResult(
        protocol_version=context.protocol_version,
        modes=modes,
        # A retry follows a form: its links are new to the client, whatever the run says.
        held=limits.link if chain.run_id is None else timedelta(),
        is_error=is_error,
        has_result_tool=has_result_tool,
        dismissed=dismissed,
    )
    if not declared.is_modern:
        links: Presenter = in_result
        if shows:
            links = Hold(context, modes=modes, progress=limits.progress, letters=letters)
        if declared.asks:
            return ByKind(forms=HoldForm(context, modes=modes), links=links)
        return links
    if not (shows or declared.asks):
        return in_result
    retry = Retry(
        chain=chain,
        links=service.links,
        modes=modes,
        began_at=service.clock(),
        limits=limits,
        letters=letters,
        is_error=is_error,
    )
    return retry if shows else ByKind(forms=retry, links=in_result)
