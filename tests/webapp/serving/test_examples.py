"""Two examples, a low-level server and a factory, served unchanged on both protocol revisions."""

import re
import shutil

import pytest

from tests.support.cli import PROJECT, serving
from tests.support.programs import client_of, elicit_stdio, started_by_client
from webapp.demo.client import text_of

SAYS = "The service answers to a key of 4 characters."
EXAMPLES = PROJECT / "examples"
REVISIONS = ("legacy", "2026-07-28")


@pytest.mark.parametrize("server", ["low_level:server", "made:create_server"])
async def test_example_is_served_over_http(tmp_path, server):
    async with serving(server, home=tmp_path, cwd=EXAMPLES) as served:
        for revision in REVISIONS:
            async with client_of(served.url, revision) as (client, person):
                assert text_of(await client.call_tool("use_key", {})) == SAYS
                assert len(person.links) == 1


@pytest.mark.parametrize("revision", REVISIONS)
@pytest.mark.parametrize("server", ["low_level:server", "made:create_server"])
async def test_example_is_served_on_stdio(tmp_path, free_port, server, revision):
    shutil.copy(EXAMPLES / f"{server.partition(':')[0]}.py", tmp_path)
    async with started_by_client(
        *elicit_stdio(server, "--port", str(free_port)), revision=revision, home=tmp_path
    ) as (client, _, errors):
        assert text_of(await client.call_tool("use_key", {})) == SAYS
    assert (
        "No provider of accounts or payments is set up; --sandbox simulates them." in errors.text()
    )


async def test_stdio_processes_have_separate_sandboxes(tmp_path, free_port):
    (tmp_path / "tools.py").write_text(
        "from mcp.server.mcpserver import MCPServer\n"
        "from flows import Money, elicit\nfrom flows.providers import github\n"
        "mcp = MCPServer('tools')\n"
        "@mcp.tool()\n"
        "async def buy(reports: int) -> str:\n"
        "    account = await elicit.oauth(github, scopes=['repo'])\n"
        "    paid = await elicit.payment(Money('9.00', 'EUR'), 'A report')\n"
        "    return f'{account.label} paid {paid.price}'\n"
    )
    started = elicit_stdio("tools:mcp", "--port", str(free_port), "--sandbox")
    async with (
        started_by_client(*started, revision="legacy", home=tmp_path) as (first, at_first, one),
        started_by_client(*started, revision="2026-07-28", home=tmp_path) as (other, at_other, two),
    ):
        both = ((first, at_first, one), (other, at_other, two))
        for number, (client, person, errors) in enumerate(both):
            # After this response, the server has printed the address of its sandbox.
            assert (await client.list_tools()).tools
            person.enters += re.findall(r"sandbox at (http://\S+)", errors.text())
            result = await client.call_tool("buy", {"reports": number})
            assert text_of(result) == "octocat paid 9.00 EUR"
        assert at_first.links[0].startswith(f"http://127.0.0.1:{free_port}/e/")
        assert not at_other.links[0].startswith(f"http://127.0.0.1:{free_port}/e/")
