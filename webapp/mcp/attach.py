"""Attaching to an author's MCP server: one middleware, however the library was started.

The middleware sees every tools/call. It picks the presenter, by the protocol revision and by what
the client declared, and makes the call the tool's Asker. Then it converts the tool's return value
or error to a result. Nothing else in the server or its tools is changed. A FastMCP server also gets
a middleware for calls among its tools.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Any, cast

from mcp.server.context import CallNext, HandlerResult
from mcp.shared.exceptions import MCPError
from opentelemetry import context as ambient
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from flows.elicitation.tool_call import ToolCall, must_be_no_others_name
from flows.errors import InvalidArguments, StoreUnavailable
from flows.kinds.gate import arguments_text
from webapp.calls.call import Call
from webapp.calls.unasked import asking_nobody
from webapp.http.exchange import ClientConnection, ClientConnections, client_connection_of
from webapp.http.rate_limit import TooOften, address_key
from webapp.identity.identity import Caller
from webapp.logs.events import mask_tool_logs
from webapp.mcp.before import watch_inner_calls
from webapp.mcp.callers import Declared, caller_of, declared_by, issuer_of, must_be_named
from webapp.mcp.leg import PreparedLeg, TaskLeg, run_request, wire_form
from webapp.mcp.messages import check_params
from webapp.mcp.opened import note_call
from webapp.mcp.presenters.choice import presenter_of
from webapp.mcp.presenters.on_stream import ConnectionAsks
from webapp.mcp.received import LARGE_CHARACTERS, must_fit
from webapp.mcp.request_state import merged_responses, read_chain, share_request_state
from webapp.mcp.result_tool import GoOn, ResultTool
from webapp.mcp.results import (
    MODERN,
    RESULT_TOOL,
    error_result,
    explained,
    schema_with_pending,
)
from webapp.mcp.resuming import when_read_later
from webapp.mcp.task_state import TaskOffer
from webapp.mcp.tasks import METHODS, TaskRequest, Tasks
from webapp.mcp.tools import (
    Context,
    has_tool,
    low_level_of,
    middleware_of,
    title_of,
    tool_of,
    version_of,
)
from webapp.mcp.visibility import Visibility
from webapp.records.rows import Erased
from webapp.service import Service
from webapp.telemetry.work import working

# The trace of an HTTP request, for the span that the MCP library starts for each message.
#
# The library reads the trace from the message itself (`_meta`) and ignores headers. A gateway may
# put its trace only into the headers, and its spans would not be connected with this server's.

_HEADERS = ("traceparent", "tracestate")
_W3C = TraceContextTextMapPropagator()


class InTraceOfRequest:
    """Middleware that uses the trace in the headers, unless the message has a trace.

    It must come before the library's own tracing middleware.
    """

    async def __call__(self, context: Context, call_next: CallNext) -> HandlerResult:
        headers: Mapping[str, str] = getattr(context.request, "headers", {})
        trace_headers = {name: headers[name] for name in _HEADERS if name in headers}
        if not trace_headers:
            return await call_next(context)
        token = ambient.attach(_W3C.extract(trace_headers))
        try:
            return await call_next(context)
        finally:
            ambient.detach(token)


_log = logging.getLogger(__name__)
_FORMS_NEEDED = (
    "Nobody can be asked: the server asks an anonymous caller by a one-time code, from the page to "
    "the chat, and the client must declare the elicitation modes url and form for that."
)


def attach(
    server: Any,
    service: Service,
    *,
    issuer: str | None = None,
    connections: ClientConnections | None = None,
) -> "Middleware":
    """Let the tools of an MCPServer, a FastMCP server or a low-level Server await people.

    If the server authenticates its callers itself, `issuer` is the issuer to assume for access
    tokens that name no issuer. `connections` has the calls that come over stdio. Raises TypeError
    if `server` is of another type, and ValueError if the author gave the server no name.
    """
    parts = middleware_of(server)
    must_be_named(server)
    share_request_state(server, parts, service.request_state_keys)
    mask_tool_logs()
    # A HostedServer may start again. The middleware of its earlier start then belongs to a closed
    # service.
    parts[:] = [part for part in parts if not isinstance(part, Middleware | InTraceOfRequest)]
    if service.elicitations.telemetry.tracer is not None:
        parts.insert(0, InTraceOfRequest())
    middleware = Middleware(
        server, service, issuer=issuer, connections=connections or ClientConnections()
    )
    parts.append(middleware)
    watch_inner_calls(server)
    return middleware


def is_served(server: Any) -> bool:
    """Return True if a running application is attached to this server.

    Raises TypeError if `server` is no server of any library.
    """
    parts = middleware_of(server)
    return any(isinstance(part, Middleware) and not part.has_ended for part in parts)


class Middleware:
    """The middleware that makes each tools/call the Asker of the tool that runs in it."""

    def __init__(
        self, server: Any, service: Service, *, issuer: str | None, connections: ClientConnections
    ) -> None:
        self._server = server
        self._service = service
        self._hiding = Visibility(server, service)
        self._result_tool = ResultTool(service, server=server.name)
        self._offer = TaskOffer(server, is_on=service.kinds.quotas.gives_tasks)
        self._tasks = Tasks(service, self._offer, server=server.name)
        self._client_connections = connections
        self._declared = partial(declared_by, listed=service.clients.listed)
        self._issuer = issuer or issuer_of(server)
        self._connections = ConnectionAsks()
        service.kinds.rules.serves.add(server.name)
        self.has_ended = False

    def end(self) -> None:
        """Mark the middleware as ended, because its service is closed."""
        self.has_ended = True

    async def __call__(self, context: Context, call_next: CallNext) -> HandlerResult:
        is_call = context.method == "tools/call" and context.request_id is not None
        if context.request_id is not None:
            check_params(context.method, context.params)
        try:
            handle = self._called if is_call else self._no_call
            return await handle(context, call_next)
        except InvalidArguments as error:
            return error_result(error, protocol_version=context.protocol_version)
        except (StoreUnavailable, Erased) as error:
            why = error.why if isinstance(error, StoreUnavailable) else "erased"
            _log.warning("store.unavailable", extra={"why": why})
            if not is_call:
                raise MCPError(error.jsonrpc_code, str(error)) from error
            return error_result(error, protocol_version=context.protocol_version)

    async def _called(self, context: Context, call_next: CallNext) -> HandlerResult:
        request_id = context.request_id
        assert request_id is not None
        if context.request is not None:
            note_call(context.request.scope)
        connection = self._connection(context)
        service, declared = self._service, self._declared(context)
        params = dict(context.params or {})
        caller = self._caller(context, declared)
        has_result_tool = await self._has_result_tool(context, declared, lambda: caller)
        going_on: GoOn | None = None
        if has_result_tool and params.get("name") == RESULT_TOOL:
            answered = await self._result_tool.call(
                params.get("arguments"), caller=caller, protocol_version=context.protocol_version
            )
            if not isinstance(answered, GoOn):
                return answered
            going_on, params = answered, answered.within(params)
        task = self._tasks.task_leg_of(params, declared, caller) if declared.has_tasks else None
        prepared = await self._prepare(
            context,
            call_next,
            params=params,
            declared=declared,
            caller=caller,
            going_on=going_on,
            has_result_tool=has_result_tool,
            task=task,
        )
        call = prepared.call
        if going_on is not None and (await call.run.load()).id != going_on.run_id:
            # The run has just ended, or the server now has another version of the tool.
            return self._result_tool.not_continuable(protocol_version=context.protocol_version)
        if task is not None and not declared.is_modern:
            return await self._tasks.create(prepared)
        watched = service.clients.patience.watch(caller, connection)
        is_cancel_explicit = context.request is None or context.protocol_version < MODERN
        with working(tracer=service.elicitations.telemetry.tracer, call=call.request_id):
            try:
                result = await service.running_tools.run(
                    call, prepared.body, connection, is_cancel_explicit=is_cancel_explicit
                )
            except asyncio.CancelledError:
                watched.gave_up()
                raise
        watched.has_result()
        if not declared.is_modern:
            # Notify the client of questions that ended between two calls.
            for id in await self._connections.of(context).ended(service.elicitations):
                await context.session.send_elicit_complete(id, related_request_id=request_id)
        later = partial(when_read_later, request_id)
        service.running_tools.deliver(call, connection, later=later)
        return result

    async def _prepare(
        self,
        context: Context,
        call_next: CallNext,
        *,
        params: dict[str, Any],
        declared: Declared,
        caller: Caller,
        going_on: GoOn | None = None,
        has_result_tool: bool = False,
        task: TaskLeg | None = None,
        run_id: str | None = None,
    ) -> PreparedLeg:
        """Prepare a request of a call or of a task. `run_id` is the id of its run, if known."""
        service = self._service
        params = {name: value for name, value in params.items() if name != "task"}
        context = replace(context, method="tools/call", params=params)
        state = params.get("requestState")
        chain = read_chain(
            state if isinstance(state, str) else None,
            params.get("inputResponses") or {},
            links=service.links,
            now=service.clock(),
        )
        name = str(params.get("name", ""))
        must_be_no_others_name(name)
        tool = await tool_of(
            self._server,
            name,
            meta=params.get("_meta"),
            context=context,
        )
        arguments = _text_of(params)
        # The library itself checks shorter arguments.
        if tool is not None and len(arguments) > LARGE_CHARACTERS:
            must_fit(params["arguments"], tool=name, schema=tool.schema, validate=tool.validate)
        presenter = presenter_of(
            context,
            declared,
            chain,
            caller=caller,
            service=service,
            has_result_tool=has_result_tool,
            dismissed=None if going_on is None else going_on.dismissed,
            connections=self._connections,
            task_id=None if task is None else task.brings,
        )
        if task is not None:
            presenter = task.presents(presenter)
        run_id = run_id or chain.run_id or (None if going_on is None else going_on.run_id)
        call = Call(
            service,
            caller,
            ToolCall(
                server=self._server.name,
                tool=name,
                client=declared.name,
                arguments=arguments,
                version=version_of(tool, params),
                client_id=caller.client if caller.is_client_verified else None,
                client_apart=declared.apart,
                described=None if tool is None else tool.described,
                server_title=title_of(low_level_of(self._server).title),
                client_title=declared.title,
            ),
            presenter=presenter,
            run_id=run_id,
            run_key=chain.run_key,
            accounts=_own(chain.accounts, caller),
            is_of_task=task is not None,
        )
        call.rounds = chain.replayed
        call.on_notice = lambda text: context.session.report_progress(call.next_step(), None, text)
        if chain.run_id is not None:
            run = await call.run.load()
            if not call.run.is_continued:
                call.used.drop_accounts()
            params["requestState"] = chain.foreign
            responses = merged_responses(run.responses, chain.responses)
            params.pop("inputResponses", None)
            if responses is not None:
                params["inputResponses"] = responses

        body = partial(
            run_request,
            call,
            server=self._server,
            tool=tool,
            context=context,
            call_next=call_next,
            replays=service.running_tools.replays,
        )
        return PreparedLeg(call=call, body=body)

    def _caller(self, context: Context, declared: Declared) -> Caller:
        scope = context.request.scope if context.request is not None else None
        caller = caller_of(
            scope,
            identity=self._service.identity,
            issuer=self._issuer,
            client=declared.distinguishing_name,
        )
        if not (caller.by_code and caller.is_anonymous):
            return caller
        if not declared.shows(by_code=True):
            return replace(caller, refusal=_FORMS_NEEDED)
        wait = scope and self._service.identity.anonymous_limit.consume(address_key(scope))
        return replace(caller, refusal=str(TooOften(wait))) if wait else caller

    async def _no_call(self, context: Context, call_next: CallNext) -> HandlerResult:
        match context.method:
            case "tools/list":
                return await self._listed(context, call_next)
            case "initialize":
                result = await self._hiding.promised(context, wire_form(await call_next(context)))
                return self._offer.promised(result, context.params, self._caller_of(context))
            case "server/discover":
                result = wire_form(await call_next(context))
                return self._offer.promised(result, context.params, self._caller_of(context))
            case method if method in METHODS and context.request_id is not None:
                return await self._of_task(context, call_next)
            case "subscriptions/listen":
                return await self._hiding.listening(context, call_next, self._caller_of(context))
            case "prompts/get" | "resources/read":
                try:
                    return await asking_nobody(partial(call_next, context))
                except Exception as error:
                    raise explained(error) from error
            case _:
                return await call_next(context)

    async def _of_task(self, context: Context, call_next: CallNext) -> HandlerResult:
        request_id = context.request_id
        assert request_id is not None
        declared = self._declared(context)
        caller = self._caller(context, declared)
        request = TaskRequest(
            method=context.method,
            params=context.params or {},
            declared=declared,
            caller=caller,
            version=context.protocol_version,
            connection=self._connection(context),
            later=partial(when_read_later, request_id),
            prepares=partial(self._prepare, context, call_next, declared=declared, caller=caller),
        )
        return await self._tasks.answer(request, partial(call_next, context))

    async def _listed(self, context: Context, call_next: CallNext) -> HandlerResult:
        """Return the tools that are not hidden, and the result tool on the last page if needed."""
        result = wire_form(await call_next(context))
        if "tools" in result:
            result = {**result, "tools": [_with_pending(tool) for tool in result["tools"]]}
        declared = self._declared(context)
        # Each call of `_caller` can count against a limit, so call it at most once.
        caller = cache(partial(self._caller, context, declared))
        result = await self._hiding.listed(context, result, caller)
        result = self._offer.listed(result, declared, caller)
        if not result.get("nextCursor") and await self._has_result_tool(context, declared, caller):
            result["tools"] = [*result.get("tools", []), self._result_tool.listed]
        return result

    def _connection(self, context: Context) -> ClientConnection | None:
        if context.request is not None:
            return client_connection_of(context.request.scope)
        assert context.request_id is not None
        return self._client_connections.find(context.request_id)

    def _caller_of(self, context: Context) -> Callable[[], Caller]:
        return lambda: self._caller(context, self._declared(context))

    async def _has_result_tool(
        self, context: Context, declared: Declared, caller: Callable[[], Caller]
    ) -> bool:
        """Return True if this client gets the result tool.

        No client gets the tool if the author has a tool of the same name. With user codes in the
        chat, every client gets the tool. A client that shows nothing needs the tool to pass on a
        code, and the server cannot know from the declaration which clients show nothing.
        """
        if declared.elicits and not self._service.identity.binds_by_code:
            return False  # checked first because it is cheap
        who = caller()
        if who.is_anonymous or (declared.elicits and not who.by_code):
            return False
        return not await has_tool(self._server, RESULT_TOOL, context=context)


def _own(accounts: Mapping[str, str], caller: Caller) -> dict[str, str]:
    """Return only the accounts that belong to this caller.

    `accounts` comes from a request-state token, which can name accounts of another owner.
    """
    owner = caller.owner
    return {of: id for of, id in accounts.items() if owner is not None and id.startswith(owner)}


def _with_pending(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return a listed tool whose output schema allows a result that waits for a person."""
    schema = tool.get("outputSchema")
    if not isinstance(schema, Mapping):
        return dict(tool)
    return {**tool, "outputSchema": schema_with_pending(cast("Mapping[str, Any]", schema))}


def _text_of(params: Mapping[str, Any]) -> str:
    """Return the arguments as canonical JSON. Raises InvalidArguments."""
    try:
        return arguments_text(params.get("arguments") or {})
    except RecursionError:
        name = json.dumps(str(params.get("name", ""))[:60])
        raise InvalidArguments(
            f"{name} did not run: its arguments are nested too deeply."
        ) from None
