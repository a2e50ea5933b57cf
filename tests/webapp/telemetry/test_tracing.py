"""Tracing: one trace from the call through the page, the callback and the webhook to the result."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import httpx
import pytest
from mcp import Client

from tests.support.leaks import kinds_in
from tests.support.mcp_server import new_server, server_env
from tests.support.tracing import Spans, trace_of, traces
from tests.support.watched import ACTS, TYPED, Elsewhere, watched_tools
from webapp.testing import elicit_person

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"
# The spans of each kind of question, in addition to the spans of its call and its wait.
WAYS = {
    "url": {"GET /e", "POST /e"},
    "oauth": {"GET /e", "POST /e", "GET /callback", "finish github"},
    "payment": {"GET /e", "POST /e", "POST /webhooks", "GET /return", "begin stripe"},
    "form": set[str](),
    "confirm": set[str](),
    "secret": {"GET /e", "POST /e"},
    "gate": set[str](),  # answered in the client's form
}


@asynccontextmanager
async def traced(
    kind: str, *, revision: str = "2026-07-28"
) -> AsyncGenerator[tuple[Spans, Elsewhere]]:
    """Ask and answer a question of this kind. The answer does not run in the call's context."""
    server = watched_tools()
    with traces() as spans:
        async with elicit_person(server) as person:
            elsewhere = Elsewhere(person)
            ACTS[kind](person)
            mode = "legacy" if revision == "2025-11-25" else revision
            client = Client(server, mode=mode, elicitation_callback=elsewhere.answer)
            async with client:
                result = await client.call_tool(f"ask_{kind}", {})
            assert not result.is_error, result
            yield spans, elsewhere


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
@pytest.mark.parametrize("kind", ACTS)
async def test_call_and_related_requests_form_single_trace(kind: str, revision: str) -> None:
    async with traced(kind, revision=revision) as (spans, _):
        call = spans.named(f"tools/call ask_{kind}")[0]
        found = spans.in_trace_of(call)
        assert found >= {f"ask {kind}", *WAYS[kind]}, found


@pytest.mark.parametrize("kind", ACTS)
async def test_spans_contain_no_typed_text_and_no_token(kind: str) -> None:
    async with traced(kind) as (spans, elsewhere):
        text = spans.text()
        words = elsewhere.words()
        assert len(spans.all()) > 3
        assert kinds_in(text) == set()
        assert [word for word in {*words, TYPED} if word in text] == []


async def test_page_without_question_has_no_span() -> None:
    with traces() as spans:
        async with elicit_person(watched_tools()) as person:
            await person._browser.get("http://127.0.0.1:8765/live")
            await person._browser.get("http://127.0.0.1:8765/")
            assert [span.name for span in spans.all() if " /" in span.name] == []


async def test_joined_call_is_linked_to_trace_of_question() -> None:
    async with traced("url") as (spans, _):
        first, *later = [span for span in spans.all() if span.name == "tools/call ask_url"]
        assert later
        for request in later:
            assert trace_of(request) != trace_of(first)
            assert trace_of(first) in {link.context.trace_id for link in request.links}
        waits = spans.named("ask url")
        assert {trace_of(span) for span in waits} == {trace_of(first)}


async def test_traceparent_header_of_client_is_continued() -> None:
    server = new_server("mcp")

    @server.tool()
    async def greet() -> str:
        return "hello"

    with traces() as spans:
        async with server_env(server) as env, httpx.AsyncClient() as client:
            body = {
                "jsonrpc": "2.0",
                "id": 1,
                "method": "tools/call",
                "params": {"name": "greet", "arguments": {}},
            }
            headers = {"accept": "application/json, text/event-stream", "traceparent": PARENT}
            opening = {
                "jsonrpc": "2.0",
                "id": 0,
                "method": "initialize",
                "params": {
                    "protocolVersion": "2025-11-25",
                    "capabilities": {},
                    "clientInfo": {"name": "by hand", "version": "1"},
                },
            }
            opened = await client.post(env.mcp_url, json=opening, headers=headers)
            headers["mcp-session-id"] = opened.headers["mcp-session-id"]
            reported = {"jsonrpc": "2.0", "method": "notifications/initialized"}
            await client.post(env.mcp_url, json=reported, headers=headers)
            answer = await client.post(env.mcp_url, json=body, headers=headers)
        assert "hello" in answer.text
        (call,) = spans.named("tools/call greet")
    assert f"{trace_of(call):032x}" == TRACE


async def test_provider_request_spans_have_provider_and_status() -> None:
    async with traced("payment") as (spans, _):
        (begun,) = spans.named("begin stripe")
    assert dict(begun.attributes or {}) == {
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "elicit.provider": "stripe",
        "elicit.operation": "begin",
    }
