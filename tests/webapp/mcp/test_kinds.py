"""Accounts, payments and secrets as tools receive them, through each way to reach a person."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypedDict

import httpx
import pytest
from pydantic import BaseModel

from flows import Account, Money, Receipt, elicit
from flows.elicitation.states import Json
from flows.errors import NotPossible
from tests.support.kind_tools import PRICE, WAYS, asked_for, bought, connected
from tests.support.mcp_sandbox import KEY, SandboxEnv, caller_at_sandbox, sandbox_env, went_through
from tests.support.mcp_server import MODERN, cut, eventually, link_in, links_asked, soon, text_of
from tests.support.serving import serving
from webapp.http.exchange import Receive, Scope, Send
from webapp.limits import CallLimits


@pytest.mark.every_way
@pytest.mark.parametrize("way", WAYS)
async def test_tool_gets_account_payment_and_secret_in_every_way(server, revision, way):
    # parity: T11
    got: list[Any] = []

    @server.tool()
    async def serve_tea() -> str:
        account = await connected(reason="to find your teapots")
        receipt = await bought()
        key = await elicit.secret("The key of the tea room")
        async with account.client() as api:
            repositories = (await api.get("/user/repos")).raise_for_status().json()
        got.append((account, receipt, key))
        return f"{account.label} {len(repositories) > 0} {receipt.price} {len(key)}"

    async with caller_at_sandbox(server, revision, declares=WAYS[way]) as (at, caller):
        acts = [at.guest.connect, at.guest.pay, at.guest.type]
        result = await went_through(caller, "serve_tea", acts, by_url=way == "url")
        assert text_of(result) == f"octocat True 9.00 EUR {len(KEY)}"
        ((account, receipt, key),) = got
        assert isinstance(account, Account)
        assert (account.provider, account.label, account.scopes) == ("github", "octocat", ("repo",))
        assert isinstance(receipt, Receipt)
        assert (receipt.price, receipt.what, receipt.provider) == (PRICE, "Tea", "stripe")
        assert receipt.is_test
        assert receipt.status == "taken"
        assert key == KEY
        assert [payment.status for payment in await at.payments()] == ["spent"]
        assert all(row.content is None for row in await at.env.elicitations())


@pytest.mark.every_way
@pytest.mark.parametrize("way", WAYS)
async def test_failed_question_reports_its_reason_once(server, revision, way):
    # finding: XO4
    @server.tool()
    async def look() -> str:
        return str((await connected()).label)

    async with caller_at_sandbox(server, revision, declares=WAYS[way]) as (at, caller):
        await at.plan(next="no-token")
        if way == "url":
            call = caller.call("look")
            await at.guest.connect(await caller.link())
            result = text_of(await soon(call))
        else:
            await at.guest.connect(link_in(await soon(caller.call("look"))))
            result = text_of(await soon(caller.call("look")))
        assert "(GitHub did not issue an access token)" in result
        assert "[ELICITATION_FAILED]" in result
        if way != "url":
            await at.guest.connect(link_in(await soon(caller.call("look"))))
            assert text_of(await soon(caller.call("look"))) == "octocat"


async def test_async_client_sends_the_access_token_to_provider_hosts_only(server, revision):
    received: list[dict[bytes, bytes]] = []

    async def elsewhere(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            received.append(dict(scope["headers"]))
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"ok"})

    async with serving(elsewhere) as other:

        @server.tool()
        async def wander() -> str:
            account = await connected()
            async with account.client() as api:
                await api.get(f"{other}/user")
                return str((await api.get("/user")).json()["login"])

        async with caller_at_sandbox(server, revision) as (at, caller):
            result = await went_through(caller, "wander", [at.guest.connect])
            assert text_of(result) == "octocat"
    assert len(received) == 1
    assert b"authorization" not in received[0]


async def test_second_call_asks_nothing_and_another_tool_asks_once(server, revision):
    @server.tool()
    async def read() -> str:
        return str((await connected()).label)

    @server.tool()
    async def write() -> str:
        return str((await connected()).label)

    async with caller_at_sandbox(server, revision) as (at, caller):
        assert text_of(await went_through(caller, "read", [at.guest.connect])) == "octocat"
        assert await caller.text("read") == "octocat"
        assert text_of(await went_through(caller, "write", [at.guest.allow])) == "octocat"
        assert await caller.text("write") == "octocat"
        assert not caller.has_links_left
        assert len(await at.connections()) == 1


async def test_receipt_can_be_spent_or_refunded_once(server, revision):
    reported: list[Any] = []

    @server.tool()
    async def spend() -> str:
        receipt = await bought()
        await receipt.spend()
        await receipt.spend()
        with pytest.raises(NotPossible):
            await receipt.refund()
        return "spent"

    @server.tool()
    async def refund() -> str:
        receipt = await bought()
        reported.extend([await receipt.refund(reason="no tea"), await receipt.refund()])
        with pytest.raises(NotPossible):
            await receipt.spend()
        return "refunded"

    async with caller_at_sandbox(server, revision) as (at, caller):
        assert text_of(await went_through(caller, "spend", [at.guest.pay])) == "spent"
        assert text_of(await went_through(caller, "refund", [at.guest.pay])) == "refunded"
        first, again = reported
        assert first == again
        assert (first.price, first.status) == (PRICE, "succeeded")
        assert sorted(p.status for p in await at.payments()) == ["refunded", "spent"]
        # A refunded payment pays for nothing, so the tool asks for a new one.
        assert text_of(await went_through(caller, "refund", [at.guest.pay])) == "refunded"


class Model(BaseModel):
    user: str
    password: str


@dataclass
class Data:
    user: str
    password: str


class Typed(TypedDict):
    user: str
    password: str


SCHEMA: Mapping[str, Json] = {
    "type": "object",
    "properties": {"user": {"type": "string"}, "password": {"type": "string"}},
    "required": ["user", "password"],
}
FULL = {"user": "ann", "password": KEY}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (Model, Model(**FULL)),
        (Data, Data(**FULL)),
        (Typed, FULL),
        (SCHEMA, FULL),
    ],
    ids=["pydantic", "dataclass", "typed dictionary", "json schema"],
)
async def test_secret_has_the_requested_type(server, revision, schema, expected):
    got: list[Any] = []

    @server.tool()
    async def unlock() -> str:
        got.append(await elicit.secret("Your door", schema))
        return "open"

    async with caller_at_sandbox(server, revision) as (at, caller):

        async def fill_in(link: str) -> None:
            await at.guest.type(link, **FULL)

        assert text_of(await went_through(caller, "unlock", [fill_in])) == "open"
        assert got == [expected]
        assert type(got[0]) is type(expected)


NOES = {
    "oauth, on our page": ("oauth", "decline", "declined"),
    "oauth, at the provider": ("oauth", "deny", "denied"),
    "payment, on our page": ("payment", "decline", "declined"),
    "payment, at the checkout": ("payment", "leave", "denied"),
    "secret, on our page": ("secret", "decline", "declined"),
}


@pytest.mark.parametrize("no", NOES)
async def test_decline_cancel_and_timeout_are_reported_by_status(server, revision, no):
    kind, act, status = NOES[no]

    @server.tool()
    async def ask() -> str:
        outcome = await asked_for(kind).outcome()
        return f"{outcome.status} {outcome.content} {bool(outcome)} {outcome.error is not None}"

    @server.tool()
    async def ask_or_none() -> str:
        return str(await asked_for(kind).or_none())

    @server.tool()
    async def must() -> str:
        return str(await asked_for(kind))

    async with caller_at_sandbox(server, revision) as (at, caller):
        say_no = getattr(at.guest, act)
        assert text_of(await went_through(caller, "ask", [say_no])) == f"{status} None False True"
        assert text_of(await went_through(caller, "ask_or_none", [say_no])) == "None"
        result = await went_through(caller, "must", [say_no])
        assert result.is_error
        assert f"[ELICITATION_{status.upper()}]" in text_of(result)
        assert await at.payments() == []
        assert await at.connections() == []


async def kind_of(at: SandboxEnv, link: str) -> str:
    found = await at.env.service.elicitations.get(at.env.id_of(link))
    assert found is not None
    return found.kind


def add_gathering(server: Any) -> None:
    @server.tool()
    async def both() -> str:
        account, receipt = await asyncio.gather(connected(), bought())
        return f"{account.label} {receipt.price}"


@pytest.mark.every_way
@pytest.mark.parametrize("first", ["oauth", "payment"])
async def test_a_tool_gathers_an_account_and_a_payment(server, revision, first):
    add_gathering(server)
    async with caller_at_sandbox(server, revision) as (at, caller):
        call = caller.call("both")
        links = {await kind_of(at, link): link for link in [await caller.link() for _ in "12"]}
        for kind in sorted(links, key=lambda kind: kind != first):
            await at.guest.finish(kind, links[kind])
        assert text_of(await soon(call)) == "octocat 9.00 EUR"
        assert [payment.status for payment in await at.payments()] == ["spent"]


async def test_gathering_tool_returns_each_link_in_a_separate_result(
    request, server, revision, library
):
    add_gathering(server)
    async with caller_at_sandbox(
        server, revision, limits=CallLimits(link=timedelta()), declares=None
    ) as (at, caller):
        for _ in range(2):
            result = await caller.result("both")
            assert text_of(result).startswith("This tool requires user input to continue")
            link = link_in(result)
            await at.guest.finish(await kind_of(at, link), link)
        assert await caller.text("both") == "octocat 9.00 EUR"


@pytest.mark.every_way
async def test_payment_spent_before_the_next_question_stays_spent(server, revision):
    runs: list[str] = []

    @server.tool()
    async def brew() -> str:
        receipt = await bought()
        await receipt.spend()
        runs.append(receipt.id)
        key = await elicit.secret("The key of the tea room")
        return f"{len(key)} {len(set(runs))}"

    async with caller_at_sandbox(server, revision) as (at, caller):
        result = await went_through(caller, "brew", [at.guest.pay, at.guest.type])
        assert text_of(result) == f"{len(KEY)} 1"
        assert len(runs) == (2 if revision == MODERN else 1)
        assert [payment.status for payment in await at.payments()] == ["spent"]


async def test_payment_refunded_before_the_next_question_stays_refunded(server, revision):
    @server.tool()
    async def regret() -> str:
        receipt = await bought()
        refund = await receipt.refund()
        key = await elicit.secret("The key of the tea room")
        return f"{refund.price} {len(key)}"

    async with caller_at_sandbox(server, revision) as (at, caller):
        result = await went_through(caller, "regret", [at.guest.pay, at.guest.type])
        # A body that runs again does not receive a payment that was refunded.
        expected = "refunded in the meantime" if revision == MODERN else f"9.00 EUR {len(KEY)}"
        assert expected in text_of(result)
        assert [payment.status for payment in await at.payments()] == ["refunded"]


@pytest.mark.parametrize("known", ["account", "secret", "bought"])
async def test_stored_answer_can_precede_another_question(server, revision, known):
    asks: dict[str, Any] = {
        "account": connected,
        "secret": lambda: elicit.secret("Your door", name="door"),
        "bought": lambda: elicit.payment(PRICE, "For good", once=True),
    }

    @server.tool()
    async def both() -> str:
        await asks[known]()
        return str(len(await elicit.secret("The key of the tea room")))

    async with caller_at_sandbox(server, revision) as (at, caller):
        first = {"account": at.guest.connect, "secret": at.guest.type, "bought": at.guest.pay}[
            known
        ]
        for todo in ([first, at.guest.type], [at.guest.type]):
            result = await went_through(caller, "both", todo)
            assert text_of(result) == str(len(KEY))


async def test_error_with_the_secret_is_redacted_for_the_model(server, revision):
    @server.tool()
    async def knock() -> str:
        key = await elicit.secret("The key of the tea room")
        raise ValueError(f"{key} does not fit")

    async with caller_at_sandbox(server, revision) as (at, caller):
        result = await went_through(caller, "knock", [at.guest.type])
        assert result.is_error
        assert KEY not in result.model_dump_json()


async def test_failed_tool_leaves_the_payment_for_the_same_call(server, revision):
    tries: list[str] = []

    @server.tool()
    async def deliver() -> str:
        receipt = await bought()
        tries.append(receipt.id)
        if len(set(tries)) == len(tries):
            raise RuntimeError("the press is jammed")
        return "here it is"

    async with caller_at_sandbox(server, revision) as (at, caller):
        result = await went_through(caller, "deliver", [at.guest.pay])
        assert result.is_error
        await eventually(lambda: not len(at.env.service.running_tools))
        assert [payment.status for payment in await at.payments()] == ["open"]
        assert await caller.text("deliver") == "here it is"
        assert not caller.has_links_left


async def test_unconfigured_kind_returns_a_sentence_with_a_code(server, revision):
    @server.tool()
    async def connect() -> str:
        return str(await connected())

    @server.tool()
    async def connect_declared() -> str:
        return str(await elicit.oauth("weather"))

    @server.tool()
    async def buy() -> str:
        return str(await bought())

    @server.tool()
    async def buy_elsewhere() -> str:
        return str(await elicit.payment(PRICE, "Tea", provider="abacus"))

    named = {
        "connect": ("ELICIT_GITHUB_CLIENT_ID", "ELICIT_GITHUB_CLIENT_SECRET"),
        "connect_declared": ("[providers.weather] in elicit.toml",),
        "buy": ("ELICIT_STRIPE_KEY", "ELICIT_STRIPE_WEBHOOK_SECRET"),
        "buy_elsewhere": ("ELICIT_ABACUS_KEY",),
    }
    async with caller_at_sandbox(server, revision, plays=False) as (at, caller):
        for tool, names in named.items():
            result = await caller.result(tool)
            assert result.is_error
            assert "[ELICITATION_NOT_CONFIGURED]" in text_of(result)
            assert all(name in text_of(result) for name in names)
        assert not await at.env.elicitations()
        assert not caller.has_links_left


async def test_price_change_between_requests_is_an_error_and_spends_nothing(server):
    prices = iter(("9.00", "90.00"))

    @server.tool()
    async def buy() -> str:
        return str(await elicit.payment(Money(next(prices), "EUR"), "Tea"))

    async with caller_at_sandbox(server, MODERN) as (at, caller):
        asked = await caller.asked("buy")
        await at.guest.pay(links_asked(asked)[0])
        result = await caller.answered("buy", after=asked)
        assert result.is_error
        assert "[ELICITATION_QUESTION_CHANGED]" in text_of(result)
        assert "9.00 EUR" in text_of(result)
        assert "90.00 EUR" in text_of(result)
        assert [payment.status for payment in await at.payments()] == ["open"]


async def test_two_concurrent_identical_calls_are_a_single_purchase(server, revision):
    bodies: list[str] = []

    @server.tool()
    async def buy() -> str:
        receipt = await bought()
        bodies.append(receipt.id)
        return "tea"

    async with (
        caller_at_sandbox(server, revision) as (at, caller),
        at.env.caller(revision) as other,
    ):
        first = caller.call("buy")
        link = await caller.link()
        second = other.call("buy")
        assert at.env.id_of(await other.link()) == at.env.id_of(link)
        await at.guest.pay(link)
        texts = [text_of(await soon(call)) for call in (first, second)]
        assert texts[1] == "tea"
        assert texts[0] == "tea" or "Another call is waiting" in texts[0]
        assert len(bodies) == 1
        assert [payment.status for payment in await at.payments()] == ["spent"]


def requested(response: httpx.Response) -> str:
    """Return the requestState of a response, which is JSON or an event stream."""
    (line,) = (line for line in response.text.splitlines() if '"requestState"' in line)
    result = json.loads(line.removeprefix("data:"))["result"]
    return str(result["requestState"])


@pytest.mark.parametrize("kind", ["payment", "secret", "oauth"])
async def test_stream_cut_after_the_answer_loses_nothing(server, revision, kind):
    gate = asyncio.Event()
    bodies: list[int] = []

    @server.tool()
    async def serve() -> str:
        await asked_for(kind)
        bodies.append(1)
        await gate.wait()
        return f"tea {len(bodies)}"

    async with sandbox_env(server) as at:
        caller = await at.env.cut_off_caller(revision)
        call = caller.call("serve")
        if revision == MODERN:
            call = caller.call("serve", state=requested(await soon(call)))
        (row,) = await at.env.pending()
        await at.guest.finish(kind, at.env.link_of(row))
        await eventually(lambda: bodies)
        await cut(call)
        if revision == MODERN:
            await at.env.posts_are_over()
        gate.set()
        await eventually(lambda: not len(at.env.service.running_tools))
        again = await soon(caller.call("serve"))
        # If closing the stream cancels the call, the body starts again with the stored answer.
        starts = 2 if revision == MODERN and kind != "payment" else 1
        assert f"tea {starts}" in again.text
        assert len(bodies) == starts
        assert len(await at.env.elicitations()) == 1


@pytest.mark.parametrize("kind", ["payment", "secret", "oauth"])
async def test_new_question_after_an_expired_question_is_shown_at_once(server, revision, kind):
    @server.tool()
    async def ask() -> str:
        return str(await asked_for(kind))

    async with caller_at_sandbox(
        server, revision, limits=CallLimits(link=timedelta()), declares=None
    ) as (at, caller):
        old = await caller.link_in_result("ask")
        at.clock.tick(minutes=31)
        result = await caller.result("ask")
        assert text_of(result).startswith("This tool requires user input to continue")
        assert at.env.id_of(link_in(result)) != at.env.id_of(old)
        assert (await caller.text("ask")).startswith("Still waiting")
