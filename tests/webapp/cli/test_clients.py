"""`elicit clients`: the observed behavior of clients, listed and deleted."""

import asyncio
import json
from pathlib import Path

import pytest

from webapp.calls.clients import FORM, LINK, ClientName, Reaction
from webapp.cli.main import main
from webapp.connecting import connect
from webapp.settings.settings import read_settings

pytestmark = pytest.mark.usefixtures("home")


def seen(home: Path, *names: str) -> None:
    """Store observations about these clients, as a server does."""

    async def see() -> None:
        async with connect(read_settings({"HOME": str(home)})) as service:
            owner = service.elicitations.owners.tag(issuer="tests", subject="alice")
            for name in names:
                client = ClientName(owner, name, "1.2")
                await service.clients.note(client, FORM, Reaction.SILENT)
                await service.clients.note(client, LINK, Reaction.ANSWERED)

    asyncio.run(see())


def run_command(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert main(["clients", *words]) == 0
    printed = capsys.readouterr()
    return (printed.out or printed.err).splitlines()


def test_clients_are_listed_and_forgotten(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(capsys, "list") == ["No client is remembered."]
    seen(home, "editor", "chat")
    lines = [line.split("\t") for line in run_command(capsys, "list")]
    assert {line[1] for line in lines} == {"editor", "chat"}
    id, _, version, _, forms, links, *_ = lines[0]
    assert (version, forms, links) == ("1.2", "said nothing", "answered")
    (answer,) = run_command(capsys, "forget", id[:8])
    assert answer.startswith("The client is forgotten")
    assert id not in str(run_command(capsys, "list"))
    assert main(["clients", "forget", id]) == 1
    assert "elicit clients list" in capsys.readouterr().err
    assert run_command(capsys, "clear") == ["1 is forgotten."]
    assert run_command(capsys, "clear") == ["No client is remembered."]


def test_json_list_has_all_fields_and_unmodified_names(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen(home, "an \x1b[31meditor")
    assert main(["clients", "list", "--json"]) == 0
    (client,) = json.loads(capsys.readouterr().out)
    assert (client["name"], client["version"]) == ("an \x1b[31meditor", "1.2")
    assert (client["forms"], client["links"]) == ("said nothing", "answered")
    assert client["seen_at"] < client["until"]
    assert "\x1b" not in str(run_command(capsys, "list"))
