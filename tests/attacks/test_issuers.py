"""Attacks on a server with several issuers: by namesakes, mixed tokens and strangers' tenants."""

import json
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import OctKey

from flows.crypto.tokens import Tokens
from flows.elicitation.voting import voting_in
from flows.oauth.access_token import BadBearer
from tests.support.access_tokens import RESOURCE
from tests.support.approving import FINANCE, GROUPS, ApprovalEnv, press, served, shop
from tests.support.bearers import ProtectedEndpoint
from tests.support.clock import Clock
from tests.support.issuer import (
    Issuing,
    come_back_as,
    issuing,
    leave_to_sign_in,
    sign_in,
)
from tests.support.mcp_server import LEGACY, MODERN, Person
from tests.support.signed_in_people import HER_WORDS, add_visit
from webapp.identity.access_tokens import IssuerTokens
from webapp.identity.sessions import Sessions
from webapp.settings.identity import operators_of
from webapp.stores.sqlite import MemoryStore

OUR_TENANT, OTHER_TENANT, STRANGERS = (
    f"{digit * 8}-1111-1111-1111-{digit * 12}" for digit in "abc"
)
ISSUERS = {"https://login.example": False, "https://login.partner.example": True}
WAY = "Somebody has approved this with another sign-in method. We can't tell whether that was you."
PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Two:
    """A server with the issuer of ELICIT_ISSUER, and a second issuer, `partner`."""

    here: ApprovalEnv
    first: Issuing
    second: Issuing

    async def status(self, token: str) -> int:
        """Return the status of a call with this token: 401 if the token is refused."""
        headers = {"authorization": f"Bearer {token}", "accept": "application/json"}
        person = await self.here.env.person()
        url = self.here.env.mcp_url
        return (await person.browser.post(url, json=PING, headers=headers)).status_code

    async def is_accepted(self, token: str) -> bool:
        return await self.status(token) not in (401, 403)

    def token(self, issuer: Issuing, **claims: Any) -> str:
        return issuer.token("alice", **{"audience": self.here.env.mcp_url, **claims})

    def owner(self, issuer: str, subject: str = "alice") -> str:
        return self.here.env.service.elicitations.owners.tag(issuer=issuer, subject=subject)

    async def at_inbox(self, at: str | None, subject: str = "frank") -> Person:
        """Return a browser that signed in at one of the issuers, from the inbox."""
        person = await self.here.env.person()
        await sign_in(person, await person.visit(self.here.inbox), subject, at=at)
        return person


@asynccontextmanager
async def two_issuers(
    *, about: Mapping[str, Any] | None = None, tenants: tuple[str, ...] = (), **options: Any
) -> AsyncIterator[Two]:
    """Serve a shop. `about` changes the second issuer's settings, and `tenants` are its tenants."""
    clock = Clock()
    async with issuing(clock) as first, issuing(clock) as second:
        second.tenants = tenants
        further = replace(second.further(), **(about or {}))
        server = add_visit(shop())
        async with served(server, first, clock, further_issuers=(further,), **options) as here:
            yield Two(here=here, first=first, second=second)


async def test_tokens_of_all_issuers_are_accepted_and_advertised() -> None:
    async with two_issuers() as two:
        assert await two.is_accepted(two.token(two.first))
        assert await two.is_accepted(two.token(two.second))
        person = await two.here.env.person()
        url = f"{two.here.env.url}/.well-known/oauth-protected-resource"
        document = (await person.browser.get(url)).json()
        assert document["authorization_servers"] == [two.first.url, two.second.url]


async def test_same_subject_at_two_issuers_is_two_people() -> None:
    async with two_issuers() as two:
        env = two.here.env
        assert two.owner(two.first.url) != two.owner(two.second.url)
        headers = two.first.bearer("alice", audience=env.mcp_url)
        async with env.caller(LEGACY, headers=headers) as caller:
            caller.begin("visit")
            link = await caller.link()
            namesake, alice = await env.person(), await env.person()
            page = await sign_in(namesake, await namesake.visit(link), "alice", at="partner")
            assert page.status == 403
            assert HER_WORDS not in page.text
            page = await sign_in(alice, await alice.visit(link), "alice")
            assert HER_WORDS in page.text


async def test_token_is_verified_only_by_the_issuer_that_it_names() -> None:
    async with two_issuers() as two:
        first, second = two.first, two.second
        for issuer, name in (
            (first, second.url),
            (second, first.url),
            (second, f"{second.url}/"),
            (second, second.url.upper()),
            (second, "https://evil.example"),
            (second, [second.url, first.url]),
            (second, None),
            (second, ""),
            (second, f"{second.url}/{{tenantid}}/v2.0"),
        ):
            assert await two.status(two.token(issuer, iss=name)) == 401, name


async def test_audiences_of_one_issuer_do_not_count_at_another() -> None:
    about = {"audiences": ("of the partner",)}
    async with two_issuers(about=about, audiences=("of the first",)) as two:
        for issuer, audience, is_accepted in (
            (two.first, "of the first", True),
            (two.first, "of the partner", False),
            (two.second, "of the partner", True),
            (two.second, "of the first", False),
        ):
            token = two.token(issuer, audience=audience)
            assert await two.is_accepted(token) is is_accepted, (issuer.url, audience)


async def test_scopes_of_one_issuer_are_required_only_there() -> None:
    async with two_issuers(about={"scopes": ("partner",)}, scopes=("first",)) as two:
        for issuer, scope, is_accepted in (
            (two.first, "first", True),
            (two.first, "partner", False),
            (two.second, "partner", True),
            (two.second, "first", False),
        ):
            token = two.token(issuer, scope=scope)
            assert await two.is_accepted(token) is is_accepted, (issuer.url, scope)


async def test_only_the_named_algorithms_of_an_issuer_are_accepted() -> None:
    async with issuing(Clock()) as other:
        client = other.client(algorithms=("RS256",))
    async with two_issuers(about={"client": client}) as two:
        refused = two.token(two.second, iss=client.provider.issuer)
        assert await two.status(refused) == 401
        assert await two.is_accepted(two.token(two.first))


@pytest.mark.parametrize("algorithm", ["none", "HS256"])
async def test_forged_algorithm_is_refused_at_each_issuer(algorithm: str) -> None:
    async with two_issuers() as two:
        for issuer in (two.first, two.second):
            claims = jwt.decode(two.token(issuer), issuer.key, algorithms=["ES256"]).claims
            header = {"alg": algorithm, "kid": "one", "typ": "at+jwt"}
            secret = OctKey.import_key(json.dumps(issuer.key.as_dict(private=False)))
            forged = jwt.encode({**header, "alg": "HS256"}, claims, secret)
            if algorithm == "none":
                head = urlsafe_b64encode(json.dumps(header).encode()).decode().rstrip("=")
                forged = f"{head}.{forged.split('.')[1]}."
            assert await two.status(forged) == 401


async def test_answer_of_one_issuer_is_ignored_for_a_sign_in_at_another() -> None:
    async with two_issuers() as two:
        env, inbox = two.here.env, two.here.inbox
        for at, answered_at in ((None, "/partner"), ("partner", "")):
            person = await env.person()
            place = await leave_to_sign_in(person, await person.visit(inbox), at=at)
            back = await come_back_as(person, place, "alice")
            path, _, query = back.partition("?")
            assert path.endswith("/signin/callback" + ("" if at is None else "/partner"))
            before = two.first.exchanges + two.second.exchanges
            mixed = await person.visit(f"{env.url}/signin/callback{answered_at}?{query}")
            assert mixed.status == 400
            assert 'name="at" value="partner"' in mixed.text
            assert two.first.exchanges + two.second.exchanges == before
            unknown = await person.visit(f"{env.url}/signin/callback/evil?{query}")
            assert unknown.status == 404


async def test_unknown_issuer_in_sign_in_form_is_not_found() -> None:
    async with two_issuers() as two:
        person = await two.here.env.person()
        page = await person.visit(two.here.inbox)
        fields = {"csrf": page.csrf, "back": "/inbox", "at": two.second.url}
        pressed = await person.browser.post(f"{two.here.env.url}/signin", data=fields)
        assert pressed.status_code == 404


async def test_namesake_of_approver_decides_nothing() -> None:
    async with two_issuers() as two:
        async with two.here.asking() as caller:
            await caller.result("refund", order="A-17")
        namesake = await two.at_inbox("partner", "frank")
        two.second.claims = GROUPS
        in_group = await two.at_inbox("partner", "grace")
        approver = await two.at_inbox(None, "frank")
        assert await two.here.waiting(namesake) == []
        assert await two.here.waiting(in_group) == []
        assert len(await two.here.waiting(approver)) == 1
        address = await two.here.one(approver)
        for person in (namesake, in_group):
            assert (await person.visit(address)).status in (403, 404)
        url = f"{two.here.env.url}/api/inbox"
        for issuer, status in ((two.second, 403), (two.first, 200)):
            token = issuer.token("frank", audience=url, **GROUPS)
            person = await two.here.env.person()
            headers = {"authorization": f"Bearer {token}"}
            assert (await person.browser.get(url, headers=headers)).status_code == status


async def test_approvers_of_second_issuer_are_people_of_that_issuer_alone() -> None:
    async with issuing(Clock()) as other:
        name = other.url
        client = other.client()
    finance = replace(FINANCE, issuers=frozenset({name}))
    async with two_issuers(about={"client": client}, approvers=(finance,)) as two:
        url = f"{two.here.env.url}/api/inbox"
        token = two.first.token("frank", audience=url, **GROUPS)
        person = await two.here.env.person()
        headers = {"authorization": f"Bearer {token}"}
        assert (await person.browser.get(url, headers=headers)).status_code == 403


async def test_person_with_accounts_at_two_issuers_does_not_approve_their_own_request() -> None:
    async with two_issuers() as two:
        url = two.here.env.mcp_url
        headers = two.second.bearer("frank at the partner", audience=url)
        async with two.here.env.caller(MODERN, headers=headers) as caller:
            refused = await caller.result("refund", order="A-17")
        assert "[approvers.finance]" in str(refused)
        assert two.second.url in str(refused)
        frank = await two.at_inbox(None, "frank")
        assert await two.here.waiting(frank) == []


async def test_approver_of_another_issuer_than_the_asker_cannot_decide() -> None:
    clock = Clock()
    async with issuing(clock) as first, issuing(clock) as second:
        finance = replace(FINANCE, issuers=frozenset({first.url, second.url}))
        about: dict[str, Any] = {"further_issuers": (second.further(),), "approvers": (finance,)}
        async with served(shop(), first, clock, **about) as here:
            async with here.asking("alice") as caller:
                await caller.result("refund", order="A-17")
            inbox = f"{here.env.url}/api/inbox"
            for issuer, status in ((second, 403), (first, 200)):
                headers = issuer.bearer("frank", audience=inbox)
                person = await here.env.person()
                (item,) = (await person.browser.get(inbox, headers=headers)).json()["requests"]
                decided = await person.browser.post(
                    f"{inbox}/{item['id']}/answer", json={"accepts": True}, headers=headers
                )
                assert decided.status_code == status, decided.text


async def test_page_says_why_person_of_another_issuer_cannot_add_their_approval() -> None:
    clock = Clock()
    async with issuing(clock) as first, issuing(clock) as second:
        issuers = frozenset({first.url, second.url})
        finance = replace(FINANCE, issuers=issuers, needs=2)
        about: dict[str, Any] = {
            "further_issuers": (second.further(),),
            "approvers": (finance,),
            "askers_decide": True,
        }
        async with served(shop(), first, clock, **about) as here:
            async with here.asking("alice") as caller:
                await caller.result("refund", order="A-17")
            two = Two(here=here, first=first, second=second)
            frank, other = await two.at_inbox(None, "frank"), await two.at_inbox("partner", "frank")
            address = await here.one(frank)
            before = await other.visit(address)
            await press(frank, address, "approve")
            page = await other.visit(address)
            assert WAY in page.text
            assert "/approve" not in page.text
            assert "/decline" in page.text
            refused = await press(other, address, "approve", page=before)
            assert (refused.status, WAY in refused.text) == (403, True)
            voting = voting_in((await here.asked()).request.terms)
            assert voting is not None
            assert len(voting.approvals) == 1


async def test_namesake_of_operator_sees_no_operator_page() -> None:
    async with two_issuers(operators=operators_of("root groups=ops")) as two:
        two.first.claims = two.second.claims = {"groups": ["ops"]}
        url = f"{two.here.env.url}/operator"
        for subject in ("root", "olga"):
            operator = await two.at_inbox(None, subject)
            assert (await operator.visit(url)).status == 200
            namesake = await two.at_inbox("partner", subject)
            assert (await namesake.visit(url)).status == 404


async def test_session_of_removed_issuer_is_no_session() -> None:
    async with two_issuers() as two:
        person = await two.at_inbox("partner", "alice")
        service = two.here.env.service
        cookies = {each.name: each.value or "" for each in person.browser.cookies.jar}
        assert await service.identity.sessions.of(cookies) is not None
        without = Sessions(
            tokens=Tokens(two.here.env.settings.ring, origin=two.here.env.url),
            store=service.elicitations.store,
            public_url=two.here.env.url,
            issuers=(two.first.url,),
            clock=two.here.clock,
        )
        assert await without.of(cookies) is None


async def test_tenant_outside_the_list_is_refused() -> None:
    async with two_issuers(tenants=(OUR_TENANT, OTHER_TENANT)) as two:
        issuer = two.second
        for tenant in (OUR_TENANT, OTHER_TENANT):
            assert await two.is_accepted(two.token(issuer, **issuer.of_tenant(tenant)))
        assert two.owner(issuer.of_tenant(OUR_TENANT)["iss"]) != two.owner(
            issuer.of_tenant(OTHER_TENANT)["iss"]
        )
        for claims in (
            issuer.of_tenant(STRANGERS),
            {**issuer.of_tenant(OUR_TENANT), "tid": OTHER_TENANT},
            {**issuer.of_tenant(OUR_TENANT), "tid": STRANGERS},
            {**issuer.of_tenant(OUR_TENANT), "tid": None},
            {**issuer.of_tenant(OUR_TENANT), "tid": OUR_TENANT.upper()},
            {**issuer.of_tenant(STRANGERS), "tid": OUR_TENANT},
            {"iss": issuer.template, "tid": OUR_TENANT},
            {"iss": issuer.template.replace("{tenantid}", "organizations"), "tid": OUR_TENANT},
            {"iss": f"{issuer.url}/{OUR_TENANT}/v2.0/", "tid": OUR_TENANT},
            {"iss": issuer.url, "tid": OUR_TENANT},
        ):
            assert await two.status(two.token(issuer, **claims)) == 401, claims


async def test_person_of_a_strangers_tenant_does_not_sign_in() -> None:
    async with two_issuers(tenants=(OUR_TENANT, OTHER_TENANT)) as two:
        issuer = two.second
        for claims in (
            issuer.of_tenant(STRANGERS),
            {**issuer.of_tenant(OUR_TENANT), "tid": STRANGERS},
            {**issuer.of_tenant(OUR_TENANT), "tid": None},
            {"iss": issuer.template, "tid": OUR_TENANT},
        ):
            issuer.claims = claims
            person = await two.here.env.person()
            page = await person.visit(two.here.inbox)
            place = await leave_to_sign_in(person, page, at="partner")
            failed = await person.visit(await come_back_as(person, place, "alice"))
            assert failed.status == 502, claims
        for tenant in (OUR_TENANT, OTHER_TENANT):
            issuer.claims = issuer.of_tenant(tenant)
            person = await two.at_inbox("partner", "alice")
            cookies = {each.name: each.value or "" for each in person.browser.cookies.jar}
            session = await two.here.env.service.identity.sessions.of(cookies)
            assert session is not None
            assert session.issuer == issuer.of_tenant(tenant)["iss"]


async def test_key_of_one_tenant_signs_no_token_of_another() -> None:
    async with two_issuers(tenants=(OUR_TENANT, OTHER_TENANT)) as two:
        issuer = two.second
        issuer.key_issuer = issuer.of_tenant(OTHER_TENANT)["iss"]
        assert await two.is_accepted(two.token(issuer, **issuer.of_tenant(OTHER_TENANT)))
        assert await two.status(two.token(issuer, **issuer.of_tenant(OUR_TENANT))) == 401


async def test_store_of_one_issuer_serves_its_people_when_a_second_is_added() -> None:
    clock, store = Clock(), MemoryStore()
    async with issuing(clock) as first, issuing(clock) as second:
        async with served(add_visit(shop()), first, clock, store=store) as here:
            async with here.asking() as caller:
                await caller.result("refund", order="A-17")
            frank = await here.signed_in("frank")
            before = await here.waiting(frank)
        about: dict[str, Any] = {"store": store, "further_issuers": (second.further(),)}
        async with served(add_visit(shop()), first, clock, **about) as here:
            frank, namesake = await here.env.person(), await here.env.person()
            await sign_in(frank, await frank.visit(here.inbox), "frank")
            await sign_in(namesake, await namesake.visit(here.inbox), "frank", at="partner")
            ids = [address.rpartition("/")[2] for address in before]
            assert [each.rpartition("/")[2] for each in await here.waiting(frank)] == ids
            assert len(ids) == 1
            assert await here.waiting(namesake) == []


async def test_opaque_token_is_sent_only_to_the_issuer_that_checks_such_tokens() -> None:
    doors = [
        ProtectedEndpoint(replace(RESOURCE, issuer=name), asks=asks)
        for name, asks in ISSUERS.items()
    ]
    first, second = doors
    second.there.says = {"active": True, "aud": RESOURCE.url, "sub": "alice"}
    tokens = IssuerTokens(
        first.issuer, resource=first.tokens.resource, clock=first.clock, others=(second.tokens,)
    )
    found = await tokens.verify("an-opaque-token", sender="1.2.3.4")
    assert (found.subject, found.claims) == ("alice", {"iss": second.tokens.issuer})
    assert first.there.introspected == []
    assert len(second.there.introspected) == 1
    second.there.says = {**second.there.says, "iss": first.tokens.issuer}
    with pytest.raises(BadBearer) as refused:
        await tokens.verify("another-token", sender="1.2.3.4")
    assert refused.value.reason == "issuer"
