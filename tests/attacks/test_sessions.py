"""MCP sessions of revision 2025-11-25, used by a caller who did not open them."""

from collections.abc import Mapping
from typing import Any

import mcp_types as types

from flows import elicit
from tests.support.guarded_server import guarded_by_tokens
from tests.support.mcp_server import new_server, server_env
from tests.support.users import AS_ROOT, ME, NOBODY, answered, calling, opened_session, sent


def shop(server: Any) -> list[str]:
    ran: list[str] = []

    @server.tool(annotations=types.ToolAnnotations(destructive_hint=True))
    async def wipe() -> str:
        ran.append("wiped")
        return "wiped"

    @server.tool()
    async def sure() -> str:
        ran.append("asked")
        return f"sure: {await elicit.confirm('Sure?')}"

    return ran


async def is_refused(
    url: str,
    thiefs: Mapping[str, Any],
    owners: Mapping[str, Any],
    session: str,
    *,
    ran: list[str],
) -> None:
    """Check that requests of other callers are refused, and the opener's question continues."""
    talk = await sent(url, message=calling("wipe"), **owners)
    assert (await talk.head()).status == 200
    await talk.until('"elicitation/create"')
    yes = {"id": 1, "result": {"action": "accept", "content": {}}}
    messages: list[dict[str, Any]] = [
        yes,
        {"method": "notifications/cancelled", "params": {"requestId": 1}},
        {"method": "notifications/initialized"},
        {"id": 7, "method": "tools/list"},
        {"id": 8, "method": "ping"},
        calling("wipe", id=9),
    ]
    for message in messages:
        refused = await answered(url, message=message, **thiefs)
        assert refused.status == 404, message
        assert session not in refused.body
    for method in ("GET", "DELETE", "PUT", "HEAD"):
        assert (await answered(url, method=method, **thiefs)).status == 404, method
    resumed = {**thiefs, "headers": {**thiefs["headers"], "last-event-id": "1"}}
    assert (await answered(url, method="GET", **resumed)).status == 404
    assert not ran
    listed = await answered(url, message={"id": 3, "method": "tools/list"}, **owners)
    assert "wipe" in listed.body
    no = {"id": 1, "result": {"action": "decline"}}
    assert (await answered(url, message=no, **owners)).status == 202
    assert "wiped" not in await talk.rest()
    talk.close()
    assert not ran
    assert (await answered(url, method="DELETE", **owners)).status == 200
    assert (await answered(url, message={"id": 4, "method": "ping"}, **owners)).status == 404


@AS_ROOT
async def test_another_machine_user_cannot_use_session(server):
    # finding: S1
    ran = shop(server)
    async with server_env(server) as env:
        url = env.mcp_url
        for opener, thief in ((ME, NOBODY), (NOBODY, 1)):
            headers = await opened_session(url, uid=opener)
            owners, thiefs = {"uid": opener, "headers": headers}, {"uid": thief, "headers": headers}
            if opener == ME:
                await is_refused(url, thiefs, owners, headers["mcp-session-id"], ran=ran)
                continue
            # Callers whom the server cannot ask have their own sessions too.
            assert (await answered(url, method="DELETE", **thiefs)).status == 404
            assert (await answered(url, method="DELETE", uid=ME, headers=headers)).status == 404
            assert (await answered(url, method="DELETE", **owners)).status == 200


async def test_another_access_token_cannot_use_session(library):
    # finding: S1
    server = guarded_by_tokens(
        library,
        {
            "anns": {"iss": "https://login.example.com", "sub": "ann"},
            "bobs": {"iss": "https://login.example.com", "sub": "bob"},
        },
    )
    shop(server)
    async with server_env(server) as env:
        url = env.mcp_url
        session = await opened_session(url, headers={"authorization": "Bearer anns"})
        bobs = {**session, "authorization": "Bearer bobs"}
        nobodys = {name: text for name, text in session.items() if name != "authorization"}
        for method in ("POST", "GET", "DELETE"):
            assert (await answered(url, method=method, headers=bobs)).status == 404
            # A missing or expired token gets a 401: the client fetches a token and continues.
            assert (await answered(url, method=method, headers=nobodys)).status == 401
        assert (await answered(url, method="DELETE", headers=session)).status == 200


async def test_relayed_request_cannot_use_session_of_local_user():
    # finding: S1
    server = new_server("mcp")
    shop(server)
    async with server_env(server) as env:
        session = await opened_session(env.mcp_url)
        relayed = {**session, "via": "1.1 relay"}
        assert (await answered(env.mcp_url, method="DELETE", headers=relayed)).status == 404
        assert (await answered(env.mcp_url, method="DELETE", headers=session)).status == 200


async def test_duplicate_session_headers_are_refused():
    # finding: S1
    server = new_server("mcp")
    shop(server)
    async with server_env(server) as env:
        session = await opened_session(env.mcp_url)
        twice = {**session, "Mcp-Session-Id": session["mcp-session-id"]}
        answer = await answered(env.mcp_url, method="DELETE", headers=twice)
        assert answer.status == 400
        twice = {**session, "Mcp-Protocol-Version": "2026-07-28"}
        assert (await answered(env.mcp_url, method="DELETE", headers=twice)).status == 400
