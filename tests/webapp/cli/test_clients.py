"""`elicit clients`: what clients did with what they were sent, listed and forgotten."""

import asyncio
import json
from pathlib import Path

import pytest

from webapp.calls.clients import FORM, LINK, ClientName, Deed
from webapp.cli.main import main
from webapp.connecting import connect
from webapp.settings.settings import read_settings

pytestmark = pytest.mark.usefixtures("home")


def seen(home: Path, *names: str) -> None:
    """What a server of that home has seen."""

    async def see() -> None:
        async with connect(read_settings({"HOME": str(home)})) as service:
            owner = service.elicitations.owners.tag(issuer="tests", subject="alice")
            for name in names:
                client = ClientName(owner, name, "1.2")
                await service.clients.note(client, FORM, Deed.SILENT)
                await service.clients.note(client, LINK, Deed.ANSWERED)

    asyncio.run(see())


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["clients", *words]) == 0
    return capsys.readouterr().out


def test_they_are_listed_and_forgotten(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "list") == "No client is remembered.\n"
    seen(home, "editor", "chat")
    first, forms, links, *_ = said(capsys, "list").splitlines()
    assert first.split()[1] in ("editor", "chat")
    assert " 1.2, of " in first
    assert forms.startswith("  forms: said nothing  ")
    assert links.startswith("  links: answered  ")
    id = first.split()[0]
    assert said(capsys, "forget", id).startswith("It is forgotten")
    assert id not in said(capsys, "list")
    assert main(["clients", "forget", id]) == 1
    assert "elicit clients list shows them" in capsys.readouterr().err
    assert said(capsys, "clear") == "1 is forgotten.\n"
    assert said(capsys, "clear") == "No client is remembered.\n"


def test_as_json_they_are_whole(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen(home, "an \x1b[31meditor")
    (client,) = json.loads(said(capsys, "list", "--json"))
    assert (client["name"], client["version"]) == ("an \x1b[31meditor", "1.2")
    assert (client["forms"]["did"], client["links"]["did"]) == ("said nothing", "answered")
    assert client["forms"]["at"] < client["forms"]["until"]
    assert "\x1b" not in said(capsys, "list")
