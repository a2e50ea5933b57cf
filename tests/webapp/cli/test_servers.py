"""`elicit servers`: stored data belongs to a server's name, and no other server gets it."""

import asyncio
import shlex
import sys
from pathlib import Path

import pytest

from tests.support.cli import called, run, serving
from tests.support.mcp_server import soon
from webapp.command import CommandRefused
from webapp.connecting import connect, utc_now
from webapp.serving.finding import find_server, place_of
from webapp.serving.http_server import must_be_known
from webapp.settings.settings import read_settings

TOOLS = 'from mcp.server.mcpserver import MCPServer\nmcp = MCPServer("shop")\n'


def module(folder: Path, name: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.py").write_text(TOOLS)
    return folder


async def test_another_server_with_the_same_name_requires_acceptance(
    tmp_path: Path, free_port: int
) -> None:
    # finding: S12
    there = ("--port", str(free_port))
    mine, other = module(tmp_path / "mine", "tools"), module(tmp_path / "other", "tools")
    for _ in range(2):  # the second start reports nothing new
        async with serving("tools:mcp", "--port", "0", home=tmp_path, cwd=mine):
            pass
    refusals = [
        await run("stdio", "tools:mcp", *there, home=tmp_path, cwd=other),
        await called("serve", "tools:mcp", "--port", "0", home=tmp_path, cwd=other),
    ]
    for refused in refusals:
        assert refused.status == 1
        assert f"was served from {mine}/tools.py:mcp so far" in refused.err
        assert "gets no access to" in refused.err
    (line,) = [line for line in refusals[0].err.splitlines() if "elicit servers accept" in line]
    accept = shlex.split(line.partition("nothing is lost: elicit ")[2])
    listed = await called("servers", "list", home=tmp_path)
    assert listed.out.startswith(f"shop\t{mine}/tools.py:mcp\t20")
    accepted = await called(*accept, home=tmp_path)
    assert (accepted.status, accepted.err) == (0, "")
    async with serving("tools:mcp", "--port", "0", home=tmp_path, cwd=other):
        pass
    assert (await run("stdio", "tools:mcp", *there, home=tmp_path, cwd=mine)).status == 1


def test_place_of_an_installed_server_is_independent_of_the_python_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # finding: S12
    places = set[str]()
    for version in ("python3.11", "python3.13"):
        folder = tmp_path / version / "site-packages"
        folder.parent.mkdir()
        monkeypatch.syspath_prepend(module(folder, "installed_shop"))
        monkeypatch.delitem(sys.modules, "installed_shop", raising=False)
        find_server("installed_shop:mcp")
        places.add(place_of("installed_shop:mcp"))
    monkeypatch.delitem(sys.modules, "installed_shop")
    assert places == {"installed_shop:mcp"}


async def test_accepting_an_unknown_server_name_is_refused(tmp_path: Path) -> None:
    # finding: S12
    refused = await called("servers", "accept", "shop", "/tools.py:mcp", home=tmp_path)
    assert refused.status == 1
    assert "No server is named shop" in refused.err
    listed = await called("servers", "list", home=tmp_path)
    assert (listed.out, listed.err) == ("", "No server is stored.\n")


async def test_first_of_several_concurrent_servers_with_a_name_is_recorded(tmp_path: Path) -> None:
    # finding: S12
    settings = read_settings({"HOME": str(tmp_path)})

    async def starts(place: str) -> None:
        async with connect(settings) as service:
            owners = service.elicitations.owners
            await must_be_known(owners, name="shop", place=place, now=utc_now())

    places = [f"/{number}.py:mcp" for number in range(8)]
    ends = await soon(asyncio.gather(*map(starts, places), return_exceptions=True))
    refusals = [end for end in ends if isinstance(end, CommandRefused)]
    assert (len(refusals), ends.count(None)) == (len(places) - 1, 1)
