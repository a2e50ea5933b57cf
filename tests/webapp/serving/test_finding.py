"""`module:attribute`: a server, a factory, or an error that says what to write."""

import asyncio
import sys
from pathlib import Path

import pytest

from tests.support.cli import called
from webapp.command import CommandRefused
from webapp.serving.finding import find_server, load, place_of

MADE = """
from mcp.server.mcpserver import MCPServer

class Shop(MCPServer):
    def __init__(self) -> None:
        super().__init__("a class")

def plain() -> MCPServer:
    return MCPServer("plain")

async def later() -> MCPServer:
    return MCPServer("later")

def broken(): 1 / 0
def nothing(): return 5
def picky(name): return MCPServer(name)
shop = MCPServer("shop")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.delitem(sys.modules, "factories", raising=False)
    (tmp_path / "factories.py").write_text(MADE)
    return tmp_path


@pytest.mark.parametrize(
    ("attribute", "name"),
    [("plain", "plain"), ("later", "later"), ("Shop", "a class"), ("shop", "shop")],
)
def test_server_or_factory_without_arguments_is_loaded(folder, attribute, name):
    server = load(f"factories:{attribute}", run=asyncio.run)
    assert server.name == name
    assert place_of(f"factories:{attribute}") == f"{folder / 'factories.py'}:{attribute}"


@pytest.mark.parametrize(
    ("attribute", "says"),
    [
        # finding: XA19
        (
            "broken",
            "could not make a server: ZeroDivisionError at {folder}/factories.py:14; see the",
        ),
        ("nothing", "factories:nothing returned a int, not an MCPServer, FastMCP or low-level"),
        ("picky", "factories:picky cannot be called without arguments"),
        ("mcp", "has no attribute 'mcp'. Perhaps factories:shop is meant."),
    ],
)
def test_module_attribute_which_is_no_server_is_refused_with_reason(folder, attribute, says):
    with pytest.raises(CommandRefused) as refused:
        load(f"factories:{attribute}", run=asyncio.run)
    assert says.format(folder=folder) in str(refused.value)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("from x import y\nshop: object = MCPServer('x')", "as in file:shop (no"),
        ("one = FastMCP.from_openapi({})\ntwo = Server('x')", "as in file:one or file:two (no"),
        ("async def make() -> 'x.FastMCP': ...", "as in file:mcp (no"),
        ("async def make() -> x.FastMCP: ...", "as in file:make (no"),
        ("def broken(:", "as in file:mcp (no"),
    ],
)
def test_path_is_refused_with_right_module_and_attribute(folder, text, meant):
    (folder / "file.py").write_text(f"{text}\n")
    with pytest.raises(ImportError) as wrong:
        find_server("./file.py")
    assert meant in str(wrong.value)
    assert "file" not in sys.modules


def test_missing_fastmcp_error_says_how_to_install(folder):
    (folder / "fast.py").write_text("raise ModuleNotFoundError('as without it', name='fastmcp')\n")
    with pytest.raises(ImportError) as wrong:
        find_server("fast:mcp")
    assert str(wrong.value).endswith("Install it with: pip install 'elicit-url[fastmcp]'")


def test_path_in_other_folder_is_refused_and_error_names_folder(folder):
    (folder / "file.py").write_text("tools = MCPServer('x')\n")
    with pytest.raises(ImportError) as wrong:
        find_server(f"{folder}/file.py")
    assert str(wrong.value).endswith(f"as in file:tools (no path, no .py), in its folder {folder}.")


async def test_elicit_serve_with_path_suggests_module_and_attribute(tmp_path):
    (tmp_path / "shop.py").write_text("tools = MCPServer('x')\n")
    end = await called("serve", "shop.py", "--port", "0", home=tmp_path)
    assert (end.status, end.out) == (1, "")
    assert "write module:attribute, as in shop:tools (no path, no .py)." in end.err
