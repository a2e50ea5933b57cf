"""Commands without a test module of their own, and the errors of the argument parser."""

import os
import re
from urllib.parse import urlsplit

import httpx
import pytest

from flows.crypto.tokens import Ring
from tests.support.cli import Server, called, ended, procfile_words, serving, start
from webapp.cli import main as cli
from webapp.settings import settings


async def test_keys_new_prints_a_different_valid_secret_each_time(tmp_path):
    first = await called("keys", "new", home=tmp_path)
    second = await called("keys", "new", home=tmp_path)
    assert first.status == second.status == 0
    assert first.out != second.out
    assert first.out.count("\n") == 1
    secret = first.out.strip()
    assert "," not in secret
    Ring([secret.encode()])
    read = settings.read_settings({"ELICIT_SECRET": secret, "HOME": str(tmp_path)})
    assert not (tmp_path / ".local").exists()
    assert secret not in repr(read)


async def test_version_option_prints_version(tmp_path):
    end = await called("--version", home=tmp_path)
    assert end.status == 0
    assert end.out.startswith("elicit-url ")


@pytest.mark.parametrize(
    "arguments", [(), ("keys",), ("serve", "--port", "99999"), ("stdio",), ("fly",)]
)
def test_invalid_command_prints_usage(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    assert "usage: elicit" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["yesterday", "9999-12-31T23:59:59-12:00"])
def test_time_that_cannot_be_read_is_explained(text, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["payments", "reconcile", "--since", text])
    assert ended.value.code == 2
    assert "is not a time: write 2026-03-01" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [(), ("serve",), ("stdio",), ("demo",), ("keys",), ("keys", "new")]
)
def test_help_option_of_every_command_prints_usage(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main([*arguments, "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("usage: elicit")


@pytest.mark.parametrize("arguments", [*((name,) for name in cli.COMMANDS), ("audit", "verify")])
def test_help_option_of_every_command_says_what_the_command_does(arguments, capsys):
    with pytest.raises(SystemExit):
        cli.main([*arguments, "--help"])
    _, first, *_ = capsys.readouterr().out.split("\n\n")
    assert first.endswith(".")
    assert not first.startswith(("options:", "positional arguments:", "commands:"))


def test_invalid_demo_url_is_refused(capsys):
    assert urlsplit("nonsense").hostname is None
    assert cli.main(["demo", "--url", "nonsense"]) == 2
    assert "is not an address like http://127.0.0.1:8765" in capsys.readouterr().err


async def test_demo_server_starts_and_stops_its_sandbox(tmp_path):
    async with serving(home=tmp_path) as server, httpx.AsyncClient() as browser:
        sandbox = sandbox_of(server)
        assert sandbox is not None
        assert sandbox != server.url
        assert (await browser.get(sandbox)).status_code < 500
        server.process.terminate()
        end = await ended(server.process)
        assert (end.status, end.err) == (0, "")
        with pytest.raises(httpx.ConnectError):
            await browser.get(sandbox)


async def test_sandbox_starts_for_custom_tools_with_sandbox_option(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from mcp.server.mcpserver import MCPServer\nmcp = MCPServer('mine')\n"
    )
    async with serving("mine:mcp", home=tmp_path) as without:
        assert sandbox_of(without) is None
    async with serving("mine:mcp", "--sandbox", home=tmp_path) as with_one:
        assert sandbox_of(with_one) is not None


@pytest.mark.parametrize("url", ["https://example.org", "https://localhost:8765"])
async def test_sandbox_is_refused_for_https_url(tmp_path, url):
    extra = {"ELICIT_URL": url, "ELICIT_SECRET": "s" * 32}
    end = await called("serve", "--sandbox", "--port", "0", home=tmp_path, extra=extra)
    assert (end.status, end.out) == (2, "")
    assert end.err.startswith("elicit: ELICIT_URL: The sandbox works only on this machine")


def sandbox_of(server: Server) -> str | None:
    lines = [line.split() for line in server.output.splitlines()]
    return next((line[1] for line in lines if line[0] == "sandbox"), None)


@pytest.mark.parametrize(
    ("url", "host"), [(None, "127.0.0.1"), ("https://tools.example.com", "0.0.0.0")]
)
def test_procfile_listens_on_all_addresses_only_if_url_is_set(url: str | None, host: str) -> None:
    environment = {"PORT": "8000"} | ({} if url is None else {"ELICIT_URL": url})
    *_, words = " ".join(procfile_words(environment)).partition(" elicit ")
    options = cli.parser_for(words.split()).parse_args(words.split())
    assert (options.host, options.port) == (host, 8000)
    # The Procfile sets neither: ELICIT_SERVER names the server, and sandboxes are for local use.
    assert (options.server, options.sandbox) == (None, False)


@pytest.mark.parametrize("what", [("payments", "list", "--json"), ("keys", "list")])
async def test_list_with_closed_pipe_exits_without_error_output(what, tmp_path):
    await called("payments", "list", home=tmp_path)  # this creates the store
    reader, writer = os.pipe()
    os.close(reader)
    try:
        process = await start(*what, home=tmp_path, stdout=writer)
    finally:
        os.close(writer)
    end = await ended(process)
    assert (end.status, end.err) == (141, "")


async def test_settings_lists_every_setting_with_default_and_set_status(tmp_path):
    given = {
        "ELICIT_SECRET": "hunter2" * 8,
        "ELICIT_GITHUB_CLIENT_SECRET": "hunter2",
        "ELICIT_ISSUER_CLIENT_SECRET": " ",
        "ELICIT_GRACE": "wrong hunter2",
        "ELICIT_MIN_ANSWER": "0",
    }
    end = await called("settings", home=tmp_path, extra=given)
    assert (end.status, end.err) == (0, "")
    assert "hunter2" not in end.out
    reported = [line.split("\t") for line in end.out.splitlines()]
    assert [row[0] for row in reported] == [row.name for row in settings.TABLE]
    assert [row[0] for row in reported if row[1] == "yes"] == [
        "ELICIT_SECRET",
        "ELICIT_{NAME}_CLIENT_SECRET",
        "ELICIT_MIN_ANSWER",
        "ELICIT_GRACE",
    ]
    assert ["ELICIT_PENDING_PER_OWNER", "no", "50"] in [row[:3] for row in reported]
    one = await called("settings", "client_secret", home=tmp_path, extra=given)
    assert "set_by   ELICIT_GITHUB_CLIENT_SECRET" in one.out
    assert "hunter2" not in one.out


async def test_unknown_setting_is_reported_with_suggestion(tmp_path):
    end = await called("settings", home=tmp_path, extra={"ELICIT_GRCE": "hunter2"})
    assert end.status == 1
    assert end.err == (
        "elicit: ELICIT_GRCE: no setting has this name; perhaps ELICIT_GRACE is meant.\n"
    )
    end = await called("settings", "colour", home=tmp_path)
    assert (end.status, end.out) == (1, "")
    assert end.err == "elicit: No setting has colour in its name: elicit settings lists all.\n"


async def test_operator_prints_an_address_that_opens_the_pages_once(tmp_path):
    async with serving(home=tmp_path) as server, httpx.AsyncClient() as browser:
        end = await called("operator", "--port", str(urlsplit(server.url).port), home=tmp_path)
        assert end.status == 0, end.err
        address = re.search(r"http://\S+/operator/enter/\S+", end.out)
        assert address is not None
        page = await browser.get(address[0])
        csrf = re.search(r'name="csrf" value="([^"]+)"', page.text)
        assert csrf is not None, page.text
        entered = await browser.post(address[0], data={"csrf": csrf[1]})
        assert entered.headers["location"] == "/operator/questions"
        assert (await browser.get(server.url + "/operator/questions")).status_code == 200
        assert (await browser.get(address[0])).status_code == 410


async def test_operator_names_the_setting_for_a_server_with_sign_in(tmp_path):
    extra = {"ELICIT_URL": "https://tools.example.com", "ELICIT_SECRET": "s" * 32}
    end = await called("operator", home=tmp_path, extra=extra)
    assert (end.status, end.out) == (1, "")
    assert "ELICIT_OPERATORS" in end.err
    assert "https://tools.example.com/operator" in end.err
