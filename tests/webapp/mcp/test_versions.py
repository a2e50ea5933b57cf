"""Versions of a tool (FastMCP): an answer for one version does not count for another."""

from collections.abc import Sequence
from typing import Any

import mcp_types as types
import pytest

from flows import elicit
from flows.elicitation.states import Status
from flows.elicitation.traits import OnPage
from tests.support.mcp_server import FORM, Caller, caller_of, soon, text_of
from webapp.mcp.results import RESULT_TOOL

DESTRUCTIVE = types.ToolAnnotations(destructive_hint=True)
LOGIN = "https://example.org/login"

pytestmark = pytest.mark.parametrize("is_mounted", [False, True])


class Shop:
    """Tools with two versions each, served directly or mounted, and the record of which one ran."""

    def __init__(
        self, *, is_mounted: bool, versions: Sequence[str | None] = ("1.0", "2.0")
    ) -> None:
        from fastmcp import FastMCP

        self.ran: list[str] = []
        self._own: Any = FastMCP("shop")
        for version in versions:
            self.add(version)
        self._prefix = "shop_" if is_mounted else ""
        self.server = FastMCP("mall") if is_mounted else self._own
        if is_mounted:
            self.server.mount(self._own, "shop")

    def add(self, version: str | None) -> None:
        def wipe() -> str:
            self.ran.append(f"{version}")
            return f"{version} wiped"

        async def sign_in() -> str:
            return f"{version} {dict(await elicit.url('Sign in', LOGIN, key='login'))}"

        self._own.tool(wipe, version=version, annotations=DESTRUCTIVE)
        self._own.tool(sign_in, version=version)

    def remove(self, tool: str, *, version: str | None = None) -> None:
        self._own.local_provider.remove_tool(tool, version)

    async def call(
        self, caller: Caller, tool: str, *, version: str | None = None
    ) -> types.CallToolResult:
        """Call this version of the tool. None lets the library choose."""
        meta: Any = None if version is None else {"fastmcp": {"version": version}}
        result = await soon(caller.client.call_tool(f"{self._prefix}{tool}", {}, meta=meta))
        assert isinstance(result, types.CallToolResult)
        return result

    async def ask(self, caller: Caller, tool: str, *, version: str | None = None) -> dict[str, Any]:
        """Return the pending elicitation of a call of this version."""
        result = await self.call(caller, tool, version=version)
        assert result.meta is not None, text_of(result)
        pending: dict[str, Any] = result.meta["elicitationPending"]
        return pending


async def test_accepted_gate_of_one_tool_version_does_not_cover_another_version(
    revision, is_mounted
):
    shop = Shop(is_mounted=is_mounted)
    fills = [{}, "decline"]
    async with caller_of(shop.server, revision, declares=FORM, fills=fills) as (_, caller):
        assert text_of(await shop.call(caller, "wipe")) == "2.0 wiped"
        assert text_of(await shop.call(caller, "wipe", version="2.0")) == "2.0 wiped"
        assert len(caller.forms) == 1
        declined = await shop.call(caller, "wipe", version="1.0")
        assert "[ELICITATION_DECLINED]" in text_of(declined)
        assert shop.ran == ["2.0", "2.0"]


async def test_remembered_approval_of_one_tool_version_does_not_cover_another_version(
    revision, is_mounted
):
    shop = Shop(is_mounted=is_mounted)
    async with caller_of(shop.server, revision, declares=None) as (env, caller):
        await shop.ask(caller, "wipe")
        (asked,) = await env.elicitations()
        await env.service.kinds.gates.complete(asked, {}, OnPage(), ticks={"remember"})
        assert text_of(await shop.call(caller, "wipe")) == "2.0 wiped"
        await shop.ask(caller, "wipe", version="1.0")
        assert shop.ran == ["2.0"]
        (given,) = await env.service.kinds.gates.approvals.all()
        assert given.about == "version 2.0, whatever it is given"


async def test_call_of_another_version_does_not_join_a_waiting_run(revision, is_mounted):
    shop = Shop(is_mounted=is_mounted)
    async with caller_of(shop.server, revision, declares=None) as (env, caller):
        newer = await shop.ask(caller, "wipe")
        await (await env.person()).press(newer["url"])
        older = await shop.ask(caller, "wipe", version="1.0")
        assert older["elicitId"] != newer["elicitId"]
        assert shop.ran == []
        assert text_of(await shop.call(caller, "wipe")) == "2.0 wiped"


async def test_key_does_not_join_calls_of_two_versions(revision, is_mounted):
    shop = Shop(is_mounted=is_mounted)
    async with caller_of(shop.server, revision, declares=None) as (env, caller):
        newer = await shop.ask(caller, "sign_in")
        older = await shop.ask(caller, "sign_in", version="1.0")
        assert older["elicitId"] != newer["elicitId"]
        await env.complete(newer["url"], {"name": "ann"})
        assert text_of(await shop.call(caller, "sign_in")) == "2.0 {'name': 'ann'}"
        assert await env.status(older["url"]) is Status.PENDING


@pytest.mark.parametrize("version", [None, "1.0", "2.0"])
async def test_result_tool_continues_the_version_that_was_called(revision, version, is_mounted):
    shop = Shop(is_mounted=is_mounted)
    async with caller_of(shop.server, revision, declares=None) as (env, caller):
        pending = await shop.ask(caller, "wipe", version=version)
        await (await env.person()).press(pending["url"])
        # A version sent with the id refers to `elicitation_result`, which has no versions.
        other: Any = {"fastmcp": {"version": "2.0" if version == "1.0" else "1.0"}}
        result = await soon(
            caller.client.call_tool(RESULT_TOOL, {"elicitId": pending["elicitId"]}, meta=other)
        )
        ran = version or "2.0"
        assert text_of(result) == f"{ran} wiped"
        assert shop.ran == [ran]


async def test_removed_version_is_not_replaced_by_another_version(revision, is_mounted):
    shop = Shop(is_mounted=is_mounted)
    async with caller_of(shop.server, revision, declares=None) as (env, caller):
        pending = await shop.ask(caller, "wipe")
        await (await env.person()).press(pending["url"])
        shop.remove("wipe", version="2.0")
        result = await caller.result(RESULT_TOOL, elicitId=pending["elicitId"])
        assert result.is_error
        assert shop.ran == []


async def test_version_added_later_does_not_run_in_place_of_the_called_version(
    revision, is_mounted
):
    shop = Shop(is_mounted=is_mounted, versions=[None])
    async with caller_of(shop.server, revision, declares=None) as (env, caller):
        pending = await shop.ask(caller, "wipe")
        await (await env.person()).press(pending["url"])
        shop.remove("wipe")
        shop.remove("sign_in")
        shop.add("1.0")
        result = await caller.result(RESULT_TOOL, elicitId=pending["elicitId"])
        assert "or the question has ended" in text_of(result)
        assert shop.ran == []
        assert len(await env.elicitations()) == 1
