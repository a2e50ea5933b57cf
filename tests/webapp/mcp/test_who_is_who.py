"""Identity checks on links: only the person who asked can open one, even if it is forwarded."""

from flows.elicitation.states import Status, register_waiter
from tests.support.guarded_server import TOKEN, guarded_by
from tests.support.issuer import come_back_as, issuing, leave_to_sign_in, sign_in
from tests.support.mcp_server import MODERN, caller_of, server_env, soon
from tests.support.signed_in_people import HER_WORDS, add_visit, asked_by_alice, signed_in_env


async def test_asker_signs_in_and_answers(revision, library):
    async with signed_in_env(library) as here:
        alice = await here.env.person()
        async with here.env.caller(revision, headers=here.bearer("alice")) as caller:
            call = caller.call("visit")
            link = await caller.link()
            page = await alice.visit(link)
            assert page.heading == "Sign in to see it"
            assert HER_WORDS not in page.text
            assert HER_WORDS in (await sign_in(alice, page, "alice")).text
            assert await alice.go_on(link) == "https://shop.example/terms"
            await here.env.complete(link)
            assert (await soon(call)).structured_content == {"result": "done"}


async def test_forwarded_link_is_refused_with_403_for_another_signed_in_person_and_stays_open(
    revision,
):
    async with asked_by_alice(revision) as (here, link):
        alice, mallory = await here.env.person(), await here.env.person()
        page = await sign_in(mallory, await mallory.visit(link), "mallory")
        assert page.status == 403
        assert page.heading == "This link belongs to someone else"
        assert "mallory" in page.text
        assert HER_WORDS not in page.text
        for action in ("", "/decline", "/allow", "/code"):
            csrf = {"csrf": page.csrf or ""}
            refused = await mallory.browser.post(link + action, data=csrf)
            assert refused.status_code == 403
        assert (await mallory.browser.get(f"{link}/live")).status_code == 403
        assert await here.env.status(link) is Status.PENDING
        assert HER_WORDS in (await sign_in(alice, await alice.visit(link), "alice")).text


async def test_asker_can_sign_in_from_the_refusal_page(revision):
    async with asked_by_alice(revision) as (here, link):
        browser = await here.env.person()
        refused = await sign_in(browser, await browser.visit(link), "work account")
        place = await leave_to_sign_in(browser, refused)
        assert "prompt=" in place
        back = await come_back_as(browser, place, "alice")
        await browser.visit(back)
        assert HER_WORDS in (await browser.visit(link)).text


async def test_identical_questions_of_two_people_do_not_join(revision):
    async with signed_in_env() as here:
        bearers = here.bearer("alice"), here.bearer("bob")
        async with (
            here.env.caller(revision, headers=bearers[0]) as hers,
            here.env.caller(revision, headers=bearers[1]) as his,
        ):
            hers.begin("visit")
            his.begin("visit")
            links = await hers.link(), await his.link()
            assert here.env.id_of(links[0]) != here.env.id_of(links[1])


async def test_call_without_a_token_gets_the_resource_metadata_url():
    async with signed_in_env() as here:
        person = await here.env.person()
        refused = await person.browser.post(here.env.mcp_url, json={})
        assert refused.status_code == 401
        challenge = refused.headers["www-authenticate"]
        document = f"{here.env.url}/.well-known/oauth-protected-resource/mcp"
        assert f'resource_metadata="{document}"' in challenge
        found = (await person.browser.get(document)).json()
        assert found["resource"] == here.env.mcp_url
        assert found["authorization_servers"] == [here.issuer.url]


async def test_token_without_a_subject_cannot_ask(revision):
    async with signed_in_env() as here:
        headers = here.bearer(None)
        async with here.env.caller(revision, headers=headers) as caller:
            result = await caller.result("visit")
            assert result.is_error
            assert "identifies no person" in result.content[0].text
            assert await here.env.elicitations() == []


async def test_sign_out_ends_the_session_in_every_tab(revision):
    async with asked_by_alice(revision) as (here, link):
        alice = await here.env.person()
        await sign_in(alice, await alice.visit(link), "alice")
        stolen = dict(alice.browser.cookies)
        csrf = here.env.service.browser.csrf(
            here.env.service.browser.cookie_of(stolen) or "", subject="signin"
        )
        out = await alice.browser.post(f"{here.env.url}/signout", data={"csrf": csrf})
        assert out.status_code == 200
        assert (await alice.visit(link)).heading == "Sign in to see it"
        thief = await here.env.person()
        thief.browser.cookies.update(stolen)
        assert (await thief.visit(link)).heading == "Sign in to see it"


async def test_person_who_declines_at_the_issuer_is_not_signed_in(revision):
    async with asked_by_alice(revision) as (here, link):
        alice = await here.env.person()
        here.issuer.denies = True
        place = await leave_to_sign_in(alice, await alice.visit(link))
        page = await alice.visit(await come_back_as(alice, place, "alice"))
        assert page.status == 403
        assert here.issuer.exchanges == 0
        here.issuer.denies = False
        assert HER_WORDS in (await sign_in(alice, page, "alice")).text


async def test_subject_can_be_read_from_other_claims(revision):
    async with signed_in_env(claim=("oid", "tid")) as here:
        here.issuer.claims = {"oid": "o-1", "tid": "t-1"}
        alice = await here.env.person()
        headers = here.bearer("pairwise for the api", oid="o-1", tid="t-1")
        async with here.env.caller(revision, headers=headers) as caller:
            caller.begin("visit")
            link = await caller.link()
            page = await sign_in(alice, await alice.visit(link), "pairwise-for-the-pages")
            assert HER_WORDS in page.text
            here.issuer.claims = {"oid": "o-1", "tid": "another tenant"}
            other = await here.env.person()
            page = await sign_in(other, await other.visit(link), "somebody")
            assert page.heading == "This link belongs to someone else"


async def test_repeated_requests_for_a_link_are_rate_limited(revision):
    async with asked_by_alice(revision) as (here, link):
        mallory = await here.env.person()
        alice = await here.env.person()
        await sign_in(alice, await alice.visit(link), "alice")
        pages = [await mallory.visit(link) for _ in range(70)]
        assert {page.status for page in pages} == {403, 429}
        assert pages[-1].heading == "That was too fast"
        assert HER_WORDS in (await alice.visit(link)).text


async def test_tools_are_listed_only_for_signed_in_visitors():
    async with signed_in_env() as here:
        alice = await here.env.person()
        # Without this header she counts as the local operator.
        alice.browser.headers["x-forwarded-for"] = "203.0.113.9"
        assert "visit" not in (await alice.visit(here.env.url)).text
        async with here.env.caller(MODERN, headers=here.bearer("alice")) as caller:
            caller.begin("visit")
            await sign_in(alice, await alice.visit(await caller.link()), "alice")
        assert "visit" in (await alice.visit(here.env.url)).text


async def test_server_with_its_own_authentication_supports_sign_in(library, revision):
    async with issuing() as issuer:
        guarded = guarded_by(
            library, {"iss": issuer.url, "sub": "pairwise", "oid": "o", "tid": "t"}
        )
        issuer.claims = {"oid": "o", "tid": "t"}
        async with server_env(add_visit(guarded), who=issuer.who(claim=("oid", "tid"))) as env:
            alice = await env.person()
            async with env.caller(revision, headers=TOKEN) as caller:
                caller.begin("visit")
                link = await caller.link()
                page = await sign_in(alice, await alice.visit(link), "another-pairwise")
                assert HER_WORDS in page.text


async def test_tokens_without_an_issuer_use_the_configured_issuer(revision):
    async with issuing() as issuer:
        for named in (None, issuer.url):
            guarded = guarded_by("mcp", {"sub": "alice"})
            who = issuer.who(server_issuer=named)
            server = add_visit(guarded)
            async with caller_of(server, revision, who=who, headers=TOKEN) as (env, caller):
                if named is None:
                    assert "ELICIT_SERVER_ISSUER" in await caller.text("visit")
                    continue
                alice = await env.person()
                caller.begin("visit")
                link = await caller.link()
                assert HER_WORDS in (await sign_in(alice, await alice.visit(link), "alice")).text


async def test_token_with_an_empty_subject_cannot_ask(revision):
    async with issuing() as issuer:
        guarded = guarded_by("mcp", {"iss": issuer.url, "sub": ""})
        who = issuer.who()
        async with caller_of(add_visit(guarded), revision, who=who, headers=TOKEN) as (_, caller):
            assert "identifies no person" in await caller.text("visit")


async def test_live_status_is_sent_on_change(revision):
    async with asked_by_alice(revision) as (here, link):
        alice = await here.env.person()
        await sign_in(alice, await alice.visit(link), "alice")
        (asked,) = await here.env.elicitations()
        async with alice.browser.stream("GET", f"{link}/live") as live:
            lines = live.aiter_lines()
            assert await anext(lines) == "data: pending"
            elicitations = here.env.service.elicitations
            await elicitations.change(
                asked.id, lambda one: register_waiter(one, request_id="newer", run="r")
            )
            assert "visit" in (await alice.visit(link)).text  # the live page got the change
            await here.env.complete(link)
            assert await anext(line async for line in lines if line) == "data: accepted"


async def test_the_live_status_ends_with_the_session(revision):
    async with asked_by_alice(revision) as (here, link):
        alice = await here.env.person()
        await sign_in(alice, await alice.visit(link), "alice")
        async with alice.browser.stream("GET", f"{link}/live") as live:
            lines = live.aiter_lines()
            assert await anext(lines) == "data: pending"
            csrf = (await alice.visit(f"{here.env.url}/connections")).csrf
            out = await alice.browser.post(f"{here.env.url}/signout", data={"csrf": csrf})
            assert out.status_code == 200
            await here.env.complete(link)
            assert [line async for line in lines if line] == []
