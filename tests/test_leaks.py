"""Tests that the plugin of tests/support/leaks.py reads every output and reports only leaks."""

import ast
import base64
import json
import logging
import os
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp import MCPError

from flows.crypto.tokens import Claims, Purpose, Ring, Tokens
from flows.errors import Failed
from tests.crash.server import Orders
from tests.crash.shop_env import open_process_pool
from tests.oidc.env import OpenIdProvider
from tests.support import processes
from tests.support.cli import run
from tests.support.cli import serving as serving_elicit
from tests.support.contenders import contender
from tests.support.desktop import Desktop
from tests.support.leaks import (
    LEAKS,
    Deaf,
    LeakFound,
    LeakSearch,
    Secrets,
    failures_in,
    kinds_in,
    overheard,
    visible,
)
from tests.support.samples import finish_at_the_checkout
from tests.support.serving import serving, transport_to
from tests.typescript.conformance import checked
from tests.typescript.env import CLIENTS, calling
from webapp.http.exchange import ASGIApp, Receive, Scope, Send
from webapp.records.ids import OWNER_TAG_CHARACTERS, fresh_id

PROJECT = Path(__file__).parent.parent
NOW = datetime(2026, 7, 1, tzinfo=UTC)
RANDOM = "vJ8c2-Qq0aZkWm4rT6yU1x_pLsD9fGhE"
CLAIMS = Claims(purpose=Purpose.LINK, id="a" * 24, expires_at=NOW + timedelta(minutes=5))
TOKEN = Tokens(Ring([b"k" * 32]), origin="https://shop.example").mint(CLAIMS, now=NOW)
JWT = "eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJhIn0.c2lnbmVk"

LEAKING_TEXTS = {
    "token": f"unread {TOKEN}",
    "JWT": f"refused {JWT}",
    "link": f"shown https://shop.example/e/{TOKEN[:40]}",
    "pairing": f"open http://127.0.0.1:8765/pair/{TOKEN[:40]}",
    "callback": "GET /signin/callback?error=denied",
    "code": "GET https://shop.example/x?code=4711",
    "state": "GET https://shop.example/x?a=b&state=4711",
    "access token by name": f"{{'access_token': '{RANDOM}'}}",
    "verifier": f"code_verifier={RANDOM}",
    "cookie": f"Cookie: elicit_8765={RANDOM}",
    "session": f"__Host-elicit-session={RANDOM}",
    "sign-in cookie": f"elicit_signin_8765={RANDOM}",
    "bearer": f"Authorization: Bearer {RANDOM}",
    "github": "gho_sandbox_abcdef",
    "slack": "xoxe-1-sandbox-abcdef",
    "stripe": "sk_test_sandbox_abcdef",
    "webhook": "whsec_abcdef",
    "sandbox": "sandbox_rt_abcdef",
    "user code": "typed BCDF-GHJK",
    "email": "no account for ada@shop.example",
}
HARMLESS = {
    "ids": "webapp.routes.links provider.failed error_id=5f0a77c1d2e3 id=q1Zk",
    "our code": "guard.refused code=host_refused",
    "a code of JSON-RPC": "client.elicitation_failed code=-32042",
    "templates": "GET /e/{token} and /pair/{token} and /callback/{provider}",
    "a challenge": 'Bearer error="invalid_token", scope="shop", resource_metadata="https://a/b"',
    "prose": "A bearer token is needed; the access_token is missing, and no cookie came.",
    "a decorator": "@mcp.tool()",
    "source": "client_secret=sandbox.client_secret, access_token=reply.access_token",
    "an address": "https://shop.example/signin and http://127.0.0.1:8765/connections?page=2",
    "the name of a cookie": "elicit_session_8765 is not set",
    "a digest": "AQ" + "a1b2c3d4" * 8,
    "a package": "mcp@2.3.0 git@ 5 @ 3",
}


@pytest.mark.parametrize("text", LEAKING_TEXTS.values(), ids=LEAKING_TEXTS)
def test_secret_with_known_form_is_recognized(text: str) -> None:
    assert kinds_in(text)


def test_each_alternative_of_a_form_is_recognized() -> None:
    starts = ("gho_", "ghp_", "ghr_", "ghs_", "ghu_", "github_pat_", "glpat-", "xoxb-", "xoxe-1-")
    sandbox_starts = (
        "ya29.",
        "sandbox_at_",
        "sandbox_rt_",
        "sk_test_",
        "sk_live_",
        "rk_live_",
        "whsec_",
    )
    places = ("/e/", "/pair/", "/callback/x?a=", "/return?a=", "/signin?a=", "?code=", "&state=")
    names = ("access_token=", "user_code: ", "Bearer ", "bearer ", "__Host-elicit=", "elicit_1=")
    for start in (*starts, *sandbox_starts, *places, *names):
        assert kinds_in(f"Say {start}a1b2c3d4e5f6g7h8i9"), start


@pytest.mark.parametrize("text", HARMLESS.values(), ids=HARMLESS)
def test_harmless_text_is_not_reported(text: str) -> None:
    assert not kinds_in(text)


def test_text_shaped_like_token_without_envelope_is_not_reported() -> None:
    assert not kinds_in("AR" + TOKEN[2:])


def record(message: str, *args: object, **about: Any) -> logging.LogRecord:
    made = logging.makeLogRecord({"name": "webapp.shop", "levelno": logging.INFO})
    vars(made).update({"msg": message, "args": args, "levelname": "INFO", **about})
    return made


def caught(error: Exception) -> tuple[Any, ...]:
    failed = Failed("the provider")
    failed.__cause__ = error
    return (Failed, failed, None)


@pytest.mark.parametrize(
    "logged",
    [
        record("who %s", "ada@shop.example"),
        record("shop.opened", who="ada@shop.example"),
        record("shop.opened", who={"person": ["ada@shop.example"]}),
        record("who ada@shop.example"),
        record("shop.opened", name="mcp.server", levelno=logging.WARNING, who="ada@shop.example"),
    ],
    ids=["arguments", "extra", "nested", "message", "another's"],
)
def test_log_record_is_checked_with_all_its_arguments(logged: logging.LogRecord) -> None:
    leaks = LeakSearch()
    leaks.handler.handle(logged)
    (found,) = leaks.findings()
    assert found.endswith(": email")
    assert logged.name in found
    assert "ada" not in found


def test_library_log_record_is_checked_with_its_exception() -> None:
    leaks = LeakSearch()
    error = caught(ValueError("no ada@shop.example"))
    leaks.handler.handle(record("broke", name="uvicorn.error", levelno=40, exc_info=error))
    assert len(leaks.findings()) == 1


def test_log_record_is_not_changed_by_check() -> None:
    logged = record("broke", exc_info=caught(ValueError("it")))
    LeakSearch().handler.handle(logged)
    assert logged.exc_text is None


@pytest.mark.parametrize(
    ("name", "level", "is_checked"),
    [
        ("webapp.app", logging.DEBUG, True),
        ("flows", logging.DEBUG, True),
        ("litestar", logging.INFO, True),
        ("asyncio", logging.DEBUG, False),
        ("httpx", logging.INFO, False),
        ("httpx", logging.WARNING, True),
        ("mcp.server.mcpserver", logging.INFO, False),
    ],
)
def test_log_records_hidden_in_production_are_not_checked(
    name: str, level: int, is_checked: bool
) -> None:
    leaks = LeakSearch()
    leaks.handler.handle(record("to ada@shop.example", name=name, levelno=level))
    assert bool(leaks.findings()) is is_checked


def test_logger_without_propagation_is_checked() -> None:
    logger = logging.getLogger("shop.alone")
    logger.propagate = False
    leaks = LeakSearch()
    try:
        leaks.begin()
        logger.warning("to %s", "ada@shop.example")
        assert len(leaks.findings()) == 1
    finally:
        leaks.close()
        logger.propagate = True
    assert not logger.handlers


def test_text_logged_before_secret_was_noted_is_a_leak() -> None:
    leaks = LeakSearch()
    leaks.check("shop", f"began with {RANDOM}")
    assert not leaks.findings()
    leaks.secrets.note("state", RANDOM)
    with pytest.raises(LeakFound, match="leaked: shop: state"):
        leaks.raise_new_leaks()
    leaks.raise_new_leaks()  # each leak is reported once


def test_part_of_a_long_secret_is_a_leak() -> None:
    secrets = Secrets()
    secrets.note("token", TOKEN)
    assert secrets.in_text(TOKEN[20:70]) == {"token"}
    assert not secrets.in_text(TOKEN[:20])


def test_id_with_the_form_of_a_key_is_not_a_leak() -> None:
    handler = (leaks := LeakSearch()).handler
    random = base64.urlsafe_b64decode("-gho_a1b2c3d4e5f")
    id = fresh_id("o" * OWNER_TAG_CHARACTERS, now=datetime.now(UTC), random=random)
    assert kinds_in(id) == {"key"}
    leaks.check("standard error of elicit serve", f"elicitation.asked id={id} kind=form")
    handler.handle(record("elicitation.asked", id=id))
    assert not leaks.findings()
    handler.handle(record("call.woken", call="-gho_a1b2c3d4e5f"))
    assert not leaks.findings()
    handler.handle(record("elicitation.asked", id="gho_a1b2c3d4e5f"))
    assert leaks.findings() == ["INFO webapp.shop: elicitation.asked: key"]


async def shop(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with the request's body. The path selects the status and the content type."""
    body = (await receive()).get("body", b"")
    status, kind = {
        "/problem": (403, b"application/problem+json"),
        "/page": (404, b"text/html; charset=utf-8"),
        "/fine": (200, b"text/html; charset=utf-8"),
        "/metrics": (200, b"text/plain; version=0.0.4"),
        "/mcp": (200, b"text/event-stream"),
    }.get(scope["path"], (200, b"text/plain"))
    headers = [(b"content-type", kind), (b"set-cookie", f"shop={RANDOM}; Path=/".encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body[:9], "more_body": True})
    await send({"type": "http.response.body", "body": body[9:]})


async def traded(path: str, leaks: LeakSearch, *, app: ASGIApp = shop, **options: Any) -> list[str]:
    transport = httpx.ASGITransport(overheard(app, leaks))
    async with httpx.AsyncClient(transport=transport, base_url="http://a") as client:
        await client.post(path, **options)
    return leaks.findings()


@pytest.mark.parametrize("path", ["/problem", "/page", "/metrics"])
@pytest.mark.parametrize("text", ["who is ada@shop.example", f"your shop is {RANDOM}"])
async def test_public_responses_are_checked(path: str, text: str) -> None:
    assert await traded(path, LeakSearch(), content=text)


async def test_secrets_on_a_persons_own_page_are_not_a_leak() -> None:
    form = f'<form action="/e/{TOKEN}"><input value="{RANDOM}"></form><p>Not found</p>'
    assert not await traded("/page", LeakSearch(), content=form)
    assert not await traded("/fine", LeakSearch(), content="Hello ada@shop.example")
    assert visible("<title>a</title><p class='b'>c &amp; d</p>").split() == ["c", "&", "d"]


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"headers": {"authorization": f"Bearer {RANDOM[1:]}"}}, "bearer"),
        ({"headers": {"cookie": f"a=b; c={RANDOM[1:]}"}}, "cookie"),
        ({"params": {"state": RANDOM[1:]}}, "state"),
        ({"data": {"code_verifier": RANDOM[1:]}}, "code_verifier"),
        ({"json": {"params": {"requestState": RANDOM[1:]}}}, "requestState"),
        ({"auth": ("shop", RANDOM[1:])}, "password"),
    ],
)
async def test_secret_of_earlier_request_in_output_is_a_leak(options: Any, kind: str) -> None:
    leaks = LeakSearch()
    assert not await traded("/", leaks, **options)
    leaks.check("shop", f"knows {RANDOM[1:]}")
    assert leaks.findings() == [f"shop: {kind}"]


async def test_typed_secret_in_output_is_a_leak() -> None:
    leaks = LeakSearch()
    await traded(f"/e/{TOKEN}", leaks, data={"answer": "correct horse battery"})
    leaks.check("shop", "got correct horse battery")
    assert leaks.findings() == ["shop: typed"]


async def test_failed_tool_result_is_checked() -> None:
    failed = {"isError": True, "content": [{"type": "text", "text": "not ada@shop.example"}]}
    answer = {"jsonrpc": "2.0", "id": 1, "result": failed}
    leaks = LeakSearch()
    assert await traded("/mcp", leaks, content=f"event: message\ndata: {json.dumps(answer)}\n\n")
    fine = {**answer, "result": {**failed, "isError": False}}
    assert not await traded("/mcp", LeakSearch(), content=f"data: {json.dumps(fine)}\n\n")


def test_link_in_elicitation_error_is_not_a_leak() -> None:
    data = {"elicitations": [{"url": f"https://shop.example/e/{TOKEN}"}]}
    assert list(failures_in({"error": {"code": -32042, "message": "Open", "data": data}})) == [
        "Open"
    ]


def test_offered_link_in_result_is_allowed_but_no_other_link() -> None:
    link = f"https://shop.example/e/{TOKEN}"
    pending = {"elicitationPending": {"url": link}}
    content = [{"type": "text", "text": f"Open {link} now"}]
    result = {"isError": True, "_meta": pending, "content": content}
    assert not any(kinds_in(failure) for failure in failures_in({"result": result}))
    assert any(kinds_in(failure) for failure in failures_in({"result": {**result, "_meta": None}}))


def test_several_offered_links_in_result_are_allowed() -> None:
    links = [f"https://shop.example/e/{TOKEN}{end}" for end in "abc"]
    offered = [{"url": link} for link in links[:2]]
    meta = {"elicitationPending": offered[0], "elicitationsPending": offered}

    def result(*texts: str) -> dict[str, Any]:
        content = [{"type": "text", "text": f"Open {link}"} for link in texts]
        return {"isError": True, "_meta": meta, "content": content}

    assert not any(kinds_in(failure) for failure in failures_in({"result": result(*links[:2])}))
    assert any(kinds_in(failure) for failure in failures_in({"result": result(*links)}))


SUITE = f"""
import logging, subprocess, sys
log = logging.getLogger("webapp.shop")
CHILD = "import sys; print('to ada@' + 'shop.example', file=sys.stderr)"

def test_a_log():
    log.info("to %s", "ada@" + "shop.example")

def test_what_is_fine():
    log.info("fine")

def test_a_child_that_inherits():
    subprocess.run([sys.executable, "-I", "-S", "-c", CHILD], check=True)

def test_what_is_printed():
    print("open https://shop.example/e/" + {TOKEN[:40]!r})

def test_deaf():
    logging.getLogger().handlers.clear()

async def test_a_child_that_is_heard():
    from tests.support import processes
    child = await processes.start(sys.executable, "-I", "-S", "-c", CHILD, name="the child")
    await processes.ended(child)

async def test_a_child_of_a_test_that_fails():
    from tests.support import processes
    said = "import sys; print('out ' + 'of tea', file=sys.stderr)"
    child = await processes.start(sys.executable, "-I", "-S", "-c", said, name="the child")
    await processes.ended(child)
    assert False
"""


async def test_test_with_leak_fails_and_names_the_leak(tmp_path: Path) -> None:
    (tmp_path / "test_shop.py").write_text(SUITE)
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n"
    )
    options = (
        "-q",
        "-ra",
        "--show-capture=stderr",
        "-p",
        "no:cacheprovider",
        "-p",
        "tests.support.leaks",
    )
    ran = await processes.start(
        *(sys.executable, "-m", "pytest", *options, "--rootdir", str(tmp_path), str(tmp_path)),
        name="pytest",
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
    )
    end = await processes.ended(ran)
    assert "6 failed, 1 passed" in end.out, end.out + end.err
    for name, report in {
        "a_log": "leaked: INFO webapp.shop: to %s: email",
        "a_child_that_inherits": "leaked: captured stderr: email",
        "what_is_printed": "leaked: captured stdout: link",
        "deaf": "not heard any more: root, webapp, flows",
        "a_child_that_is_heard": "leaked: standard error of the child: email",
        "a_child_of_a_test_that_fails": "assert False",
    }.items():
        assert f"test_{name} - " in end.out
        assert report in end.out
    assert "out of tea" in end.out


def test_leak_check_covers_this_test() -> None:
    logging.getLogger("webapp.shop").debug("to %s", "ada@shop.example")
    with pytest.raises(LeakFound, match=r"DEBUG webapp\.shop: to %s: email"):
        LEAKS.raise_new_leaks()


@pytest.mark.parametrize("has_port", [True, False])
@pytest.mark.parametrize("path", ["/problem", "/page"])
async def test_responses_served_in_a_test_are_checked(path: str, has_port: bool) -> None:
    if has_port:
        async with serving(shop) as url, httpx.AsyncClient() as client:
            await client.post(f"{url}{path}", content=f"unread {TOKEN}")
    else:
        transport = transport_to(shop)
        async with httpx.AsyncClient(transport=transport, base_url="http://a") as client:
            await client.post(path, content=f"unread {TOKEN}")
    with pytest.raises(LeakFound, match=rf"leaked: {path[1:]} 40\d of POST {path}: token"):
        LEAKS.raise_new_leaks()


@pytest.fixture
def leaking(tmp_path: Path) -> dict[str, str]:
    """Return environment variables that make each started Python process leak and end."""
    program = f"import os, sys\nsys.stderr.write('unread {TOKEN}\\n')\nos._exit(3)\n"
    (tmp_path / "sitecustomize.py").write_text(program)
    return {"PYTHONPATH": str(tmp_path)}


@pytest.fixture
def leaking_program(tmp_path: Path) -> str:
    """Return a program that leaks, whatever its arguments."""
    program = tmp_path / "leaking"
    program.write_text(f"#!/bin/sh\necho unread {TOKEN} >&2\nexit 3\n")
    program.chmod(0o700)
    return str(program)


def assert_watched(name: str) -> None:
    with pytest.raises(LeakFound) as found:
        LEAKS.raise_new_leaks()
    assert str(found.value) == f"leaked: standard error of {name}: token"


async def test_output_of_each_command_is_checked(tmp_path: Path, leaking: dict[str, str]) -> None:
    assert (await run("keys", "list", home=tmp_path, extra=leaking)).status == 3
    assert_watched("elicit keys")
    with pytest.raises(AssertionError, match="it ended before it printed"):
        async with serving_elicit(home=tmp_path, extra=leaking):
            pass
    assert_watched("elicit serve")


async def test_output_of_stdio_server_is_checked(tmp_path: Path, leaking: dict[str, str]) -> None:
    desktop = Desktop(home=tmp_path, port=1, more=leaking)
    with pytest.raises((ExceptionGroup, MCPError)):
        async with desktop.client():
            pass
    assert_watched("elicit stdio")


async def test_output_of_readme_program_is_checked(tmp_path: Path, leaking: dict[str, str]) -> None:
    assert not await finish_at_the_checkout(tmp_path, "4711", leaking)
    assert_watched("finish.py")


async def test_output_of_typescript_clients_is_checked(
    tmp_path: Path, leaking_program: str
) -> None:
    with pytest.raises(AssertionError, match="the client ended"):
        async with calling(leaking_program, CLIENTS[0], "http://a", declares=None):
            pass
    assert_watched("the client")
    with pytest.raises(AssertionError):
        await checked(leaking_program, "http://a", "2025-11-25", tmp_path)
    assert_watched("the conformance suite")


def test_output_of_openid_provider_is_checked(leaking_program: str) -> None:
    with pytest.raises((RuntimeError, BrokenPipeError)), OpenIdProvider(leaking_program):
        pass
    assert_watched("the OpenID provider")


async def test_output_of_store_process_is_checked() -> None:
    async with contender(TOKEN, "nowhere") as process:
        await process.wait()
    assert_watched("the contender")


async def test_all_output_of_killable_server_is_checked() -> None:
    name = "tests.crash.leaking"
    ways = {
        "prints": f"standard error of {name}: token",
        "logs": f"DEBUG webapp.shop: unread %s in {name}: token",
        "answers": f"problem 403 of GET /shop in {name}: token",
        "repeats": f"INFO webapp.shop: began %s in {name}: state",
    }
    with open_process_pool(name) as process_pool:
        for way, finding in ways.items():
            secret = RANDOM if way == "repeats" else TOKEN
            orders = Orders(port=0, public_port=0, folder=secret, die=way)
            async with process_pool.start(orders) as server:
                await server.died()
            with pytest.raises(LeakFound) as found:
                LEAKS.raise_new_leaks()
            assert str(found.value) == f"leaked: {finding}"


def test_process_reporting_no_output_raises_deaf() -> None:
    leaks = LeakSearch()
    written = leaks.listen("the shop", passes_on=True)
    os.write(written.fileno(), b"serving\n")
    with pytest.raises(Deaf, match="the shop did not pass on its output"):
        written.close()


def test_incomplete_report_of_killed_process_is_not_a_leak() -> None:
    leaks = LeakSearch()
    written = leaks.listen("the shop", passes_on=True)
    half = json.dumps({"noted": ("state", RANDOM)})[:-9]
    report = json.dumps({"said": ("INFO webapp.shop: opened", f"for {JWT}")})
    os.write(written.fileno(), f"\x1e{half}\x1e{report}\nit is late".encode())
    with pytest.raises(LeakFound, match=r"leaked: INFO webapp\.shop: opened in the shop: JWT$"):
        leaks.raise_new_leaks()
    written.close()
    assert written.text() == "it is late"


STARTING = {
    *("ASGITransport", "Config", "TestClient", "Popen", "check_call", "check_output", "fork"),
    *("create_subprocess_exec", "create_subprocess_shell", "posix_spawn", "stdio_client"),
    *("subprocess.run", "subprocess.call", "os.system", "multiprocessing.Process"),
}
MAY_START = {
    "browser/drivers.py": {"create_subprocess_exec": "a browser's driver, none of our code"},
    "browser/test_origins.py": {"create_subprocess_exec": "another program, none of our code"},
    "conftest.py": {"subprocess.run": "asks where the browser is"},
    "webapp/cli/test_start.py": {"subprocess.run": "ends before it serves"},
    "support/postgres_server.py": {"subprocess.run": "another program, none of our code"},
    "support/desktop.py": {"stdio_client": "with a standard error that is heard"},
    "crash/process_pool.py": {
        "fork": "a child has the standard error of the nursery, and its leaks"
    },
    "support/fork_server.py": {"fork": "a child has a standard error of its own, which is heard"},
    "support/forking.py": {"fork": "asks the process above for a child"},
    "mutation/trial.py": {"fork": "a run of tests, which has leaks of its own"},
    "oidc/official_clients.py": {
        "create_subprocess_exec": "a client, which ends by itself",
        "stdio_client": "the same",
    },
    "support/cli.py": {"subprocess.run": "a shell that prints words, none of our code"},
    "support/pinned.py": {"subprocess.run": "installs packages"},
    "test_public_names.py": {"subprocess.run": "a type checker, none of our code"},
    "test_samples.py": {"subprocess.run": "the same"},
    "deployment/versions.py": {"subprocess.run": "git, none of our code"},
    "public/test_public_servers.py": {
        "subprocess.run": "git, none of our code",
        "stdio_client": "with a standard error that is heard",
    },
    "public/test_their_own_tests.py": {"subprocess.run": "a run of an author's tests"},
    "oidc/private_network.py": {"subprocess.run": "makes a network"},
    "oidc/env.py": {"subprocess.run": "installs the provider"},
    "oidc/glewlwyd.py": {"Popen": "another program, none of our code"},
    "support/processes.py": {
        "create_subprocess_exec": "with a standard error that is heard",
        "Popen": "with a standard error that is heard",
    },
    "test_leaks.py": {"ASGITransport": "with leaks of its own"},
    "soak.py": {"subprocess.run": "runs of tests, which have leaks of their own"},
    "support/programs.py": {"stdio_client": "with a standard error that is heard"},
    "webapp/testing/test_person.py": {"ASGITransport": "an author's own, none of our code"},
    "webapp/testing/test_plugin.py": {"subprocess.run": "a run of an author's tests"},
    "typescript/packages.py": {"subprocess.run": "installs the clients"},
    "webapp/telemetry/test_deployed_files.py": {"subprocess.run": "promtool, none of our code"},
    "webapp/telemetry/test_export.py": {"subprocess.run": "serves nobody, and its words are read"},
    "webapp/settings/test_notify.py": {"subprocess.run": "reads settings, and serves nobody"},
    "webapp/telemetry/test_metrics.py": {"Popen": "counts, and serves nobody"},
    "webapp/identity/test_accepting.py": {"Config": "nothing is served with it"},
    "support/serving.py": {"ASGITransport": "overheard", "Config": "overheard"},
    "webapp/serving/test_two_workers.py": {"create_subprocess_exec": "each line of it is heard"},
    "webapp/identity/test_local_peer.py": {
        "create_subprocess_exec": "bash and nginx, none of our code"
    },
}


def started_in(path: Path) -> Iterator[str]:
    text = path.read_text("utf-8")
    if not any(f"{start}(" in text for start in STARTING):  # most files need no syntax tree
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            words = ast.unparse(node.func).split(".")
            yield from {words[-1], ".".join(words[-2:])} & STARTING


def test_every_server_and_process_in_tests_is_checked_or_listed() -> None:
    tests = PROJECT / "tests"
    found = {
        path.relative_to(tests).as_posix(): starts
        for path in tests.rglob("*.py")
        if "node_modules" not in path.parts and (starts := set(started_in(path)))
    }
    assert found == {path: set(reasons) for path, reasons in MAY_START.items()}
