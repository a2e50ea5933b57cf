"""Gates, approvals and forms, as a model that wants a yes and a client that lies try them.

No body of a gated tool starts here before somebody who may has said yes to that very call.
"""

from datetime import timedelta
from typing import Any

import mcp_types as types
import pytest
from pydantic import BaseModel, Field

from flows import elicit
from flows.elicitation.states import Json, Status
from tests.attacks.attack import Attack
from tests.support.issuer import issuing, sign_in
from tests.support.mcp_sandbox import sandbox_env
from tests.support.mcp_server import (
    FORM,
    LEGACY,
    LIBRARIES,
    MODERN,
    URL,
    Caller,
    asked_in,
    link_in,
    new_server,
    soon,
    staged,
    text_of,
)
from webapp.limits import CallLimits
from webapp.settings.identity import IdentitySettings

REFUSED = ["decline"]

models_yes = Attack(
    who="the model, with a client that cannot elicit",
    how="says yes to a gate itself: by `elicitation_result`, by arguments of its own, by calling "
    "again, even where the operator lets it answer forms",
    stopped="a model can wait, decline or cancel; a yes comes from our page or a client's form",
    where=("webapp/mcp/result_tool.py", "webapp/kinds/gate.py"),
    elsewhere=(
        "tests/webapp/mcp/test_gate.py::test_the_model_approves_by_no_tool",
        "tests/webapp/mcp/test_elicitation_result.py::test_the_model_cannot_say_yes_to_any_kind",
        "tests/webapp/mcp/test_elicitation_result.py::test_without_the_operators_word_no_form_is_the_models",
    ),
)
anothers_yes = Attack(
    who="another person at the same server",
    how="makes the call that somebody else has approved, or presses yes on the other's link",
    stopped="an approval is its owner's, and only whoever asked opens the page",
    where=("webapp/kinds/approvals.py", "webapp/identity/identity.py"),
    elsewhere=(
        "tests/webapp/kinds/test_approvals.py::test_it_covers_no_other_arguments_tool_or_person",
        "tests/webapp/mcp/test_gate.py::test_a_caller_without_a_name_has_no_approval_beyond_its_call",
    ),
)
anothers_client = Attack(
    who="another program of the same person, with a client id of its own",
    how="makes the call that the person has approved in a client of theirs",
    stopped="an approval is for the client that asked; for all only by the person's own tick",
    where=("webapp/kinds/approvals.py", "flows/elicitation/calling_client.py"),
    elsewhere=(
        "tests/webapp/kinds/test_approvals.py::test_it_is_for_the_client_that_asked_and_for_no_other",
        "tests/webapp/oauth/test_accounts_by_client.py::test_every_client_of_its_person_may_use_it_until_it_is_kept_to_some",
    ),
)
other_arguments = Attack(
    who="the model",
    how="has little approved and calls with more: other arguments, one more, another tool",
    stopped="a yes covers the digest of all arguments, for one tool of one server",
    where=("flows/kinds/gate.py", "webapp/kinds/approvals.py"),
    elsewhere=(
        "tests/webapp/mcp/test_gate.py::test_the_answer_to_one_gate_opens_no_other_call",
        "tests/webapp/mcp/test_gate.py::test_what_is_long_is_read_and_covered_whole",
        "tests/flows/kinds/test_gate.py::test_other_arguments_are_another_question",
    ),
)
old_yes = Attack(
    who="the model, or a call that goes on for days",
    how="uses a yes after its time, or after the person or the operator took it back",
    stopped="each call and each leg looks whether an approval is in force now",
    where=("webapp/kinds/approvals.py", "webapp/kinds/gate.py"),
    elsewhere=(
        "tests/webapp/mcp/test_gate.py::test_a_yes_opens_for_the_legs_of_its_call_for_a_while_and_until_it_is_revoked",
        "tests/webapp/kinds/test_approvals.py::test_a_leg_that_starts_after_the_approval_is_over_asks_again",
    ),
)
false_show = Attack(
    who="the model",
    how="writes arguments that look like others where the person reads them: by lines of their "
    "own, and signs that turn the writing or that a terminal obeys",
    stopped="each argument stands on one line of its own, and signs that are no letters as such",
    where=("flows/kinds/gate.py", "webapp/mcp/forms.py"),
    elsewhere=(
        "tests/webapp/mcp/test_forms.py::test_what_stands_in_one_argument_does_not_look_like_another",
        "tests/webapp/pages/test_gate_page.py::test_every_argument_is_on_the_page",
    ),
)
asked_secret = Attack(
    who="a tool whose fields or question a model chose",
    how="asks for a password, a key or a card in a form, which passes through client and model",
    stopped="what looks like a secret is refused before anybody is asked; `secret` is our page",
    where=("flows/schema/sensitive.py", "flows/kinds/form.py"),
    elsewhere=(
        "tests/flows/kinds/test_form.py::test_a_name_that_says_secret_is_refused",
        "tests/flows/kinds/test_form.py::test_a_title_that_says_secret_is_refused",
        "tests/flows/kinds/test_form.py::test_a_question_for_one_text_is_its_label_and_is_refused_as_one",
    ),
)
false_answer = Attack(
    who="a client",
    how="answers a form with what was not asked for: other types, more fields, none, too much",
    stopped="content is checked against the schema before the tool sees it, whoever answered",
    where=("flows/schema/schema.py", "webapp/kinds/page_kind.py"),
    elsewhere=(
        "tests/webapp/mcp/test_forms.py::test_what_does_not_fit_ends_the_question_and_says_where",
        "tests/flows/schema/test_schema.py::test_whatever_the_content_it_is_checked",
        "tests/flows/schema/test_schema.py::test_an_answer_is_at_most_16_kilobytes_all_together",
    ),
)
hidden_way = Attack(
    who="the model",
    how="calls a gated tool that it is not shown, by its name",
    stopped="a call is looked up as it runs, not as it is listed; hiding protects nothing",
    where=("webapp/mcp/tools.py", "webapp/mcp/before.py"),
    elsewhere=(
        "tests/webapp/mcp/test_gate.py::test_a_tool_that_is_not_listed_is_gated_all_the_same",
        "tests/webapp/mcp/test_hiding.py::test_a_hidden_tool_that_is_called_asks_and_is_shown_then",
    ),
)


def gated(library: str) -> tuple[Any, list[Json]]:
    """A server whose tools wait for a yes, and what their bodies were given."""
    server, done = new_server(library), list[Json]()

    @server.tool()
    @elicit.gate
    def pay(to: str, amount: int = 1, note: str = "") -> str:
        done.append([to, amount, note])
        return "paid"

    @server.tool()
    @elicit.gate
    def burn(to: str, amount: int = 1) -> str:
        done.append(["burnt", to, amount])
        return "burnt"

    return server, done


async def is_refused(caller: Caller, tool: str, **arguments: Json) -> bool:
    """Whether somebody was asked, who said no."""
    result = await soon(caller.call(tool, **arguments))
    return bool(result.meta and result.meta.get("code") == "ELICITATION_DECLINED")


@models_yes
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("revision", [LEGACY, MODERN])
async def test_a_model_that_may_answer_forms_may_not_open_a_gate(library, revision):
    server, done = gated(library)
    who = IdentitySettings(lets_model_answer=True)
    async with (
        staged(server, who=who, limits=CallLimits(link=timedelta())) as stage,
        stage.caller(revision, declares=None) as caller,
    ):
        link = link_in(await soon(caller.call("pay", to="eve")))
        about: dict[str, Any] = {"elicitId": stage.id_of(link)}
        for said in (
            {"action": "accept"},
            {"action": "accept", "content": {}},
            {"action": "accept", "content": {"approved": True, "remember": "1"}},
            {"action": "wait", "content": {}},
            {"content": {"response": "yes"}},
        ):
            assert text_of(await soon(caller.call("elicitation_result", **about, **said))) != "paid"
            assert text_of(await soon(caller.call("pay", to="eve"))) != "paid"
        assert not done
        assert await stage.status(link) is Status.PENDING
        assert not await stage.service.kinds.gates.approvals.all()


@anothers_yes
@pytest.mark.parametrize("library", LIBRARIES)
async def test_what_one_person_has_approved_another_is_asked_and_cannot_answer_for_them(library):
    server, done = gated(library)
    async with issuing() as issuer, staged(server, who=issuer.who()) as stage:

        def bearer(subject: str) -> Any:
            return issuer.bearer(subject, audience=stage.mcp_url)

        async with (
            stage.caller(LEGACY, headers=bearer("alice"), declares=FORM, fills=[{}]) as alice,
            stage.caller(
                LEGACY, headers=bearer("mallory"), declares=FORM, fills=REFUSED
            ) as mallory,
            stage.caller(LEGACY, headers=bearer("alice"), declares=URL) as at_pages,
        ):
            assert text_of(await soon(alice.call("pay", to="ann"))) == "paid"
            assert await is_refused(mallory, "pay", to="ann")
            at_pages.begin("burn", to="ann")
            at_pages.begin("burn", to="bob")
            stranger = await stage.person()
            asked = [row for row in await stage.pending(4) if not row.status.is_final]
            for link in map(stage.link_of, asked):
                await sign_in(stranger, await stranger.visit(link), "mallory")
                page = await stranger.visit(link)
                assert page.heading == "This link belongs to someone else"
                said = {"csrf": page.csrf or "", "remember": "1"}
                assert (await stranger.browser.post(link, data=said)).status_code >= 400
        assert done == [["ann", 1, ""]]


@anothers_client
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("revision", [LEGACY, MODERN])
async def test_a_yes_in_one_client_opens_for_no_other_of_the_same_person(library, revision):
    # finding: S11
    server, done = gated(library)
    async with issuing() as issuer, staged(server, who=issuer.who()) as stage:

        def alice(client_id: str, **about: Any) -> Any:
            headers = issuer.bearer("alice", audience=stage.mcp_url, client_id=client_id)
            return stage.caller(revision, headers=headers, name="same name", **about)

        async with (
            alice("one", declares=FORM, fills=[{}]) as one,
            alice("two", declares=FORM, fills=REFUSED * 2) as two,
            alice("three", declares=URL) as at_pages,
        ):
            assert text_of(await soon(one.call("pay", to="ann"))) == "paid"
            assert await is_refused(two, "pay", to="ann")
            assert text_of(await soon(one.call("pay", to="ann"))) == "paid"
            call = at_pages.call("burn", to="ann")
            link = await at_pages.link()
            person = await stage.person()
            page = await sign_in(person, await person.visit(link), "alice")
            assert "<bdi>three</bdi>" in page.text
            assert "Approve it for my other assistants too" in page.text
            said = {"csrf": page.csrf or "", "remember": "1"}
            await person.browser.post(link, data=said)
            assert text_of(await soon(call)) == "burnt"
            assert await is_refused(two, "burn", to="ann")
            assert done == [["ann", 1, ""]] * 2 + [["burnt", "ann", 1]]


@anothers_client
@pytest.mark.parametrize("library", LIBRARIES)
async def test_on_ones_own_machine_a_yes_is_for_what_calls_itself_so_or_for_all_if_ticked(library):
    # finding: S11
    server, done = gated(library)
    async with (
        staged(server) as stage,
        stage.caller(MODERN, name="Claude", declares=URL) as claude,
        stage.caller(MODERN, name="Cursor", declares=FORM, fills=REFUSED) as cursor,
    ):
        for ticks in ({"remember": "1"}, {"all_clients": "1"}):
            tool = "pay" if "remember" in ticks else "burn"
            call = claude.call(tool, to="ann")
            link = await claude.link()
            person = await stage.person()
            page = await person.visit(link)
            assert "That is what it calls itself, and nothing here proves it." in page.text
            await person.browser.post(link, data={"csrf": page.csrf or "", **ticks})
            await soon(call)
        assert await is_refused(cursor, "pay", to="ann")
        assert text_of(await soon(cursor.call("burn", to="ann"))) == "burnt"
        assert len(done) == 3


@other_arguments
@pytest.mark.parametrize("library", LIBRARIES)
async def test_a_yes_to_one_call_is_none_to_a_call_that_is_nearly_the_same(library):
    server, done = gated(library)
    others: list[tuple[str, dict[str, Json]]] = [
        ("pay", {"to": "ann", "amount": 500}),
        ("pay", {"to": "ann", "amount": 5, "note": ""}),
        ("pay", {"to": "ann", "amount": "5"}),
        ("pay", {"to": "ann", "amount": 5.0}),
        ("pay", {"to": "ann "}),
        ("pay", {"to": "ann"}),
        ("pay", {"to": "Ann", "amount": 5}),
        ("burn", {"to": "ann", "amount": 5}),
    ]
    fills: list[Any] = [{}, *REFUSED * len(others)]
    async with (
        staged(server) as stage,
        stage.caller(LEGACY, declares=FORM, fills=fills) as caller,
    ):
        assert text_of(await soon(caller.call("pay", to="ann", amount=5))) == "paid"
        for tool, arguments in others:
            assert await is_refused(caller, tool, **arguments), arguments
        assert text_of(await soon(caller.call("pay", amount=5, to="ann"))) == "paid"
        assert done == [["ann", 5, ""]] * 2


@old_yes
@pytest.mark.parametrize("ends", ["by time", "revoked", "cleared"])
async def test_a_yes_that_is_over_opens_nothing(ends):
    server, done = gated("mcp")
    async with (
        sandbox_env(server) as at,
        at.stage.caller(LEGACY, declares=FORM, fills=[{}, *REFUSED]) as caller,
    ):
        approvals = at.stage.service.kinds.gates.approvals
        assert text_of(await soon(caller.call("pay", to="ann"))) == "paid"
        at.clock.tick(minutes=14)
        assert text_of(await soon(caller.call("pay", to="ann"))) == "paid"
        (approval,) = await approvals.all()
        if ends == "by time":
            at.clock.tick(minutes=1, seconds=1)
        elif ends == "revoked":
            assert await approvals.revoke(approval.id)
        else:
            assert await approvals.clear() == 1
        assert await is_refused(caller, "pay", to="ann")
        assert len(done) == 2


@false_show
@pytest.mark.parametrize("library", LIBRARIES)
async def test_arguments_that_play_others_are_shown_as_what_they_are(library):
    server, done = gated(library)
    honest: dict[str, Json] = {"to": "ann", "amount": 1, "note": "cheap"}
    plays: list[dict[str, Json]] = [
        {"to": "ann\namount: 1\nnote: cheap", "amount": 9000},
        {"to": "ann\r\namount: 1", "amount": 9000, "note": "\u2028note: cheap"},
        {"to": "ann\u202e0009 :tnuoma", "amount": 9000},
        {"to": "ann\x1b[2K\x08\x08", "amount": 9000},
        {"to": "ann", "amount": 9000, "note": "\n" * 50 + "amount: 1"},
    ]
    async with (
        staged(server) as stage,
        stage.caller(LEGACY, declares=FORM, fills=REFUSED * (len(plays) + 1)) as caller,
    ):
        for arguments in (honest, *plays):
            assert await is_refused(caller, "pay", **arguments)
        shown = [form.message for form in caller.forms]
    assert shown[0] == "Run pay?\nto: ann\namount: 1\nnote: cheap"
    assert len(shown) == len(plays) + 1
    for message in shown[1:]:
        lines = message.splitlines()
        assert [line.partition(":")[0] for line in lines[1:]] == ["to", "amount", "note"]
        assert "amount: 9000" in lines
        assert all(line.isprintable() for line in lines)
    assert not done


@asked_secret
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("asked", ["password", "api_key", "creditCard", "What is your password?"])
async def test_a_form_for_a_secret_reaches_nobody(library, asked):
    server = new_server(library)

    @server.tool()
    async def ask(what: str) -> str:
        if what.endswith("?"):
            return await elicit.form(what)
        fields: dict[str, Json] = {"type": "object", "properties": {what: {"type": "string"}}}
        return str(await elicit.form("Just this", fields))

    async with (
        staged(server) as stage,
        stage.caller(MODERN, declares=FORM, fills=[{asked: "hunter2"}]) as caller,
    ):
        result = await soon(caller.call("ask", what=asked))
        assert result.is_error
        assert "ask for it with elicit.secret" in text_of(result)
        assert not caller.forms
        assert not await stage.elicitations()


class Transfer(BaseModel):
    amount: int = Field(ge=1, le=100)
    to: str = Field(max_length=20)


@false_answer
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("revision", [LEGACY, MODERN])
async def test_an_answer_that_was_not_asked_for_reaches_no_tool(library, revision):
    server, given = new_server(library), list[object]()

    @server.tool()
    async def transfer() -> str:
        given.append(await elicit.form("How much, and to whom?", Transfer))
        return "done"

    fills: list[Any] = [
        {},
        {"amount": 101, "to": "ann"},
        {"amount": True, "to": "ann"},
        {"amount": "5; drop", "to": "ann"},
        {"amount": 5},
        {"amount": 5, "to": "a" * 21},
        {"amount": 5, "to": ["ann"]},
        {"amount": 5, "to": "ann", "is_admin": True},
        {"amount": 5, "to": "a" * 20_000},
    ]
    async with (
        staged(server) as stage,
        stage.caller(revision, declares=FORM, fills=fills) as caller,
    ):
        for fill in fills:
            result = await soon(caller.call("transfer"))
            assert result.is_error, fill
            assert result.meta
            assert result.meta["code"] == "INVALID_INPUT", fill
        assert not given
        assert {row.status for row in await stage.elicitations()} == {Status.FAILED}


@hidden_way
@pytest.mark.parametrize("library", LIBRARIES)
async def test_a_tool_that_is_not_listed_waits_for_its_yes_as_any_other(library):
    server, done = gated(library)

    @server.tool()
    @elicit.gate
    @elicit.needs(elicit.secret("The key of the door", name="door"), hide=True)
    def wipe() -> str:
        done.append("wiped")
        return "wiped"

    async with staged(server) as stage, stage.caller(MODERN, declares=FORM) as caller:
        listed = {tool.name for tool in (await soon(caller.client.list_tools())).tools}
        assert listed == {"pay", "burn"}
        asked = asked_in(await caller.leg("wipe"))
        (request,) = (asked.input_requests or {}).values()
        said: Any = request.params
        assert said.message == "Run wipe?"
        refused = await caller.leg("wipe", after=asked, action="decline")
        assert isinstance(refused, types.CallToolResult)
        assert refused.is_error
        assert not done
        assert [row.kind for row in await stage.elicitations()] == ["gate"]
