"""Accounts of a team: who can use one, who connected it, and who can disconnect it.

The server has an issuer where people sign in, and the sandbox as the provider of accounts.
"""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from flows import elicit
from flows.errors import Failed
from flows.oauth.access_token import Team
from flows.providers import github
from tests.support.account_env import (
    OCTOCAT,
    Asking,
    Network,
    come_home,
    connect,
    give_up,
    opened,
    press_allow,
    serving_accounts,
    stored,
)
from tests.support.api_people import PeopleEnv
from tests.support.api_program import ACCOUNT, program_at
from tests.support.approving import AT_ONCE
from tests.support.asking_env import asking_env
from tests.support.chains import AUDITED, audit_entries_of
from tests.support.clock import Clock
from tests.support.issuer import Issuing, issuing
from tests.support.living import living
from tests.support.mcp_sandbox import Guest
from tests.support.mcp_server import LEGACY, MODERN, CutOffCaller, Person, new_server, soon
from tests.support.service_env import call_of
from tests.support.shared_stores import STORES
from webapp.calls.verbs import Verbs
from webapp.cli.purge import purge_owner
from webapp.identity.api_keys import KeyScope
from webapp.settings.identity import IdentitySettings
from webapp.stores.opening import open_store

pytestmark = pytest.mark.in_turn("env")  # each case runs on one store
ENGINEERS: dict[str, Any] = {"groups": ["everyone", "engineering"]}
SALES: dict[str, Any] = {"groups": ["sales"]}
TOOL = "whose"


def tools() -> Any:
    server = new_server("mcp")

    @server.tool()
    async def whose() -> str:
        account = await elicit.oauth(github, scopes=["repo"])
        async with account.client() as api:
            status = (await api.get("/user")).status_code
        return f"{account.label} of {account.team}: {status}"

    return server


def team_of(*issuers: str, name: str = "engineering", **more: Any) -> Team:
    about: dict[str, Any] = {"claims": {"groups": ("engineering",)}, **more}
    return Team(
        name=name,
        label=name.title(),
        providers=frozenset({"github"}),
        issuers=frozenset(issuers),
        **about,
    )


class TeamEnv(PeopleEnv):
    """People of an issuer, in teams according to the claims of their tokens."""

    async def call_tool(self, subject: str, revision: str = LEGACY, **claims: Any) -> str:
        """Call the tool as this person, from a client without elicitation. Return the text."""
        return await self.call_tool_with(self.token(subject, **claims), revision)

    async def call_tool_with(self, token: str, revision: str = LEGACY) -> str:
        browser = await self.here.browser(None)
        caller = CutOffCaller(browser.browser, f"{self.here.url}/mcp", revision, elicits=False)
        caller.headers |= {"authorization": f"Bearer {token}"}
        await caller.connect()
        return (await caller.call(TOOL)).text

    async def connects(self, subject: str, text: str) -> Person:
        """Open the link in this text as the person, and connect the sandbox's account."""
        link = self.link_in(text)
        person = await self.signed_in(subject, link)
        await Guest(person).connect(link)
        return person

    def link_in(self, text: str) -> str:
        start = text.index(f"{self.here.url}/e/")
        end = min(text.index(sign, start) for sign in ('"', "\\", " ") if sign in text[start:])
        return text[start:end]

    async def accounts(self, person: Person) -> str:
        return (await person.visit(f"{self.here.url}/connections")).text


@asynccontextmanager
async def team_env(
    *others: Issuing, store: Any = None, team: Any = team_of
) -> AsyncIterator[TeamEnv]:
    clock = Clock()
    async with issuing(clock) as issuer:
        identity = issuer.who(
            teams=(team(issuer.url),), further_issuers=tuple(one.further() for one in others)
        )
        async with asking_env(
            server=tools(),
            identity=identity,
            policies=AUDITED,
            limits=AT_ONCE,
            clock=clock,
            store=store,
        ) as here:
            yield TeamEnv(here=here, issuer=issuer)


@asynccontextmanager
async def env_on(name: str, folder: Path) -> AsyncIterator[TeamEnv]:
    async with STORES[name](folder) as url:
        store = await open_store(url)
        try:
            async with team_env(store=store) as env:
                yield env
        finally:
            await store.aclose()


@pytest.fixture(params=["sqlite", "postgres"])
async def env(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[TeamEnv]:
    async with living(env_on(request.param, tmp_path)) as env:
        yield env


@pytest.mark.parametrize("revision", [LEGACY, MODERN])
async def test_account_that_one_member_connected_can_be_used_by_the_others(
    env: TeamEnv, revision: str
) -> None:
    # finding: XO9
    asked = await env.call_tool("ann", revision, **ENGINEERS)
    link = env.link_in(asked)
    ann = await env.signed_in("ann", link)
    assert "Everyone in the team" in (await ann.visit(link)).text
    await Guest(ann).connect(link)
    assert "octocat of engineering: 200" in await env.call_tool("ann", revision, **ENGINEERS)
    assert "octocat of engineering: 200" in await env.call_tool(
        "bob", revision, groups="engineering"
    )
    (row,) = await env.here.connections()
    owners = env.here.service.elicitations.owners
    assert row.owner == owners.tag_of_team("engineering")
    assert row.connected_by == env.owner("ann")
    assert {use.name for use in row.members.values()} == {"ann", "bob"}
    entries = await audit_entries_of(env.here.service, row.owner)
    assert [(each.what, each.by) for each in entries if each.kind == "account"] == [
        ("connected", f"person {env.owner('ann')}"),
        ("used", f"person {env.owner('ann')}"),
        ("used", f"person {env.owner('bob')}"),
    ]


@pytest.mark.parametrize(
    "claims",
    [
        {},
        SALES,
        {"groups": "engineering-ops"},
        {"groups": "sales,engineering"},
        {"groups": [["engineering"]]},
        {"groups": {"engineering": True}},
        {"roles": ["engineering"]},
        {"teams": ["engineering"]},
    ],
)
async def test_person_outside_the_team_is_asked_for_an_own_account(
    env: TeamEnv, claims: dict[str, Any]
) -> None:
    await env.connects("ann", await env.call_tool("ann", **ENGINEERS))
    asked = await env.call_tool("eve", **claims)
    assert "octocat" not in asked
    eve = await env.signed_in("eve", env.link_in(asked))
    page = (await eve.visit(env.link_in(asked))).text
    assert "ngineering" not in page
    assert "octocat" not in page
    assert "Continue" in page
    assert "octocat" not in await env.accounts(eve)
    await Guest(eve).connect(env.link_in(asked))
    assert "octocat of None: 200" in await env.call_tool("eve", **claims)
    mine = {one.owner: one.team for one in await env.here.connections()}
    assert mine[env.owner("eve")] is None
    assert len(mine) == 2


async def test_person_who_left_the_team_is_asked_again_at_the_next_call(env: TeamEnv) -> None:
    ann = await env.connects("ann", await env.call_tool("ann", **ENGINEERS))
    assert "octocat of engineering" in await env.call_tool("bob", **ENGINEERS)
    for who in ("bob", "ann"):  # also the person who connected it
        assert "octocat" not in await env.call_tool(who, **SALES)
    assert "octocat of engineering" in await env.call_tool("bob", **ENGINEERS)
    # Ann's session names no team, but she can still disconnect the account that she connected.
    page = await env.accounts(ann)
    assert "You connected it for the team" in page
    (row,) = await env.here.connections()
    tail = row.id.removeprefix(row.owner)
    await ann.press(f"{env.here.url}/connections/{tail}/disconnect", to="/disconnect")
    (row,) = await env.here.connections()
    assert row.status == "disconnected"
    assert "octocat" not in await env.call_tool("bob", **ENGINEERS)


async def test_unread_answer_is_not_used_after_the_person_has_left_the_team(env: TeamEnv) -> None:
    # Ann connected the account, but her call never received the answer.
    await env.connects("ann", await env.call_tool("ann", **ENGINEERS))
    assert "octocat" not in await env.call_tool("ann", **SALES)


async def test_claim_of_another_issuer_makes_no_member(tmp_path: Path) -> None:
    async with living(issuing(Clock())) as other, living(team_env(other)) as env:
        await env.connects("ann", await env.call_tool("ann", **ENGINEERS))
        token = other.token("ann", audience=f"{env.here.url}/mcp", **ENGINEERS)
        asked = await env.call_tool_with(token)
        assert "octocat" not in asked
        assert env.link_in(asked)
        forged = other.token(
            "ann", audience=f"{env.here.url}/mcp", **{**ENGINEERS, "iss": env.issuer.url}
        )
        with pytest.raises((AssertionError, ValueError, KeyError)):
            env.link_in(await env.call_tool_with(forged))


async def test_member_sees_the_account_and_cannot_change_it(env: TeamEnv) -> None:
    await env.connects("ann", await env.call_tool("ann", **ENGINEERS))
    env.issuer.claims = ENGINEERS
    bob = await env.signed_in("bob", f"{env.here.url}/connections")
    await env.call_tool("bob", **ENGINEERS)
    page = await env.accounts(bob)
    assert "It belongs to the team" in page
    assert ">bob<" in page
    assert "/disconnect" not in page
    (row,) = await env.here.connections()
    tail = row.id.removeprefix(row.owner)
    for act in ("disconnect", "reconnect", "keep", "switch", "unshare"):
        sent = await bob.browser.post(f"{env.here.url}/connections/{tail}/{act}", data={"csrf": ""})
        assert sent.status_code == 404, act
    env.here.clock.tick(hours=2)  # the sign-in is too old to prove the membership
    assert "octocat" not in await env.accounts(bob)


async def test_list_of_accounts_updates_itself_when_an_account_of_a_team_ends(
    env: TeamEnv,
) -> None:
    # finding: XP7
    ann = await env.connects("ann", await env.call_tool("ann", **ENGINEERS))
    url, page = f"{env.here.url}/connections", await env.accounts(ann)
    (status,) = re.findall(r'data-live="/connections/live"[^>]* data-status="(.*?)"', page)
    async with ann.browser.stream("GET", f"{url}/live") as live:
        lines = (line async for line in live.aiter_lines() if line.startswith("data:"))
        assert await soon(anext(lines)) == f"data: {status}"
        (row,) = await env.here.connections()
        tail = row.id.removeprefix(row.owner)
        await ann.press(f"{url}/{tail}/disconnect", to="/disconnect")
        assert await soon(anext(lines)) != f"data: {status}"


async def test_program_uses_the_account_for_members_only(env: TeamEnv) -> None:
    def acting(who: str, **claims: Any) -> str:
        return env.acting(who, **claims)

    async with program_at(env.here, also=(KeyScope.TOKENS,)) as shop:
        ann = shop.acting_for(acting("ann", **ENGINEERS))
        asked = (await ann.ask(ACCOUNT)).json()
        person = await env.signed_in("ann", asked["url"])
        await Guest(person).connect(asked["url"])
        answer = await ann.read(asked["id"], wait=50)
        account = answer["account"]
        assert account["team"] == "engineering"
        where, user = f"accounts/{account['id']}", f"{account['api']}/user"
        for who in ("ann", "bob"):
            member = shop.acting_for(acting(who, **ENGINEERS))
            listed = (await member.at("accounts")).json()["accounts"]
            assert [one["id"] for one in listed] == [account["id"]]
            called = await member.at(f"{where}/proxy", params={"url": user})
            assert called.status_code == 200
            assert (await member.at(f"{where}/token")).status_code == 200
        for other in (acting("bob"), acting("eve", **SALES)):
            outside = shop.acting_for(other)
            assert (await outside.at("accounts")).json()["accounts"] == []
            for path in ("", "/token", f"/proxy?url={user}"):
                gone = await outside.at(where + path)
                assert (gone.status_code, gone.json()["code"]) == (404, "NO_SUCH_ACCOUNT")
            assert (await outside.at(where, method="DELETE")).status_code == 404
        left = shop.acting_for(acting("ann"))  # she can disconnect it, but not use it
        assert (await left.at(f"{where}/token")).status_code == 404
        bob = shop.acting_for(acting("bob", **ENGINEERS))
        refused = await bob.at(where, method="DELETE")
        assert (refused.status_code, "Another member" in refused.json()["detail"]) == (403, True)
        assert (await left.at(where, method="DELETE")).json()["ended"]
        assert (await bob.at(where)).status_code == 404


async def test_users_of_the_application_can_be_listed_as_members() -> None:
    def listed(issuer: str) -> Team:
        return team_of(issuer, claims={}, users=frozenset({"ann", "bob"}))

    async def account() -> tuple[str, str | None]:
        found = await elicit.oauth(github, scopes=["repo"])
        return found.label, found.team

    async with living(team_env(team=listed)) as env:
        block = env.here.begin(account)
        await (await env.here.guest("ann")).connect((await block.link()).url)
        assert await block == ("octocat", "engineering")
        assert await env.here.begin(account, owner="bob") == ("octocat", "engineering")
        other = env.here.begin(account, owner="eve")
        assert (await other.link()).url
        await other.cancel()
        (row,) = await env.here.connections()
        assert (row.server, row.team) == ("shop", "engineering")


async def test_account_of_a_team_is_found_only_for_its_members() -> None:
    async with living(team_env()) as env:
        await env.connects("ann", await env.call_tool("ann", **ENGINEERS))
        (row,) = await env.here.connections()
        connections = env.here.service.kinds.accounts.connections
        for teams, expected in ((("engineering",), row.owner), ((), "eve"), (("sales",), "eve")):
            assert connections.holder_of(row.id, owner="eve", teams=teams) == expected
        assert await connections.read("eve", row.id) is None


async def test_erasing_a_person_disconnects_what_they_connected_for_a_team() -> None:
    async with living(team_env()) as env:
        await env.connects("ann", await env.call_tool("ann", **ENGINEERS))
        await purge_owner(env.here.service, env.owner("ann"), is_sure=True)
        (row,) = await env.here.connections()
        assert row.status == "disconnected"


async def test_member_allows_another_tool_to_use_the_account_of_the_team() -> None:
    identity = IdentitySettings(teams=(team_of("tests"),))
    async with serving_accounts(Network(), identity=identity) as service:
        member: dict[str, Any] = {"teams": ("engineering",)}
        await connect(service, "repo", tool="list", subject="ann", **member)
        asked = Asking(service, "repo", tool="export", subject="bob", **member)
        await press_allow(service, await asked.elicitation())
        assert (await asked.account()).team == "engineering"
        (row,) = await stored(service)
        assert row.tools == ("list", "export")
        outside = Asking(service, "repo", tool="export", subject="bob", arguments=2)
        assert await service.kinds.accounts.offers(await outside.elicitation()) == ()
        await give_up(outside)


async def test_same_call_after_leaving_the_team_does_not_use_the_teams_answer() -> None:
    identity = IdentitySettings(teams=(team_of("tests"),))
    async with serving_accounts(Network(), identity=identity) as service:
        first = Asking(service, "repo", teams=("engineering",))
        _, state = await opened(service, first)
        await give_up(first)
        await come_home(service, state)  # the answer waits for the same call
        left = Asking(service, "repo")
        await left.elicitation()
        assert left.has_asked
        assert not left.task.done()
        await give_up(left)
        again = Asking(service, "repo", teams=("engineering",))
        assert (await again.account()).team == "engineering"


@pytest.mark.parametrize("is_asked", [False, True])
async def test_call_that_outlives_its_token_gets_no_account_of_the_team(is_asked: bool) -> None:
    identity, clock = IdentitySettings(teams=(team_of("tests"),)), Clock()
    until = clock() + timedelta(minutes=10)
    member: dict[str, Any] = {"teams": ("engineering",), "teams_until": until}
    async with serving_accounts(Network(), identity=identity, clock=clock) as service:
        if not is_asked:
            await connect(service, "repo", subject="ann", **member)
            clock.tick(minutes=10)
        held = Asking(service, "repo", subject="ann", arguments=2, **member)
        if is_asked:
            _, state = await opened(service, held)
            clock.tick(minutes=10)
            await come_home(service, state)
        with pytest.raises(Failed, match="no longer proves that the caller is in the team"):
            await held.account()
        member["teams_until"] = until + timedelta(hours=1)
        again = Asking(service, "repo", subject="bob", arguments=3, **member)
        assert (await again.account()).team == "engineering"


async def test_token_is_not_renewed_for_a_call_that_outlives_its_own() -> None:
    identity, clock, network = IdentitySettings(teams=(team_of("tests"),)), Clock(), Network()
    network.has_refresh_token = True
    until = clock() + timedelta(minutes=10)
    member: dict[str, Any] = {"teams": ("engineering",), "teams_until": until}
    async with serving_accounts(network, identity=identity, clock=clock) as service:
        await connect(service, "repo", subject="ann", **member)
        (row,) = await stored(service)
        call = call_of(service, subject="bob", **member)
        await call.run.load()
        resources = Verbs(call).resources
        clock.tick(minutes=9)
        renewed = await resources.renew(row.id, row.access_token)
        assert renewed is not None
        assert renewed[0] != row.access_token
        clock.tick(minutes=1)
        assert await resources.renew(row.id, renewed[0]) is None


async def test_team_of_another_server_on_the_same_store_does_not_see_the_account() -> None:
    identity = IdentitySettings(teams=(team_of("tests"),))
    async with serving_accounts(Network(), identity=identity) as service:
        await connect(service, "repo", subject="ann", teams=("engineering",))
        (row,) = await stored(service)
        connections, teams = service.kinds.accounts.connections, ("engineering",)
        assert await connections.seen_by("bob", teams, server=row.server) == (row,)
        assert await connections.seen_by("bob", teams, server="another") == ()
        assert row.connected_by is not None
        assert await connections.seen_by(row.connected_by, (), server="another") == (row,)


class Revoking(Network):
    """A provider that counts revocations."""

    def __init__(self) -> None:
        super().__init__()
        self.revocations = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.revocations += request.method == "DELETE"
        return await super().handle_async_request(request)


@pytest.mark.parametrize("owner", [("engineering",), ()])
@pytest.mark.parametrize("is_named", [True, False])
async def test_refused_grant_does_not_revoke_the_same_account_of_another_holder(
    owner: tuple[str, ...], is_named: bool
) -> None:
    identity, network = IdentitySettings(teams=(team_of("tests"),)), Revoking()
    async with serving_accounts(network, identity=identity) as service:
        await connect(service, "repo", subject="ann", teams=owner)
        others = () if owner else ("engineering",)
        asked = Asking(service, "repo", subject="ann", account="hubot", teams=others)
        _, state = await opened(service, asked)
        network.person = OCTOCAT if is_named else {"login": "octocat"}
        await come_home(service, state)
        with pytest.raises(Failed):
            await asked.account()
        assert network.revocations == 0
        # The grant for an account that nobody has connected is revoked.
        network.person = {**OCTOCAT, "id": 2, "login": "monalisa"}
        asked = Asking(service, "repo", subject="ann", account="hubot", teams=others, arguments=2)
        _, state = await opened(service, asked)
        await come_home(service, state)
        with pytest.raises(Failed):
            await asked.account()
        assert network.revocations == 1
