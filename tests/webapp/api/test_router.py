"""The OpenAPI document, its page, and the paths below /api that an author can use."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from litestar import get
from litestar.routes import HTTPRoute

from tests.support.api_program import Program, program_at
from tests.support.asking_env import asking_env
from tests.support.living import living
from tests.support.mcp_server import new_server
from webapp.api.representations import NewQuestion
from webapp.api.router import api, needs_of
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
    *("get inbox", "post inbox/{request_id}/answer", "post inbox/{request_id}/delegate"),
    *("get webhooks", f"get {WEBHOOK}", f"post {WEBHOOK}/replay"),
    *("get accounts", f"get {ACCOUNT}", f"delete {ACCOUNT}", f"get {ACCOUNT}/token"),
    "post accounts",
    *(f"{method} {ACCOUNT}/proxy" for method in ("get", "head", "post", "put", "patch", "delete")),
}


async def test_openapi_document_lists_every_route(shop: Program) -> None:
    document = (await shop.client.get("/api/reference/openapi.json")).json()
    assert {
        f"{method} {path.removeprefix('/api/')}"
        for path, item in document["paths"].items()
        for method in item
    } == ROUTES


async def test_unknown_method_is_answered_with_the_methods_of_the_path(shop: Program) -> None:
    paths = {route.split()[1] for route in ROUTES if not route.endswith("/proxy")}
    for path in sorted(paths):
        answer = await shop.client.patch(f"/api/{re.sub('{.*?}', 'x', path)}", json={})
        methods = {route.split()[0].upper() for route in ROUTES if route.split()[1] == path}
        assert answer.status_code == 405, path
        assert methods <= set(answer.headers["allow"].split(", ")), path


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


def documented_needs() -> dict[str, tuple[str, ...]]:
    """Return the credentials of each route in the table of docs/reference/http-api.md."""
    text = Path("docs/reference/http-api.md").read_text()
    table = text.partition("<!-- The needs of each route. -->")[2].strip().partition("\n\n")[0]
    found = dict[str, tuple[str, ...]]()
    for line in table.splitlines()[2:]:
        names, *needs = (cell.strip() for cell in line.strip("|").split("|"))
        for name in re.findall(r"`([A-Z]+ /[^`]+)`", names):
            assert name not in found
            found[name] = tuple(needs)
    return found


def test_documented_credentials_match_declared_credentials_of_routes() -> None:
    # finding: XS12
    declared = dict[str, tuple[str, ...]]()
    for route in api().routes:
        for handler in route.route_handlers if isinstance(route, HTTPRoute) else ():
            if route.path.startswith("/api/reference") or "OPTIONS" in handler.http_methods:
                continue
            needs = needs_of(handler)
            keys = " or ".join(f"`{scope}`" for scope in sorted(needs.scopes)) or "none"
            ways = [set(each) for each in needs.security]
            person = ("yes" if way in ways else "no" for way in ({"key", "person"}, {"alone"}))
            path = re.sub(r"\{[^}]+\}", "ID", route.path.removeprefix("/api"))
            row = (keys, *person)
            declared |= {f"{method} {path}": row for method in handler.http_methods}
    assert documented_needs() == declared


def test_route_without_declared_credentials_raises_runtime_error() -> None:
    # finding: XS12
    @get("/api/questions/everything", sync_to_thread=False)
    def everything() -> str:
        return "all questions"

    with pytest.raises(RuntimeError, match="declares no credentials"):
        needs_of(everything)


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
        reported = operation["responses"]["default"]["content"]
        assert "*/*" in reported or "application/problem+json" in reported
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
