"""The output of commands: without terminal control sequences, even in text that others wrote."""

import io
from pathlib import Path

import httpx
import pytest

from tests.support.mcp_server import LEGACY, new_server, server_env
from webapp.cli.connect import plain
from webapp.command import CommandRefused
from webapp.demo.client import Demo
from webapp.printing import TRACE, makes_links, print_text, printed

TRICKS = "\x1b]0;title\x07\x1b[2J\x1b]52;c;ZWNobw==\x07\r\x9b31m\u202e\u2066"
OBEYED = set(TRICKS) - set("]0;title[2J52cZWNobw==31m")


def test_control_characters_are_replaced_with_visible_sign() -> None:
    # finding: S4
    assert not OBEYED & set(printed(TRICKS))
    assert printed("a\x1bb\nc") == f"a{TRACE}b{TRACE}c"
    assert printed("a\tb\nc\u00a0d", keeps_lines=True) == "a\tb\nc d"
    assert plain("two\n words\x1b[2J") == f"two words{TRACE}[2J"


LINK = "http://127.0.0.1:8765/e/" + "t" * 60


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("environment", "is_link"),
    [
        ({"TERM": "xterm-256color", "VTE_VERSION": "7200"}, True),
        ({"TERM": "xterm-256color", "VTE_VERSION": "4900"}, False),
        ({"TERM": "xterm-256color", "TERM_PROGRAM": "vscode"}, True),
        ({"TERM": "xterm-256color", "TERM_PROGRAM": "another"}, False),
        ({"TERM": "xterm-kitty"}, True),
        ({"TERM": "xterm-256color", "WT_SESSION": "any"}, True),
        ({"TERM": "xterm-kitty", "NO_COLOR": "1"}, False),
        ({"TERM": "dumb", "TERM_PROGRAM": "vscode"}, False),
        ({"TERM_PROGRAM": "vscode"}, False),
        ({"TERM": "xterm-256color"}, False),
    ],
)
def test_address_is_hyperlink_only_on_supporting_terminals(
    environment: dict[str, str], is_link: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TERM", "TERM_PROGRAM", "VTE_VERSION", "WT_SESSION", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert makes_links(environment) == is_link
    terminal, pipe = Terminal(), io.StringIO()
    for out in (terminal, pipe):
        print_text(f"Open {LINK}", out=out, links=[LINK])
    assert pipe.getvalue() == f"Open {LINK}\n"
    linked = f"\x1b]8;;{LINK}\x1b\\http://127.0.0.1:8765/e/…\x1b]8;;\x1b\\"
    assert terminal.getvalue() == (f"Open {linked}\n" if is_link else pipe.getvalue())


def test_address_with_control_characters_is_not_made_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-kitty")
    monkeypatch.delenv("NO_COLOR", raising=False)
    for address in (f"http://127.0.0.1/{TRICKS}", "http://127.0.0.1/a b", "http://127.0.0.1/é"):
        terminal = Terminal()
        print_text(address, out=terminal, links=[address])
        assert not OBEYED & set(terminal.getvalue())


def test_every_printed_text_is_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    # finding: S4
    out = io.StringIO()
    print_text(TRICKS, out=out)
    CommandRefused(TRICKS).print_sentences()
    assert not OBEYED & set(out.getvalue() + capsys.readouterr().err)


async def test_demo_prints_no_escape_sequence_of_tool(capsys: pytest.CaptureFixture[str]) -> None:
    # finding: S4
    server = new_server("mcp")

    @server.tool()
    async def trick() -> str:
        return f"{TRICKS}the end"

    async with server_env(server) as env, httpx.AsyncClient() as browser:
        demo = Demo(url=env.url, browser=browser, walks=False)
        assert await demo.call("trick", mode=LEGACY, arguments={}, is_known=False)
    output = capsys.readouterr().out
    assert "the end" in output
    assert not OBEYED & set(output)


def test_no_other_code_writes_to_standard_output_or_error() -> None:
    # finding: S4
    project = Path(__file__).parents[2] / "webapp"
    writing = {
        str(path.relative_to(project))
        for path in project.rglob("*.py")
        for line in path.read_text("utf-8").splitlines()
        if "sys.stdout.write" in line or "sys.stderr.write" in line or " print(" in line
    }
    assert not writing
