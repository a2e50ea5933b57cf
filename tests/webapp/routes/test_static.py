"""Static files: each version has its own address, is cached by browsers, and is compressed."""

import gzip
import hashlib
import re
from html import unescape

import pytest

from tests.support.mcp_server import new_server, server_env
from webapp.pages.renderer import our_files

FOREVER = "public, max-age=31536000, immutable"


async def test_file_of_a_page_is_stored_by_browsers_until_its_content_changes() -> None:
    # finding: XP14
    async with server_env(new_server("mcp")) as env:
        person = await env.person()
        page = await person.visit(env.url)
        addresses = [unescape(one) for one in re.findall(r'"(/static/[^"]*)"', page.text)]
        assert len(addresses) == 3
        for address in addresses:
            answer = await person.browser.get(env.url + address)
            assert answer.headers["cache-control"] == FOREVER
            name, version, suffix = address.removeprefix("/static/").split(".")
            content, _ = our_files()[f"{name}.{suffix}"]
            assert answer.content == content
            assert hashlib.sha256(content).hexdigest().startswith(version)
            # An old address gets the new file, and the browser does not cache it forever.
            for old in (f"{name}.{suffix}", f"{name}.{'0' * 16}.{suffix}"):
                answer = await person.browser.get(f"{env.url}/static/{old}")
                assert answer.content == content
                assert answer.headers["cache-control"] == "max-age=3600"
            for none in (f"{name}.{version}", f"{name}.{version}.{version}.{suffix}"):
                assert (await person.browser.get(f"{env.url}/static/{none}")).status_code == 404


@pytest.mark.parametrize("name", ["elicit.css", "elicit.js", "icon.svg"])
async def test_text_file_is_compressed_for_browsers_that_can_read_it(name: str) -> None:
    # finding: XP14
    async with server_env(new_server("mcp")) as env:
        person = await env.person()
        url = f"{env.url}/static/{name}"
        headers = {"accept-encoding": "gzip, br"}
        async with person.browser.stream("GET", url, headers=headers) as answer:
            assert answer.headers["content-encoding"] == "gzip"
            assert answer.headers["vary"] == "accept-encoding"
            raw = b"".join([part async for part in answer.aiter_raw()])
        assert gzip.decompress(raw) == our_files()[name][0]
        plain = await person.browser.get(url, headers={"accept-encoding": "identity"})
        assert "content-encoding" not in plain.headers
        assert plain.content == our_files()[name][0]


async def test_page_with_csrf_token_is_not_compressed() -> None:
    # finding: XP14
    async with server_env(new_server("mcp")) as env:
        person = await env.person()
        answer = await person.browser.get(
            f"{env.url}/connections", headers={"accept-encoding": "gzip"}
        )
        assert answer.status_code == 200
        assert "content-encoding" not in answer.headers


@pytest.mark.parametrize("name", ["elicit.css", "elicit.js", "operator.css"])
def test_text_file_is_sent_without_comments(name: str) -> None:
    content = our_files()[name][0].decode()
    assert content
    assert not re.search(r"/\*|^\s*//|^ ", content, re.MULTILINE)
