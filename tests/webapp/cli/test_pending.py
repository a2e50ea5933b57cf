"""`elicit pending`: the open questions, listed in a terminal."""

import asyncio
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from flows.elicitation.states import Asked, Elicitation, Status
from webapp.cli.main import main
from webapp.connecting import connect, utc_now
from webapp.settings.settings import read_settings

pytestmark = pytest.mark.usefixtures("home")

WORDS = "How much of the secret sauce?"
LINK = "https://shop.example/sauce"
ALICE, BOB = "alice", "bob"


def asked(home: Path, *questions: dict[str, Any]) -> list[Elicitation]:
    """Store these open questions, each a minute later than the previous one."""

    async def ask() -> list[Elicitation]:
        rows: list[Elicitation] = []
        async with connect(read_settings({"HOME": str(home)})) as service:
            now = utc_now()
            for number, about in enumerate(questions):
                subject = about.pop("of", ALICE)
                owner = service.elicitations.owners.tag(issuer="tests", subject=subject)
                tool = about.pop("tool", "stir")
                row = Elicitation(
                    id=service.elicitations.new_id(owner),
                    owner=owner,
                    kind="form",
                    request=Asked(
                        server="shop",
                        tool=tool,
                        client="assistant",
                        message=WORDS,
                        digest="d",
                        url=LINK,
                        terms={"schema": WORDS},
                    ),
                    dedupe_key=f"join {number}",
                    created_at=now + timedelta(minutes=number),
                    expires_at=now + timedelta(hours=1),
                )
                rows.append(replace(row, **about))
                await service.elicitations.write(rows[-1])
        return rows

    return asyncio.run(ask())


def run_command(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert main(["pending", "list", *words]) == 0
    return capsys.readouterr().out.splitlines()


def moment(when: datetime) -> str:
    return f"{when:%Y-%m-%dT%H:%M:%SZ}"


def test_open_questions_are_listed_latest_first(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(capsys) == []
    first, second = asked(home, {"tool": "stir"}, {"tool": "pour", "of": BOB, "kind": "gate"})
    lines = run_command(capsys)
    tails = [row.id.removeprefix(row.owner) for row in (first, second)]
    assert [line.split("\t") for line in lines] == [
        [tail, kind, tool, "shop", row.owner[:6], moment(row.created_at), moment(row.expires_at)]
        for tail, kind, tool, row in (
            (tails[1], "gate", "pour", second),
            (tails[0], "form", "stir", first),
        )
    ]
    assert first.owner[:6] != second.owner[:6]


def test_owner_option_lists_questions_of_named_owner_only(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # parity: T6
    row, _ = asked(home, {"tool": "stir"}, {"tool": "pour", "of": BOB})
    for whose in (row.owner[:6], "tests#alice"):
        (line,) = run_command(capsys, "--owner", whose)
        assert line.split("\t")[2] == "stir"
    assert main(["pending", "list", "--owner", "tests#nobody"]) == 1


def test_ended_and_expired_questions_are_not_listed(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    now = utc_now()
    over = {"created_at": now - timedelta(minutes=9), "expires_at": now - timedelta(minutes=4)}
    ended = [
        {"tool": f"it {status}", "status": status, "settled_at": now}
        for status in Status
        if status.is_final
    ]
    asked(home, *ended, {"tool": "too late", **over}, {"tool": "read", "status": Status.OPENED})
    (line,) = run_command(capsys)
    assert line.split("\t")[2:4] == ["read", "shop"]


def test_list_shows_no_full_ids_links_messages_or_control_characters(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (row,) = asked(home, {"tool": "\x1b[2J\u202e" + "x" * 90})
    printed = "\n".join(run_command(capsys))
    for stored in (row.id, row.owner, WORDS, LINK, "http", "sauce"):
        assert stored not in printed
    assert all(line.replace("\t", "").isprintable() for line in printed.splitlines())


@pytest.mark.parametrize("words", [[], ["show"], ["list", "x"]])
def test_invalid_arguments_exit_with_status_2(words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["pending", *words])
    assert ended.value.code == 2
