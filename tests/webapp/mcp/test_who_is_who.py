"""Identity checks on links: only the person who asked can open one, even if it is forwarded."""

from flows.elicitation.states import Status, join
from tests.support.guarded_server import TOKEN, guarded_by
from tests.support.issuer import come_back_as, issuing, leave_to_sign_in, sign_in
from tests.support.mcp_server import MODERN, caller_of, server_env, soon
from tests.support.signed_in_people import HER_WORDS, add_visit, asked_by_alice, signed_in_env


async def test_whoever_asked_signs_in_and_answers(revision, library):
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


async def test_a_link_passed_on_shows_nothing_and_ends_nothing(revision):
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


async def test_another_person_can_sign_in_from_the_page_that_refuses(revision):
    async with asked_by_alice(revision) as (here, link):
        browser = await here.env.person()
        refused = await sign_in(browser, await browser.visit(link), "work account")
        place = await leave_to_sign_in(browser, refused)
        assert "prompt=" in place
        back = await come_back_as(browser, place, "alice")
        await browser.visit(back)
        assert HER_WORDS in (await browser.visit(link)).text


async def test_two_people_who_ask_the_same_do_not_join(revision):
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


async def test_a_call_without_a_token_is_told_where_to_get_one():
    async with signed_in_env() as here:
        person = await here.env.person()
        refused = await person.browser.post(here.env.mcp_url, json={})
        assert refused.status_code == 401
        said = refused.headers["www-authenticate"]
        document = f"{here.env.url}/.well-known/oauth-protected-resource/mcp"
        assert f'resource_metadata="{document}"' in said
        found = (await person.browser.get(document)).json()
        assert found["resource"] == here.env.mcp_url
        assert found["authorization_servers"] == [here.issuer.url]


async def test_a_token_without_a_subject_is_anonymous(revision):
    async with signed_in_env() as here:
        headers = here.bearer(None)
        async with here.env.caller(revision, headers=headers) as caller:
            result = await caller.result("visit")
            assert result.is_error
            assert "names no person" in result.content[0].text
            assert await here.env.elicitations() == []


async def test_a_session_that_ends_in_one_tab_is_over_in_all(revision):
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


async def test_saying_no_at_the_issuer_signs_nobody_in(revision):
    async with asked_by_alice(revision) as (here, link):
        alice = await here.env.person()
        here.issuer.denies = True
        place = await leave_to_sign_in(alice, await alice.visit(link))
        page = await alice.visit(await come_back_as(alice, place, "alice"))
        assert page.status == 403
        assert here.issuer.exchanges == 0
        here.issuer.denies = False
        assert HER_WORDS in (await sign_in(alice, page, "alice")).text


async def test_the_subject_may_be_another_claim(revision):
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


async def test_a_link_that_is_asked_for_without_end_is_held_back(revision):
    async with asked_by_alice(revision) as (here, link):
        mallory = await here.env.person()
        alice = await here.env.person()
        await sign_in(alice, await alice.visit(link), "alice")
        pages = [await mallory.visit(link) for _ in range(70)]
        assert {page.status for page in pages} == {403, 429}
        assert pages[-1].heading == "That was too fast"
        assert HER_WORDS in (await alice.visit(link)).text


async def test_tools_are_named_to_those_only_who_signed_in():
    async with signed_in_env() as here:
        alice = await here.env.person()
        # Without this header she counts as the local operator.
        alice.browser.headers["x-forwarded-for"] = "203.0.113.9"
        assert "visit" not in (await alice.visit(here.env.url)).text
        async with here.env.caller(MODERN, headers=here.bearer("alice")) as caller:
            caller.begin("visit")
            await sign_in(alice, await alice.visit(await caller.link()), "alice")
        assert "visit" in (await alice.visit(here.env.url)).text


async def test_a_server_that_authenticates_by_itself_has_its_people_sign_in(library, revision):
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


async def test_tokens_that_do_not_say_whose_they_are_have_the_issuer_that_was_named(revision):
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


async def test_an_empty_subject_is_nobody(revision):
    async with issuing() as issuer:
        guarded = guarded_by("mcp", {"iss": issuer.url, "sub": ""})
        who = issuer.who()
        async with caller_of(add_visit(guarded), revision, who=who, headers=TOKEN) as (_, caller):
            assert "names no person" in await caller.text("visit")


async def test_the_live_status_is_told_when_it_is_another_one(revision):
    async with asked_by_alice(revision) as (here, link):
        alice = await here.env.person()
        await sign_in(alice, await alice.visit(link), "alice")
        (asked,) = await here.env.elicitations()
        async with alice.browser.stream("GET", f"{link}/live") as live:
            lines = live.aiter_lines()
            assert await anext(lines) == "data: pending"
            elicitations = here.env.service.elicitations
            await elicitations.change(asked.id, lambda one: join(one, leg="newer", run="r"))
            assert "visit" in (await alice.visit(link)).text  # the live page got the change
            await here.env.complete(link)
            assert [line async for line in lines if line] == ["data: accepted"]


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
