"""Tools that are hidden until the caller has what they need (`needs(..., hide=True)`).

Risks: a tool is shown to a person because another person has what the tool needs, or a check
changes something. So each check reads only data of the caller's own owner. It spends no payment,
renews no token and asks no question. Hiding does not protect a tool: if a client calls a hidden
tool, its needs are asked.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast
from weakref import WeakKeyDictionary, ref

from mcp.server.context import CallNext, HandlerResult
from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp_types import NotificationParams, ToolListChangedNotification

from flows.errors import ElicitError, StoreUnavailable
from flows.kinds.secret import Secret
from flows.question import Request
from flows.requests import AccountRequest, PaymentRequest
from webapp.elicitations.question_kind import AskedBy
from webapp.identity.identity import Caller
from webapp.kinds.registry import Kinds
from webapp.mcp.results import MODERN, Result
from webapp.mcp.tools import Context, ServedTool, as_mapping, tools_of
from webapp.service import Service

SENDING_SECONDS = 5.0


class Visibility:
    """The tools of a served server that each caller is shown."""

    def __init__(self, server: Any, service: Service) -> None:
        self._server = server
        self._kinds = service.kinds
        self._lists = service.elicitations.tool_lists
        # The lists by connection. An entry ends with its connection.
        self._shown: WeakKeyDictionary[object, _ListedTools] = WeakKeyDictionary()

    async def listed(
        self, context: Context, result: Result, caller: Callable[[], Caller]
    ) -> Result:
        """Return the result of tools/list without the tools that are hidden from this caller."""
        if not (hiding := await self._hiding(context)):
            return result
        who = caller()
        shown = self._note(context, who, hiding)
        hidden = await self.hidden(who, hiding)
        if shown is not None:
            shown.hidden = hidden
        tools = [tool for tool in result.get("tools", []) if tool.get("name") not in hidden]
        return {**result, "tools": tools, **_as_private(result)}

    async def promised(self, context: Context, result: Result) -> Result:
        """Return the result of `initialize`. If tools may be hidden, declare `listChanged`."""
        capabilities = as_mapping(result.get("capabilities"))
        tools = as_mapping(capabilities.get("tools"))
        if "tools" not in capabilities or tools.get("listChanged"):
            return result
        if not await self._hiding(context):
            return result
        tools = {**tools, "listChanged": True}
        return {**result, "capabilities": {**capabilities, "tools": tools}}

    async def listening(
        self, context: Context, call_next: CallNext, caller: Callable[[], Caller]
    ) -> HandlerResult:
        """Serve `subscriptions/listen` (2026-07-28): notify the client when its list changes."""
        wanted = as_mapping(as_mapping(context.params).get("notifications"))
        if not wanted.get("toolsListChanged") or not (hiding := await self._hiding(context)):
            return await call_next(context)
        who = caller()
        if who.owner is None:
            return await call_next(context)

        async def send() -> None:
            meta = {SUBSCRIPTION_ID_META_KEY: context.request_id}
            await context.session.send_notification(
                ToolListChangedNotification(params=NotificationParams(_meta=cast("Any", meta))),
                related_request_id=context.request_id,
            )

        shown = _ListedTools(self, who, hiding, send)
        self._lists.add(shown)  # a weak reference: the entry ends with this stream
        shown.hidden = await self.hidden(who, hiding)
        return await call_next(context)

    async def hidden(self, caller: Caller, hiding: Sequence[ServedTool]) -> frozenset[str]:
        """Return the names of the tools that are hidden from this caller."""
        return frozenset([tool.name for tool in hiding if not await self._has(caller, tool)])

    async def _hiding(self, context: Context) -> list[ServedTool]:
        """Return the tools that may be hidden, looked up once in each request."""
        tools = await tools_of(self._server, context=context)
        return [tool for tool in tools if _needed(tool)]

    async def _has(self, caller: Caller, tool: ServedTool) -> bool:
        if caller.owner is None or caller.refusal is not None:
            return False
        by = AskedBy(
            owner=caller.owner,
            server=self._server.name,
            tool=tool.name,
            teams=caller.teams,
            issuer=caller.issuer,
        )
        try:
            for request in _needed(tool):
                if not await _is_there(self._kinds, request, by):
                    return False
        except StoreUnavailable:
            raise
        except ElicitError:  # for example not configured: no person can have what the tool needs
            return False
        return True

    def _note(
        self, context: Context, caller: Caller, hiding: Sequence[ServedTool]
    ) -> "_ListedTools | None":
        """Remember the list shown to this client, to notify it on its session's own stream.

        Return None on later revisions, whose clients use `listening`, and for anonymous callers.
        """
        # The library has a session for each request, and no public name for the shared connection.
        connection: Any = getattr(context.session, "_connection", None)
        if connection is None or context.protocol_version >= MODERN:
            return None
        if caller.owner is None:
            self._shown.pop(connection, None)
            return None
        known = self._shown.get(connection)
        if known is not None and known.caller == caller:
            known.tools = hiding
            return known
        shown = self._shown[connection] = _ListedTools(self, caller, hiding, _to(ref(connection)))
        self._lists.add(shown)
        return shown


class _ListedTools:
    """The tools listed to one client. Implements webapp.elicitations.waiters.Listing."""

    def __init__(
        self,
        hiding: Visibility,
        caller: Caller,
        tools: Sequence[ServedTool],
        send: Callable[[], Any],
    ) -> None:
        assert caller.owner is not None
        self.caller = replace(caller, bearer=None)  # this object outlives the request
        self.owner: str = caller.owner
        self.hidden: frozenset[str] | None = None  # None: not known yet
        self.tools = tools  # the tools that may be hidden: only a request can look them up
        self._hiding = hiding
        self._send = send

    async def look_again(self) -> None:
        hidden = await self._hiding.hidden(self.caller, self.tools)
        if hidden != self.hidden:
            self.hidden = hidden
            with suppress(TimeoutError):  # do not wait long for a client that does not read
                async with asyncio.timeout(SENDING_SECONDS):
                    await self._send()


def _to(connection: "ref[Any]") -> Callable[[], Any]:
    async def send() -> None:
        standing = connection()
        if standing is not None:
            await standing.send_tool_list_changed()

    return send


def _needed(tool: ServedTool) -> list[Request]:
    """Return the requests that must be satisfied before the tool is shown."""
    return [question.request for need in tool.needs if need.hides for question in need.questions]


async def _is_there(kinds: Kinds, request: Request, by: AskedBy) -> bool:
    """Return True if the caller already has what `request` asks for. Change nothing."""
    match request:
        case AccountRequest():
            return await kinds.accounts.is_connected(request, by)
        case PaymentRequest():
            return await kinds.payments.is_bought(request, by)
        case Secret():
            return await kinds.secrets.known(request, by) is not None
        case _:
            return False


def _as_private(result: Result) -> Result:
    """Mark per-caller tool lists as not cacheable."""
    return {"cacheScope": "private"} if "cacheScope" in result else {}
