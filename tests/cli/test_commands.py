"""The small commands, and what the parser itself answers."""

from urllib.parse import urlsplit

import pytest

from flows.vault import Ring
from tests.cli.running import run
from webapp import cli, settings


async def test_keys_new_gives_a_secret_that_works_and_another_each_time(tmp_path):
    first = await run("keys", "new", home=tmp_path)
    second = await run("keys", "new", home=tmp_path)
    assert first.status == second.status == 0
    assert first.out != second.out
    assert first.out.count("\n") == 1
    secret = first.out.strip()
    assert "," not in secret
    Ring([secret.encode()])
    read = settings.read_settings({"ELICIT_SECRET": secret, "HOME": str(tmp_path)})
    assert not (tmp_path / ".local").exists()
    assert secret not in repr(read)


async def test_it_tells_its_version(tmp_path):
    end = await run("--version", home=tmp_path)
    assert end.status == 0
    assert end.out.startswith("elicit-url ")


@pytest.mark.parametrize("arguments", [(), ("keys",), ("serve", "--port", "99999"), ("fly",)])
def test_what_is_no_command_is_answered_with_the_usage(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    assert "usage: elicit" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [(), ("serve",), ("demo",), ("keys",), ("keys", "new")])
def test_every_command_explains_itself(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main([*arguments, "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("usage: elicit")


def test_the_defaults_of_the_commands_are_those_of_the_settings():
    assert (cli.DEFAULT_HOST, cli.DEFAULT_PORT) == (settings.DEFAULT_HOST, settings.DEFAULT_PORT)


def test_an_address_that_is_none_is_refused(capsys):
    assert urlsplit("nonsense").hostname is None
    assert cli.main(["demo", "--url", "nonsense"]) == 2
    assert "is no address like http://127.0.0.1:8765" in capsys.readouterr().err
