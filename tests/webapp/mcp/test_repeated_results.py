"""A result that may be lost: repeating the call after `once` or a payment returns it again."""

from datetime import timedelta
from typing import Any

import pytest

from flows import elicit
from flows.elicitation.run import REPEATED_FOR
from flows.elicitation.states import Json
from tests.support.clock import Clock
from tests.support.mcp_server import FORM, LEGACY, MODERN, attached, caller_of, new_server, text_of

NOTE = "sent again in case it did not arrive"


class Orders:
    """Tools that place an order with `once`."""

    def __init__(self, server: Any) -> None:
        self.orders = 0
        self.fails = False

        async def work(_: str) -> Json:
            self.orders += 1
            return self.orders

        @server.tool()
        async def order(what: str) -> str:
            number = await elicit.once("order", work)
            if self.fails:
                raise ValueError("the printer jams")
            return f"order {number} of {what}"

        @server.tool()
        async def order_more(what: str) -> str:
            return f"order {await elicit.once('order', work, again=True)} of {what}"

        @server.tool()
        async def order_twice(what: str) -> str:
            first = await elicit.once("first", work, again=True)
            return f"orders {first} and {await elicit.once('second', work)} of {what}"

        @server.tool()
        async def order_with_tip(what: str) -> str:
            tip = await elicit.confirm("A tip, too?", timeout=timedelta(days=1))
            return f"order {await elicit.once('order', work)} of {what}, tip {tip}"

        @server.tool()
        async def ask(what: str) -> str:
            return str(dict(await elicit.url(what, "https://example.org/login")))


def given_again(result: Any) -> str:
    """Check that the result is marked as a repeated result, and return its text."""
    assert not result.is_error
    before, note = result.content
    assert NOTE in note.text
    assert "nothing new was bought or done" in note.text
    facts = result.meta["resultGivenAgain"]
    assert facts["givenAt"] < facts["newFrom"]
    return str(before.text)


@pytest.mark.every_way
async def test_dismissed_question_next_to_once_does_not_block_its_result(server, library, revision):
    # finding: R2
    orders = Orders(server)
    fills: list[Any] = ["cancel", {"response": True}]
    clock = Clock()
    async with (
        attached(server, clock=clock) as env,
        env.caller(revision, declares=FORM, fills=fills) as caller,
    ):
        first = await caller.result("order_with_tip", what="tea")
        assert text_of(first) == "order 1 of tea, tip False"
        again = await caller.result("order_with_tip", what="tea")
        assert given_again(again) == "order 1 of tea, tip False"
        clock.tick(seconds=REPEATED_FOR.total_seconds())
        other = await caller.result("order_with_tip", what="tea")
        assert text_of(other).startswith("order 2 of tea")
        assert orders.orders == 2


@pytest.mark.every_way
async def test_same_call_after_once_returns_the_result_again_with_a_mark(server, revision):
    # finding: R2
    orders = Orders(server)
    async with caller_of(server, revision) as (_, caller):
        first = await caller.result("order", what="tea")
        assert text_of(first) == "order 1 of tea"
        assert "resultGivenAgain" not in (first.meta or {})
        again = [await caller.result("order", what="tea") for _ in range(3)]
        assert [given_again(result) for result in again] == ["order 1 of tea"] * 3
        assert [result.structured_content for result in again] == [first.structured_content] * 3
        assert orders.orders == 1


@pytest.mark.parametrize(("first", "then"), [(LEGACY, MODERN), (MODERN, LEGACY)])
async def test_repeated_result_is_returned_across_revisions(server, first, then):
    # finding: R2
    Orders(server)
    async with attached(server) as env:
        async with env.caller(first) as caller:
            before = await caller.result("order", what="tea")
        async with env.caller(then) as caller:
            again = await caller.result("order", what="tea")
            assert given_again(again) == text_of(before) == "order 1 of tea"


async def test_same_call_two_minutes_after_the_result_runs_again(server, revision):
    # finding: R2
    Orders(server)
    clock = Clock()
    async with attached(server, clock=clock) as env, env.caller(revision) as caller:
        assert await caller.text("order", what="tea") == "order 1 of tea"
        clock.tick(seconds=119)
        again = await caller.result("order", what="tea")
        assert given_again(again) == "order 1 of tea"
        # The period starts when the result was first sent. A repeated call does not extend it.
        clock.tick(seconds=1)
        assert await caller.text("order", what="tea") == "order 2 of tea"
        assert given_again(await caller.result("order", what="tea")) == "order 2 of tea"


async def test_other_arguments_and_other_clients_get_their_own_results(server, revision):
    # finding: R2
    Orders(server)
    async with caller_of(server, revision) as (env, caller):
        assert await caller.text("order", what="tea") == "order 1 of tea"
        assert await caller.text("order", what="rum") == "order 2 of rum"
        async with env.caller(revision, name="another") as other:
            assert await other.text("order", what="tea") == "order 3 of tea"
        async with env.caller(revision) as same:
            assert given_again(await same.result("order", what="tea")) == "order 1 of tea"


@pytest.mark.parametrize(
    ("tool", "results"),
    [
        ("order_more", ["order 1 of tea", "order 2 of tea", "order 3 of tea"]),
        ("order_twice", ["orders 1 and 2 of tea", "orders 3 and 4 of tea"]),
    ],
)
async def test_once_with_again_runs_again_immediately(server, revision, tool, results):
    # finding: R2
    Orders(server)
    async with caller_of(server, revision) as (_, caller):
        assert [await caller.text(tool, what="tea") for _ in results] == results


async def test_error_is_not_returned_again(server, revision):
    # finding: R2
    orders = Orders(server)
    orders.fails = True
    async with caller_of(server, revision) as (_, caller):
        assert (await caller.result("order", what="tea")).is_error
        orders.fails = False
        assert (await caller.text("order", what="tea")).startswith("order ")


async def test_call_without_once_or_payment_asks_again(server, revision):
    # finding: R2
    Orders(server)
    async with caller_of(server, revision) as (env, caller):
        for number in (1, 2):
            assert await env.text_after_visit(caller, "ask", {"n": number}, what="Sign in") == str(
                {"n": number}
            )


@pytest.mark.every_way
async def test_repeated_result_requires_the_gate_of_the_new_call(server, revision):
    # finding: R2
    orders: list[str] = []

    async def work(_: str) -> Json:
        orders.append("tea")
        return len(orders)

    @server.tool()
    @elicit.gate
    async def order(what: str) -> str:
        return f"order {await elicit.once('order', work)} of {what}"

    async with caller_of(server, revision, fills=[{}, {}, "decline"]) as (env, caller):
        assert await caller.text("order", what="tea") == "order 1 of tea"
        assert given_again(await caller.result("order", what="tea")) == "order 1 of tea"
        assert len(caller.forms) == 1, "the first approval covers the repeated call"
        await env.service.kinds.gates.approvals.clear()
        assert given_again(await caller.result("order", what="tea")) == "order 1 of tea"
        assert len(caller.forms) == 2, (
            "after its approval was deleted, the repeated call asks again"
        )
        await env.service.kinds.gates.approvals.clear()
        refused = await caller.result("order", what="tea")
        assert refused.is_error
        assert "declined" in text_of(refused)
        assert orders == ["tea"]


async def test_request_state_of_a_gated_call_does_not_reveal_its_result():
    # finding: R2
    server = new_server("mcp")

    @server.tool()
    @elicit.gate
    async def order(what: str) -> str:
        return f"order {await elicit.once('order', lambda _: _one())} of {what}"

    async def _one() -> Json:
        return 1

    async with caller_of(server, MODERN, fills=[{}]) as (env, caller):
        assert await caller.text("order", what="tea") == "order 1 of tea"
        await env.service.kinds.gates.approvals.clear()
        asked = await caller.asked("order", what="tea")
        for _ in range(2):  # the client resends the request without an answer
            asked = await caller.asked("order", after=_unanswered(asked), what="tea")


def _unanswered(asked: Any) -> Any:
    return asked.model_copy(update={"input_requests": None})


def test_repeat_period_is_two_minutes():
    assert timedelta(minutes=2) == REPEATED_FOR
