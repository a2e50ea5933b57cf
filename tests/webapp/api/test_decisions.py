"""The inbox over the API: approvers use their own access token, without an API key."""

from datetime import timedelta

from flows.elicitation.states import Status
from tests.support.approving import approving, press, sent, shop
from webapp.identity.api_keys import KeyScope


async def test_approver_lists_inbox_and_answers_request():
    async with approving(shop()) as here, here.asking() as caller:
        await caller.result("refund", order="o8")
        token = here.own("frank")
        listed = (await sent(here, "/api/inbox", token)).json()
        (request,) = listed["requests"]
        about = ("approver", "message", "tool", "asked_by", "arguments", "decision", "is_own")
        assert [request[name] for name in about] == [
            *("finance", "Pay it back? (refund)", "refund", "alice", {"order": "o8"}),
            *("waiting", False),
        ]
        path = f"/api/inbox/{request['id']}/answer"
        done = await sent(here, path, token, {"accepts": True})
        assert (done.status_code, done.json()["decision"]) == (200, "approved")
        again = await sent(here, path, token, {"accepts": True})
        assert again.status_code == 200, "sending the same answer twice is not an error"
        other = await sent(here, path, here.own("flora"), {"accepts": False})
        assert (other.status_code, other.json()["code"]) == (409, "ELICITATION_ALREADY_SETTLED")
        decided = (await sent(here, "/api/inbox?decided=true", here.own("flora"))).json()
        assert decided["requests"][0]["decided_by"] == "frank"
        assert await caller.text("refund", order="o8") == "o8 is paid back"


async def test_group_decline_reaches_asker_with_reason():
    async with approving(shop()) as here, here.asking() as caller:
        await caller.result("refund", order="o8")
        token = here.own("carol", groups=["finance-approvers"])
        (request,) = (await sent(here, "/api/inbox?of=finance", token)).json()["requests"]
        answer = {"accepts": False, "reason": "No receipt"}
        done = await sent(here, f"/api/inbox/{request['id']}/answer", token, answer)
        assert (done.json()["decision"], done.json()["reason"]) == ("declined", "No receipt")
        text = await caller.text("refund", order="o8")
        assert "finance declined" in text
        assert "No receipt" in text


async def test_reason_has_at_most_500_characters():
    async with approving(shop()) as here, here.asking() as caller:
        await caller.result("refund", order="o8")
        token = here.own("frank")
        (request,) = (await sent(here, "/api/inbox", token)).json()["requests"]
        path = f"/api/inbox/{request['id']}/answer"
        for length, status in ((501, 400), (500, 200)):
            done = await sent(here, path, token, {"accepts": False, "reason": "x" * length})
            assert done.status_code == status


async def test_api_key_asker_or_stale_token_cannot_decide():
    async with approving(shop()) as here, here.asking() as caller:
        await caller.result("refund", order="o8")
        (request,) = (await sent(here, "/api/inbox", here.own("frank"))).json()["requests"]
        paths = ("/api/inbox", f"/api/inbox/{request['id']}/answer")
        keys = here.env.service.identity.api_keys
        ends_at = here.clock() + timedelta(days=1)
        long_ago = int(here.clock().timestamp()) - 3601
        headers = [here.own("alice"), here.own("frank", iat=long_ago)]
        for scope, owners in ((KeyScope.ASK, ()), (KeyScope.APPROVE, ("frank",))):
            text, _ = await keys.new(
                program="desk", scopes=[scope], owners=owners, expires_at=ends_at
            )
            key = {"authorization": f"Bearer {text}"}
            token = here.own("frank")["authorization"].removeprefix("Bearer ")
            headers += [key, {**key, "user-access-token": token}]
        for header in headers:
            assert (await sent(here, paths[0], header)).status_code == 403
            assert (await sent(here, paths[1], header, {"accepts": True})).status_code == 403
        for header in ({}, {"authorization": "Bearer x.y.z"}):
            assert (await sent(here, paths[1], header, {"accepts": True})).status_code == 401
        assert (await here.asked()).status is Status.PENDING


async def test_asker_cannot_decide_own_request_through_api():
    async with approving(shop()) as here, here.asking("frank") as caller:
        await caller.result("refund", order="o8")
        token = here.own("frank")
        (request,) = (await sent(here, "/api/inbox", token)).json()["requests"]
        assert request["is_own"]
        refused = await sent(here, f"/api/inbox/{request['id']}/answer", token, {"accepts": True})
        assert refused.status_code == 403
        assert "somebody else" in refused.json()["detail"]
        unknown = await sent(here, "/api/inbox/finance.x/answer", token, {"accepts": True})
        assert (unknown.status_code, unknown.json()["code"]) == (404, "NO_SUCH_REQUEST")
        flora = await here.signed_in("flora")
        await press(flora, await here.one(flora), "approve")
        assert (await here.asked()).status is Status.ACCEPTED
