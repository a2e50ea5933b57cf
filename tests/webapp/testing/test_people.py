"""Several people in a test: approvers, a second person, and a vendor that posts to a route."""

import hashlib
import hmac
from datetime import timedelta
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse

from flows import complete_elicitation, elicit
from tests.support.mcp_server import new_server
from tests.webapp.testing.conftest import DECLARES, a_test
from webapp.settings.settings import BadSettings
from webapp.testing import (
    NeverAsked,
    ReceivedQuestion,
    StillOpen,
    UnexpectedQuestion,
    elicit_person,
)

# Use every library, revision and `declares` value, but not every combination of them.
pytestmark = pytest.mark.diagonal

ONE = {"finance": {"subjects": ["frank", "flora"]}}
TWO = {"finance": {"subjects": ["frank", "flora"], "needs": 2, "comment": "required"}}
SECRET = b"of-the-vendor"


@pytest.fixture
def office(library: str) -> Any:
    """Return a server with tools that others approve, and a route for a vendor's webhook."""
    server = new_server(library)

    @server.tool()
    @elicit.gate(approver="finance")
    async def refund(order: str) -> str:
        return f"{order} is paid back"

    @server.tool()
    async def ship(order: str) -> str:
        asked = elicit.confirm("Ship it?", arguments={"order": order}, approver="finance")
        outcome = await asked.outcome()
        return f"{outcome.status}: {', '.join(outcome.comments) or outcome.error or 'shipped'}"

    @server.tool()
    async def verify() -> str:
        case = elicit.url("Who are you?", "https://vendor.example/case", elicitation_id="case-7")
        return f"verified by {(await case)['by']}"

    @server.custom_route("/vendor", methods=["POST"])
    async def vendor(request: Request) -> PlainTextResponse:
        if not hmac.compare_digest(signed(await request.body()), request.headers["x-signature"]):
            return PlainTextResponse("forged", status_code=403)
        case = (await request.json())["case"]
        return PlainTextResponse(await complete_elicitation(case, {"by": "the vendor"}))

    return server


def signed(body: bytes) -> str:
    return hmac.digest(SECRET, body, hashlib.sha256).hex()


# finding: XA14
@pytest.mark.parametrize("declares", DECLARES)
async def test_two_approvers_approve_with_comments(office, revision, declares):
    options: dict[str, Any] = {"revision": revision, "declares": DECLARES[declares]}
    async with elicit_person(office, approvers=TWO, **options) as person:
        person.approves(comment="Fine")
        assert (await person.call("ship", order="A-1")).text == "accepted: Fine, Fine"
        person.approves(by=["frank", "flora"], comment="Yes")
        assert (await person.call("refund", order="A-2")).text == "A-2 is paid back"
        assert [question.kind for question in person.asked] == ["decision", "decision"]


async def test_approver_refuses_with_reason(office, revision):
    async with elicit_person(office, revision=revision, approvers=ONE) as person:
        person.refuses(by="flora", reason="Not paid yet")
        result = await person.call("refund", order="A-1")
        assert result.code == "ELICITATION_DECLINED"
        assert "Not paid yet" in result.text
        person.accepts()
        assert (await person.call("refund", order="A-2")).text == "A-2 is paid back"


@pytest.mark.parametrize("declares", DECLARES)
async def test_request_is_approved_after_restart_and_before_escalation(office, declares):
    finance = {"subjects": ["frank", "flora"], "escalate_after": "1d", "escalate_to": "managers"}
    tables: Any = {"finance": finance, "managers": {"subjects": ["mia"]}}
    async with elicit_person(office, approvers=tables, declares=DECLARES[declares]) as person:
        person.leaves_open()
        result = await person.call("ship", order="A-1")
        assert "Waiting for finance" in result.text
        await person.let_pass(hours=23)
        person.leaves_open()
        await person.call("ship", order="A-1")
        await person.restarts()
        await person.let_pass(minutes=55)
        person.approves(by="flora")
        assert (await person.call("ship", order="A-1")).text == "accepted: shipped"


@pytest.mark.parametrize("declares", DECLARES)
async def test_escalated_request_is_approved_by_other_table(office, declares):
    finance = {"subjects": ["frank"], "escalate_after": "4h", "escalate_to": "managers"}
    tables: Any = {"finance": finance, "managers": {"subjects": ["mia"]}}
    async with elicit_person(office, approvers=tables, declares=DECLARES[declares]) as person:
        person.leaves_open()
        await person.call("ship", order="A-1")
        await person.let_pass(hours=4)
        person.approves(by="mia")
        assert (await person.call("ship", order="A-1")).text == "accepted: shipped"


@pytest.mark.parametrize("declares", DECLARES)
async def test_approver_delegates_request(office, revision, declares):
    options: dict[str, Any] = {"revision": revision, "declares": DECLARES[declares]}
    tables: Any = {"finance": {"subjects": ["flora", "frank", "max"], "delegate": True}}
    async with elicit_person(office, approvers=tables, **options) as person:
        person.delegates("frank")
        person.approves(by="frank")
        assert (await person.call("refund", order="A-1")).text == "A-1 is paid back"
        person.delegates("frank", by="max")
        person.delegates("flora", by="frank")
        person.refuses(by="flora", reason="Not paid yet")
        assert "Not paid yet" in (await person.call("refund", order="A-2")).text


@pytest.mark.parametrize(
    ("delegate", "plan", "words"),
    [
        (False, {"to": "frank"}, r"flora cannot hand over .*`delegate`: True in the table 'fina"),
        (True, {"to": "eve"}, r"flora hands the request to eve.*listed in the table 'finance'"),
        (True, {"to": "frank", "by": "eve"}, r"eve cannot decide 'Run refund\?'"),
    ],
)
async def test_delegation_that_page_refuses_fails_test(office, delegate, plan, words):
    tables: Any = {"finance": {"subjects": ["flora", "frank", "max"], "delegate": delegate}}
    async with elicit_person(office, approvers=tables) as person:
        person.delegates(**plan)
        with pytest.raises(AssertionError, match=words):
            await person.call("refund", order="A-1")


async def test_missing_approvers_table_error_names_elicit_toml_and_no_other_file(office):
    async with elicit_person(office) as person:
        result = await person.call("refund", order="A-1")
    assert result.code == "ELICITATION_NOT_CONFIGURED"
    assert "Write [approvers.finance] in elicit.toml" in result.text
    assert "The code is at test_people.py:" in result.text  # the line of `@elicit.gate`


async def test_person_with_listed_claim_can_approve(office):
    tables = {"finance": {"claims": {"groups": ["finance"]}, "needs": 2}}
    async with elicit_person(office, approvers=tables) as person:
        person.approves()
        assert (await person.call("refund", order="A-1")).text == "A-1 is paid back"


async def test_user_of_machine_approves_own_request(office):
    options: dict[str, Any] = {"settings": {"ELICIT_APPROVERS_ASKER": "may"}}
    async with elicit_person(office, approvers={"finance": {"local": True}}, **options) as person:
        person.approves()
        assert (await person.call("refund", order="A-1")).text == "A-1 is paid back"


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({}, r"comment"),
        ({"by": "eve", "comment": "Yes"}, r"eve cannot decide 'Run refund\?': .*waits for finance"),
    ],
)
async def test_decision_that_page_refuses_fails_test(office, plan, words):
    async with elicit_person(office, approvers=TWO) as person:
        person.approves(**plan)
        with pytest.raises(AssertionError, match=words):
            await person.call("refund", order="A-1")


async def test_unplanned_decision_error_suggests_approves_and_refuses(office):
    with pytest.raises(UnexpectedQuestion, match=r"person\.approves\(\), person\.refuses\(\)"):
        async with elicit_person(office, approvers=ONE) as person:
            await person.call("refund", order="A-1")


async def test_invalid_approvers_table_is_refused(office):
    with pytest.raises(BadSettings, match=r"approvers\.finance"):
        async with elicit_person(office, approvers={"finance": {"needs": 2}}):
            pass


@pytest.mark.parametrize("declares", DECLARES)
async def test_second_person_has_own_accounts_payments_and_questions(shop, revision, declares):
    options: dict[str, Any] = {"revision": revision, "declares": DECLARES[declares]}
    async with elicit_person(shop, **options) as person:
        ann = await person.another("ann")
        person.connects()
        assert (await person.call("list_repositories")).text.startswith("octocat")
        ann.connects("hubot")
        assert (await ann.call("list_repositories")).text.startswith("hubot")
        assert (await person.call("list_repositories")).text.startswith("octocat")
        ann.pays()
        await ann.call("buy_tea", cups=1)
        assert [account.label for account in await person.accounts()] == ["octocat"]
        assert [account.label for account in await ann.accounts()] == ["hubot"]
        assert await person.payments() == []
        assert len(await ann.payments()) == 1
        assert [question.kind for question in person.asked] == ["oauth"]
        assert [question.kind for question in ann.asked] == ["oauth", "payment"]
        person.fills(name="Pia")
        ann.fills(name="Ann")
        assert (await ann.call("sign_up")).text == "Ann, 7"
        assert (await person.call("sign_up")).text == "Pia, 7"


async def test_second_person_can_have_another_client(shop, revision):
    async with elicit_person(shop, revision=revision) as person:
        ann = await person.another("ann", declares=(), revision="2025-11-25")
        ann.fills(name="Ann")
        assert (await ann.call("sign_up")).text == "Ann, 7"
        with pytest.raises(AssertionError, match="'ann' is already a person"):
            await ann.another("ann")


async def test_leftover_action_of_second_person_fails_test(shop):
    with pytest.raises(NeverAsked, match="pay"):
        async with elicit_person(shop) as person:
            (await person.another("ann")).pays()


async def test_settings_without_sign_in_allow_one_person(shop):
    async with elicit_person(shop, settings={"ELICIT_LOCAL_YES": "paired"}) as person:
        with pytest.raises(AssertionError, match="ELICIT_LOCAL_YES"):
            await person.another("ann")


async def test_signed_in_person_is_not_the_user_of_this_machine(library):
    server = new_server(library)

    @server.tool()
    async def who() -> str:
        caller = elicit.caller()
        return f"{caller.is_local} {caller.issuer}"

    async with elicit_person(server) as person:
        ann = await person.another("ann")
        assert (await person.call("who")).text.startswith("True")
        assert (await ann.call("who")).text == "False http://127.0.0.1:8766/oidc"


# finding: XA14
@pytest.mark.parametrize("declares", DECLARES)
async def test_signed_post_of_vendor_completes_visit(office, revision, declares):
    says = list[str]()
    options: dict[str, Any] = {"revision": revision, "declares": DECLARES[declares]}
    async with elicit_person(office, **options) as person:

        async def report(asked) -> None:
            body = b'{"case": "' + asked.elicitation_id.encode() + b'"}'
            for signature in (signed(b"another body"), signed(body)):
                reply = await person.posts(
                    "/vendor", content=body, headers={"x-signature": signature}
                )
                says.append(reply.text)

        person.continues(report)
        assert (await person.call("verify")).text == "verified by the vendor"
        (reported,) = person.asked
        assert (reported.elicitation_id, len(reported.id)) == ("case-7", 44)
        assert says == ["forged", "accepted"]


@pytest.mark.parametrize("declares", DECLARES)
async def test_exception_in_continues_callback_fails_test_unchanged(office, revision, declares):
    async def fail(_: object) -> None:
        raise ZeroDivisionError

    options: dict[str, Any] = {"revision": revision, "declares": DECLARES[declares]}
    with pytest.raises(ZeroDivisionError):
        await a_test(office, lambda person: person.continues(fail), tool="verify", **options)


async def test_visit_that_nothing_completes_fails_test_with_advice(office, revision):
    async with elicit_person(office, revision=revision) as person:

        async def wait_in_vain(asked: ReceivedQuestion) -> None:
            kit: Any = person
            await kit.is_awaited(asked.id, at_most=timedelta())

        person.continues(wait_in_vain)
        with pytest.raises(StillOpen, match=r"did the planned action.*complete_elicitation\("):
            await person.call("verify")


async def test_vendor_reports_after_call_has_returned(office, revision):
    async with elicit_person(office, revision=revision, declares=()) as person:
        person.leaves_open()
        await person.call("verify")
        (reported,) = person.asked
        body = b'{"case": "case-7"}'
        reply = await person.posts("/vendor", content=body, headers={"x-signature": signed(body)})
        assert reply.text == "accepted"
        await person.let_pass(minutes=1)
        assert (await person.call("verify")).text == "verified by the vendor"
        assert reported.timeout == timedelta(minutes=5)


async def test_question_without_own_id_uses_its_id_as_elicitation_id(shop):
    async with elicit_person(shop) as person:
        person.accepts()
        await person.call("delete")
        (reported,) = person.asked
        assert reported.id == reported.elicitation_id


async def test_posted_request_appears_to_come_from_another_machine(library):
    server = new_server(library)

    @server.custom_route("/from", methods=["POST"])
    async def sender(request: Request) -> PlainTextResponse:
        assert request.client is not None
        return PlainTextResponse(f"{request.client.host} {await request.json()}")

    async with elicit_person(server) as person:
        assert (await person.posts("/from", json={"a": 1})).text == "192.0.2.7 {'a': 1}"
