"""What watches for leaks during the whole run: that it hears each, and nothing else."""

import json
import logging
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from flows.errors import Failed
from flows.tokens import Claims, Purpose, Tokens
from flows.vault import Ring
from tests.leaks import EARS, Ears, LeakFound, Secrets, failures_in, kinds_in, overheard, visible
from webapp.wire import ASGIApp, Receive, Scope, Send

HOUSE = Path(__file__).parent.parent
NOW = datetime(2026, 7, 1, tzinfo=UTC)
RANDOM = "vJ8c2-Qq0aZkWm4rT6yU1x_pLsD9fGhE"
CLAIMS = Claims(purpose=Purpose.LINK, id="a" * 24, expires_at=NOW + timedelta(minutes=5))
TOKEN = Tokens(Ring([b"k" * 32]), origin="https://shop.example").mint(CLAIMS, now=NOW)
JWT = "eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJhIn0.c2lnbmVk"

LEAKS = {
    "token": f"unread {TOKEN}",
    "JWT": f"refused {JWT}",
    "link": f"shown https://shop.example/e/{TOKEN[:40]}",
    "pairing": f"open http://127.0.0.1:8765/pair/{TOKEN[:40]}",
    "callback": "GET /signin/callback?error=denied",
    "code": "GET https://shop.example/x?code=4711",
    "state": "GET https://shop.example/x?a=b&state=4711",
    "named": f"{{'access_token': '{RANDOM}'}}",
    "verifier": f"code_verifier={RANDOM}",
    "cookie": f"Cookie: elicit_8765={RANDOM}",
    "session": f"__Host-elicit-session={RANDOM}",
    "signing in": f"elicit_signin_8765={RANDOM}",
    "bearer": f"Authorization: Bearer {RANDOM}",
    "github": "gho_sandbox_abcdef",
    "slack": "xoxe-1-sandbox-abcdef",
    "stripe": "sk_test_sandbox_abcdef",
    "webhook": "whsec_abcdef",
    "sandbox": "sandbox_rt_abcdef",
    "letters": "typed BCDF-GHJK",
    "email": "no account for ada@shop.example",
}
HARMLESS = {
    "ids": "webapp.routes.links provider.failed error_id=5f0a77c1d2e3 id=q1Zk",
    "a code of ours": "guard.refused code=host_refused",
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


@pytest.mark.parametrize("text", LEAKS.values(), ids=LEAKS)
def test_what_has_a_form_is_told_by_it(text: str) -> None:
    assert kinds_in(text)


@pytest.mark.parametrize("text", HARMLESS.values(), ids=HARMLESS)
def test_what_only_looks_like_a_secret_is_none(text: str) -> None:
    assert not kinds_in(text)


def test_a_text_of_the_form_of_a_token_without_its_envelope_is_none() -> None:
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
    "said",
    [
        record("who %s", "ada@shop.example"),
        record("shop.opened", who="ada@shop.example"),
        record("shop.opened", who={"person": ["ada@shop.example"]}),
        record("who ada@shop.example"),
        record("shop.opened", name="mcp.server", levelno=logging.WARNING, who="ada@shop.example"),
    ],
    ids=["arguments", "extra", "nested", "message", "another's"],
)
def test_a_record_is_heard_with_everything_that_it_was_given(said: logging.LogRecord) -> None:
    ears = Ears()
    ears.handler.handle(said)
    (found,) = ears.findings()
    assert found.endswith(": email")
    assert said.name in found
    assert "ada" not in found


def test_a_record_of_a_library_is_heard_with_what_its_exception_says() -> None:
    ears = Ears()
    error = caught(ValueError("no ada@shop.example"))
    ears.handler.handle(record("broke", name="uvicorn.error", levelno=40, exc_info=error))
    assert len(ears.findings()) == 1


def test_a_record_stays_as_it_was_for_whoever_formats_it_next() -> None:
    said = record("broke", exc_info=caught(ValueError("it")))
    Ears().handler.handle(said)
    assert said.exc_text is None


@pytest.mark.parametrize(
    ("name", "level", "is_heard"),
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
def test_what_production_never_shows_is_not_heard(name: str, level: int, is_heard: bool) -> None:
    ears = Ears()
    ears.handler.handle(record("to ada@shop.example", name=name, levelno=level))
    assert bool(ears.findings()) is is_heard


def test_a_logger_that_passes_nothing_on_is_heard_all_the_same() -> None:
    logger = logging.getLogger("shop.alone")
    logger.propagate = False
    ears = Ears()
    try:
        ears.begin()
        logger.warning("to %s", "ada@shop.example")
        assert len(ears.findings()) == 1
    finally:
        ears.close()
        logger.propagate = True
    assert not logger.handlers


def test_what_was_said_before_the_secret_went_by_is_a_leak_too() -> None:
    ears = Ears()
    ears.hear("shop", f"began with {RANDOM}")
    assert not ears.findings()
    ears.secrets.note("state", RANDOM)
    with pytest.raises(LeakFound, match="leaked: shop: state"):
        ears.tell()
    ears.tell()  # once is enough


def test_a_part_of_a_long_secret_is_a_leak() -> None:
    secrets = Secrets()
    secrets.note("token", TOKEN)
    assert secrets.in_text(TOKEN[20:70]) == {"token"}
    assert not secrets.in_text(TOKEN[:20])


async def shop(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with what it is told to: the body that came, in the way that the path names."""
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


async def traded(path: str, ears: Ears, *, app: ASGIApp = shop, **options: Any) -> list[str]:
    transport = httpx.ASGITransport(overheard(app, ears))
    async with httpx.AsyncClient(transport=transport, base_url="http://a") as client:
        await client.post(path, **options)
    return ears.findings()


@pytest.mark.parametrize("path", ["/problem", "/page", "/metrics"])
@pytest.mark.parametrize("said", ["who is ada@shop.example", f"your shop is {RANDOM}"])
async def test_what_is_answered_to_anybody_is_heard(path: str, said: str) -> None:
    assert await traded(path, Ears(), content=said)


async def test_what_a_page_holds_for_its_own_person_is_no_leak() -> None:
    form = f'<form action="/e/{TOKEN}"><input value="{RANDOM}"></form><p>Not found</p>'
    assert not await traded("/page", Ears(), content=form)
    assert not await traded("/fine", Ears(), content="Hello ada@shop.example")
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
async def test_what_went_by_may_not_be_said_afterwards(options: Any, kind: str) -> None:
    ears = Ears()
    assert not await traded("/", ears, **options)
    ears.hear("shop", f"knows {RANDOM[1:]}")
    assert ears.findings() == [f"shop: {kind}"]


async def test_what_a_person_typed_into_our_page_may_not_be_said_afterwards() -> None:
    ears = Ears()
    await traded(f"/e/{TOKEN}", ears, data={"answer": "correct horse battery"})
    ears.hear("shop", "got correct horse battery")
    assert ears.findings() == ["shop: typed"]


async def test_a_failed_tool_may_say_nothing_but_its_failure() -> None:
    failed = {"isError": True, "content": [{"type": "text", "text": "not ada@shop.example"}]}
    answer = {"jsonrpc": "2.0", "id": 1, "result": failed}
    ears = Ears()
    assert await traded("/mcp", ears, content=f"event: message\ndata: {json.dumps(answer)}\n\n")
    fine = {**answer, "result": {**failed, "isError": False}}
    assert not await traded("/mcp", Ears(), content=f"data: {json.dumps(fine)}\n\n")


def test_the_link_that_a_person_is_to_open_is_no_failure() -> None:
    data = {"elicitations": [{"url": f"https://shop.example/e/{TOKEN}"}]}
    assert list(failures_in({"error": {"code": -32042, "message": "Open", "data": data}})) == [
        "Open"
    ]


def test_a_link_that_a_result_offers_may_stand_in_it_and_no_other() -> None:
    link = f"https://shop.example/e/{TOKEN}"
    pending = {"elicitationPending": {"url": link}}
    content = [{"type": "text", "text": f"Open {link} now"}]
    result = {"isError": True, "_meta": pending, "content": content}
    assert not any(kinds_in(said) for said in failures_in({"result": result}))
    assert any(kinds_in(said) for said in failures_in({"result": {**result, "_meta": None}}))


def test_of_several_links_that_a_result_offers_each_may_stand_in_it() -> None:
    links = [f"https://shop.example/e/{TOKEN}{end}" for end in "abc"]
    offered = [{"url": link} for link in links[:2]]
    meta = {"elicitationPending": offered[0], "elicitationsPending": offered}

    def result(*said: str) -> dict[str, Any]:
        content = [{"type": "text", "text": f"Open {link}"} for link in said]
        return {"isError": True, "_meta": meta, "content": content}

    assert not any(kinds_in(said) for said in failures_in({"result": result(*links[:2])}))
    assert any(kinds_in(said) for said in failures_in({"result": result(*links)}))


def test_a_test_in_which_something_leaks_fails_and_says_where(tmp_path: Path) -> None:
    (tmp_path / "test_shop.py").write_text(
        "import logging\n"
        "log = logging.getLogger('webapp.shop')\n\n"
        "def test_it():\n    log.info('to %s', 'ada@' + 'shop.example')\n\n"
        "def test_other():\n    log.info('fine')\n"
    )
    options = ("-q", "--show-capture=no", "-p", "no:cacheprovider", "-p", "tests.leaks")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "--rootdir", tmp_path, tmp_path],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(HOUSE)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "1 failed, 1 passed" in ran.stdout, ran.stdout + ran.stderr
    assert "leaked: INFO webapp.shop: to %s: email" in ran.stdout
    assert "ada@shop" not in ran.stdout


def test_it_listens_to_this_very_test() -> None:
    logging.getLogger("webapp.shop").debug("to %s", "ada@shop.example")
    with pytest.raises(LeakFound, match=r"DEBUG webapp\.shop: to %s: email"):
        EARS.tell()
