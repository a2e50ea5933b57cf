"""`elicit approvals`: standing approvals of tools, listed and ended in a terminal."""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from webapp.cli.main import main
from webapp.connecting import connect, utc_now
from webapp.records.values import Approval
from webapp.settings.settings import read_settings

pytestmark = pytest.mark.usefixtures("home")


def given(home: Path, *tools: str, by: str = "alice") -> None:
    """Store approvals that a person gave to these tools."""

    async def give() -> None:
        async with connect(read_settings({"HOME": str(home)})) as service:
            owner = service.elicitations.owners.tag(issuer="tests", subject=by)
            now = utc_now()
            for tool in tools:
                approval = Approval(
                    id=service.elicitations.new_id(owner),
                    owner=owner,
                    server="shop",
                    tool=tool,
                    covers="0" * 32,
                    about="count: 5",
                    given_at=now,
                    until=now + timedelta(minutes=15),
                    erase_at=now + timedelta(days=1),
                    is_for_all=True,
                )
                await service.elicitations.write(approval)

    asyncio.run(give())


def run_command(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert main(["approvals", *words]) == 0
    printed = capsys.readouterr()
    return (printed.out or printed.err).splitlines()


def test_approvals_are_listed_revoked_and_cleared(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given(home, "delete", "wipe", "burn")
    lines = run_command(capsys, "list")
    rows = [line.split("\t") for line in lines]
    assert {row[1] for row in rows} == {"delete", "wipe", "burn"}
    assert {tuple(row[2:4]) for row in rows} == {("count: 5", "shop")}
    id, revoked, *_ = rows[0]
    assert run_command(capsys, "revoke", id[:23]) == [
        "The approval is revoked: the next call asks again."
    ]
    left = {line.split("\t")[1] for line in run_command(capsys, "list")}
    assert left == {"delete", "wipe", "burn"} - {revoked}
    assert run_command(capsys, "clear") == ["2 are revoked: the next calls ask again."]
    assert run_command(capsys, "list") == ["Nothing is approved."]


def test_owner_option_lists_and_clears_approvals_of_named_owner_only(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # parity: T7
    given(home, "delete", "wipe")
    given(home, "burn", by="bob")
    (line,) = run_command(capsys, "list", "--owner", "tests#bob")
    bobs = line.split("\t")
    assert bobs[1] == "burn"
    assert run_command(capsys, "clear", "--owner", "tests#alice") == [
        "2 are revoked: the next calls ask again."
    ]
    assert run_command(capsys, "clear", "--owner", "tests#alice") == ["Nothing is approved."]
    assert [line.split("\t")[1] for line in run_command(capsys, "list", "--owner", bobs[4])] == [
        "burn"
    ]


@pytest.mark.parametrize("id", ["a" * 24, "-" + "a" * 23, "-" + "a" * 43])
def test_revoking_unknown_approval_exits_with_status_1(
    id: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["approvals", "revoke", id]) == 1
    printed = capsys.readouterr()
    assert printed.err.startswith("elicit: There is no approval ")
    assert printed.out == ""


@pytest.mark.parametrize("words", [[], ["revoke"], ["revoke", "no id"], ["give"], ["clear", "x"]])
def test_invalid_arguments_exit_with_status_2(words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["approvals", *words])
    assert ended.value.code == 2
