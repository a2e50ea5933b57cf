"""A shop whose refunds need approval, with browsers for the requester and the approver.

`ask_as_tool`, `ask_as_task` and `ask_as_program` are the three ways to ask for an approval.
"""

import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from html import unescape
from typing import Any, Protocol, TypeAlias
from urllib.parse import urljoin

import httpx

from flows import elicit
from flows.elicitation.states import Elicitation
from tests.support.clock import Clock
from tests.support.issuer import Issuing, issuing, sign_in
from tests.support.mcp_server import (
    MODERN,
    TLS,
    Caller,
    Page,
    Person,
    ServerEnv,
    new_server,
    server_env,
)
from tests.support.task_client import task_client
from webapp.api.access import PERSON_HEADER
from webapp.identity.api_keys import KeyScope
from webapp.identity.approvers import Approver
from webapp.limits import CallLimits

FINANCE = Approver(
    name="finance",
    subjects=frozenset({"frank", "flora"}),
    claims={"groups": ("finance-approvers",)},
)
# Two people of finance approve. After a day, the managers can approve, too.
TWO_DAYS = (
    Approver(
        name="finance",
        subjects=frozenset({"frank", "flora"}),
        needs=2,
        comment="optional",
        escalate_after=timedelta(days=1),
        escalate_to="managers",
    ),
    Approver(name="managers", subjects=frozenset({"mia"})),
)
GROUPS = {"groups": ["staff", "finance-approvers"]}
AT_ONCE = CallLimits(link=timedelta())  # a call returns at once and says that it waits for approval
WAITS = "Waiting for finance."


def shop(library: str = "mcp", ran: list[str] | None = None) -> Any:
    """Return a server: `refund` waits for approval before it starts, `ship` while it runs."""
    ran, server = [] if ran is None else ran, new_server(library)

    @server.tool()
    @elicit.gate(approver="finance", message="Pay it back?", timeout=timedelta(days=3))
    async def refund(order: str) -> str:
        ran.append(order)
        return f"{order} is paid back"

    @server.tool()
    async def ship(order: str) -> str:
        asked = elicit.confirm("Ship it?", arguments={"order": order}, approver="finance")
        outcome = await asked.outcome()
        return f"{outcome.status}: {outcome.error or 'shipped'}"

    return server


@dataclass(slots=True, kw_only=True)
class ApprovalEnv:
    """A served shop, the issuer where everybody signs in, and the clock that both use."""

    env: ServerEnv
    issuer: Issuing
    clock: Clock

    @property
    def inbox(self) -> str:
        return f"{self.env.url}/inbox"

    def bearer(self, subject: str, *, use: str = "mcp", **claims: Any) -> dict[str, str]:
        """Return a header with an access token for the audience at the path `use`, for 30 days."""
        until = int(self.clock().timestamp()) + 30 * 24 * 3600
        audience = f"{self.env.url}/{use}"
        return self.issuer.bearer(subject, audience=audience, exp=until, **claims)

    def own(self, subject: str, **claims: Any) -> dict[str, str]:
        """Return a header with an access token with which an approver calls the API."""
        return self.bearer(subject, use="api/inbox", **claims)

    @asynccontextmanager
    async def asking(
        self, subject: str = "alice", revision: str = MODERN, **options: Any
    ) -> AsyncIterator[Caller]:
        headers = self.bearer(subject)
        async with self.env.caller(revision, headers=headers, **options) as caller:
            yield caller

    async def signed_in(self, subject: str, **claims: Any) -> Person:
        """Return a browser that is signed in at its inbox. `claims` are added by the issuer."""
        person = await self.env.person()
        self.issuer.claims = claims
        page = await sign_in(person, await person.visit(self.inbox), subject)
        assert page.heading == "Your inbox"
        return person

    async def waiting(self, person: Person) -> list[str]:
        """Return the addresses of the requests that wait in this person's inbox."""
        return (await self.inboxes(person))[0]

    async def inboxes(self, person: Person) -> tuple[list[str], list[str]]:
        """Return the addresses of the waiting requests and of the decided requests."""
        page = await person.visit(self.inbox)
        waiting, _, decided = page.text.partition("Decided in the last 30 days")
        return self._addresses(waiting), self._addresses(decided)

    def _addresses(self, text: str) -> list[str]:
        found = re.findall(r'<a href="(/inbox/[^"?]+/[^"]+)"', text)
        return [urljoin(self.inbox, unescape(each)) for each in found]

    async def one(self, person: Person) -> str:
        (address,) = await self.waiting(person)
        return address

    async def asked(self) -> Elicitation:
        (row,) = await self.env.elicitations()
        return row


async def press(
    person: Person, address: str, answer: str, *, page: Page | None = None, reason: str = ""
) -> Page:
    """Open the request and press a button. `page` is the request's page if it was opened before."""
    page = page or await person.visit(address)
    data = {"csrf": page.csrf or "", "reason": reason}
    pressed = Page.of(await person.browser.post(f"{address}/{answer}", data=data))
    return await person.visit(pressed.location) if pressed.location else pressed


async def sent(here: ApprovalEnv, path: str, headers: dict[str, str], json: Any = None) -> Any:
    """Send a GET, or a POST with the JSON body `json`."""
    async with httpx.AsyncClient(base_url=here.env.url, headers=headers, verify=TLS) as client:
        if json is None:
            return await client.get(path)
        return await client.post(path, json=json)


@asynccontextmanager
async def served(
    server: Any,
    issuer: Issuing,
    clock: Clock,
    *,
    approvers: tuple[Approver, ...] = (FINANCE,),
    **options: Any,
) -> AsyncIterator[ApprovalEnv]:
    """Serve the shop in one process. `options` go to `server_env` or are identity settings."""
    own = {
        name: options.pop(name)
        for name in ("store", "limits", "notify", "policies", "is_alone")
        if name in options
    }
    who = issuer.who(approvers=approvers, **options)
    async with server_env(server, who=who, clock=clock, **{"limits": AT_ONCE, **own}) as env:
        yield ApprovalEnv(env=env, issuer=issuer, clock=clock)


@asynccontextmanager
async def approving(server: Any, **options: Any) -> AsyncIterator[ApprovalEnv]:
    """Serve the shop together with a new issuer."""
    clock = Clock()
    async with issuing(clock) as issuer, served(server, issuer, clock, **options) as here:
        yield here


Result: TypeAlias = Callable[[ApprovalEnv], Awaitable[str]]


class Ask(Protocol):
    """A way to ask for an approval. It returns a function that waits for the result."""

    async def __call__(self, here: ApprovalEnv, order: str = "o8") -> Result: ...


async def ask_as_tool(here: ApprovalEnv, order: str = "o8") -> Result:
    async with here.asking() as caller:
        await caller.result("refund", order=order)

    async def result(there: ApprovalEnv) -> str:
        async with there.asking() as caller:
            return await caller.text("refund", order=order)

    return result


async def ask_as_task(here: ApprovalEnv, order: str = "o8") -> Result:
    async with task_client(here.env, MODERN, headers=here.bearer("alice")) as client:
        task = await client.task("refund", order=order)
        while "statusMessage" not in await client.get(task):
            pass

    async def result(there: ApprovalEnv) -> str:
        async with task_client(there.env, MODERN, headers=there.bearer("alice")) as client:
            return await client.text(task)

    return result


async def ask_as_program(here: ApprovalEnv, order: str = "o8") -> Result:
    key, _ = await here.env.service.identity.api_keys.new(
        program="shop", scopes=[KeyScope.ASK], expires_at=here.clock() + timedelta(days=90)
    )

    @asynccontextmanager
    async def program(at: ApprovalEnv) -> AsyncGenerator[httpx.AsyncClient]:
        token = at.bearer("alice", use="api")["authorization"].removeprefix("Bearer ")
        about = {"authorization": f"Bearer {key}", PERSON_HEADER: token}
        async with httpx.AsyncClient(base_url=at.env.url, headers=about, verify=TLS) as client:
            yield client

    question = {
        "kind": "confirm",
        "message": "Pay it back?",
        "approver": "finance",
        "arguments": {"order": order},
        "timeout_seconds": 3 * 24 * 3600,
    }
    async with program(here) as client:
        id = (await client.post("/api/questions", json=question)).json()["id"]

    async def result(there: ApprovalEnv) -> str:
        async with program(there) as client:
            answer = (await client.get(f"/api/questions/{id}", params={"wait": 50})).json()
        assert (answer["approvals"], answer["approvals_needed"]) == (2, 2)
        assert answer["comments"] == ["Checked"]
        return f"{order} is paid back" if answer["status"] == "accepted" else str(answer)

    return result


async def press_as(here: ApprovalEnv, name: str, *, comment: str = "") -> None:
    """Sign in as this approver with a new browser, and approve the one request that waits."""
    person = await here.signed_in(name)
    await press(person, await here.one(person), "approve", reason=comment)
