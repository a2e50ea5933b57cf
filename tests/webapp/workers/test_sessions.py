"""MCP sessions of revision 2025-11-25, whose requests reach either of two workers."""

import socket
from pathlib import Path
from typing import Any

import httpx
import pytest

from flows import elicit
from tests.support.mcp_server import new_server
from tests.support.service_env import RING
from tests.support.serving import transport_to
from tests.support.users import calling
from tests.support.workers import in_file, two_workers
from webapp.http.exchange import facts_of
from webapp.workers.sessions import RoutedSessions, new_name

LISTING = {"id": 5, "method": "tools/list"}


def shop() -> Any:
    server = new_server("mcp")

    @server.tool()
    async def sure(what: str) -> str:
        return f"sure of {what}: {await elicit.confirm('Sure?')}"

    return server


@pytest.fixture
def store(tmp_path: Path) -> str:
    return in_file(tmp_path)


@pytest.mark.parametrize(("asks", "answers"), [(0, 1), (1, 0), (1, 1)])
async def test_question_is_asked_and_answered_through_any_worker(store, asks, answers):
    async with two_workers(shop, store=store) as workers, workers.session() as headers:
        talk = await workers.sent(asks, message=calling("sure", what="it"), headers=headers)
        assert (await talk.head()).status == 200
        await talk.until('"elicitation/create"')
        yes = {"id": 1, "result": {"action": "accept", "content": {}}}
        answered = await workers.answered(answers, message=yes, headers=headers)
        assert answered.status == 202, answered
        assert "sure of it: " in await talk.rest()
        talk.close()


async def test_session_ended_through_another_worker_has_ended(store):
    async with two_workers(shop, store=store) as workers, workers.session() as headers:
        for at in (0, 1):
            assert (await workers.answered(at, message=LISTING, headers=headers)).status == 200
        assert (await workers.answered(1, method="DELETE", headers=headers)).status == 200
        for at in (0, 1):
            assert (await workers.answered(at, message=LISTING, headers=headers)).status == 404


async def test_interrupted_stream_is_resumed_through_another_worker(store):
    async with two_workers(shop, store=store) as workers, workers.session() as headers:
        talk = await workers.sent(1, message=calling("sure", what="it"), headers=headers)
        text = await talk.until('"elicitation/create"')
        talk.close()  # the call continues without a connection
        last = text[text.rindex("\nid: ") + 5 :].split("\r\n")[0].strip()
        yes = {"id": 1, "result": {"action": "accept", "content": {}}}
        assert (await workers.answered(1, message=yes, headers=headers)).status == 202
        resumed = {**headers, "last-event-id": last}
        read_on = await workers.sent(1, method="GET", headers=resumed)
        assert "sure of it: " in await read_on.rest()
        read_on.close()


async def test_session_of_missing_worker_is_not_found(store):
    async with two_workers(shop, store=store) as workers, workers.session() as headers:
        id, _, name = headers["mcp-session-id"].rpartition(".")
        for other in (name[::-1], "0" * 16, "../" + name, name.upper(), f"{name}\0"[:-1] + "x"):
            asked = {**headers, "mcp-session-id": f"{id}.{other}"}
            answer = await workers.answered(0, message=LISTING, headers=asked)
            assert answer.status == 404
            assert "Session not found" in answer.body


async def test_session_of_busy_worker_returns_503_with_retry_after(tmp_path):
    async def nobody(*_: object) -> None:
        raise AssertionError("it is another worker's")

    busy, free = new_name(""), new_name("")
    routed = RoutedSessions(nobody, name=free, folder=tmp_path, ring=RING, greeting_seconds=0.01)
    with socket.socket(socket.AF_UNIX) as listener:  # it listens and never accepts
        listener.bind(str(tmp_path / busy))
        listener.listen()
        async with httpx.AsyncClient(transport=transport_to(routed)) as client:
            headers = {"mcp-session-id": f"6f1c.{busy}"}
            answer = await client.post("http://127.0.0.1/mcp", json=LISTING, headers=headers)
            assert answer.status_code == 503
            assert answer.headers["retry-after"] == "1"
            listener.close()
            answer = await client.post("http://127.0.0.1/mcp", json=LISTING, headers=headers)
            assert answer.status_code == 404


@pytest.mark.parametrize(("path", "revision"), [("/health", None), ("/mcp", "2026-07-28")])
async def test_session_id_of_another_worker_is_ignored_where_there_are_no_sessions(
    tmp_path, path, revision
):
    async def here(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    routed = RoutedSessions(here, name=new_name(""), folder=tmp_path, ring=RING)
    headers = {"mcp-session-id": f"6f1c.{new_name('')}"}
    headers |= {"mcp-protocol-version": revision} if revision else {}
    async with httpx.AsyncClient(transport=transport_to(routed)) as client:
        answer = await client.post(f"http://127.0.0.1{path}", json=LISTING, headers=headers)
    assert answer.status_code == 204


async def test_repeated_session_id_reaches_the_check_that_refuses_it(tmp_path):
    async def refusing(scope: Any, receive: Any, send: Any) -> None:
        ids = facts_of(scope).headers[b"mcp-session-id"]
        status = 400 if len(ids) == len(raw_ids(scope)) == 2 else 204
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    def raw_ids(scope: Any) -> set[bytes]:
        return {value for name, value in scope["headers"] if name == b"mcp-session-id"}

    name = new_name("")
    routed = RoutedSessions(refusing, name=name, folder=tmp_path, ring=RING)
    headers = [("mcp-session-id", f"{id}.{name}") for id in ("6f1c", "7a2d")]
    async with httpx.AsyncClient(transport=transport_to(routed)) as client:
        answer = await client.post("http://127.0.0.1/mcp", json=LISTING, headers=headers)
    assert answer.status_code == 400


async def test_long_response_arrives_completely(store):
    def long_winded() -> Any:
        server = new_server("mcp")

        @server.tool()
        async def say() -> str:
            return "x" * 3_000_000

        return server

    async with two_workers(long_winded, store=store) as workers, workers.session() as headers:
        answer = await workers.answered(1, message=calling("say"), headers=headers)
        assert answer.body.count("x") >= 3_000_000


async def test_stream_of_ending_worker_is_resumed_at_another_worker(store):
    async with two_workers(shop, store=store) as workers, workers.session() as headers:
        talk = await workers.sent(1, message=calling("sure", what="it"), headers=headers)
        text = await talk.until('"elicitation/create"')
        workers.envs[1].service.elicitations.waiters.drain()
        assert "sure of it" not in await talk.rest()
        talk.close()
        last = text[text.rindex("\nid: ") + 5 :].split("\r\n")[0].strip()
        read_on = await workers.sent(0, method="GET", headers={**headers, "last-event-id": last})
        yes = {"id": 1, "result": {"action": "accept", "content": {}}}
        assert (await workers.answered(0, message=yes, headers=headers)).status == 202
        assert "sure of it: " in await read_on.rest()
        read_on.close()
