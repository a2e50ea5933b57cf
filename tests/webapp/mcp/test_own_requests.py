"""Tools that also ask with the protocol's own requests: a form before our question, or after it."""

from datetime import timedelta
from typing import Any

from flows import elicit
from tests.support.mcp_server import MODERN, asked_in, caller_of, links_asked, new_server
from tests.support.own_requests import size_form
from webapp.limits import CallLimits

LOGIN = "https://example.org/login"
SHORT = CallLimits(retry=timedelta(milliseconds=50), request_at_least=timedelta(milliseconds=50))


class Shop:
    """The tool `buy`, which asks for a payment, and for a size with its own form."""

    def __init__(self, library: str, *, form_first: bool) -> None:
        if library == "fastmcp":
            from fastmcp import Context
        else:
            from mcp.server.mcpserver import Context  # type: ignore[assignment]
        self.server = new_server(library)
        self.used = 0
        self.responses: list[list[str]] = []

        @self.server.tool()
        async def buy(context: Context) -> Any:
            answers = context.input_responses or {}
            self.responses.append(sorted(answers))
            if form_first and "size" not in answers:
                return size_form()
            paid = await elicit.url("Pay", LOGIN)
            self.used += 1
            return size_form() if "size" not in answers else f"bought {dict(paid)}"


def asked_keys(result: object) -> list[str]:
    return sorted(asked_in(result).input_requests or {})


async def test_answer_is_returned_again_after_the_tools_own_form(library):
    shop = Shop(library, form_first=False)
    async with caller_of(shop.server, MODERN) as (env, caller):
        paying = await caller.asked("buy")
        await env.complete(links_asked(paying)[0], {"n": 1})
        sizing = await caller.asked("buy", after=paying)
        assert asked_keys(sizing) == ["size"]
        assert await caller.last_text("buy", after=sizing) == "bought {'n': 1}"
        assert shop.used == 2
        assert len(await env.elicitations()) == 1


async def test_request_sent_twice_returns_the_same_form_without_asking_again(library):
    shop = Shop(library, form_first=False)
    async with caller_of(shop.server, MODERN) as (env, caller):
        paying = await caller.asked("buy")
        await env.complete(links_asked(paying)[0], {"n": 1})
        assert asked_keys(await caller.send_call("buy", after=paying)) == ["size"]
        sizing = await caller.asked("buy", after=paying)
        assert asked_keys(sizing) == ["size"]
        assert await caller.last_text("buy", after=sizing) == "bought {'n': 1}"
        assert len(await env.elicitations()) == 1


async def test_new_call_after_the_result_asks_again(library):
    shop = Shop(library, form_first=False)
    async with caller_of(shop.server, MODERN) as (env, caller):
        paying = await caller.asked("buy")
        (link,) = links_asked(paying)
        await env.complete(link)
        sizing = await caller.asked("buy", after=paying)
        await caller.answered("buy", after=sizing)
        (fresh,) = links_asked(await caller.send_call("buy"))
        assert env.id_of(fresh) != env.id_of(link)


async def test_result_of_a_request_without_questions_consumes_the_outcome(library):
    if library == "fastmcp":
        from fastmcp import Context
    else:
        from mcp.server.mcpserver import Context  # type: ignore[assignment]
    server = new_server(library)

    @server.tool()
    async def deliver(context: Context) -> Any:
        if context.request_state == "sizing":
            return "delivered"
        await elicit.url("Pay", LOGIN)
        return size_form()

    async with caller_of(server, MODERN) as (env, caller):
        paying = await caller.asked("deliver")
        (link,) = links_asked(paying)
        await env.complete(link)
        sizing = await caller.asked("deliver", after=paying)
        assert await caller.last_text("deliver", after=sizing) == "delivered"
        fresh = await caller.asked("deliver")
        assert asked_keys(fresh) != ["size"], (
            "a payment is used for one delivery: the next call asks for a new one"
        )
        assert env.id_of(links_asked(fresh)[0]) != env.id_of(link)


async def test_response_to_a_first_form_is_in_every_later_request(library):
    shop = Shop(library, form_first=True)
    async with caller_of(shop.server, MODERN, limits=SHORT) as (env, caller):
        sizing = await caller.asked("buy")
        assert asked_keys(sizing) == ["size"]
        paying = await caller.asked("buy", after=sizing)
        (link,) = links_asked(paying)
        waiting = await caller.asked("buy", after=paying)
        assert not waiting.input_requests
        await env.complete(link, {"n": 1})
        assert await caller.last_text("buy", after=waiting) == "bought {'n': 1}"
        assert shop.responses == [[], ["size"], ["size"], ["size"]]
