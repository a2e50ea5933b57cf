"""Many accounts that expire in the same minute, two processes that refresh them, and random kills.

The provider rotates refresh tokens, and revokes a whole token family if an old token is reused.
Each account is requested through both processes at once. A seed decides after how many writes a
process is killed. The killed process is started again while the other one serves.
"""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from urllib.parse import parse_qs

import httpx
import msgspec
from msgspec.structs import replace as replaced

from flows.elicitation.tool_call import client_of
from flows.oauth.connection import Connection
from tests.crash.account_server import AccountOrders
from tests.crash.kills import has_written
from tests.crash.server import settings_of
from tests.crash.shop_env import ProcessPool, Server, no_certificates
from tests.support.serving import bound, serving_at
from webapp.connecting import connect, utc_now
from webapp.http.exchange import Receive, Scope, Send
from webapp.identity.api_keys import KeyScope
from webapp.oauth.importing import Import
from webapp.sandbox.settings import new_sandbox
from webapp.service import Service
from webapp.settings.sandboxed import with_sandbox

LIFE = 3600  # seconds of an access token
CLAIM_OVER = 61
PROGRAMS_AT_MOST = 40  # each has its own API key, because the rate limit is per program
APPLICATION = "shop"  # see tests.crash.account_server
LAPSED = "ACCOUNT_LAPSED"


class Hub:
    """The provider, in place of the sandbox's GitHub. `asked` counts requests by refresh token."""

    def __init__(self) -> None:
        self.latest: Counter[str] = Counter()  # by account: its latest pair
        self.asked: Counter[tuple[str, int]] = Counter()
        self.revoked = set[str]()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":  # the process was killed while sending
                return
            body, more = body + message.get("body", b""), message.get("more_body", False)
        reply = self._reply(parse_qs(body.decode()))
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": msgspec.json.encode(reply)})

    def pair(self, account: str) -> dict[str, str]:
        """Return the account's latest access token and refresh token."""
        number = self.latest[account]
        return {
            "access_token": f"key-{account}-{number}",
            "refresh_token": f"more-{account}-{number}",
        }

    def _reply(self, given: dict[str, list[str]]) -> dict[str, object]:
        assert given["grant_type"] == ["refresh_token"]
        account, _, number = given["refresh_token"][0].removeprefix("more-").partition("-")
        self.asked[account, int(number)] += 1
        if account in self.revoked or int(number) != self.latest[account]:
            self.revoked.add(account)  # the reuse of an old token counts as a theft
            return {"error": "bad_refresh_token"}
        self.latest[account] += 1
        facts = {"token_type": "bearer", "scope": "repo", "expires_in": LIFE}
        return {**self.pair(account), **facts}


@dataclass(slots=True, kw_only=True)
class Figures:
    """The result of one expiry. `cut` are accounts whose request was open at a kill.

    `unanswered` are accounts for which the server's request to the provider timed out, which can
    happen on a busy machine. The provider's reply can then be lost, as after a kill.
    """

    accounts: int
    kills: int = 0
    cut: set[str] = field(default_factory=set[str])
    unanswered: set[str] = field(default_factory=set[str])
    lost: set[str] = field(default_factory=set[str])  # these have to be connected again
    refreshed: int = 0
    tokens: dict[str, set[str]] = field(default_factory=dict[str, set[str]])

    def __str__(self) -> str:
        return (
            f"{self.accounts} accounts, {self.kills} kills: {self.refreshed} refreshes at the "
            f"provider, {len(self.cut)} accounts with an open request at a kill, "
            f"{len(self.unanswered)} without a reply in time, "
            f"{len(self.lost)} to be connected again"
        )


class Storm:
    """The accounts, the provider, and two processes that are killed at random."""

    def __init__(
        self,
        pool: ProcessPool,
        orders: AccountOrders,
        *,
        hub: Hub,
        accounts: Mapping[str, str],
        keys: Sequence[str],
        ports: tuple[int, int],
        seed: int,
    ) -> None:
        """`accounts` are the ids of the users' accounts."""
        self.hub = hub
        self._pool = pool
        self._orders = orders
        self._accounts = accounts
        self._keys = keys
        self._living: list[str] = []
        self._up = {port: asyncio.Event() for port in ports}
        self._random = random.Random(seed)  # noqa: S311 - a run must be reproducible

    async def expire(self, *, number: int, kills: int) -> Figures:
        """Let all accounts expire, and request each through both processes at once.

        At the end both processes are killed. After the claims of killed processes have expired, the
        accounts whose request was cut off are requested again.
        """
        living = self._living = [user for user in self._accounts if user not in self.hub.revoked]
        self._random.shuffle(living)
        figures = Figures(accounts=len(living))
        before, done = self.hub.latest.total(), asyncio.Event()
        later = number * 2 * LIFE
        async with asyncio.TaskGroup() as group:
            for port, share in zip(self._up, (kills - kills // 2, kills // 2), strict=True):
                writes = [self._random.randint(1, len(living) // kills) for _ in range(share)]
                group.create_task(self._serve_and_kill(port, later, done, figures, writes=writes))
            await self._request(living, figures)
            done.set()
        left = figures.cut | figures.unanswered
        while left:
            later += CLAIM_OVER
            again = replace(figures, cut=set(), unanswered=set())
            async with self._serving(later):
                await self._request(sorted(left), again)
            assert not again.cut
            figures.unanswered |= again.unanswered
            left = again.unanswered
        figures.refreshed = self.hub.latest.total() - before
        return figures

    @asynccontextmanager
    async def _serving(self, later: int) -> AsyncIterator[None]:
        """Serve with both processes, and kill neither."""
        first, second = (self._start(port, later) for port in self._up)
        async with first, second:
            for up in self._up.values():
                up.set()
            yield
        for up in self._up.values():
            up.clear()

    @property
    def living(self) -> list[str]:
        """The users whose accounts were not lost in an earlier expiry."""
        return self._living

    def _start(self, port: int, later: int) -> Server:
        return self._pool.start(replace(self._orders, port=port, later=later))

    async def _serve_and_kill(
        self,
        port: int,
        later: int,
        done: asyncio.Event,
        figures: Figures,
        *,
        writes: Sequence[int],
    ) -> None:
        """Serve at this port. Kill the process after each number of writes, and once at the end."""
        for number in writes:
            async with self._start(port, later) as server:
                self._up[port].set()
                if not await has_written(server, number, done, what="wrote account"):
                    return
                self._up[port].clear()
                figures.kills += 1
                server.kill()
        async with self._start(port, later) as server:
            self._up[port].set()
            await done.wait()
            self._up[port].clear()
            server.kill()

    async def _request(self, users: Sequence[str], figures: Figures) -> None:
        queue = iter(users)
        async with asyncio.TaskGroup() as calls:
            for key in self._keys:
                calls.create_task(self._request_on(queue, key, figures))

    async def _request_on(self, queue: Iterator[str], key: str, figures: Figures) -> None:
        """Request one account after the other, through both processes at once.

        If a kill interrupts one request, cancel the other one, which would wait for a claim.
        """
        async with httpx.AsyncClient(
            verify=no_certificates(),
            timeout=300,
            limits=httpx.Limits(max_keepalive_connections=0),
            headers={
                "authorization": f"Bearer {key}",
                "host": f"127.0.0.1:{self._orders.public_port}",
            },
        ) as client:
            for user in queue:
                both = [
                    asyncio.create_task(self._token(client, user, port, figures))
                    for port in self._up
                ]
                try:
                    await asyncio.gather(*both)
                except httpx.TransportError:
                    figures.cut.add(user)
                finally:
                    for one in both:
                        one.cancel()
                    await asyncio.gather(*both, return_exceptions=True)

    async def _token(
        self, client: httpx.AsyncClient, user: str, port: int, figures: Figures
    ) -> None:
        """Request the account's token from the process at `port`. Add the result to `figures`."""
        url = f"http://127.0.0.1:{port}/api/accounts/{self._accounts[user]}/token"
        while True:
            await self._up[port].wait()
            try:
                reply = await client.get(url, params={"user": user})
            except httpx.ConnectError:  # the process was killed a moment ago
                continue
            break
        if reply.status_code == 409 and reply.json()["code"] == LAPSED:
            figures.lost.add(user)
        elif reply.status_code == 502:
            figures.unanswered.add(user)
        else:
            assert reply.status_code == 200, reply.text
            figures.tokens.setdefault(user, set()).add(reply.json()["access_token"])


@asynccontextmanager
async def open_storm(
    pool: ProcessPool, folder: Path, *, address: str, accounts: int, seed: int
) -> AsyncIterator[Storm]:
    """Provide accounts that expire in the same second, an hour from now."""
    hub = Hub()
    with bound("127.0.0.1") as first, bound("127.0.0.1") as second:
        ports = first.getsockname()[1], second.getsockname()[1]
        async with serving_at(lambda _: hub) as url:
            sandbox = new_sandbox(url=url, serves=f"http://127.0.0.1:{ports[0]}")
            settings = settings_of(public_port=ports[0], folder=str(folder), store=address)
            async with connect(with_sandbox(settings, sandbox), server=APPLICATION) as service:
                users = [f"user{number}" for number in range(accounts)]
                number = min(accounts // 8, PROGRAMS_AT_MOST)
                programs = [f"program{each}" for each in range(number)]
                ids = await _imported(service, hub, users, programs)
                keys = [await _new_key(service, each) for each in programs]
            orders = AccountOrders(
                port=ports[0],
                public_port=ports[0],
                folder=str(folder),
                store=address,
                sandbox=asdict(sandbox),
                key="of its users",
            )
            yield Storm(pool, orders, hub=hub, accounts=ids, keys=keys, ports=ports, seed=seed)


async def _new_key(service: Service, program: str) -> str:
    text, _ = await service.identity.api_keys.new(
        program=program,
        scopes=[KeyScope.ASK, KeyScope.TOKENS],
        expires_at=service.clock() + timedelta(days=1),
    )
    return text


async def _imported(
    service: Service, hub: Hub, users: Sequence[str], programs: Sequence[str]
) -> dict[str, str]:
    """Import an account for each user, share it with the programs, and return the ids."""
    expires_at = (utc_now() + timedelta(seconds=LIFE)).isoformat()
    lines = [
        msgspec.json.encode(
            {
                "provider": "github",
                "account_id": user,
                "user": user,
                "scopes": ["repo"],
                **hub.pair(user),
                "expires_at": expires_at,
            }
        ).decode()
        for user in users
    ]
    done = await service.kinds.accounts.importing.run(lines, Import(server=APPLICATION))
    assert {each.done for each in done} == {"imported"}, done
    elicitations, ids = service.elicitations, dict[str, str]()
    for found in await elicitations.all(Connection):
        await elicitations.write(replaced(found, tools=tuple(map(client_of, programs))))
        ids[found.person_id] = found.id
    return ids
