"""The simulated person of a test: their actions, the model's responses, and the stored state."""

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import fastmcp
import httpx
import mcp
import pytest
from mcp.server.mcpserver import Context
from mcp_types import ElicitResult
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse
from starlette.routing import Route

from flows import Link, elicit
from flows.providers import github
from tests.support.mcp_server import new_server, text_of
from tests.webapp.testing.conftest import DECLARES, TEA, Profile, a_test
from webapp.testing import (
    AskedPerson,
    NeverAsked,
    OutsideReached,
    StillOpen,
    UnexpectedForm,
    UnexpectedQuestion,
    elicit_person,
)

# Use every library, revision and `declares` value, but not every combination of them.
pytestmark = pytest.mark.diagonal


@pytest.mark.parametrize("declares", DECLARES)
async def test_person_does_every_action_with_each_client(shop, revision, declares):
    options: dict[str, Any] = {"revision": revision, "declares": DECLARES[declares]}
    async with elicit_person(shop, **options) as person:
        person.pays()
        assert (await person.call("buy_tea", cups=2)).text == "2 cups for 9.00 EUR"
        person.connects()
        assert (await person.call("list_repositories")).text == "octocat: hello-sandbox"
        person.types("sesame")
        assert (await person.call("unlock")).text == "a key of 6 letters"
        person.fills(name="Ada", age=36)
        assert (await person.call("sign_up")).text == "Ada, 36"
        person.accepts()
        assert (await person.call("delete")).text == "deleted"
        person.completes(dish="soup")
        assert (await person.call("lunch")).text == "eats soup"
        kinds = [question.kind for question in person.asked]
        assert kinds == ["payment", "oauth", "secret", "form", "confirm", "url"]


@pytest.mark.parametrize("declares", DECLARES)
async def test_declines_and_denials_are_reported_with_their_error_code(shop, revision, declares):
    options: dict[str, Any] = {"revision": revision, "declares": DECLARES[declares]}
    async with elicit_person(shop, **options) as person:
        person.declines()
        assert (await person.call("buy_tea", cups=1)).code == "ELICITATION_DECLINED"
        person.leaves()
        assert (await person.call("buy_tea", cups=1)).code == "ELICITATION_DENIED"
        person.denies()
        assert (await person.call("list_repositories")).code == "ELICITATION_DENIED"
        person.declines()
        assert (await person.call("delete")).text == "kept"
        assert await person.payments() == []
        assert await person.accounts() == []


async def test_questions_payments_and_refunds_are_recorded(shop, revision):
    async with elicit_person(shop, revision=revision) as person:
        person.pays()
        await person.call("buy_tea", cups=2)
        person.pays()
        assert (await person.call("give_back")).text == "succeeded"
        first, _ = person.asked
        assert (first.tool, first.price) == ("buy_tea", TEA)
        assert first.message == "Pay 9.00 EUR for 2 cups of tea"
        statuses = {payment.what: payment.status for payment in await person.payments()}
        assert statuses == {"2 cups of tea": "spent", "Nothing": "refunded"}


async def test_recorded_confirmation_has_message_and_arguments(shop):
    async with elicit_person(shop) as person:
        person.accepts()
        await person.call("delete")
        (reported,) = person.asked
        assert (reported.message, reported.arguments) == ("Delete it?", {"name": "x"})


async def test_person_chooses_another_account_at_provider(shop):
    async with elicit_person(shop) as person:
        person.connects("hubot")
        assert (await person.call("list_repositories")).text.startswith("hubot")
        (account,) = await person.accounts()
        assert account.label == "hubot"
        assert (await person.call("list_repositories")).text.startswith("hubot")
        assert len(person.asked) == 1
        assert person.asked[0].scopes == ("repo",)


async def test_second_tool_shares_account_or_connects_another(shop):
    for name in ("one", "other"):

        @shop.tool(name)
        async def who_am_i() -> str:
            return str((await elicit.oauth(github, scopes=["repo"])).label)

    async with elicit_person(shop) as person:
        person.connects()
        assert (await person.call("list_repositories")).text.startswith("octocat")
        person.connects()
        assert (await person.call("one")).text == "octocat"
        person.connects("hubot")
        assert (await person.call("other")).text == "hubot"
        assert sorted(one.label for one in await person.accounts()) == ["hubot", "octocat"]


@pytest.mark.parametrize("declares", ["both", "url"])
async def test_question_times_out_and_late_payment_is_used_by_next_call(shop, revision, declares):
    options: dict[str, Any] = {"revision": revision, "declares": DECLARES[declares]}
    async with elicit_person(shop, **options) as person:
        person.never_comes()
        result = await person.call("buy_tea", cups=1)
        assert (result.is_error, result.code) == (True, "ELICITATION_TIMEOUT")
        person.pays_late()
        assert (await person.call("buy_tea", cups=1)).code == "ELICITATION_TIMEOUT"
        assert [payment.status for payment in await person.payments()] == ["open"]
        assert (await person.call("buy_tea", cups=1)).text == "1 cups for 9.00 EUR"
        assert len(person.asked) == 2


async def test_unused_late_payment_is_refunded_after_configured_time(shop):
    async with elicit_person(shop, settings={"ELICIT_REFUND_UNUSED": "2d"}) as person:
        person.pays_late()
        await person.call("buy_tea", cups=1)
        await person.let_pass(days=3)
        assert [payment.status for payment in await person.payments()] == ["refunded"]


async def test_model_sees_link_if_client_supports_no_elicitation(shop, revision):
    async with elicit_person(shop, revision=revision, declares=()) as person:
        person.never_comes()
        result = await person.call("buy_tea", cups=1)
        assert "/e/" in result.text


async def test_dismissed_form_cancels_question(shop, revision):
    async with elicit_person(shop, revision=revision) as person:
        person.dismisses()
        assert (await person.call("sign_up")).code == "ELICITATION_CANCELLED"


@pytest.mark.parametrize("declares", DECLARES)
async def test_unanswered_question_fails_test_immediately(shop, revision, declares):
    options: dict[str, Any] = {"revision": revision, "declares": DECLARES[declares]}
    words = r"elicit_person: person\.pays\(\)"
    with pytest.raises(UnexpectedQuestion, match=words) as raised:
        await a_test(shop, tool="buy_tea", arguments={"cups": 1}, **options)
    assert raised.value.question.price == TEA


async def test_unexpected_question_error_names_asked_and_planned_kind(shop):
    with pytest.raises(UnexpectedQuestion, match=r"question of kind oauth.* planned is: pay\."):
        await a_test(shop, AskedPerson.pays, tool="list_repositories")


async def test_expected_but_unasked_question_fails_test(shop):
    with pytest.raises(NeverAsked, match=r"elicit_person: pay, connect an account\."):
        await a_test(shop, AskedPerson.pays, AskedPerson.connects)


BROKEN = """
async def adds() -> str:
    receipt = await elicit.payment(TEA, 1 + "tea")
    return receipt.id

async def pays_by() -> str:
    return (await elicit.payment(TEA, "Tea", provider="strip")).id

async def forgets() -> str:
    return str(elicit.payment(TEA, "Tea"))
"""


# finding: XA6
@pytest.mark.parametrize(
    ("tool", "result"),
    [
        ("adds", r"(?=.*unsupported operand).*\nThe tool raised TypeError at {file}:3"),
        ("pays_by", r"returned: .*Perhaps 'stripe' .*\nThe tool raised NotConfigured at {file}:7$"),
        ("forgets", "The last call returned: .*await"),
        ("buy_tea", r"The last call returned: .*cups"),
    ],
)
async def test_unasked_question_error_contains_last_tool_result(
    shop, revision, tool, result, tmp_path
):
    file = tmp_path / "tools.py"
    file.write_text(BROKEN)
    made: dict[str, Any] = {"elicit": elicit, "TEA": TEA}
    exec(compile(BROKEN, str(file), "exec"), made)  # noqa: S102 - in a file of its own
    for name in ("adds", "pays_by", "forgets"):
        shop.tool()(made[name])
    with pytest.raises(NeverAsked, match=f"(?s){result.format(file=file)}"):
        await a_test(shop, AskedPerson.pays, tool=tool, revision=revision)


async def test_unasked_question_error_says_if_no_tool_was_called(shop):
    # finding: XA6
    with pytest.raises(NeverAsked, match=r"No tool call has ended\.$"):
        await a_test(shop, AskedPerson.pays)


async def test_unasked_question_error_contains_result_of_custom_client(shop, library):
    # finding: XA6
    async def by_such_a_client() -> None:
        async with elicit_person(shop) as person, own_client(shop, library, ask=None) as client:
            person.pays()
            with suppress(fastmcp.exceptions.ToolError):
                await client.call_tool("buy_tea", {"cups": "many"})

    with pytest.raises(NeverAsked, match=r"(?s)last call returned: .*cups"):
        await by_such_a_client()


async def test_exception_of_test_is_raised_unchanged(shop):
    def fail(person: AskedPerson) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await a_test(shop, AskedPerson.pays, fail)


async def test_filling_unknown_field_fails_with_field_name(shop):
    def fill(person: AskedPerson) -> None:
        person.fills(nickname="Ada")

    with pytest.raises(AssertionError, match="has no field nickname"):
        await a_test(shop, fill, tool="sign_up", declares=["url"])


async def test_server_is_restored_and_can_be_used_again(shop):
    holder = getattr(shop, "_mcp_server", shop)
    before = list(holder.middleware)
    for _ in range(2):
        async with elicit_person(shop) as person:
            person.pays()
            await person.call("buy_tea", cups=1)
            assert len(await person.payments()) == 1
    assert holder.middleware == before


@pytest.mark.parametrize(
    ("client", "says"),
    [
        ({"declares": ["forms"]}, r"'form' and 'url'.* It is \['forms'\]\."),
        ({"declares": "url"}, r"collection of .* It is 'url'\."),
        ({"revision": "2025-06-18"}, "must be '2026-07-28' or '2025-11-25', not '2025-06-18'"),
    ],
)
async def test_invalid_declares_or_revision_is_refused(shop, client, says):
    with pytest.raises(ValueError, match=says):
        await a_test(shop, **client)
    async with elicit_person(shop) as person:
        with pytest.raises(ValueError, match=says):
            await person.another("ann", **client)


async def test_argument_that_is_no_server_is_refused():
    with pytest.raises(
        TypeError, match="the module asyncio is not an MCPServer, a FastMCP server or"
    ):
        await a_test(asyncio)


async def test_secret_must_be_one_text_or_fields_but_not_both(shop):
    async with elicit_person(shop) as person:
        for plan in (person.types, person.answers_wrongly):
            for value, fields in (((), ()), (("a", "b"), ()), (("a",), ("user",))):
                with pytest.raises(TypeError, match=rf"{plan.__name__}\(...\) takes one text, or"):
                    plan(*value, **dict.fromkeys(fields, "ada"))


async def test_error_for_unknown_provider_user_lists_known_users(shop):
    with pytest.raises(
        AssertionError, match=r"no person 'bob'. It has octocat and hubot\."
    ) as raised:
        await a_test(shop, lambda person: person.connects("bob"), tool="list_repositories")
    assert str(raised.value) not in "".join(raised.value.__notes__)


async def test_two_servers_can_be_tested_together():
    one, other = new_server("mcp"), new_server("fastmcp")
    for server in (one, other):

        @server.tool()
        async def connect() -> str:
            return str((await elicit.oauth(github)).label)

    async with elicit_person(one) as ada, elicit_person(other) as bob:
        ada.connects()
        bob.connects("hubot")
        assert (await ada.call("connect")).text == "octocat"
        assert (await bob.call("connect")).text == "hubot"


async def test_server_factory_is_accepted():
    async with elicit_person(lambda: new_server("mcp")) as person:
        assert (await person.call("nothing")).is_error


async def test_custom_client_of_test_also_asks_person(shop, library, revision):
    mode = "legacy" if revision == "2025-11-25" else revision
    async with elicit_person(shop) as person:
        person.pays()
        asks = {"mcp": person.elicitation_callback, "fastmcp": person.elicitation_handler}
        async with own_client(shop, library, ask=asks[library], mode=mode) as client:
            result = await client.call_tool("buy_tea", {"cups": 3})
        assert text_of(result) == "3 cups for 9.00 EUR"


async def test_unanswered_question_of_custom_client_is_reported_to_client_and_test(shop):
    async def by_a_client_of_its_own() -> None:
        async with elicit_person(shop) as person:
            client = mcp.Client(_plain(shop), elicitation_callback=person.elicitation_callback)
            async with client:
                result = await client.call_tool("buy_tea", {"cups": 3})
            assert "the test planned no answer" in text_of(result)

    with pytest.raises(UnexpectedQuestion):
        await by_a_client_of_its_own()


async def test_person_follows_link_given_to_plain_client(shop, library):
    plain = mcp.Client if library == "mcp" else fastmcp.Client
    async with elicit_person(shop) as person, plain(shop) as client:
        person.pays()
        options: dict[str, Any] = {} if library == "mcp" else {"raise_on_error": False}
        text = text_of(await client.call_tool("buy_tea", {"cups": 1}, **options))
        await person.follows(text[text.index("http") :].split()[0])
        result = await client.call_tool("buy_tea", {"cups": 1})
        assert text_of(result) == "1 cups for 9.00 EUR"


async def test_plain_client_without_person_logs_advice(shop, library, caplog):
    plain = mcp.Client if library == "mcp" else fastmcp.Client
    async with plain(shop) as client:
        with suppress(fastmcp.exceptions.ToolError):
            await client.call_tool("buy_tea", {"cups": 1})
    assert "async with elicit_person(server)" in caplog.text


@pytest.mark.parametrize("declares", DECLARES)
async def test_questions_asked_together_are_answered_in_order(shop, revision, declares):
    @shop.tool()
    async def everything() -> str:
        account, receipt, profile = await elicit.together(
            elicit.oauth(github), elicit.payment(TEA, "Tea"), elicit.form("Who?", Profile)
        )
        return f"{account.label} {receipt.price} {profile.name}"

    options: dict[str, Any] = {"revision": revision, "declares": DECLARES[declares]}
    async with elicit_person(shop, **options) as person:
        person.connects()
        person.pays()
        person.fills(name="Ada")
        assert (await person.call("everything")).text == "octocat 9.00 EUR Ada"


async def test_concurrent_calls_are_asked_separately(shop, revision):
    async with elicit_person(shop, revision=revision) as person:
        person.pays()
        person.pays()
        result = await asyncio.gather(
            person.call("buy_tea", cups=1), person.call("buy_tea", cups=2)
        )
        assert sorted(one.text for one in result) == ["1 cups for 9.00 EUR", "2 cups for 9.00 EUR"]


async def test_client_which_shows_no_links_does_not_hang(shop, library, revision):
    async def accept(*_: object) -> ElicitResult:
        return ElicitResult(action="accept")

    async def by_such_a_client() -> None:
        mode = "legacy" if revision == "2025-11-25" else revision
        client = own_client(shop, library, ask=accept, mode=mode)
        async with elicit_person(shop, patience=timedelta()), client:
            await client.call_tool("weather", {})
            with suppress(fastmcp.exceptions.ToolError):
                await client.call_tool("buy_tea", {"cups": 1})

    # finding: XA6
    words = r"(?s)elicitation_callback=person.*\nThe last call returned: python-httpx"
    with pytest.raises(StillOpen, match=words):
        await by_such_a_client()


async def test_form_of_mcp_library_is_distinguished_from_elicit_form():
    server = new_server("mcp")

    @server.tool()
    async def ask(ctx: Context[Any, Any]) -> str:
        return str((await ctx.elicit("Whose form?", Plain)).action)

    with pytest.raises(UnexpectedForm, match=r"Use elicit\.form"):
        await a_test(server, tool="ask", revision="2025-11-25")


async def test_external_pages_can_be_included_in_test():
    server = new_server("mcp")

    def terms(link: Link) -> str:
        return f"https://kitchen.example/terms?back={quote(link.return_url, safe='')}"

    @server.tool()
    async def accept_terms() -> str:
        await elicit.url("Please accept our terms.", terms, origins=["https://kitchen.example"])
        return "accepted"

    async def show(request: Request) -> RedirectResponse:
        return RedirectResponse(request.query_params["back"], status_code=303)

    pages: Any = Starlette(routes=[Route("/terms", show)])
    async with elicit_person(server, outside=httpx.ASGITransport(pages)) as person:
        person.visits()
        assert (await person.call("accept_terms")).text == "accepted"


def test_person_outside_asyncio_is_refused(library):
    opening = elicit_person(new_server(library)).__aenter__()
    with pytest.raises(RuntimeError, match="needs a running asyncio event loop"):
        opening.send(None)


async def test_external_request_fails_unless_test_responds():
    server = new_server("mcp")

    @server.tool()
    async def wander() -> str:
        account = await elicit.oauth(github)
        async with account.client() as api:
            return (await api.get("https://weather.example/today")).text

    with pytest.raises(OutsideReached, match=r"GET https://weather.example/today .*outside="):
        await a_test(server, AskedPerson.connects, tool="wander")
    sunny = httpx.MockTransport(lambda _: httpx.Response(200, text="sunny"))
    async with elicit_person(server, outside=sunny) as person:
        person.connects()
        assert (await person.call("wander")).text == "sunny"


class Plain(BaseModel):
    name: str


def _plain(server: Any) -> Any:
    return getattr(server, "_mcp_server", server)


def own_client(server: Any, library: str, *, ask: Any, mode: str = "auto") -> Any:
    if library == "mcp":
        return mcp.Client(server, mode=mode, elicitation_callback=ask)
    return fastmcp.Client(server, mode=mode, elicitation_handler=ask)
