"""A program that asks or approves over the HTTP API with its own key."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import httpx

from tests.support.asking_env import AskingEnv
from tests.support.mcp_server import TLS
from webapp.api.access import PERSON_HEADER
from webapp.identity.api_keys import KeyScope

URL = {"kind": "url", "message": "Book the room.", "url": "https://rooms.example/7"}
CONFIRM = {"kind": "confirm", "message": "Delete it?", "arguments": {"count": 5}}
FORM = {"kind": "form", "message": "Which city?"}
ACCOUNT = {"kind": "oauth", "provider": "github", "scopes": ["repo"]}
PAYMENT = {"kind": "payment", "amount": "9.00", "currency": "EUR", "what": "Premium report"}
SECRET = {"kind": "secret", "message": "Your key, please."}


@dataclass(slots=True, kw_only=True)
class Program:
    """A client of the HTTP API. Most methods return the response, whatever its status."""

    client: httpx.AsyncClient
    key: str
    token: str | None = None  # the access token of the person that the program acts for

    def acting_for(self, token: str) -> "Program":
        """Return a copy of this program that also sends this person's access token."""
        return replace(self, token=token)

    async def call(self, method: str, path: str = "", **more: Any) -> httpx.Response:
        """Send a request to a route under /api/questions."""
        return await self.send(method, f"/api/questions{path}", **more)

    async def send(
        self, method: str, path: str, *, headers: dict[str, str] | None = None, **more: Any
    ) -> httpx.Response:
        acting = {} if self.token is None else {PERSON_HEADER: self.token}
        return await self.client.request(
            method, path, headers={**acting, **(headers or {})}, **more
        )

    async def ask(
        self, body: dict[str, Any], *, user: str = "ann", name: str | None = None
    ) -> httpx.Response:
        named = {} if name is None else {"Idempotency-Key": name}
        whose = {"user": user} if self.token is None else {}
        return await self.call("POST", json={**whose, **body}, headers=named)

    async def asked(self, body: dict[str, Any], *, user: str = "ann") -> dict[str, Any]:
        """Ask a question, check that it was created, and return its state."""
        answer = await self.ask(body, user=user)
        assert answer.status_code == 201, answer.text
        data: dict[str, Any] = answer.json()
        return data

    async def read(self, id: str, **query: Any) -> dict[str, Any]:
        answer = await self.call("GET", f"/{id}", params=query)
        assert answer.status_code == 200, answer.text
        data: dict[str, Any] = answer.json()
        return data

    async def at(self, path: str, *, method: str = "GET", **more: Any) -> httpx.Response:
        """Send a request to another resource than questions, such as `accounts/ID`."""
        return await self.send(method, f"/api/{path}", **more)

    async def connected(self, here: AskingEnv, *, user: str = "ann") -> str:
        """Connect an account as the user, and return its id."""
        asked = await self.asked(ACCOUNT, user=user)
        await (await here.guest(user)).connect(asked["url"])
        answer = await self.read(asked["id"], wait=50)
        id: str = answer["account"]["id"]
        return id

    async def paid(self, here: AskingEnv, *, user: str = "ann") -> dict[str, Any]:
        """Ask for a payment, pay as the user, and return the question's state."""
        asked = await self.asked(PAYMENT, user=user)
        await (await here.guest(user)).pay(asked["url"])
        return await self.read(asked["id"], wait=50)

    async def post(self, id: str, verb: str, body: dict[str, Any] | None = None) -> httpx.Response:
        more = {} if body is None else {"json": body}
        return await self.call("POST", f"/{id}/{verb}", **more)


@asynccontextmanager
async def program_at(
    here: AskingEnv,
    *,
    program: str = "shop",
    scope: KeyScope = KeyScope.ASK,
    also: tuple[KeyScope, ...] = (),
    owners: tuple[str, ...] = (),
    lasts: timedelta = timedelta(days=90),
) -> AsyncIterator[Program]:
    """Provide a program with a new API key."""
    key, _ = await here.service.identity.api_keys.new(
        program=program,
        scopes=[scope, *also],
        owners=owners,
        expires_at=here.clock() + lasts,
    )
    about = {"authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(
        base_url=here.url, headers=about, verify=TLS, timeout=300
    ) as client:
        yield Program(client=client, key=key)
