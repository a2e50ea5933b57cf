"""The API's document and its page, and the paths that stay available to the author."""

import re
from collections.abc import AsyncIterator

import pytest

from tests.support.api_program import Program, program_at
from tests.support.asking_env import asking_env
from tests.support.living import living
from tests.support.mcp_server import new_server
from webapp.api.representations import NewQuestion
from webapp.identity.api_keys import KeyScope


@pytest.fixture
async def shop() -> AsyncIterator[Program]:
    async with living(asking_env()) as here, program_at(here) as program:
        yield program


QUESTION, ACCOUNT = "questions/{question_id}", "accounts/{account_id}"
USER = {"user": "ann"}
PAYMENT, WEBHOOK = "payments/{payment_id}", "webhooks/{webhook_id}"
ROUTES = {
    *("get questions", "post questions", f"get {QUESTION}", f"get {QUESTION}/events"),
    *(f"post {QUESTION}/{verb}" for verb in ("cancel", "complete", "taken", "user-code", "answer")),
    *(f"post runs/{verb}" for verb in ("end", "spend", "once", "once/done")),
    "delete secrets/{name}",
    *("get payments", f"get {PAYMENT}", f"post {PAYMENT}/refund"),
    *("get approvals", "delete approvals", "delete approvals/{approval_id}"),
    *("get events", "post events/{event_id}/replay"),
    *("get inbox", "post inbox/{request_id}/answer"),
    *("get webhooks", f"get {WEBHOOK}", f"post {WEBHOOK}/replay"),
    *("get accounts", f"get {ACCOUNT}", f"delete {ACCOUNT}", f"get {ACCOUNT}/token"),
    *(f"{method} {ACCOUNT}/proxy" for method in ("get", "head", "post", "put", "patch", "delete")),
}


async def test_openapi_document_lists_every_route(shop: Program) -> None:
    document = (await shop.client.get("/api/reference/openapi.json")).json()
    assert {
        f"{method} {path.removeprefix('/api/')}"
        for path, item in document["paths"].items()
        for method in item
    } == ROUTES


async def test_openapi_document_lists_credentials_of_each_route(shop: Program) -> None:
    document = (await shop.client.get("/api/reference/openapi.json")).json()

    def ways(route: str) -> list[str]:
        method, path = route.split()
        found = document["paths"][f"/api/{path}"][method]["security"]
        return [" and ".join(way) for way in found]

    assert ways("get questions") == ["key", "key and person", "alone"]
    assert ways("post questions") == ["key", "key and person"]
    assert ways(f"post {PAYMENT}/refund") == ["key", "key and person"]
    assert ways(f"post {QUESTION}/answer") == ways("get webhooks") == ["key"]
    assert ways("get inbox") == ["alone"]
    assert all(ways(route) for route in ROUTES)


async def test_each_operation_has_resource_name_and_problem_details(shop: Program) -> None:
    document = (await shop.client.get("/api/reference/openapi.json")).json()
    operations = {
        f"{method} {path}": operation
        for path, item in document["paths"].items()
        for method, operation in item.items()
    }
    names = [operation["operationId"] for operation in operations.values()]
    assert len(set(names)) == len(names)
    for route, operation in operations.items():
        assert operation["tags"] == [route.split("/")[2]]
        assert operation["description"], route
        assert "400" not in operation["responses"]
        told = operation["responses"]["default"]["content"]
        assert "*/*" in told or "application/problem+json" in told
    asked = document["components"]["schemas"]["NewQuestion"]
    assert "The fields depend on the question's kind." in asked["description"]
    problem = (await shop.at("payments/none", params={"user": "ann"})).json()
    assert problem.keys() == document["components"]["schemas"]["Problem"]["properties"].keys()


async def test_reason_of_a_refund_has_at_most_500_characters() -> None:
    async with (
        living(asking_env()) as here,
        program_at(here, program="desk", also=(KeyScope.REFUND,)) as desk,
    ):
        for length, status in ((501, 400), (500, 404)):
            body = {"reason": "x" * length}
            refused = await desk.at("payments/none/refund", method="POST", json=body, params=USER)
            assert refused.status_code == status, refused.text


async def test_reference_is_single_page_without_scripts_or_external_resources(
    shop: Program,
) -> None:
    answer = await shop.client.get("/api/reference")
    assert answer.headers["content-type"].startswith("text/html")
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; style-src 'self';")
    assert not re.search(r"<script|<style|style=|<img|https?://", answer.text)
    (sheet,) = re.findall(r"<link[^>]+href=\"([^\"]+)\"", answer.text)
    found = await shop.client.get(f"/api/reference/../{sheet}")
    assert found.headers["content-type"].startswith("text/css")
    for field in NewQuestion.__struct_fields__:
        assert f"<code>{field}</code>" in answer.text


async def test_reference_links_each_route_under_its_resource(shop: Program) -> None:
    text = (await shop.client.get("/api/reference")).text
    ids = set(re.findall(r'id="([^"]+)"', text))
    assert set(re.findall(r'href="#([^"]+)"', text)) <= ids
    assert {"questions", "accounts", "payments", "webhooks"} <= ids
    for route in ROUTES:
        method, _, path = route.partition(" ")
        heading = rf"<h3>[A-Z ]*\b{method.upper()}\b[A-Z ]* <code>/api/{re.escape(path)}</code>"
        assert re.search(heading, text), route


async def test_other_paths_below_api_belong_to_author() -> None:
    server = new_server("mcp")

    @server.custom_route("/api/stock", methods=["GET"])
    async def stock(request: object) -> object:
        from starlette.responses import PlainTextResponse

        return PlainTextResponse("12 pieces")

    async with living(asking_env(server=server)) as here, program_at(here) as shop:
        assert (await shop.client.get("/api/stock")).text == "12 pieces"
        assert (await shop.call("GET", params={"user": "ann"})).status_code == 200
