"""Attacks on every route by a thief of ids, a page of another site and forged headers.

The routes are read from the application. A route without a case here fails the tests.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

import httpx
import pytest
from mcp.server.mcpserver import MCPServer
from msgspec.structs import replace

from flows import InvalidUse, elicit
from flows.crypto.tokens import Claims, Purpose
from flows.question import Link
from tests.support.callers import is_untouched, sent_out
from tests.support.mcp_server import LEGACY, Person, caller_of, soon, text_of
from tests.support.oauth_env import Asking, OAuthEnv
from webapp.routes.router import routes

FORWARDED = "203.0.113.9"
EVIL = "https://evil.example"
LINE_BREAK = "%0d%0aset-cookie:%20planted=1%0d%0alocation:%20https://evil.example"
# Parameters from which other servers read a redirect address.
WHERE_TO = ("next", "back", "url", "redirect_uri", "return_to", "continue", "target")


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A request to a route. `{}` in it stands for a token or id, if the route needs one."""

    at: str
    names: Purpose | None = None  # the purpose of the token that the route reads
    body: str | None = None  # `{}` is in the body instead of the address
    opens_by_itself: bool = False  # the token alone is the proof, for any holder
    of_account: bool = False  # the id names an object of one owner
    leads_back: bool = False  # redirects to the link's page, which checks the person


LINK, STATE = Purpose.LINK, Purpose.STATE
# Providers post to these from their own sites, so the rules for our forms do not apply.
FROM_PROVIDERS = {"POST /callback/{provider}"}
LISTS = tuple(f"GET /{of}/live" for of in ("connections", "payments", "inbox", "activity"))
ROUTES: Mapping[str, Route] = {
    "GET /": Route(at="/"),
    "GET /callback/{provider}": Route(at="/callback/github?code=c&state={}", names=STATE),
    "POST /callback/url/{token}": Route(
        at="/callback/url/{}", names=Purpose.CALLBACK, opens_by_itself=True
    ),
    "GET /e/{token}": Route(at="/e/{}", names=LINK),
    "GET /connections": Route(at="/connections"),
    "GET /connections/{id}/disconnect": Route(at="/connections/{}/disconnect", of_account=True),
    "POST /connections/{id}/disconnect": Route(at="/connections/{}/disconnect", of_account=True),
    "POST /connections/{id}/reconnect": Route(at="/connections/{}/reconnect", of_account=True),
    "POST /connections/{id}/switch": Route(at="/connections/{}/switch", of_account=True),
    "POST /connections/{id}/keep": Route(at="/connections/{}/keep", of_account=True),
    "POST /connections/{id}/unshare": Route(
        at="/connections/{}/unshare?tool=list", of_account=True
    ),
    "GET /payments": Route(at="/payments"),
    **{name: Route(at=name.removeprefix("GET ")) for name in LISTS},
    "GET /activity": Route(at="/activity"),
    "GET /inbox": Route(at="/inbox"),
    "GET /inbox/{approver}/{id}": Route(at="/inbox/finance/{}", of_account=True),
    "POST /inbox/{approver}/{id}/approve": Route(at="/inbox/finance/{}/approve", of_account=True),
    "POST /inbox/{approver}/{id}/decline": Route(at="/inbox/finance/{}/decline", of_account=True),
    "POST /inbox/{approver}/{id}/delegate": Route(at="/inbox/finance/{}/delegate", of_account=True),
    "GET /approvals/{id}/revoke": Route(at="/approvals/{}/revoke", of_account=True),
    "POST /approvals/{id}/revoke": Route(at="/approvals/{}/revoke", of_account=True),
    "GET /payments/{id}": Route(at="/payments/{}", of_account=True),
    "GET /payments/{id}/refund": Route(at="/payments/{}/refund", of_account=True),
    "POST /payments/{id}/refund": Route(at="/payments/{}/refund", of_account=True),
    "POST /e/{token}": Route(at="/e/{}", names=LINK),
    "POST /e/{token}/allow": Route(at="/e/{}/allow", names=LINK),
    "POST /e/{token}/code": Route(at="/e/{}/code", names=LINK, leads_back=True),
    "POST /e/{token}/decline": Route(at="/e/{}/decline", names=LINK),
    "GET /e/{token}/live": Route(at="/e/{}/live", names=LINK),
    "GET /operator": Route(at="/operator"),
    "GET /operator/{name}": Route(at="/operator/questions"),
    "GET /operator/search": Route(at="/operator/search?q=x"),
    "POST /operator/search": Route(at="/operator/search"),
    "GET /operator/csv/{name}": Route(at="/operator/csv/accounts"),
    "GET /operator/enter/{token}": Route(
        at="/operator/enter/{}", names=Purpose.OPERATOR_LINK, opens_by_itself=True
    ),
    "POST /operator/enter/{token}": Route(
        at="/operator/enter/{}", names=Purpose.OPERATOR_LINK, opens_by_itself=True
    ),
    "GET /operator/{name}/{id}": Route(at="/operator/accounts/{}", of_account=True),
    "GET /operator/{name}/{id}/{act}": Route(at="/operator/payments/{}/refund", of_account=True),
    "POST /operator/{name}/{id}/{act}": Route(at="/operator/payments/{}/refund", of_account=True),
    **{f"GET {path}": Route(at=path) for path in ("/health", "/live", "/ready")},
    "GET /pair/{token}": Route(at="/pair/{}", names=Purpose.PAIR, opens_by_itself=True),
    "POST /pair/{token}": Route(at="/pair/{}", names=Purpose.PAIR, opens_by_itself=True),
    "GET /return": Route(at="/return?elicitation={}", names=Purpose.RETURN),
    "GET /return/{seller}": Route(at="/return/stripe?state={}", names=STATE),
    "POST /signin": Route(at="/signin"),
    "GET /signin/callback": Route(at="/signin/callback?code=c&state=s"),
    "GET /signin/callback/{at}": Route(at="/signin/callback/partner?code=c&state=s"),
    "POST /signin/logout": Route(at="/signin/logout", body="logout_token={}"),
    "POST /signin/logout/{at}": Route(at="/signin/logout/partner", body="logout_token={}"),
    "POST /signout": Route(at="/signout"),
    "GET /signout/done": Route(at="/signout/done?state=s"),
    "GET /static/{name}": Route(at="/static/elicit.css"),
    "GET /static/own/{own}": Route(at="/static/own/site.css"),
    "POST /webhooks/{seller}": Route(
        at="/webhooks/stripe",
        body='{{"type": "checkout.session.completed", "client_reference_id": "{}"}}',
    ),
}
# A GET of these redeems a code, ends a session or opens a stream. All others answer HEAD.
WITHOUT_HEAD = ("/callback/", "/return", "/signin/callback", "/signout/done")
SHOWN = {
    name: route
    for name, route in ROUTES.items()
    if name.startswith("GET ")
    and not name.startswith(tuple(f"GET {path}" for path in WITHOUT_HEAD))
    and (name == "GET /live" or not name.endswith("/live"))
}
ROUTES = {**ROUTES, **{name.replace("GET", "HEAD"): route for name, route in SHOWN.items()}}


def routes_of_pages() -> Iterator[str]:
    """Yield our own routes, which are the same for every application."""
    for route in routes().routes:
        for method in getattr(route, "methods", ()):
            if method != "OPTIONS":  # the framework's own method, which does nothing
                yield f"{method} {route.path_format}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """An open question, and the browser of the person who was asked."""

    here: OAuthEnv
    asked: Asking
    person: Person
    link: str
    callback: str

    async def id(self) -> str:
        return (await self.here.row(self.link)).id

    async def token(self, purpose: Purpose) -> str:
        """Return a valid token of this purpose for the question."""
        if purpose is LINK:
            return self.link.rsplit("/", 1)[1]
        if purpose is STATE:
            return dict(httpx.URL(self.callback).params)["state"]
        row, now = await self.here.row(self.link), self.here.clock()
        claims = Claims(purpose=purpose, id=row.id, expires_at=row.expires_at)
        return self.here.service.links.state(claims, now=now)

    async def send(self, name: str, named: str, **options: Any) -> httpx.Response:
        """Send a request with this token or id, from the asked person's browser by default."""
        route, method = ROUTES[name], name.partition(" ")[0]
        if route.body is not None:
            options.setdefault("content", route.body.format(named))
        elif method == "POST":
            options.setdefault("data", {"csrf": await self.field()})
        browser: httpx.AsyncClient = options.pop("browser", self.person.browser)
        return await browser.request(method, self.here.url + route.at.format(named), **options)

    async def field(self) -> str:
        """Return the CSRF field of the person's own form."""
        service = self.here.service
        cookie = self.person.browser.cookies[service.browser.cookie_name]
        return service.browser.csrf(cookie, subject=await self.id())


@pytest.fixture
async def on(here: OAuthEnv) -> Scene:
    asked, person, link, callback = await sent_out(here)
    return Scene(here=here, asked=asked, person=person, link=link, callback=callback)


def test_every_route_has_a_case():
    assert sorted({*routes_of_pages()} - FROM_PROVIDERS) == sorted(ROUTES)
    for route in ROUTES.values():
        assert ("{}" in route.at) == (route.names is not None or route.of_account)


async def test_unknown_method_is_answered_with_the_methods_of_the_path(on):
    before, browser = await on.here.row(on.link), on.person.browser
    for name, route in ROUTES.items():
        place = on.here.url + route.at.format("x")
        for method in ("PATCH", "HEAD"):
            answer = await browser.request(method, place)
            if method == "HEAD" and answer.status_code != 405:
                assert answer.content == b"", name  # monitoring tools send HEAD
                continue
            assert answer.status_code == 405, name
            assert name.partition(" ")[0] in answer.headers["allow"].split(", "), name
    assert await on.here.row(on.link) == before


async def test_head_is_answered_like_get_without_a_body(on):
    changing = {"date", "content-security-policy", "set-cookie"}
    for name, route in SHOWN.items():
        named = await on.token(route.names) if route.names else "x"
        got, head = await on.send(name, named), await on.send(name.replace("GET", "HEAD"), named)
        assert (head.status_code, head.content) == (got.status_code, b""), name
        for header in {*got.headers, *head.headers} - changing:
            assert head.headers.get(header) == got.headers.get(header), (name, header)


async def test_bare_id_is_refused_on_every_route(on):
    id, before = await on.id(), await on.here.row(on.link)
    owner = on.here.service.identity.local_owner
    for name, route in ROUTES.items():
        if name in LISTS:
            continue  # an endless stream, without an id
        for stolen in (id, id.removeprefix(owner), f"{id}.{id}", quote(id + "/")):
            answer = await on.send(name, stolen)
            if route.names is not None or route.of_account:
                assert answer.status_code in (400, 403, 404, 405, 410), (name, answer.text)
                assert "set-cookie" not in answer.headers
            assert id not in answer.text
            assert "octocat" not in answer.text
    assert await on.here.row(on.link) == before
    assert await is_untouched(on.here, on.link)


async def test_token_of_another_purpose_is_refused_on_every_route(on):
    before = await on.here.row(on.link)
    for name, route in ROUTES.items():
        for purpose in set(Purpose) - {route.names} if route.names else ():
            answer = await on.send(name, await on.token(purpose))
            assert answer.status_code in (400, 403, 404, 410), (name, purpose)
            assert "set-cookie" not in answer.headers
    assert await on.here.row(on.link) == before


async def test_account_id_is_refused_for_other_people_on_every_route(here):
    await here.connect("repo")
    (mine,) = await here.connections()
    other = here.service.elicitations.owners.tag(issuer="https://i.example", subject="bob")
    tail = mine.id.removeprefix(mine.owner)
    bobs = replace(mine, owner=other, id=f"{other}-of-bobs", label="bob-at-work", version=0)
    await here.service.elicitations.write(bobs)
    stranger = await here.person(**{"x-forwarded-for": FORWARDED})
    browser = here.service.browser
    for person, account, named in (
        (stranger, mine, tail),
        (await here.person(), bobs, "-of-bobs"),
        (await here.person(), bobs, bobs.id),
    ):
        cookie = browser.fresh()
        person.browser.cookies.set(browser.cookie_name, cookie)
        csrf = {"csrf": browser.csrf(cookie, subject=account.id)}
        for name, route in ROUTES.items():
            if route.of_account:
                to = here.url + route.at.format(named)
                method = name.partition(" ")[0]
                answer = await person.browser.request(method, to, data=csrf)
                assert answer.status_code in (403, 404), name
                assert account.label not in answer.text
        assert account.label not in (await person.visit(f"{here.url}/connections")).text
    connected = {each.label: each for each in await here.connections()}
    assert set(connected) == {"octocat", "bob-at-work"}
    assert connected["octocat"].tools == connected["bob-at-work"].tools == ("list",)


async def test_remote_visitor_with_every_token_gets_nothing_on_any_route(on):
    # defect: toolshed unauthenticated resolve
    before = await on.here.row(on.link)
    stranger = await on.here.person(**{"x-forwarded-for": FORWARDED})
    # Refused even with the cookie and the CSRF field of the person's own browser.
    stranger.browser.cookies = on.person.browser.cookies
    for name, route in ROUTES.items():
        if route.names is None or route.opens_by_itself:
            continue
        named = await on.token(route.names)
        answer = await on.send(name, named, browser=stranger.browser)
        if route.leads_back:
            assert answer.headers["location"] == urlsplit(on.link).path
        else:
            is_of_a_sale = name.startswith("GET /return/")  # this question is not a payment
            assert answer.status_code == (404 if is_of_a_sale else 403), name
            assert "location" not in answer.headers
        assert "set-cookie" not in answer.headers
        for detail in ("GitHub", "octocat", 'name="csrf"', str(before.request.tool)):
            assert detail not in answer.text, (name, detail)
    assert await on.here.row(on.link) == before
    assert await is_untouched(on.here, on.link)
    assert not on.asked.task.done()


async def every_answer(on: Scene) -> list[tuple[str, httpx.Response]]:
    """Return the responses of every route to valid, invalid and unauthorized requests."""
    answers = []
    stranger = await on.here.person(**{"x-forwarded-for": FORWARDED})
    of_html: dict[str, Any] = {"headers": {"accept": "text/html"}}
    for name, route in ROUTES.items():
        named = await on.token(route.names) if route.names else "x"
        if not name.endswith("/live"):  # an endless stream
            answers.append((name, await on.send(name, "rubbish", **of_html)))
            elsewhere = {"accept": "text/html", "host": "evil.example"}
            answers.append((name, await on.send(name, named, headers=elsewhere)))
        answers.append((name, await on.send(name, named, browser=stranger.browser, **of_html)))
        if name == "GET /live" or not name.endswith(("/live", "/callback/{provider}")):
            answers.append((name, await on.send(name, named, **of_html)))
        path = on.here.url + route.at.format(named)
        answers.append((name, await on.person.browser.request("PUT", path, **of_html)))
    return answers + [
        (path, await on.person.browser.get(on.here.url + path, **of_html))
        for path in ("/nowhere", "/e/", "/callback/", "//", "/..%2f")
    ]


async def test_no_page_can_be_framed(on):
    pages = [
        (name, answer)
        for name, answer in await every_answer(on)
        if "html" in answer.headers.get("content-type", "")
    ]
    assert len(pages) > len(ROUTES)
    assert {answer.status_code for _, answer in pages} >= {200, 400, 403, 404, 405, 421}
    for name, answer in pages:
        policy = answer.headers["content-security-policy"]
        assert "frame-ancestors 'none'" in policy, name
        assert "default-src 'none'" in policy, name
        assert "unsafe" not in policy, name


async def test_responses_are_not_cached_and_send_no_referrer(on):
    for name, answer in await every_answer(on):
        if "/static/" in name and answer.status_code == 200:
            continue  # static files are the same for everybody
        assert answer.headers["cache-control"] == "no-store", (name, answer)
        if "html" in answer.headers.get("content-type", "") or answer.has_redirect_location:
            assert answer.headers["referrer-policy"] == "no-referrer", name


async def test_no_route_redirects_to_address_from_request(on):
    own_hosts = {urlsplit(on.here.url).netloc, urlsplit(on.here.sandbox.url).netloc}
    led = []
    for name, route in ROUTES.items():
        named = await on.token(route.names) if route.names else "x"
        if name.endswith("/live"):
            continue
        # httpx replaces a query by `params`, so `asked` includes the route's own parameters.
        own = on.callback if route.names is STATE else on.here.url + route.at.format(named)
        asked = {**dict(httpx.URL(own).params), **dict.fromkeys(WHERE_TO, EVIL)}
        if name.startswith("GET /callback/"):
            del asked["code"]  # an error changes less of the question than a code
            asked["error"] = "server_error"
        for options in ({"params": asked}, {"headers": {"x-forwarded-host": "evil.example"}}):
            answer = await on.send(name, named, **options)
            if location := answer.headers.get("location"):
                led.append(location)
                assert urlsplit(location).netloc in {"", *own_hosts}, (name, location)
                assert "evil" not in location
                assert not location.startswith(("//", "/\\"))
    assert len(led) >= 3
    # Another name of this machine, with a path that starts like a host.
    person = await on.here.person(
        host=on.here.url.removeprefix("http://").replace("127.0.0.1", "localhost")
    )
    for path in ("//evil.example", "/\\evil.example", "/%2f/evil.example", "/@evil.example"):
        answer = await person.browser.get(on.here.url + path)
        assert answer.headers.get("location", on.here.url + "/").startswith(on.here.url + "/")


async def test_line_break_in_request_reaches_no_response_header(on):
    for name, route in ROUTES.items():
        if name in LISTS:
            continue  # an endless stream
        path = route.at.partition("?")[0].format(LINE_BREAK)
        paths = [f"{path}/{LINE_BREAK}", f"{path}?{LINE_BREAK}", f"{path}?a={LINE_BREAK}"]
        paths.append(route.at.format(LINE_BREAK))
        for each in paths:
            answer = await on.person.browser.request(
                name.partition(" ")[0], on.here.url + each, data=None
            )
            assert "planted" not in answer.cookies
            assert answer.headers.get("location", "") == ""
            is_in_path = LINE_BREAK in each.partition("?")[0]
            refused = (400,) if is_in_path else range(200, 500)
            assert answer.status_code in refused, (name, each)
    # The only redirect with a query leads to our own host name.
    port = on.here.url.rpartition(":")[2]
    person = await on.here.person(host=f"localhost:{port}")
    answer = await person.browser.get(f"{on.here.url}/?a={LINE_BREAK}")
    assert answer.headers["location"] == f"{on.here.url}/?a={LINE_BREAK}"
    assert "set-cookie" not in answer.headers
    assert await is_untouched(on.here, on.link)


@pytest.mark.parametrize(
    "tail", ["\r\nset-cookie: planted=1", "\n", "\x00", "\x85", "\u2028", "%0d%0aset-cookie:x", "é"]
)
async def test_tool_url_with_line_break_is_refused_or_escaped(tail):
    server = MCPServer("shop")

    @server.tool()
    async def fixed() -> None:
        await elicit.url("Go", f"https://example.org/{tail}")

    @server.tool()
    async def made() -> None:
        def address(link: Link) -> str:
            return f"https://example.org/{tail}"

        await elicit.url("Go", address, origins=("https://example.org",))

    async with caller_of(server, LEGACY) as (env, caller):
        for tool in ("fixed", "made"):
            call = caller.call(tool)
            if not tail.isprintable():
                assert InvalidUse.name in text_of(await soon(call))
                continue
            link = await caller.link()
            person = await env.person()
            page = await person.press(link)
            assert page.location is not None
            assert page.location.startswith("https://example.org/%")
            assert not person.browser.cookies.get("planted")
            await env.complete(link)
            await soon(call)


async def test_foreign_host_header_is_refused_on_every_route(on):
    port = on.here.url.rpartition(":")[2]
    for name, route in ROUTES.items():
        named = await on.token(route.names) if route.names else "x"
        for host in ("evil.example", f"evil.example:{port}", f"127.0.0.1.evil.example:{port}"):
            answer = await on.send(name, named, headers={"host": host})
            assert answer.status_code == 421, name
    assert await is_untouched(on.here, on.link)


async def test_form_of_another_site_is_refused_on_every_route(on):
    before = await on.here.row(on.link)
    port = on.here.url.rpartition(":")[2]
    others = (EVIL, "http://127.0.0.1:1", f"http://[::1]:{port}", f"https://127.0.0.1:{port}")
    for name, route in ROUTES.items():
        if not name.startswith("POST"):
            continue
        named = await on.token(route.names) if route.names else "x"
        for origin in others:
            answer = await on.send(name, named, headers={"origin": origin})
            assert answer.status_code == 403, (name, origin)
        if not route.opens_by_itself and route.names:
            framed = {"origin": "null", "sec-fetch-site": "cross-site"}
            assert (await on.send(name, named, headers=framed)).status_code == 403
    assert await on.here.row(on.link) == before
    assert not on.asked.task.done()
