"""The document of the API and its page, and the paths that stay the author's."""

import re
from collections.abc import AsyncIterator

import pytest

from tests.support.api_program import Program, program_at
from tests.support.asking_env import asking_env
from tests.support.living import living
from tests.support.mcp_server import new_server
from webapp.api.representations import NewQuestion


@pytest.fixture
async def shop() -> AsyncIterator[Program]:
    async with living(asking_env()) as here, program_at(here) as program:
        yield program


async def test_the_document_tells_of_every_route(shop: Program) -> None:
    document = (await shop.client.get("/api/reference/openapi.json")).json()
    assert {
        f"{method} {path.removeprefix('/api/questions')}"
        for path, item in document["paths"].items()
        for method in item
    } == {
        *("post ", "get ", "get /{question_id}", "get /{question_id}/events"),
        *(
            f"post /{{question_id}}/{verb}"
            for verb in ("cancel", "complete", "taken", "user-code", "answer")
        ),
        *("get /api/inbox", "post /api/inbox/{request_id}/answer"),
    }
    assert document["security"] == [{"key": []}, {"key": [], "person": []}, {"alone": []}]


async def test_the_reference_is_one_page_without_anything_of_anybody_elses(shop: Program) -> None:
    answer = await shop.client.get("/api/reference")
    assert answer.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert not re.search(r"<script|<style|<link|<img|https?://", answer.text)
    for field in NewQuestion.__struct_fields__:
        assert f"<code>{field}</code>" in answer.text


async def test_other_paths_below_api_are_the_authors() -> None:
    server = new_server("mcp")

    @server.custom_route("/api/stock", methods=["GET"])
    async def stock(request: object) -> object:
        from starlette.responses import PlainTextResponse

        return PlainTextResponse("12 pieces")

    async with living(asking_env(server=server)) as here, program_at(here) as shop:
        assert (await shop.client.get("/api/stock")).text == "12 pieces"
        assert (await shop.call("GET", params={"user": "ann"})).status_code == 200
