"""Tests that a question ends once, and only by someone who may end it."""

from flows.elicitation.states import Completion, Status
from tests.doors.rules import (
    ASKING,
    ENTERING,
    PROVIDERS,
    STORES,
    Door,
    Rule,
    every,
)
from tests.doors.world import ALICE, ANN, ERIN, World, owner_tag

CONFIRM = {"kind": "confirm", "message": "Sell the house?"}
VISIT = {"kind": "url", "message": "Pay at the till.", "url": "https://till.example/9"}


async def _ends_once(world: World, door: Door) -> None:
    asked = await world.ask(door, world.fresh(VISIT))
    complete = world.env.here.service.completing.complete
    assert await complete(asked.id, {"n": 1}) is Completion.ACCEPTED
    assert await complete(asked.id, {"n": 2}) is Completion.ALREADY_SETTLED
    await world.env.here.service.elicitations.end(await world.state(asked), Status.DECLINED)
    assert (await world.state(asked)).status is Status.ACCEPTED


async def _the_first_press_counts(world: World, _: Door) -> None:
    asked = await world.ask(Door.API, world.fresh(CONFIRM))
    person = await world.browser(ANN)
    page = await person.visit(asked.link)
    form = {"csrf": page.csrf or ""}
    decline = page.leading("/decline")
    (approve,) = (action for action in page.actions if action != decline)
    for action in (approve, decline, approve):
        pressed = await person.browser.post(action, data=form)
        assert ("Nothing was changed" in pressed.text) == ("/decline" in action)
    assert (await world.state(asked)).status is Status.ACCEPTED


async def _the_first_approver_counts(world: World, door: Door) -> None:
    asked = await world.asked_of_finance({"order": "o8"}, f"Pay it back at the {door}?")
    erin = await world.browser(ERIN)
    address = (await world.addresses_of_finance())[0]
    form = {"csrf": (await erin.visit(address)).csrf or "", "reason": ""}
    person = await world.person_alone(ERIN)
    (request, *_) = (await person.send("GET", "/api/inbox")).json()["requests"]
    path = f"/api/inbox/{request['id']}/answer"
    if door is Door.APPROVER:
        await erin.browser.post(f"{address}/approve", data=form)
        late = await person.send("POST", path, json={"accepts": False})
        assert late.status_code == 409
    else:
        assert (await person.send("POST", path, json={"accepts": True})).status_code == 200
        pressed = await erin.browser.post(f"{address}/decline", data=form)
        assert "Nothing was changed" in pressed.text
    found = await world.env.here.service.elicitations.get(asked.id)
    assert found is not None
    assert found.status is Status.ACCEPTED


async def _the_first_answer_of_a_key_counts(world: World, _: Door) -> None:
    asked = await world.ask(Door.API, world.fresh(CONFIRM))
    assert (await world.desk.post(asked.id, "answer", {"accepts": True})).status_code == 200
    assert (await world.desk.post(asked.id, "answer", {"accepts": False})).status_code == 409
    assert (await world.program.post(asked.id, "cancel")).status_code == 409
    assert (await world.state(asked)).status is Status.ACCEPTED


async def _asker_never_decides(world: World, door: Door) -> None:
    """Try every way in which alice could approve her own request as one of the approvers."""
    asked = await world.asked_of_finance({"order": "o8"}, "Pay it back?")
    own = world.known(asked, Door.TOOL_2026)
    page = await world.page(own)
    person = await world.browser(ALICE)
    for action in ("", "/allow", "/approve", "/continue"):
        data = {"csrf": page.csrf or "", "answer": "approve"}
        await person.browser.post(f"{own.link}{action}", data=data)
    alone = await world.person_alone(ALICE)
    for path in (f"/api/questions/{asked.id}/answer", "/api/inbox/finance.x/answer"):
        refused = await alone.send("POST", path, json={"accepts": True})
        assert refused.status_code in (401, 403, 404)
    for program in (world.desk, world.program):
        refused = await program.post(asked.id, "answer", {"accepts": True})
        assert refused.status_code in (403, 404)
    assert await world.env.here.service.completing.complete(asked.id, {}) is Completion.UNKNOWN
    if door in (Door.TOOL_2025, Door.TOOL_2026):
        called = await world.call(
            door, "elicitation_result", elicitId=asked.id, action="accept", content={}
        )
        assert "You cannot answer for the person" in called
    found = await world.env.here.service.elicitations.get(asked.id)
    assert found is not None
    assert not found.status.is_final


async def _belongs_to_one_person(world: World, door: Door) -> None:
    asked = await world.ask(door, world.fresh(CONFIRM))
    other = owner_tag(world, "bob")
    service = world.env.here.service
    complete = service.completing.complete
    assert await complete(asked.id, {}, owner=other) is Completion.UNKNOWN
    own = await world.person_alone("bob")
    assert (await own.call("GET", f"/{asked.id}")).status_code == 404
    for program in (await world.program_named("other"), world.program.acting_for("")):
        refused = await program.call("GET", f"/{asked.id}")
        assert refused.status_code in (400, 401, 404)
    listed = (await own.call("GET")).json()["questions"]
    assert [one for one in listed if one["id"] == asked.id] == []


RULES = [
    Rule(
        id="settled-once",
        says="Only the first answer to a question counts; a later answer "
        "changes nothing, and its sender is informed",
        source="promise 2",
        cells={
            **every(ASKING, _ends_once),
            Door.PAGE: _the_first_press_counts,
            Door.APPROVER: _the_first_approver_counts,
            Door.INBOX: _the_first_approver_counts,
            Door.APPROVING_KEY: _the_first_answer_of_a_key_counts,
            Door.TRUSTED_CODE: _ends_once,
            Door.CLIENT_FORM: "the server stores the client's answer with the same "
            "compare-and-set: tests/attacks/test_clients.py",
            Door.HOOK: "a hook can refuse before the write, and cannot change anything after it",
            **every(ENTERING, "it cannot answer a question"),
            Door.CALLBACK: "an OAuth state works only once: tests/attacks/test_callbacks.py",
            Door.PROXY: "it cannot answer a question",
            Door.WEBHOOK: "the server applies each event only once: tests/attacks/test_webhooks.py",
            Door.OWN_PAGES: "these pages cannot answer a question",
            Door.EVENT: "an event only reports that a question ended",
            Door.COMMAND: "a command ends only open questions, with the same compare-and-set",
            **every(
                STORES,
                "of two concurrent writes to a record, only one succeeds: "
                "tests/webapp/stores/test_contract.py",
            ),
        },
    ),
    Rule(
        id="asker",
        says="People cannot approve their own requests",
        source="docs/reference/threat-table.md, approvals by other people",
        cells={
            Door.TOOL_2025: _asker_never_decides,
            Door.TOOL_2026: _asker_never_decides,
            **every(
                (Door.TASK, Door.BLOCK, Door.API, Door.CLIENT),
                "a question with an approver has its own kind, which accepts only "
                "an approver's proof, no matter how it is asked: "
                "tests/attacks/test_decisions.py",
            ),
            Door.PAGE: _asker_never_decides,
            Door.APPROVER: "tests/attacks/test_decisions.py tests an approver who asks",
            Door.INBOX: _asker_never_decides,
            Door.APPROVING_KEY: _asker_never_decides,
            Door.TRUSTED_CODE: _asker_never_decides,
            Door.CLIENT_FORM: "the server never sends a question for an approver to the client",
            Door.HOOK: "a hook cannot create an approver's proof",
            **every(ENTERING, "it cannot approve or decline"),
            **every(PROVIDERS, "it cannot approve or decline"),
            Door.OWN_PAGES: "these pages cannot approve or decline",
            Door.EVENT: "an event only reports a decision",
            Door.COMMAND: "no command approves a request",
            **every(STORES, "the decision is encrypted together with its question"),
        },
    ),
    Rule(
        id="owners",
        says="An id alone gives no access: each lookup needs the owner and the id",
        source="promise 11",
        cells={
            **every(ASKING, _belongs_to_one_person),
            **every(
                (Door.APPROVING_KEY, Door.INBOX),
                "tests/attacks/test_api_owners.py calls each route with each id of another owner",
            ),
            **every(
                (Door.PAGE, Door.APPROVER, Door.OWN_PAGES),
                "tests/attacks/test_routes.py calls each route with each id of another owner",
            ),
            Door.TRUSTED_CODE: _belongs_to_one_person,
            Door.CLIENT_FORM: "the client answers within the call that asked",
            Door.HOOK: "a hook is the operator's code, and the operator can see all users' data",
            Door.USER_CODE: "tests/attacks/test_api_owners.py tests the route of user codes",
            Door.SIGN_IN: "it looks up no record by an id",
            Door.CALLBACK: "an OAuth state works only for its question: "
            "tests/attacks/test_callbacks.py",
            Door.PROXY: "tests/attacks/test_api_owners.py tests the route of the proxy",
            Door.WEBHOOK: "the server accepts an event only for a session that it created: "
            "tests/attacks/test_webhooks.py",
            Door.EVENT: "the server sends events only to the operator's addresses",
            Door.COMMAND: "the operator runs commands, and can see all users' data",
            **every(
                STORES, "`read` and `find` require the owner: tests/webapp/stores/test_contract.py"
            ),
        },
    ),
]
