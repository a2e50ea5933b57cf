"""The consent page: what a person reads and presses, and where they are sent."""

import httpx
import pytest

from tests.support.sandbox import (
    CALLBACK,
    GITHUB,
    MAIN,
    OIDC,
    SLACK,
    URL,
    Form,
    Person,
    redirect_parameters,
)

ISSUERS = {"/oidc/": f"{URL}/oidc", "/github/": f"{URL}/github/login/oauth", "/slack/": None}
PROVIDERS = pytest.mark.parametrize("provider", [OIDC, GITHUB, SLACK])
SCOPES = {OIDC: "openid email", GITHUB: "repo", SLACK: "chat:write"}


def issuer_of(path: str) -> str | None:
    return next(issuer for prefix, issuer in ISSUERS.items() if path.startswith(prefix))


async def test_consent_page_says_nothing_is_real_and_shows_client_and_scopes(person: Person):
    page = await person.open(scope="openid email")
    assert page.status_code == 200
    assert "Sandbox: nothing here is real" in page.text
    assert "elicit-sandbox" in page.text
    assert "127.0.0.1:8765" in page.text
    assert "See your e-mail address" in page.text
    assert '<span class="letter" aria-hidden="true">O</span>\n<span>Octo Cat' in page.text
    assert "Hubot" in page.text


async def test_consent_page_without_scopes_says_so(person: Person):
    page = await person.open(GITHUB, scope=None)
    assert "Only see what is public about you" in page.text


async def test_consent_page_needs_no_script_and_no_external_resource(person: Person):
    page = await person.open()
    assert "<script" not in page.text
    assert "style=" not in page.text
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert f"form-action 'self' {MAIN};" in policy


@pytest.mark.parametrize("path", ["/oidc/authorize", "/nothing"])
async def test_every_page_has_strict_headers(path: str, person: Person):
    page = await person.http.get(path, headers={"accept": "text/html"})
    assert page.status_code in (400, 404)
    assert "Sandbox: nothing here is real" in page.text
    assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
    assert page.headers["referrer-policy"] == "no-referrer"
    assert page.headers["cache-control"] == "no-store"
    assert page.headers["x-content-type-options"] == "nosniff"


@PROVIDERS
async def test_approve_redirects_with_code_state_and_issuer(provider, person: Person):
    got = await person.approve(provider, scope=SCOPES[provider])
    code = got.pop("code")
    expected = {"state": "the-state", "iss": issuer_of(provider.authorize)}
    assert got == {name: value for name, value in expected.items() if value}
    assert len(code) >= 32


@PROVIDERS
async def test_deny_redirects_with_access_denied_state_and_issuer(provider, person: Person):
    page = await person.open(provider, scope=SCOPES[provider])
    got = redirect_parameters(await person.press(page, "deny"))
    assert got["error"] == "access_denied"
    assert got["state"] == "the-state"
    assert got.get("iss") == issuer_of(provider.authorize)
    assert "code" not in got


async def test_first_person_is_preselected_and_other_can_be_chosen(person: Person):
    page = await person.open(GITHUB, scope="repo")
    assert Form(page.text).fields["person"] == "octocat"
    code = redirect_parameters(await person.press(page, person="hubot"))["code"]
    token = (await person.exchange(code, GITHUB)).json()["access_token"]
    assert (await person.get("/github/api/user", token)).json()["login"] == "hubot"


async def test_redirect_uri_retains_its_own_query(person: Person):
    page = await person.open(redirect_uri=f"{CALLBACK}?place=1")
    response = await person.press(page)
    assert response.headers["location"].startswith(f"{CALLBACK}?place=1&code=")


async def test_form_without_csrf_field_or_cookie_is_refused(person: Person):
    page = await person.open()
    assert (await person.press(page, csrf="0" * 64)).status_code == 403
    person.http.cookies.clear()
    refused = await person.press(page)
    assert refused.status_code == 403
    assert "location" not in refused.headers


async def test_csrf_field_of_another_request_is_refused(person: Person):
    small = await person.open(scope="openid")
    great = await person.open(scope="openid email")
    refused = await person.press(great, csrf=Form(small.text).fields["csrf"])
    assert refused.status_code == 403


@pytest.mark.parametrize("changes", [{"decision": "perhaps"}, {"person": "nobody"}])
async def test_incomplete_form_grants_nothing(changes, person: Person):
    page = await person.open()
    answer = await person.press(page, **{"decision": "approve", **changes})
    assert answer.status_code == 400
    assert "Choose a person" in answer.text


async def test_malformed_form_is_refused_with_page(person: Person):
    page = await person.open()
    answer = await person.http.post(Form(page.text).action, content=b"csrf=\xff&csrf=%ff")
    assert answer.status_code == 400


async def test_unknown_page_is_named_as_such(person: Person):
    answer = await person.http.get("/no/such", headers={"accept": "text/html"})
    assert answer.status_code == 404
    assert "There is no such page" in answer.text


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"response_type": None}, "invalid_request"),
        ({"response_type": "token"}, "unsupported_response_type"),
        ({"scope": 'openid "everything"'}, "invalid_scope"),
        ({"scope": " ".join(f"s{n}" for n in range(101))}, "invalid_scope"),
        ({"prompt": "none"}, "login_required"),
        ({"code_challenge": "short"}, "invalid_request"),
    ],
)
async def test_invalid_request_is_redirected_with_error_to_client(changes, error, person: Person):
    got = redirect_parameters(await person.open(**changes))
    assert got["error"] == error
    assert got["state"] == "the-state"
    assert got["iss"] == f"{URL}/oidc"


@pytest.mark.parametrize("name", ["state", "scope", "code_challenge", "prompt"])
async def test_repeated_parameter_is_invalid(name: str, person: Person):
    query = httpx.QueryParams(person.query()).add(name, "again").add(name, "and again")
    got = redirect_parameters(await person.http.get("/oidc/authorize", params=query))
    assert got["error"] == "invalid_request"
    assert ("state" in got) == (name != "state")


@pytest.mark.parametrize("name", ["client_id", "redirect_uri"])
async def test_repeated_client_id_or_redirect_uri_is_never_redirected(name: str, person: Person):
    given = person.query()
    query = httpx.QueryParams(given).add(name, given[name])
    page = await person.http.get("/oidc/authorize", params=query)
    assert page.status_code == 400
    assert "location" not in page.headers


async def test_unknown_client_gets_error_page(person: Person):
    page = await person.open(client_id="somebody")
    assert page.status_code == 400
    assert "No application with this client id" in page.text


async def test_slack_needs_scope_and_shows_user_scopes_separately(person: Person):
    assert redirect_parameters(await person.open(SLACK, scope=","))["error"] == "invalid_scope"
    page = await person.open(SLACK, scope="chat:write", user_scope="search:read")
    assert "What it may do in your name" in page.text


@pytest.mark.parametrize(
    ("provider", "scope"),
    [
        (OIDC, "openid https://www.googleapis.com/auth/calendar.readonly"),
        (GITHUB, "repo,admin:org"),
        (SLACK, "chat:write,reminders:write"),
    ],
)
async def test_scope_of_real_provider_is_accepted(provider, scope: str, person: Person):
    page = await person.open(provider, scope=scope)
    for each in scope.replace(",", " ").split():
        assert f'<code translate="no">{each}</code>' in page.text
    assert (await person.connect(provider, scope=scope))["scope"] == scope


async def test_issuer_parameter_can_be_dropped_or_wrong_once(person: Person):
    await person.plan(next="drop-iss")
    await person.plan(next="wrong-iss")
    assert "iss" not in await person.approve()
    assert (await person.approve())["iss"] == f"{URL}/somebody-else"
    assert (await person.approve())["iss"] == f"{URL}/oidc"


async def test_stylesheet_and_icon_are_served_and_no_other_file(person: Person):
    for path, media_type in [
        ("/sandbox.css", "text/css"),
        ("/sandbox.svg", "image/svg+xml"),
    ]:
        answer = await person.http.get(path)
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith(media_type)
    assert (await person.http.get("/pages.py")).status_code == 404
