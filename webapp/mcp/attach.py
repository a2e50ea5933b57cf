"""Attaching to somebody's MCP server: one middleware, whoever started the library.

It sees every tools/call, picks how links are shown by the revision and by what the client
declared, makes the call the tool's Asker, and turns what the tool did into a result. Nothing in
the server or its tools is changed.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, cast

from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from msgspec.json import encode
from pydantic import BaseModel

from flows.errors import Cancelled
from flows.question import asking
from webapp.call import Call
from webapp.identity import Caller, Subject
from webapp.mcp import result_tool
from webapp.mcp.hold import Hold
from webapp.mcp.link import LinkInResult
from webapp.mcp.request_state import share_request_state
from webapp.mcp.results import (
    MODERN,
    Result,
    error_result,
    escaped,
    masked,
    text_result,
)
from webapp.mcp.retry import Chain, Retry, read_chain, with_kept
from webapp.presenter import Presenter
from webapp.protected import CheckedToken
from webapp.rates import TooOften, address_key
from webapp.runs import ToolCall
from webapp.service import Service
from webapp.wire import Wires, wire_of

_NOBODY_WITHOUT_FORMS = (
    "Nobody can be asked: a caller without a name is asked by a code from the page to the chat, "
    "for which its client must declare the elicitation modes url and form."
)


def attach(
    server: Any, service: Service, *, issuer: str | None = None, wires: Wires | None = None
) -> None:
    """Let the tools of an MCPServer or a FastMCP server await people.

    `issuer` names who vouches for the subjects of the server's own authentication, where its
    access tokens do not say; `wires` has the calls that come over stdio. Raises TypeError for
    anything else than such a server.
    """
    inner = getattr(server, "_mcp_server", server)  # FastMCP keeps the list one level down
    middleware = getattr(inner, "middleware", None)
    if not isinstance(middleware, list):
        raise TypeError(f"{type(server).__name__} is no MCPServer and no FastMCP server.")
    parts = cast("list[object]", middleware)
    share_request_state(server, parts, service.request_state_keys)
    # Served again, perhaps: the one from before belongs to a service that is closed.
    parts[:] = [part for part in parts if not isinstance(part, Middleware)]
    parts.append(Middleware(server, service, issuer=issuer, wires=wires or Wires()))


class Middleware:
    """Makes each tools/call the Asker of the tool that runs in it."""

    def __init__(self, server: Any, service: Service, *, issuer: str | None, wires: Wires) -> None:
        self._server = server
        self._service = service
        self._wires = wires
        self._issuer = issuer or f"server:{server.name}"

    async def __call__(
        self, context: ServerRequestContext[Any, Any], call_next: CallNext
    ) -> HandlerResult:
        if context.method == "tools/list":
            return await self._listed(context, call_next)
        if context.method != "tools/call" or context.request_id is None:
            return await call_next(context)
        if context.request is not None:
            wire = wire_of(context.request.scope)
        else:
            wire = self._wires.find(context.request_id)
        service = self._service
        params = dict(context.params or {})
        caller = self._caller(context)
        if params.get("name") == result_tool.NAME and await self._offers_result_tool(context):
            return await self._pass_on(context, caller, params)
        state = params.get("requestState")
        chain = read_chain(
            state if isinstance(state, str) else None,
            params.get("inputResponses") or {},
            links=service.links,
            now=service.clock(),
        )
        presenter = await self._presenter(context, chain, params, caller)
        call = self._call(context, caller, presenter, chain, params)
        if chain.run_id is not None:
            run = await call.run.load()
            params["requestState"] = chain.foreign
            responses = with_kept(run.responses, chain.responses)
            params.pop("inputResponses", None)
            if responses is not None:
                params["inputResponses"] = responses
            context = replace(context, params=params)

        async def body() -> HandlerResult:
            return await self._body(call, presenter, context, call_next)

        result = await service.bodies.run(call, body, wire)
        service.bodies.deliver(call, wire)
        return result

    async def _body(
        self,
        call: Call,
        presenter: Presenter,
        context: ServerRequestContext[Any, Any],
        call_next: CallNext,
    ) -> HandlerResult:
        call.begin()
        result: HandlerResult = None
        try:
            with asking(call):
                result = await call_next(context)
        except BaseException:
            # An interruption may come in a task group's wrapping, or a bare `except` may have
            # swallowed it: what the call knows decides, not what was raised.
            if not call.is_interrupted:
                await call.finish()
                raise
        if call.is_interrupted:
            await call.finish()
            if isinstance(call.answer, Exception):
                raise call.answer
            return _as_result(call.answer)
        own = _wire_form(result)
        if _is_input_required(own):
            await call.go_on()
            if isinstance(presenter, Retry) and call.run.is_loaded:
                return {**own, "requestState": presenter.carry(call, own.get("requestState"))}
            return own
        error = call.last_error
        if own.get("isError") and error is not None and escaped(error):
            own = error_result(error, protocol_version=context.protocol_version)
            if isinstance(error, Cancelled):
                await call.finish()  # the same call goes on
                return own
        if own.get("isError"):
            own = masked(own, call.hidden)
        await call.finish(lambda: encode(own).decode(), is_error=bool(own.get("isError")))
        return own

    def _call(
        self,
        context: ServerRequestContext[Any, Any],
        caller: Caller,
        presenter: Presenter,
        chain: Chain,
        params: Mapping[str, Any],
    ) -> Call:
        service = self._service
        return Call(
            elicitations=service.elicitations,
            links=service.links,
            completing=service.completing,
            kinds=service.kinds,
            outbound=service.outbound,
            landed=service.bodies.landed,
            caller=caller,
            tool=ToolCall(
                server=self._server.name,
                tool=str(params.get("name", "")),
                client=_client_of(context),
                arguments=json.dumps(params.get("arguments") or {}, sort_keys=True),
            ),
            presenter=presenter,
            run_id=chain.run_id,
        )

    def _caller(self, context: ServerRequestContext[Any, Any]) -> Caller:
        identity, token, subject = self._service.identity, get_access_token(), None
        if token is not None:
            claims = token.claims or {}
            subject = Subject(
                issuer=str(claims.get("iss") or self._issuer),
                subject=token.subject,
                client_id=token.client_id,
            )
            if not isinstance(token, CheckedToken):
                subject = identity.as_on_our_pages(subject, claims)
        scope = context.request.scope if context.request is not None else None
        caller = identity.caller(scope, subject=subject, client=_client_of(context) or "")
        if caller.is_anonymous and caller.by_code and not _can_show_and_ask(context):
            return replace(caller, refusal=_NOBODY_WITHOUT_FORMS)
        if caller.is_anonymous and caller.by_code and scope is not None:
            wait = self._service.nobodys.allow(address_key(scope))
            return replace(caller, refusal=str(TooOften(wait))) if wait else caller
        return caller

    async def _presenter(
        self,
        context: ServerRequestContext[Any, Any],
        chain: Chain,
        params: Mapping[str, Any],
        caller: Caller,
    ) -> Presenter:
        modes = _modes(context)
        limits, letters = self._service.limits, self._service.letters
        is_modern = context.protocol_version >= MODERN
        # Letters come by a form of the client's, or by a tool, and a call that is held has neither.
        shows = _can_show_and_ask(context) if caller.by_code else "url" in modes
        if shows and not is_modern:
            return Hold(context, modes=modes, progress=limits.progress, letters=letters)
        is_error = partial(self._has_output_schema, str(params.get("name", "")))
        if shows:
            return Retry(
                chain=chain,
                links=self._service.links,
                modes=modes,
                began_at=self._service.clock(),
                limits=limits,
                letters=letters,
                is_error=is_error,
            )
        return LinkInResult(
            protocol_version=context.protocol_version,
            modes=modes,
            held=limits.link,
            # Known before anything is asked: between asking and showing nothing may be awaited.
            is_error=await is_error(),
        )

    async def _listed(
        self, context: ServerRequestContext[Any, Any], call_next: CallNext
    ) -> HandlerResult:
        """The tools, with ours for the clients that need it, on the last page."""
        result = _wire_form(await call_next(context))
        if await self._offers_result_tool(context) and not result.get("nextCursor"):
            result["tools"] = [*result.get("tools", []), result_tool.TOOL]
        return result

    async def _offers_result_tool(self, context: ServerRequestContext[Any, Any]) -> bool:
        if not self._service.identity.binds_by_code or _can_show_and_ask(context):
            return False
        return all(tool.name != result_tool.NAME for tool in await self._server.list_tools())

    async def _pass_on(
        self, context: ServerRequestContext[Any, Any], caller: Caller, params: Mapping[str, Any]
    ) -> HandlerResult:
        text, is_error = await result_tool.pass_on(
            params.get("arguments") or {},
            elicitations=self._service.elicitations,
            letters=self._service.letters,
            caller=caller,
        )
        return text_result(text, protocol_version=context.protocol_version, is_error=is_error)

    async def _has_output_schema(self, name: str) -> bool:
        """Whether clients would refuse a text as this tool's result unless it is an error."""
        for tool in await self._server.list_tools():
            if tool.name == name:
                return getattr(tool, "output_schema", None) is not None
        return False


def _client_of(context: ServerRequestContext[Any, Any]) -> str | None:
    info = context.session.client_params
    return info.client_info.name if info is not None else None


def _can_show_and_ask(context: ServerRequestContext[Any, Any]) -> bool:
    """Whether the client shows a link and asks for letters, both within one call."""
    is_reached = context.protocol_version >= MODERN or context.session.can_send_request
    return {"url", "form"} <= _modes(context) and is_reached


def _modes(context: ServerRequestContext[Any, Any]) -> frozenset[str]:
    """What the client declared; `elicitation: {}` means form (2025-06-18)."""
    capabilities = context.session.client_capabilities
    declared = capabilities.elicitation if capabilities is not None else None
    if declared is None:
        return frozenset()
    modes = {mode for mode in ("form", "url") if getattr(declared, mode) is not None}
    return frozenset(modes or {"form"})


def _wire_form(result: HandlerResult) -> Result:
    if isinstance(result, BaseModel):
        return result.model_dump(mode="json", by_alias=True, exclude_none=True)
    return dict(result or {})


def _as_result(answer: object) -> Result:
    if not isinstance(answer, dict):
        raise TypeError(f"a presenter answered with {type(answer).__name__}")
    return cast("Result", answer)


def _is_input_required(result: Mapping[str, Any]) -> bool:
    return result.get("resultType") == "input_required"
