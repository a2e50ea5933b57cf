"""Limits of messages: length, nesting and number of values. Errors for bad arguments are short."""

import json
from typing import Any

import httpx
import pytest

from tests.attacks.bounds import wrong_arguments
from tests.support.mcp_server import LEGACY, MODERN, caller_of, text_of
from webapp.mcp.messages import (
    DEPTH_AT_MOST,
    MESSAGE_BYTES_AT_MOST,
    VALUES_AT_MOST,
    has_too_many_values,
    is_nested_too_deep,
)
from webapp.mcp.results import ERROR_CHARACTERS_AT_MOST


def test_many_invalid_arguments_produce_a_short_error():
    # finding: S28
    assert len(wrong_arguments()) < 200


@pytest.mark.parametrize("one", [b"[]", b"{}", b'"x"', b"1", b'{"a":1}'])
def test_message_values_are_counted_except_inside_strings(one):
    # finding: S28
    each = 2 if one.startswith(b'{"') else 1
    many = b"[" + b",".join([one] * (VALUES_AT_MOST // each)) + b"]"
    assert not has_too_many_values(many)
    assert has_too_many_values(b"[" + many + b"]")
    assert not has_too_many_values(json.dumps(many.decode() * 3).encode())


def test_message_depth_is_counted_except_inside_strings():
    # finding: XS4
    def nested(depth: int) -> bytes:
        return b'{"a":[' * (depth // 2) + b"1" + b"]}" * (depth // 2)

    assert not is_nested_too_deep(nested(DEPTH_AT_MOST))
    assert is_nested_too_deep(nested(DEPTH_AT_MOST + 2))
    assert is_nested_too_deep(b"[" * 10_000)
    assert not is_nested_too_deep(json.dumps({"a": "[" * 1_000}).encode())
    assert not is_nested_too_deep(json.dumps([{"a": '"[{'}] * 1_000).encode())


async def test_too_deeply_nested_message_is_refused_with_an_explanation(server):
    # finding: XS4
    @server.tool()
    async def plain(what: dict[str, Any]) -> str:
        return "done"

    for revision in (LEGACY, MODERN):
        async with caller_of(server, revision) as (env, _):
            caller = await env.cut_off_caller(revision)
            what: Any = 1
            for depth in range(1, 301):
                what = {"a": what}
                if depth in (12, 100, 300):
                    text = (await caller.call("plain", what=what)).text
                    assert ("done" in text) is (depth < 120)
                    assert ("nested more than 150 deep" in text) is (depth > 120)


async def test_error_text_of_a_call_is_limited(server):
    # finding: S28
    # finding: S30
    @server.tool()
    async def total(numbers: list[int]) -> int:
        return sum(numbers)

    @server.tool()
    async def fail(text: str) -> str:
        raise ValueError(text)

    async with caller_of(server, LEGACY) as (env, caller):
        wrong = await caller.call("total", numbers=["x"] * 9_000)
        assert "9000 of their values are invalid" in text_of(wrong)
        assert text_of(await caller.call("total", numbers=[1] * 9_000)) == "9000"
        failed = await caller.call("fail", text="no such thing " * 8_000)
        assert len(text_of(failed)) < ERROR_CHARACTERS_AT_MOST + 100
        async with httpx.AsyncClient(timeout=300) as http:
            long = await http.post(env.mcp_url, content=b" " * (MESSAGE_BYTES_AT_MOST + 1))
            many = await http.post(env.mcp_url, content=b"[" * (VALUES_AT_MOST + 2))
        assert (long.status_code, many.status_code) == (413, 413)
        assert "Send less at once" in long.json()["error"]["message"]
        assert "Send fewer at once" in many.json()["error"]["message"]
