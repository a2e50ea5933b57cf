"""The installed official Python client, on the same transport and clock."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import httpx2
import mcp_types as types
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client

from tests.clients.scripted import NEWER, OLDER, CallResult, Screen, call_result_in
from tests.clients.transport import Json, Transport

_MODES: Mapping[str, Any] = {OLDER: "legacy", NEWER: NEWER}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PythonClient:
    """The Python client with a handler. It declares forms and links, and the person sees both."""

    name: str
    declares: Mapping[str, Json] = field(
        default_factory=lambda: {revision: {"form": {}, "url": {}} for revision in _MODES}
    )

    @asynccontextmanager
    async def connected(
        self, revision: str, *, transport: Transport, screen: Screen
    ) -> AsyncIterator["_PythonCalls"]:
        async def show(_: object, asked: types.ElicitRequestParams) -> types.ElicitResult:
            if isinstance(asked, types.ElicitRequestURLParams):
                action: Any = await screen.opens_link(asked.message, asked.url)
                return types.ElicitResult(action=action)
            answer = await screen.fills_form(asked.message, dict(asked.requested_schema))
            return types.ElicitResult.model_validate(answer)

        async with (
            httpx2.AsyncClient(transport=transport) as http,
            Client(
                streamable_http_client(transport.url, http_client=http),
                mode=_MODES[revision],
                elicitation_callback=cast("Any", show),
            ) as client,
        ):
            yield _PythonCalls(client)


class _PythonCalls:
    def __init__(self, client: Client) -> None:
        self._client = client

    async def call(self, tool: str, **arguments: Any) -> CallResult:
        try:
            result = await self._client.call_tool(tool, arguments)
        except MCPError as error:
            return call_result_in({"error": error.error.model_dump(mode="json")})
        return call_result_in(
            {"result": result.model_dump(mode="json", by_alias=True, exclude_none=True)}
        )
