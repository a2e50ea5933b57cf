"""Questions that a program asks over the HTTP API, and the responses."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from flows import elicit
from tests.support.api_program import (
    ACCOUNT,
    CONFIRM,
    FORM,
    PAYMENT,
    SECRET,
    URL,
    Program,
    program_at,
)
from tests.support.asking_env import AskingEnv, asking_env
from tests.support.by_code import code_on
from tests.support.living import living
from tests.support.mcp_sandbox import KEY, Guest
from tests.support.mcp_server import Person, eventually
from tests.support.service_env import question_in_store
from webapp.api.asking import owner_of_user
from webapp.api.paging import LISTED_AT_MOST, PAGES_READ_AT_MOST
from webapp.identity.api_keys import KeyScope
from webapp.settings.identity import IdentitySettings
from webapp.stores.sqlite import MemoryStore


async def test_link_shows_question_to_its_user_and_to_no_other(
    here: AskingEnv, shop: Program
) -> None:
    asked = await shop.asked(CONFIRM)
    assert (asked["status"], asked["message"]) == ("pending", "Delete it?")
    assert asked["url"].startswith(f"{here.url}/e/")
    stranger = await here.browser("bob")
    assert "Delete it?" not in (await stranger.visit(asked["url"])).text
    ann = await here.browser()
    page = (await ann.visit(asked["url"])).text
    assert "Delete it?" in page
    assert re.search("You started something at .*shop", page)


async def test_accepted_answer_reaches_waiting_program(here: AskingEnv, shop: Program) -> None:
    asked = await shop.asked(CONFIRM)
    waiting = asyncio.create_task(shop.read(asked["id"], wait=50))
    await eventually(lambda: here.service.elicitations.waiters.has(asked["id"]))
    await (await here.browser()).press(asked["url"])
    reported = await waiting
    assert (reported["status"], reported["url"]) == ("accepted", None)


async def connected(guest: Guest, url: str) -> None:
    await guest.connect(url)


async def paid(guest: Guest, url: str) -> None:
    await guest.pay(url)


async def typed(guest: Guest, url: str) -> None:
    await guest.type(url)


@pytest.mark.parametrize(
    ("body", "act", "field"),
    [(ACCOUNT, connected, "account"), (PAYMENT, paid, "payment"), (SECRET, typed, "content")],
)
async def test_answer_can_be_read_repeatedly_until_claimed(
    here: AskingEnv,
    shop: Program,
    body: dict[str, Any],
    act: Callable[[Guest, str], Awaitable[None]],
    field: str,
) -> None:
    asked = await shop.asked(body)
    await act(await here.guest(), asked["url"])
    first = await shop.read(asked["id"], wait=50)
    assert (first["status"], first["taken_at"]) == ("accepted", None)
    assert first[field]
    assert await shop.read(asked["id"]) == first
    for _ in range(2):  # a repeated request succeeds too
        claimed = await shop.post(asked["id"], "taken")
        assert claimed.status_code == 200, claimed.text
        assert claimed.json()["taken_at"] is not None
    assert (await shop.read(asked["id"]))["content"] is None


async def test_answer_to_account_question_omits_access_token(
    here: AskingEnv, shop: Program
) -> None:
    asked = await shop.asked(ACCOUNT)
    await (await here.guest()).connect(asked["url"])
    answer = await shop.read(asked["id"], wait=50)
    fields = {
        "id",
        "provider",
        "label",
        "scopes",
        "missing",
        "tenant",
        "details",
        "team",
        "api",
        "status",
        "connected_at",
        "ends_at",
    }
    assert set(answer["account"]) == fields
    (account,) = await here.connections()
    assert account.access_token not in str(answer)


async def test_stored_secret_belongs_to_program_which_asked(here: AskingEnv, shop: Program) -> None:
    named = {**SECRET, "name": "key"}

    async def tool() -> str:
        return str(await elicit.secret("Your key, please.", name="key"))

    asked = await shop.asked(named)
    await (await here.guest()).type(asked["url"])
    assert (await shop.asked(named))["content"] == {"value": KEY}
    block = here.begin(tool)
    assert (await block.link()).url
    async with program_at(here, program="other") as other:
        assert (await other.asked(named))["status"] == "pending"
        gone = await other.at("secrets/key", method="DELETE", params={"user": "ann"})
        assert gone.status_code == 404
    gone = await shop.at("secrets/key", method="DELETE", params={"user": "ann"})
    assert gone.status_code == 204
    assert (await shop.asked(named))["status"] == "pending"


async def test_connected_account_is_returned_immediately(here: AskingEnv, shop: Program) -> None:
    asked = await shop.asked(ACCOUNT)
    await (await here.guest()).connect(asked["url"])
    first = await shop.read(asked["id"], wait=50)
    known = await shop.asked(ACCOUNT)
    assert (known["id"], known["status"]) == (None, "accepted")
    assert known["account"] == first["account"]


async def test_paid_receipt_is_spent_when_claimed(here: AskingEnv, shop: Program) -> None:
    asked = await shop.asked(PAYMENT)
    await (await here.guest()).pay(asked["url"])
    answer = await shop.read(asked["id"], wait=50)
    assert (answer["payment"]["amount"], answer["payment"]["currency"]) == (900, "EUR")
    assert answer["payment"]["status"] == "open"
    claimed = (await shop.post(asked["id"], "taken")).json()
    assert claimed["payment"]["status"] == "spent"


async def test_receipt_can_be_claimed_days_later(here: AskingEnv, shop: Program) -> None:
    asked = await shop.asked(PAYMENT)
    await (await here.guest()).pay(asked["url"])
    await shop.read(asked["id"], wait=50)
    await here.pass_time(days=2)
    assert (await shop.read(asked["id"]))["payment"]["status"] == "open"
    for _ in range(2):
        claimed = await shop.post(asked["id"], "taken")
        assert (claimed.status_code, claimed.json()["payment"]["status"]) == (200, "spent")


async def test_url_question_is_completed_by_its_program_and_by_no_other(
    here: AskingEnv, shop: Program
) -> None:
    asked = await shop.asked(URL)
    async with program_at(here, program="other") as other:
        assert (await other.post(asked["id"], "complete", {})).status_code == 404
    done = await shop.post(asked["id"], "complete", {"content": {"room": 7}})
    assert (done.json()["status"], done.json()["content"]) == ("accepted", {"room": 7})
    again = await shop.post(asked["id"], "complete", {"content": {"room": 8}})
    assert again.status_code == 409
    assert (await shop.read(asked["id"]))["content"] == {"room": 7}


@pytest.mark.parametrize("body", [CONFIRM, FORM, ACCOUNT, PAYMENT, SECRET])
async def test_program_cannot_answer_for_person(shop: Program, body: dict[str, Any]) -> None:
    asked = await shop.asked(body)
    for verb, answer in (("complete", {}), ("answer", {"accepts": True})):
        refused = await shop.post(asked["id"], verb, answer)
        assert refused.status_code == 403
    assert (await shop.read(asked["id"]))["status"] == "pending"


async def test_cancelled_question_cannot_be_claimed(here: AskingEnv, shop: Program) -> None:
    asked = await shop.asked(PAYMENT)
    ended = await shop.post(asked["id"], "cancel")
    assert (ended.status_code, ended.json()["status"]) == (200, "cancelled")
    assert (await shop.post(asked["id"], "taken")).status_code == 409


async def test_repeated_cancel_returns_cancelled_question(shop: Program) -> None:
    asked = await shop.asked(URL)
    first = await asyncio.gather(*(shop.post(asked["id"], "cancel") for _ in range(2)))
    later = await shop.post(asked["id"], "cancel")
    assert {each.status_code for each in (*first, later)} == {200}
    assert {each.json()["status"] for each in (*first, later)} == {"cancelled"}


async def test_concurrent_requests_with_same_idempotency_key_ask_once(shop: Program) -> None:
    for body in (URL, FORM, PAYMENT):
        sent = [shop.ask(body, name=body["kind"]) for _ in range(8)]
        answers = await asyncio.gather(*sent)
        assert len({(each.status_code, each.json()["id"]) for each in answers}) == 1
    others = [{**FORM, "message": f"City {number % 3}?"} for number in range(9)]
    answers = await asyncio.gather(*(shop.ask(body, name="one of three") for body in others))
    asked = [each.json() for each in answers if each.status_code == 201]
    assert len(asked) == 3
    assert len({each["id"] for each in asked}) == 1
    assert {each.status_code for each in answers} == {201, 409}


async def test_concurrent_completion_and_cancel_leave_question_accepted(shop: Program) -> None:
    asked = await shop.asked(URL)
    yes, no = await asyncio.gather(
        shop.post(asked["id"], "complete", {"content": {"room": 7}}),
        shop.post(asked["id"], "cancel"),
    )
    answer = await shop.read(asked["id"])
    assert yes.json()["status"] == "accepted"
    assert (answer["status"], answer["content"]) == ("accepted", {"room": 7})
    assert no.status_code == 409 or answer["is_late"]


async def test_question_expires_after_timeout(here: AskingEnv, shop: Program) -> None:
    asked = await shop.asked({**CONFIRM, "timeout_seconds": 60})
    await here.pass_time(seconds=61)
    answer = await shop.read(asked["id"])
    assert (answer["status"], answer["url"]) == ("expired", None)


async def test_read_returns_pending_question_after_wait_ends(
    here: AskingEnv, shop: Program
) -> None:
    asked = await shop.asked(CONFIRM)
    assert (await shop.read(asked["id"], wait=1))["status"] == "pending"


async def test_repeated_idempotency_key_returns_same_question(shop: Program) -> None:
    first, second = await asyncio.gather(
        shop.ask(PAYMENT, name="order 8"), shop.ask(PAYMENT, name="order 8")
    )
    assert first.json()["id"] == second.json()["id"]
    other = await shop.ask({**PAYMENT, "amount": "90.00"}, name="order 8")
    assert (other.status_code, other.json()["code"]) == (409, "IDEMPOTENCY_KEY_REUSED")
    next_one = await shop.ask(PAYMENT, name="order 9")
    assert next_one.json()["id"] != first.json()["id"]


async def test_repeated_request_after_payment_returns_paid_question(
    here: AskingEnv, shop: Program
) -> None:
    first = (await shop.ask(PAYMENT, name="order 8")).json()
    await (await here.guest()).pay(first["url"])
    await shop.read(first["id"], wait=50)
    again = (await shop.ask(PAYMENT, name="order 8")).json()
    assert (again["id"], again["status"]) == (first["id"], "accepted")
    assert (await shop.post(first["id"], "taken")).status_code == 200
    repeated = (await shop.ask(PAYMENT, name="order 8")).json()
    assert (repeated["id"], repeated["taken_at"] is not None) == (first["id"], True)
    other = await shop.ask({**PAYMENT, "amount": "90.00"}, name="order 8")
    assert (other.status_code, other.json()["code"]) == (409, "IDEMPOTENCY_KEY_REUSED")


async def test_programs_ask_separately_and_keys_of_same_program_share_questions(
    here: AskingEnv, shop: Program
) -> None:
    asked = await shop.asked(CONFIRM)
    async with program_at(here, program="other") as other, program_at(here) as same:
        for path in ("", "/events"):
            unknown = await other.call("GET", f"/{asked['id']}{path}")
            assert (unknown.status_code, unknown.json()["code"]) == (404, "NO_SUCH_QUESTION")
        for verb in ("cancel", "taken"):
            assert (await other.post(asked["id"], verb)).status_code == 404
        assert (await same.read(asked["id"]))["status"] == "pending"


async def test_question_of_application_is_hidden_from_program(
    here: AskingEnv, shop: Program
) -> None:
    async def sure() -> bool:
        return await elicit.confirm("Delete it?")

    link = await here.begin(sure).link()
    assert (await shop.call("GET", f"/{link.elicitation_id}")).status_code == 404
    listed = await shop.call("GET", params={"user": "ann"})
    assert listed.json()["questions"] == []


async def test_questions_are_listed_page_by_page(here: AskingEnv, shop: Program) -> None:
    ids = []
    for number in range(5):
        ids.append((await shop.asked({**CONFIRM, "message": f"Delete {number}?"}))["id"])
        here.clock.tick(milliseconds=1)
    await shop.asked(CONFIRM, user="bob")
    found, query = list[str](), {"user": "ann", "limit": 2}
    while True:
        page = (await shop.call("GET", params=query)).json()
        found += [one["id"] for one in page["questions"]]
        if page["after"] is None:
            break
        query = {**query, "after": page["after"]}
    assert found == ids
    await shop.post(ids[2], "cancel")
    only = await shop.call("GET", params={"user": "ann", "status": "cancelled"})
    assert [one["id"] for one in only.json()["questions"]] == [ids[2]]


async def test_waiting_questions_are_listed_page_by_page(here: AskingEnv, shop: Program) -> None:
    # parity: T6
    ids = []
    for number in range(3):
        ids.append((await shop.asked({**CONFIRM, "message": f"Delete {number}?"}))["id"])
        here.clock.tick(milliseconds=1)
    opened = await here.browser()
    await opened.go_on((await shop.asked(URL))["url"])
    await shop.post(ids[1], "cancel")
    await shop.asked(CONFIRM, user="bob")
    first = (await shop.call("GET", params={"user": "ann", "waiting": True, "limit": 2})).json()
    assert [one["id"] for one in first["questions"]] == [ids[0], ids[2]]
    about = {"user": "ann", "waiting": True, "after": first["after"]}
    second = (await shop.call("GET", params=about)).json()
    assert [one["kind"] for one in second["questions"]] == ["url"]
    assert second["after"] is None
    both = await shop.call("GET", params={**about, "status": "pending"})
    assert both.status_code == 400
    here.clock.tick(hours=1)
    late = await shop.call("GET", params={"user": "ann", "waiting": True})
    assert late.json()["questions"] == []


async def listed(program: Program, **query: Any) -> list[dict[str, Any]]:
    """Return the questions of all pages of the list."""
    found, about = list[dict[str, Any]](), dict[str, Any](query)
    while True:
        answer = await program.call("GET", params=about)
        assert answer.status_code == 200, answer.text
        page = answer.json()
        found += page["questions"]
        if page["after"] is None:
            return found
        about["after"] = page["after"]


@pytest.mark.parametrize("limit", [1, 2, 100])
@pytest.mark.parametrize(
    "query", [{}, {"waiting": True}, {"status": "pending"}], ids=["all", "waiting", "pending"]
)
async def test_program_lists_all_its_questions_without_user(
    here: AskingEnv, shop: Program, query: dict[str, Any], limit: int
) -> None:
    # finding: XQ5
    asked = {(await shop.asked(FORM, user=user))["id"]: user for user in ("ann", "bob", "cleo")}
    ended = (await shop.asked(CONFIRM, user="bob"))["id"]
    await shop.post(ended, "cancel")
    async with program_at(here, program="other") as other:
        hidden = [(await other.asked(FORM, user=user))["id"] for user in ("ann", "dan")]
    found = await listed(shop, limit=limit, **query)
    expected = {**asked, ended: "bob"} if not query else asked
    assert {one["id"]: one["user"] for one in found} == expected
    assert len(found) == len(expected)
    assert all((one["url"] is not None) == (one["id"] != ended) for one in found)
    assert not {one["id"] for one in found} & set(hidden)


async def test_list_without_user_includes_opened_waiting_questions(
    here: AskingEnv, shop: Program
) -> None:
    # finding: XQ5
    opened = await shop.asked(URL, user="bob")
    await (await here.browser("bob")).go_on(opened["url"])
    asked = await shop.asked(CONFIRM)
    found = await listed(shop, waiting=True, limit=1)
    assert [one["id"] for one in found] == [asked["id"], opened["id"]]
    here.clock.tick(hours=1)
    assert await listed(shop, waiting=True) == []


@pytest.mark.parametrize("waiting", [True, False])
async def test_key_for_several_users_lists_all_of_them_and_no_others(
    here: AskingEnv, shop: Program, waiting: bool
) -> None:
    # finding: XQ5
    asked = {user: (await shop.asked(CONFIRM, user=user))["id"] for user in ("ann", "bob", "cleo")}
    await shop.asked(PAYMENT, user="ann")
    approves = program_at(here, program="desk", scope=KeyScope.APPROVE, owners=("bob", "ann"))
    async with approves as desk, program_at(here, owners=("ann", "cleo")) as some:
        found = await listed(desk, waiting=waiting, limit=1)
        assert {one["id"]: one["user"] for one in found} == {
            asked["ann"]: "ann",
            asked["bob"]: "bob",
        }
        assert all(one["url"] is None for one in found)
        only = await listed(some, waiting=waiting, limit=1)
        assert sorted(one["user"] for one in only) == ["ann", "ann", "cleo"]
        assert (await desk.call("GET", params={"user": "cleo"})).status_code == 403
    async with program_at(here, owners=("ann",)) as anns:
        assert {one["user"] for one in await listed(anns)} == {"ann"}
        assert (await anns.ask(CONFIRM, user="bob")).status_code == 403


async def test_page_cursors_do_not_reveal_questions_of_other_programs(
    here: AskingEnv, shop: Program
) -> None:
    # finding: XQ5
    service = here.service
    owner = owner_of_user(service, "bob")
    hidden = [
        replace(
            question_in_store(service, join=f"question {number}", timeout=timedelta(days=1)),
            id=service.elicitations.new_id(owner),
            owner=owner,
            is_for_user=True,
        )
        for number in range(LISTED_AT_MOST * PAGES_READ_AT_MOST + 1)
    ]
    await service.elicitations.write(*hidden[:-1])
    await service.elicitations.write(hidden[-1])
    mine = {(await shop.asked(FORM, user=user))["id"] for user in ("ann", "bob", "cleo", "dan")}
    pages, about = list[str](), dict[str, Any]()
    while True:
        page = await shop.call("GET", params=about)
        pages.append(page.text)
        if page.json()["after"] is None:
            break
        about["after"] = page.json()["after"]
    assert len(pages) > 1
    assert {id for id in mine if id in "".join(pages)} == mine
    assert owner not in about["after"]
    assert not [one for one in hidden if one.id.removeprefix(owner) in "".join(pages)]
    for after in ("x", about["after"][:-1], hidden[0].id, hidden[0].id.removeprefix(owner)):
        assert (await shop.call("GET", params={"after": after})).status_code == 400
    elsewhere = await shop.call("GET", params={**about, "status": "cancelled"})
    assert (elsewhere.status_code, elsewhere.json()["code"]) == (400, "INVALID_INPUT")


async def test_event_stream_sends_each_event_once_and_resumes_from_last_event_id(
    here: AskingEnv, shop: Program
) -> None:
    # parity: T10
    asked = await shop.asked(CONFIRM)
    seen = list[str]()
    path = f"/api/questions/{asked['id']}/events"
    async with shop.client.stream("GET", path) as stream:
        async for line in stream.aiter_lines():
            if line.startswith("id: "):
                seen.append(line.removeprefix("id: "))
                if len(seen) == 1:
                    await shop.post(asked["id"], "cancel")
    assert len(seen) == len(set(seen)) >= 2
    about = {"Last-Event-ID": seen[-1]}
    again = await shop.call("GET", f"/{asked['id']}/events", headers=about)
    assert (again.status_code, again.text) == (200, "")


async def test_user_code_shown_on_page_is_accepted_from_program() -> None:
    by_code = IdentitySettings(binds_by_code=True)
    async with living(asking_env(who=None, identity=by_code)) as here, program_at(here) as shop:
        asked = await shop.asked(CONFIRM)
        assert asked["needs_code"]
        wrong = await shop.post(asked["id"], "user-code", {"code": "BCDF-GHJK"})
        assert wrong.status_code == 200
        assert wrong.json()["says"]
        ann = await here.browser()
        right = await shop.post(asked["id"], "user-code", {"code": await shown_code(ann, asked)})
        assert right.json() == {"says": None}
        assert "Delete it?" in (await ann.visit(asked["url"])).text


async def shown_code(person: Person, asked: dict[str, Any]) -> str:
    await person.press(asked["url"], to="/code")
    return code_on(await person.visit(asked["url"]))


async def test_server_without_users_names_missing_setting() -> None:
    async with living(asking_env(who=None)) as here, program_at(here) as shop:
        refused = await shop.ask(CONFIRM)
        assert refused.status_code == 422
        assert "ELICIT_BIND=code" in refused.json()["detail"]


async def test_question_survives_restart_of_process() -> None:
    store = MemoryStore()
    async with living(asking_env(store=store)) as here, program_at(here) as shop:
        asked = await shop.asked(CONFIRM)
        key, clock = shop.key, here.clock
    async with living(asking_env(store=store, clock=clock)) as here, program_at(here) as shop:
        shop.client.headers["authorization"] = f"Bearer {key}"
        assert (await shop.read(asked["id"]))["status"] == "pending"
        assert (await shop.post(asked["id"], "cancel")).status_code == 200


async def test_unclaimed_secret_is_erased_after_ten_minutes(here: AskingEnv, shop: Program) -> None:
    asked = await shop.asked(SECRET)
    await (await here.guest()).type(asked["url"])
    assert (await shop.read(asked["id"], wait=50))["content"]
    await here.pass_time(minutes=11)
    assert (await shop.read(asked["id"]))["content"] is None


async def test_bad_schema_error_for_program_does_not_mention_tool(shop: Program) -> None:
    # finding: XQ10
    refused = await shop.ask({**FORM, "schema": {"type": "object", "properties": {"a": {}}}})
    problem = refused.json()
    assert (refused.status_code, problem["code"]) == (400, "ELICITATION_INVALID_SCHEMA")
    assert "tool" not in problem["detail"]
    assert "Change the schema in the code that asks" in problem["detail"]


async def test_second_answer_is_refused_with_reason(here: AskingEnv, shop: Program) -> None:
    # finding: XQ10
    asked = await shop.asked(URL)
    early = (await shop.post(asked["id"], "taken")).json()
    assert early["detail"] == "The question is not answered yet, so it cannot be taken now."
    await shop.post(asked["id"], "complete", {})
    again = await shop.post(asked["id"], "complete", {})
    assert again.status_code == 409
    assert again.json()["detail"] == (
        "The question was accepted already, so it cannot be accepted now."
    )
