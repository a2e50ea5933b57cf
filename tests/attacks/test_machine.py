"""This machine as another user, another port and an unpacked folder on it see it.

What of it can be seen only as root or through nginx stands where the machine is asked.
"""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from flows.oauth.account import BearerAuth
from flows.providers import github
from tests.attacks.attack import Attack
from tests.support.callers import is_untouched, sent_out
from tests.support.mcp_server import Page
from tests.support.oauth_env import oauth_env
from tests.support.serving import serving
from webapp.http.client import no_proxy
from webapp.http.connection import Receive, Scope, Send
from webapp.settings.settings import read_settings

EVIL = '[providers.evil]\nissuer = "https://evil.example"\n'
KEY = "gho_the-key"

another_user = Attack(
    who="another user of this machine",
    how="connects from 127.0.0.1 and says the right Host (two users of one machine)",
    stopped="the kernel is asked whose socket it is when it is accepted; a closed one is nobody's",
    where=("webapp/identity/local_peer.py", "webapp/identity/accepting.py"),
    elsewhere=(
        "tests/webapp/identity/test_accepting.py::test_a_port_that_another_user_has_now_says_nothing_of_who_had_it_before",
        "tests/webapp/identity/test_local_peer.py::test_another_user_of_the_machine_is_not_local_to_a_real_server",
        "tests/webapp/identity/test_local_peer.py::test_the_kernel_knows_another_users_connection",
        "tests/webapp/identity/test_local_peer.py::test_a_connection_that_no_process_holds_has_no_owner",
        "tests/webapp/identity/test_local_peer.py::test_another_or_an_unknown_user_is_not_local",
        "tests/webapp/identity/test_local_peer.py::test_nobody_is_no_user_to_share_a_machine_with",
    ),
)
relay = Attack(
    who="somebody on the network",
    how="comes through a one-line nginx, a tunnel or a container, which connect from 127.0.0.1",
    stopped="a relay of another user is that user; ours show themselves by a header or HTTP/1.0",
    where=("webapp/identity/local_peer.py",),
    elsewhere=(
        "tests/webapp/identity/test_local_peer.py::test_a_one_line_nginx_of_another_user_is_not_local",
        "tests/webapp/identity/test_local_peer.py::test_a_one_line_nginx_of_our_own_user_gives_itself_away_by_http_1_0",
        "tests/webapp/identity/test_local_peer.py::test_whatever_was_relayed_is_not_local",
        "tests/webapp/mcp/test_callers.py::test_a_caller_that_was_relayed_cannot_have_anybody_asked",
    ),
)
forged_address = Attack(
    who="a client or a proxy that nobody configured",
    how="says in a header where it comes from",
    stopped="forwarded headers are read from configured proxies only",
    where=("webapp/http/guard.py",),
    elsewhere=(
        "tests/webapp/http/test_guard.py::test_a_stranger_cannot_say_who_it_is",
        "tests/webapp/http/test_guard.py::test_over_a_real_connection_nobody_names_his_own_address",
        "tests/webapp/identity/test_local_peer.py::test_what_a_configured_proxy_handed_on_is_not_local",
    ),
)
another_port = Attack(
    who="another user's server on another port of 127.0.0.1",
    how="reads or overwrites our cookies in a browser that visits both (cookie from another port)",
    stopped="a cookie says which browser, never who: connection and keyed field are looked at",
    where=("webapp/http/browser.py", "webapp/http/guard.py", "webapp/identity/local_peer.py"),
    elsewhere=(
        "tests/webapp/routes/test_security_headers.py::test_on_loopback_two_servers_do_not_share_a_cookie",
    ),
)
our_port = Attack(
    who="another user's program",
    how="takes our port before we do, or as soon as our process ends, and is sent our people",
    stopped="whoever holds the port must prove that it has our store and address",
    where=("webapp/http/port.py",),
    elsewhere=(
        "tests/webapp/cli/test_port.py::test_a_port_of_another_program_is_refused_in_a_sentence",
        "tests/webapp/cli/test_port.py::test_a_server_of_another_store_or_address_cannot_prove_itself",
        "tests/webapp/cli/test_port.py::test_a_proof_is_for_one_nonce_only",
        "tests/webapp/cli/test_port.py::test_before_a_link_leaves_the_port_proves_itself_anew",
        "tests/webapp/cli/test_stdio.py::test_no_link_leaves_to_a_port_that_another_program_has_taken",
    ),
)
folder = Attack(
    who="whoever made the folder that somebody works in",
    how=(
        "puts an `elicit.toml`, a `.env`, templates or a package with a name of ours into it "
        "(elicit.toml in the working directory)"
    ),
    stopped="nothing is read from the working directory, and it stands behind what is installed",
    where=("webapp/settings/settings.py", "webapp/cli/serve.py", "webapp/pages/renderer.py"),
    elsewhere=(
        "tests/webapp/settings/test_settings.py::test_a_file_in_the_working_directory_declares_nothing",
        "tests/webapp/cli/test_serve.py::test_folders_of_the_author_named_like_ours_do_no_harm",
        "tests/webapp/cli/test_serve.py::test_a_foreign_flows_in_front_of_ours_is_refused_by_name",
    ),
)
former_holder = Attack(
    who="another user of this machine",
    how=(
        "holds our port before us or on another of its addresses, and leaves a page or a service "
        "worker in the browser that speaks from our origin (DNS rebinding on one machine)"
    ),
    stopped=(
        "a page calls tools only from an origin that the operator names; a worker's script is "
        "answered with one that takes itself away, at whatever path, and what was stored is "
        "cleared, also where a cookie of ours was planted. Until a browser asks for the script, "
        "some seconds after it opened a page, that worker answers in our place: no request of the "
        "page reaches us before, and our worker then loads the page again"
    ),
    where=("webapp/http/guard.py", "webapp/http/browser.py"),
    elsewhere=(
        "tests/webapp/http/test_guard.py::test_no_page_calls_tools_one_of_our_name_neither",
        "tests/webapp/http/test_guard.py::test_a_call_that_a_browser_says_is_a_pages_is_refused",
        "tests/webapp/http/test_guard.py::test_a_service_worker_that_was_left_behind_takes_itself_away",
        "tests/webapp/routes/test_security_headers.py::test_a_cookie_that_another_port_planted_does_not_keep_what_it_stored",
    ),
)
costly_address = Attack(
    who="somebody on the network, or any program of this machine that sets cookies",
    how="sends cookies, paths and queries that take long to read or are kept",
    stopped="they are read in one pass, within bounds, and nothing of them is kept",
    where=("webapp/http/requests.py", "webapp/identity/local_peer.py"),
    elsewhere=(
        "tests/webapp/http/test_requests.py::test_cookies_are_read_in_the_time_of_their_length",
        (
            "tests/webapp/http/test_requests.py::"
            "test_an_address_longer_than_ours_is_refused_before_anybody_reads_it"
        ),
    ),
)
declared_name = Attack(
    who="whoever writes the operator's `elicit.toml`",
    how="takes the name of a provider that comes with us, to lead its people elsewhere",
    stopped="those names are taken, and no value of the file is repeated in what is said of it",
    where=("webapp/settings/config_file.py",),
    elsewhere=(
        "tests/webapp/settings/test_settings.py::test_what_is_wrong_with_the_declarations_is_named",
    ),
)
key_file = Attack(
    who="another user of this machine",
    how="reads the key of a local server, or leaves one for it",
    stopped="it is made for one user's eyes, and refused where others can read it",
    where=("webapp/settings/settings.py",),
    elsewhere=(
        "tests/webapp/settings/test_settings.py::test_the_key_of_a_local_server_is_made_once_for_this_user_only",
        "tests/webapp/settings/test_settings.py::test_a_key_file_that_others_can_read_is_refused",
        "tests/webapp/cli/test_serve.py::test_it_says_where_it_is_and_keeps_its_files_to_its_user",
    ),
)
store = Attack(
    who="whoever can read or change the store",
    how="reads answers and keys, moves a row, flips a status, puts an older row back in its place",
    stopped="rows are sealed under a key of their owner, bound to place, status and version",
    where=("webapp/records/seal.py", "webapp/records/rows.py"),
    elsewhere=(
        "tests/webapp/records/test_rows.py::test_the_store_sees_nothing_of_the_question",
        "tests/webapp/records/test_rows.py::test_bytes_of_one_row_do_not_open_in_another",
        "tests/webapp/records/test_rows.py::test_a_flipped_status_is_noticed",
        "tests/webapp/records/test_rows.py::test_an_older_version_of_a_row_does_not_open_in_its_newer_place",
        "tests/webapp/records/test_seal.py::test_another_owners_key_opens_nothing",
    ),
)
inward = Attack(
    who="a provider, an issuer or whoever owns its name",
    how="leads our requests into our own network: an inner address, a redirect, a mapped address",
    stopped=(
        "each request's address is looked at, nothing is followed or unpacked, and replies "
        "have limits"
    ),
    where=("webapp/http/client.py",),
    elsewhere=(
        "tests/webapp/http/test_outbound.py::test_nobody_inside_is_talked_to",
        "tests/webapp/http/test_outbound.py::test_an_inner_address_in_an_outer_one_is_not_talked_to",
        "tests/webapp/http/test_outbound.py::test_every_request_of_a_talk_is_looked_at",
        "tests/webapp/http/test_outbound.py::test_a_redirect_is_a_reply_and_is_not_followed",
        "tests/webapp/http/test_outbound.py::test_an_endless_reply_is_cut_off",
        "tests/webapp/http/test_outbound.py::test_what_is_packed_is_refused_unread_and_costs_no_memory",
    ),
)
foul_picture = Attack(
    who="a provider, or somebody who may name their own picture there",
    how=(
        "names an address in our network or one that leads there, a page or a drawing that runs "
        "scripts, something endless, or one that tells them who looks (a picture's address)"
    ),
    stopped=(
        "we fetch it, with nothing of anybody's; each address is looked at, only the provider's "
        "own may be on this machine, and what is not a picture by its bytes is not shown"
    ),
    where=("webapp/oauth/avatars.py", "webapp/http/client.py", "webapp/routes/pictures.py"),
    elsewhere=(
        "tests/webapp/oauth/test_avatars.py::test_nobody_else_is_asked_for_one",
        "tests/webapp/oauth/test_avatars.py::test_a_redirect_leads_nowhere_else",
        "tests/webapp/oauth/test_avatars.py::test_nothing_else_is_one_whatever_it_is_called",
        "tests/webapp/oauth/test_avatars.py::test_what_has_no_end_is_cut_off",
        "tests/webapp/oauth/test_avatars.py::test_what_is_packed_is_not_unpacked",
        "tests/webapp/oauth/test_avatars.py::test_the_request_says_nothing_of_anybody",
        "tests/webapp/routes/test_pictures.py::test_nobody_on_this_machine_is_asked_but_the_provider_itself",
        "tests/webapp/routes/test_pictures.py::test_it_can_be_shown_and_nothing_else_and_is_kept_nowhere",
    ),
)
lookalike_host = Attack(
    who="a tool's author, or the model that wrote an argument",
    how=(
        "sends an account's key to a host that looks like the provider's (a bearer sent to a "
        "foreign host)"
    ),
    stopped="the key is added where scheme, host and port are the provider's, letter by letter",
    where=("flows/oauth/account.py",),
    elsewhere=(
        "tests/attacks/test_oauth_answers.py::test_a_redirect_to_another_host_does_not_get_the_key",
    ),
)
shown_secret = Attack(
    who="whoever reads what is printed: logs, reprs, results of tools",
    how="looks for keys, contents and addresses with a token in them",
    stopped="what holds a secret has a repr without it, and cannot be serialised",
    where=("flows/oauth/account.py", "webapp/elicitations/links.py", "flows/elicitation/states.py"),
    elsewhere=(
        "tests/webapp/mcp/test_reprs.py::test_no_repr_shows_a_secret_a_content_or_an_address_with_a_token",
        "tests/webapp/records/test_rows.py::test_nothing_that_is_printed_shows_a_secret",
        "tests/webapp/settings/test_settings.py::test_nothing_printed_of_settings_shows_a_secret",
    ),
)


@another_port
async def test_a_cookie_that_another_port_has_read_opens_nothing_for_its_reader() -> None:
    async with oauth_env() as here:
        _, person, link, callback = await sent_out(here)
        page = await person.visit(link)
        name = here.service.browser.cookie_name
        # All of it, on a connection that is not our user's.
        thief = await here.person(
            cookie=f"{name}={person.browser.cookies[name]}", **{"x-forwarded-for": "203.0.113.9"}
        )
        for address in (link, callback):
            assert (await thief.visit(address)).status == 403
        csrf = here.service.browser.csrf(
            person.browser.cookies[name], subject=(await here.row(link)).id
        )
        for path in ("", "/allow", "/decline"):
            pressed = Page.of(await thief.browser.post(link + path, data={"csrf": csrf}))
            assert pressed.status == 403
            assert pressed.csrf is None
        assert page.status == 200
        assert await is_untouched(here, link)


@another_port
async def test_a_cookie_that_another_port_has_planted_makes_no_form_of_its_own_good() -> None:
    async with oauth_env() as here:
        _, person, link, _ = await sent_out(here)
        browser, planted = here.service.browser, "p" * len(here.service.browser.fresh())
        person.browser.cookies.clear()
        person.browser.cookies.set(browser.cookie_name, planted)
        before = await here.row(link)
        # Its page knows the cookie and everything else but our key.
        for field in ("", planted, "0" * 64, browser.hash(planted)):
            for headers in ({}, {"origin": "http://127.0.0.1:1"}, {"origin": "null"}):
                answer = await person.browser.post(link, data={"csrf": field}, headers=headers)
                assert answer.status_code == 403
        assert await here.row(link) == before


@another_port
async def test_two_servers_of_one_machine_read_none_of_each_others_cookies() -> None:
    async with oauth_env() as here, oauth_env() as there:
        asked = here.ask("repo")
        person, link = await here.person(), await asked.link()
        await person.visit(link)
        await person.visit(await there.ask("repo").link())
        cookies = person.browser.cookies
        assert len({here.service.browser.cookie_name, there.service.browser.cookie_name}) == 2
        names = {name.split("_")[1] for name in cookies}
        assert (len(cookies), len(names)) == (6, 2), "three each"


@folder
async def test_nothing_in_the_working_directory_is_a_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, work = tmp_path / "home", tmp_path / "unpacked"
    for name in (
        "elicit.toml",
        ".elicit.toml",
        "elicit-url/elicit.toml",
        ".config/elicit-url/elicit.toml",
        "config/elicit.toml",
    ):
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text(EVIL)
    (work / ".env").write_text("ELICIT_CONFIG=elicit.toml\nELICIT_EXPOSE=1\n")
    (work / "templates").mkdir()
    (work / "templates" / "start_url.html").write_text("planted")
    (work / ".local/share/elicit-url").mkdir(parents=True)
    (work / ".local/share/elicit-url/key").write_text("a key that somebody else knows " * 2)
    monkeypatch.chdir(work)
    settings = read_settings({"HOME": str(home)})
    assert "evil" not in settings.providers
    assert not settings.templates
    assert str(work) not in settings.store
    assert (home / ".local/share/elicit-url/key").exists()
    assert not any("evil" in repr(each) for each in settings.providers.values())


@lookalike_host
async def test_a_key_goes_to_the_providers_own_origin_and_to_no_lookalike() -> None:
    seen: list[tuple[str, str | None]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append((str(request.url), request.headers.get("Authorization")))
        return httpx.Response(200)

    async with httpx.AsyncClient(
        base_url=github.api,
        transport=httpx.MockTransport(answer),
        auth=BearerAuth(KEY, origins=github.api_hosts),
    ) as client:
        await client.get("/user")
        for address in (
            "https://api.github.com.evil.example/user",
            "https://evil.example/https://api.github.com/user",
            "https://evil.example#@api.github.com/user",
            "https://api.github.com:8443/user",
            "http://api.github.com/user",
            "https://xapi.github.com/user",
            "https://api.github.co/user",
            "https://github.com.evil.example/",
            "https://\u0430pi.github.com/user",
        ):
            await client.get(address)
    ((first, key), *others) = seen
    assert (first, key) == (f"{github.api}/user", f"Bearer {KEY}")
    assert len(others) == 9
    for address, sent in others:
        assert sent is None, address


@lookalike_host
async def test_a_user_name_in_an_address_takes_the_keys_place_nowhere() -> None:
    seen: list[tuple[str, str]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append((request.url.host, request.headers.get("Authorization", "")))
        return httpx.Response(200)

    auth = BearerAuth(KEY, origins=github.api_hosts)
    async with httpx.AsyncClient(transport=httpx.MockTransport(answer), auth=auth) as client:
        await client.get("https://api.github.com@evil.example/user")
        await client.get("https://api.github.com:443@evil.example/user")
    assert [host for host, _ in seen] == ["evil.example"] * 2
    assert not any(KEY in sent for _, sent in seen)


@lookalike_host
async def test_a_redirect_to_another_port_does_not_get_the_key() -> None:
    heard: dict[str, list[str]] = {"ours": [], "other": []}

    def telling(name: str, location: str | None) -> Any:
        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                return
            sent = dict(scope["headers"]).get(b"authorization", b"").decode()
            heard[name].append(sent)
            headers = [(b"location", location.encode())] if location else []
            status = 307 if location else 200
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": json.dumps(name).encode()})

        return app

    async with (
        serving(telling("other", None)) as other,
        serving(telling("ours", f"{other}/steal")) as ours,
        httpx.AsyncClient(
            auth=BearerAuth(KEY, origins=(ours,)), follow_redirects=True, mounts=no_proxy()
        ) as client,
    ):
        answer = await client.post(f"{ours}/user", json={})
        assert answer.json() == "other"
    assert heard == {"ours": [f"Bearer {KEY}"], "other": [""]}
