"""What is not stopped: each is said where it could be looked for, and shown where it can be."""

import logging
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import mcp_types as types
import pytest
from mcp.server.mcpserver import MCPServer

from flows import elicit
from flows.elicitation import user_code as bindings
from flows.elicitation.flow import Redirect, Talk
from flows.elicitation.user_code import UserCodeGenerator
from flows.kinds.form import FormTerms
from tests.attacks.attack import Open
from tests.support.clock import NOON, Clock
from tests.support.mcp_server import FORM, LIBRARIES, MODERN, URL, new_server, soon, staged, text_of
from tests.support.oauth_env import approve, ends, oauth_env
from tests.support.service_env import asked, process
from tests.support.serving import serving
from webapp.http.client import Outbound
from webapp.http.connection import Receive, Scope, Send
from webapp.logs.events import Events
from webapp.stores.sqlite import SqliteStore
from webapp.sweeper import fall_due

own_relay = Open(
    what="a relay that runs as our own user, speaks HTTP/1.1 and shows no header",
    why=(
        "it is the same to us as that user's browser: nginx so configured, socat, `ssh -R`, a "
        "rootless container in our network namespace"
    ),
    instead="let people sign in (ELICIT_ISSUER) on a server that others shall reach",
    where=("webapp/identity/local_peer.py",),
    elsewhere=(
        "tests/webapp/identity/test_local_peer.py::test_a_relay_of_our_own_user_that_shows_nothing_passes_for_us",
    ),
)
one_user = Open(
    what="programs of one user, people who share an account, a server that runs as root",
    why=(
        "this machine tells users apart, not programs or people; a local client's name is its own "
        "word, and approvals there go by it; every relay of root's is root"
    ),
    instead="run the server as a user of its own; sign in where people share a machine's account",
    where=("webapp/identity/local_peer.py",),
)
same_store = Open(
    what="a program that has the store and its key, or stands in the served server's own module",
    why=(
        "with both everything can be read; a name is tied to the file and the attribute it was "
        "served from first, by `elicit serve` and `elicit stdio`, and whoever writes that file, or "
        "serves by `open_app`, is that server"
    ),
    instead="give servers that do not trust each other a store and a secret of their own",
    where=("webapp/cli/servers.py",),
    elsewhere=(
        "tests/webapp/cli/test_servers.py::test_another_server_of_the_same_name_is_not_served_until_the_operator_says_so",
    ),
)
leaked = Open(
    what="the secret and a copy of the store, in the hands of somebody else",
    why="all that is in the copy opens, and a plain rotation leaves the data keys as they are",
    instead="`elicit keys rotate --after-leak`, twice, and `elicit keys retire OLD --anyway`; "
    "connect accounts again, and replace what people typed",
    where=("webapp/cli/resealing.py", "webapp/cli/keys.py"),
    elsewhere=(
        "tests/webapp/records/test_resealing.py::test_the_old_secret_and_an_old_copy_open_nothing_afterwards",
    ),
)
shell = Open(
    what="a model with a shell on the computer of the person",
    why="what it starts is a program of that person's: it fetches the page of a gate and presses "
    "yes, also for an hour, or calls the tool as a client of its own that says yes in a form",
    instead="`ELICIT_LOCAL_YES=paired`: a gate is answered in a browser alone that was paired. "
    "That stops what can only fetch; whoever can run `elicit pair`, read the key file or use the "
    "person's own browser needs a user of its own, or a sandbox that has neither",
    where=("webapp/identity/identity.py", "webapp/mcp/presenters/choice.py"),
    elsewhere=(
        "tests/webapp/mcp/test_pairing.py::test_a_program_that_fetches_the_gates_page_presses_no_yes_where_it_must_be_paired",
        "tests/webapp/mcp/test_pairing.py::test_no_clients_form_opens_a_gate_where_the_yes_is_a_paired_browsers",
    ),
)
lent_connection = Open(
    what="a program that hands an open connection of its own to another user",
    why="the uid of a socket is that of whoever made it",
    instead="nothing: it has lent its name",
    where=("webapp/identity/local_peer.py",),
)
cookies_of_all_ports = Open(
    what="any port of 127.0.0.1 reads and overwrites our cookies in a browser that visits both",
    why="browsers do not keep cookies of one host apart by port",
    instead="serve over https under a name of its own, where cookies are `__Host-`",
    where=("webapp/http/browser.py", "webapp/identity/sessions.py"),
)
letters_read_out = Open(
    what="the letters of the code, read out to somebody else",
    why="whoever types them vouches for the browser that shows them, whoever sits there",
    instead="let people sign in; the page and the chat both say never to pass letters on",
    where=("flows/elicitation/user_code.py",),
)
printed_key = Open(
    what="the key and the pairing address that `elicit pair` prints, in somebody else's hands",
    why="where this machine cannot tell its users apart, they stand for who runs the server",
    instead="print them into your own terminal only; removing their secret from the ring ends them",
    where=("webapp/identity/pairing.py",),
    elsewhere=(
        "tests/webapp/mcp/test_pairing.py::test_with_the_key_and_a_paired_browser_it_works",
    ),
)
device_phishing = Open(
    what="a device code that is sent to somebody else to enter",
    why="what comes back is of whoever entered the code, in any browser (RFC 8628, 5.4)",
    instead="connect by a browser here; the person is shown before the account is used",
    where=("flows/oauth/device_flow.py",),
)
whose_account = Open(
    what="the account that a provider knows the asker's browser by",
    why="who is signed in there is the provider's to know: it may be somebody else's account",
    instead="read the last page, which names the account, and take another one if it is wrong",
    where=("webapp/routes/callbacks.py",),
)
stolen_browser = Open(
    what="a session's cookie that was copied out of a browser",
    why="it is all that a browser has to show",
    instead="sign out: that ends every copy; else eight idle hours or seven days do",
    where=("webapp/identity/sessions.py",),
    elsewhere=("tests/webapp/identity/test_sessions.py::test_a_signed_in_browser_is_known",),
)
stolen_bearer = Open(
    what="an access token of a caller that was stolen, until it expires",
    why=(
        "it is a bearer's: the thief calls the tools as the caller, with the accounts that those "
        "may use; only the caller answers a new question"
    ),
    instead="short lives at the issuer",
    where=("webapp/identity/bearer_auth.py",),
    elsewhere=(
        "tests/webapp/identity/test_bearer_auth.py::test_a_caller_with_a_good_token_goes_through_and_is_known",
    ),
)
callback_address = Open(
    what="the callback address that an author's service was given",
    why="it completes by itself, for services that have no browser: whoever reads it can say done",
    instead="complete by the return token, which needs the browser too",
    where=("webapp/routes/returns.py", "webapp/completion.py"),
    elsewhere=(
        "tests/webapp/elicitations/test_completion.py::test_a_callback_works_once_the_link_was_opened",
    ),
)
authors_route = Open(
    what="a public route of an author's that completes by an id from its request",
    why="`complete_elicitation(id)` is for trusted code and believes its caller",
    instead="give it the request, not the id: then the return token and the browser count",
    where=("webapp/completion.py",),
    elsewhere=(
        "tests/webapp/mcp/test_path.py::test_a_route_of_the_authors_completes_by_id_in_trusted_code",
    ),
)
tools_code = Open(
    what="a tool's own code",
    why="it runs in our process and holds the account's key: it can send it anywhere",
    instead="serve only tools that you would run anyway",
    where=("flows/oauth/account.py",),
)
past_the_gate = Open(
    what="what a tool's own code does, such as a plain call of a gated tool's function",
    why="a gate stands before calls of a client's and of FastMCP's middleware, and not in the code",
    instead="`elicit.confirm` in the function itself asks whoever calls it",
    where=("webapp/mcp/before.py", "webapp/mcp/inner_calls.py"),
)
proxied_marks = Open(
    what="the marks of tools on a server behind a proxy of FastMCP's",
    why="a proxy knows what stands on the wire: the annotation, and no mark of another server's",
    instead="annotate them as destructive there, or name them in ELICIT_GATE here",
    where=("flows/kinds/gate.py", "webapp/mcp/tools.py"),
)
form_robot = Open(
    what="a client that answers forms and gates by itself, without a person",
    why="in form mode whoever answers is the client's to know, and we have its word",
    instead=(
        "use clients that show forms to people; accounts, payments and secrets are pages of ours "
        "for every client"
    ),
    where=("webapp/mcp/forms.py",),
)
tools_words = Open(
    what="words of a tool or a model on our page that lie",
    why="they are shown as a quotation, plain and short, and may still persuade",
    instead="read what the page says in its own words: who, where and how much",
    where=("webapp/pages/renderer.py",),
    elsewhere=(
        "tests/webapp/pages/test_words.py::test_the_tools_message_is_a_quotation_with_its_lines",
    ),
)
exception_text = Open(
    what="a secret in an author's exception",
    why="a traceback that is logged shows the exception's own words",
    instead="keep secrets out of exceptions; ours carry none",
    where=("webapp/logs/events.py",),
)
lost_exchange = Open(
    what="a grant at the provider that we know nothing of, after a crash during the exchange",
    why="the code may be spent and the reply lost; repeating it is forbidden",
    instead="remove it at the provider: the page says where",
    where=("webapp/oauth/accounts.py", "webapp/pages/builder.py"),
    elsewhere=(
        "tests/crash/test_account_points.py::test_a_code_whose_reply_was_lost_has_failed_and_the_page_says_so",
    ),
)
lost_refresh = Open(
    what="an account whose refresh was answered and not stored, at a provider that rotates",
    why="the old pair is dead with the answer, and the new one never arrived",
    instead="connect again: it is asked once, not at every call",
    where=("flows/oauth/refresh.py",),
    elsewhere=(
        "tests/crash/test_renewal_points.py::test_an_answer_that_was_lost_costs_one_question_and_no_storm",
    ),
)
work_done_twice = Open(
    what="work of `once` that was done and not written down before a crash",
    why="nobody can write down what another system did in the same instant",
    instead="give the idempotency key that the work gets to that system",
    where=("webapp/calls/once.py",),
    elsewhere=(
        "tests/crash/test_points.py::test_work_that_was_done_and_not_written_is_done_again_under_the_same_key",
    ),
)
second_lookup = Open(
    what="an owner of a provider's name who answers its second look-up with an inner address",
    why="a name is looked at before the request, and looked up again when it is sent",
    instead="an outbound firewall where issuers and providers are not trusted",
    where=("webapp/http/client.py",),
)
many_addresses = Open(
    what="whoever has more than ten thousand addresses",
    why="limits by address are kept for that many; limits by elicitation hold all the same",
    instead="a limit in front of the server",
    where=("webapp/http/rate_limit.py",),
    elsewhere=(
        "tests/webapp/http/test_rates.py::test_no_more_keys_are_kept_than_allowed_and_the_idlest_makes_room",
    ),
)
form_targets = Open(
    what="a form of ours that was made to lead to another https address",
    why="browsers hold every redirect after a form to `form-action`, so all of https is allowed",
    instead="nothing: no text of others becomes markup on our pages",
    where=("webapp/routes/links.py",),
    elsewhere=(
        "tests/webapp/routes/test_security_headers.py::test_a_form_that_leads_on_names_where",
    ),
)
home_page = Open(
    what="the names of a server's tools, where nobody signs in",
    why="the home page shows them to everybody who reaches it",
    instead="ELICIT_ISSUER; or a name that may be known",
    where=("webapp/routes/home.py",),
)
old_store = Open(
    what="a store that was put back from a backup as a whole",
    why="each row fits its place: what was used, answered or signed out since is as it was",
    instead="know that what was used since then can be used again",
    where=("webapp/stores/sqlite.py",),
)
row_put_back = Open(
    what="one row of the store's file put back as it was, with its version",
    why="it fits its place, and nothing outside it says how far it had come: an approval that was "
    "revoked is given again, an account that was disconnected is connected here, a receipt unspent",
    instead="keep others from the file: it is refused when they can write it",
    where=("webapp/records/seal.py", "webapp/stores/permissions.py"),
    elsewhere=(
        "tests/webapp/records/test_seal.py::test_what_was_moved_to_another_row_does_not_open",
    ),
)
times_moved = Open(
    what="whoever writes the store's file moves when a row is due, or erased",
    why="both stand outside what is sealed, as the store must find rows by them; a row that is "
    "gone too early is gone, as if it had been deleted, and what is in it cannot be changed so",
    instead="keep others from the file: it is refused when they can write it",
    where=("webapp/records/rows.py", "webapp/stores/schema.sql"),
)
keys_kept = Open(
    what="a key that the issuer has withdrawn while its own server does not answer",
    why="the keys from before go on for a day then, or nobody would get in while it is down",
    instead="start the server again: it has no keys until the issuer answers",
    where=("webapp/identity/issuer.py",),
    elsewhere=(
        "tests/webapp/identity/test_issuer.py::test_an_issuer_that_is_down_leaves_its_keys_for_a_day",
    ),
)
windows = Open(
    what="Windows",
    why="users, key files and connections are told apart by means of Linux and macOS",
    instead="run it there in a Linux of its own",
    where=("webapp/settings/settings.py", "webapp/identity/local_peer.py"),
)


@cookies_of_all_ports
async def test_another_port_of_this_machine_reads_our_cookie() -> None:
    heard: list[str] = []

    async def listening(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            heard.append(dict(scope["headers"]).get(b"cookie", b"").decode())
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b""})

    async with oauth_env() as here, serving(listening) as other:
        asked, person = here.ask("repo"), await here.person()
        await person.visit(await asked.link())
        await person.visit(other)
        held = [f"{name}={value}" for name, value in person.browser.cookies.items() if value]
        assert heard == ["; ".join(held)]
        assert here.service.browser.cookie_name in heard[0]


@letters_read_out
def test_whoever_types_the_letters_vouches_for_the_browser_that_shows_them() -> None:
    codes = UserCodeGenerator(lambda: [b"k" * 32])
    strangers = bindings.bind(None, browser="a stranger's")
    (code,) = strangers.codes
    read_out = codes.user_code("e", code)
    confirmed = codes.confirm("e", strangers, typed=read_out, now=NOON)
    assert bindings.is_confirmed(confirmed, browser="a stranger's")


@whose_account
async def test_whoever_is_signed_in_at_the_provider_is_connected_and_named() -> None:
    async with oauth_env() as here:
        asked, person = here.ask("repo"), await here.person()
        callback = await approve(person, await person.go_on(await asked.link()), person="hubot")
        page = await ends(person, await person.visit(callback))
        assert (await asked.account()).label == "hubot"
        assert "hubot" in page.text


@past_the_gate
@pytest.mark.parametrize("library", LIBRARIES)
async def test_a_tool_that_calls_a_gated_ones_function_asks_nobody(library: str) -> None:
    server = new_server(library)

    @elicit.gate
    def wipe() -> str:
        return "wiped"

    @server.tool()
    def tidy() -> str:
        return wipe()

    server.tool()(wipe)
    async with (
        staged(server) as stage,
        stage.caller(MODERN, declares=FORM, fills=["decline"]) as caller,
    ):
        assert text_of(await soon(caller.call("tidy"))) == "wiped"
        assert not caller.forms
        assert (await soon(caller.call("wipe"))).is_error


@proxied_marks
async def test_a_mark_on_the_other_side_of_a_proxy_is_not_seen_and_an_annotation_is() -> None:
    from fastmcp import FastMCP
    from fastmcp.server import create_proxy

    behind: Any = FastMCP("behind")

    @behind.tool
    @elicit.gate
    def marked() -> str:
        return "done"

    @behind.tool(annotations=types.ToolAnnotations(destructive_hint=True))
    def annotated() -> str:
        return "done"

    async with (
        staged(create_proxy(behind, name="shop")) as stage,
        stage.caller(MODERN, declares=FORM, fills=["decline"]) as caller,
    ):
        assert text_of(await soon(caller.call("marked"))) == "done"
        assert not caller.forms
        assert (await soon(caller.call("annotated"))).is_error
        assert len(caller.forms) == 1


@form_robot
@pytest.mark.parametrize("library", LIBRARIES)
async def test_a_client_that_says_yes_for_everybody_is_believed(library: str) -> None:
    server = new_server(library)

    @server.tool()
    @elicit.gate
    def wipe() -> str:
        return "wiped"

    async with (
        staged(server) as stage,
        stage.caller(MODERN, declares=FORM, fills=[{}]) as robot,
    ):
        assert text_of(await soon(robot.call("wipe"))) == "wiped"


@exception_text
def test_an_authors_exception_is_logged_in_its_own_words() -> None:
    error = RuntimeError("no luck with the-key")
    about = (RuntimeError, error, None)
    record = logging.LogRecord("webapp", logging.ERROR, "", 0, "route.failed", (), about)
    assert "no luck with the-key" in Events().format(record)


@second_lookup
async def test_a_name_that_was_looked_at_is_looked_up_again_when_it_is_sent() -> None:
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.host)
        return httpx.Response(200)

    async def looked_up(host: str, port: int) -> list[str]:
        return ["93.184.215.14"]

    def talk() -> Talk[Redirect]:
        yield httpx.Request("GET", "https://login.example/")
        return Redirect(url="https://login.example/")

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
        outbound = Outbound(client, allow_loopback=False, resolve=looked_up)
        await outbound.run(talk())
    assert asked == ["login.example"]  # the name, and not the address that was looked at


@home_page
async def test_a_stranger_reads_the_names_of_the_tools() -> None:
    server: Any = MCPServer("shop")

    @server.tool()
    async def sell_the_house() -> None:
        """Sell it."""

    async with oauth_env(server=server) as here:
        stranger = await here.person(**{"x-forwarded-for": "203.0.113.9"})
        page = await stranger.visit(here.url)
        assert page.status == 200
        assert "sell_the_house" in page.text


@times_moved
async def test_a_row_whose_time_was_moved_is_erased_early_and_opens_until_then(
    tmp_path: Path,
) -> None:
    # finding: S26
    clock, place = Clock(), tmp_path / "elicit.db"
    store = await SqliteStore.open(place)
    async with process(store, clock) as here:
        elicitation = await asked(here)
        with closing(sqlite3.connect(place)) as theirs, theirs:
            theirs.execute("UPDATE records SET erase_at = 1 WHERE kind = 'elicitation'")
        assert await here.elicitations.get(elicitation.id) == elicitation
        await fall_due(here)
        assert await here.elicitations.get(elicitation.id) is None
    await store.aclose()


@row_put_back
async def test_an_approval_that_was_revoked_is_given_again_by_a_row_that_is_put_back(
    tmp_path: Path,
) -> None:
    # finding: S25
    place = tmp_path / "elicit.db"
    store = await SqliteStore.open(place)
    columns = "SELECT status, version, sealed FROM records WHERE kind = 'approval'"
    back = "UPDATE records SET status = ?, version = ?, sealed = ? WHERE kind = 'approval'"
    async with process(store, Clock()) as here:
        gate = await asked(here, kind="gate")
        terms = FormTerms(schema={}, covers="these arguments", arguments={}, can_be_kept=True)
        approvals = here.kinds.gates.approvals
        await here.elicitations.write(
            await approvals.given(gate, terms, is_wide=False, is_for_all=False)
        )
        with closing(sqlite3.connect(place)) as theirs, theirs:
            row = theirs.execute(columns).fetchone()
        assert await approvals.clear() == 1
        assert await approvals.all() == []
        with closing(sqlite3.connect(place)) as theirs, theirs:
            theirs.execute(back, row)
        assert len(await approvals.all()) == 1
    await store.aclose()


@shell
async def test_a_program_of_the_person_presses_the_yes_of_a_gates_page() -> None:
    # finding: S20
    server = new_server("mcp")

    @server.tool()
    @elicit.gate
    async def wipe() -> str:
        return "wiped"

    async with staged(server) as stage, stage.caller(MODERN, declares=URL) as caller:
        call = caller.call("wipe")
        program = await stage.person()  # no browser: it fetches and sends
        link = await caller.link()
        page = await program.visit(link)
        await program.browser.post(link, data={"csrf": page.csrf, "remember": "1"})
        assert text_of(await soon(call)) == "wiped"
