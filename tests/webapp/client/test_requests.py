"""Retries of the client: how often a request is sent again, and with which token."""

from contextlib import AsyncExitStack
from datetime import timedelta

import httpx
import pytest

from webapp.client.requests import Requests, ServerRefused


# finding: XH3
@pytest.mark.parametrize("may_change", [True, False])
async def test_request_with_refused_token_is_retried_only_once(
    may_change: bool,
) -> None:
    made, sent, pauses = list[str](), list[str](), list[float]()

    def token() -> str:
        made.append(f"token {len(made) + 1}")
        return made[-1]

    def refuse(request: httpx.Request) -> httpx.Response:
        sent.append(request.headers["user-access-token"])
        assert len(sent) < 10, "the client stops repeating a refused request"
        about = {"content-type": "application/problem+json"}
        problem = {"code": "ACCESS_TOKEN_REFUSED", "detail": "The token has expired."}
        return httpx.Response(401, headers=about, json=problem)

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    async with AsyncExitStack() as stack:
        requests = Requests(
            "https://server.example",
            api_key="key",
            user=None,
            access_token=token if may_change else "token",
            patience=timedelta(minutes=10),
            transport=httpx.MockTransport(refuse),
            pause=pause,
        )
        await requests.open(stack)
        with pytest.raises(ServerRefused, match=r"The token has expired\.") as refused:
            await requests.post("/api/questions", {})
    assert refused.value.problem == "ACCESS_TOKEN_REFUSED"
    assert sent == (["token 1", "token 2"] if may_change else ["token"])
    assert pauses == []
