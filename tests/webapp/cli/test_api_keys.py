"""`elicit api-keys`: created, shown once, listed and revoked in a terminal."""

import json
from pathlib import Path

import pytest

from webapp.cli.main import main
from webapp.identity.api_keys import is_key

pytestmark = pytest.mark.usefixtures("home")
NEW = ("new", "shop", "--scopes", "ask", "--expires", "90d")


def run_command(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> str:
    assert main(["api-keys", *words]) == status
    printed = capsys.readouterr()
    return (printed.out or printed.err).strip()


def test_new_key_is_shown_once_and_listed_without_its_text(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = run_command(capsys, *NEW)
    assert is_key(text)
    listed = run_command(capsys, "list", "--json")
    (row,) = json.loads(listed)
    assert text not in listed
    assert (row["program"], row["scopes"], row["state"]) == ("shop", ["ask"], "works")
    assert row["used_at"] is None


def test_revoked_key_is_listed_as_revoked(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_command(capsys, *NEW)
    run_command(capsys, "new", "desk", "--scopes", "approve", "--expires", "12h", "--owner", "ann")
    rows = json.loads(run_command(capsys, "list", "--json"))
    (desk,) = [row for row in rows if row["program"] == "desk"]
    assert desk["owners"] == ["ann"]
    assert "the server refuses it from the next request on" in run_command(
        capsys, "revoke", desk["id"]
    )
    states = {
        row["program"]: row["state"] for row in json.loads(run_command(capsys, "list", "--json"))
    }
    assert states == {"shop": "works", "desk": "revoked"}


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (
            ("new", "shop", "--scopes", "read", "--expires", "90d"),
            "scopes are ask, tokens, refund, import, approve, operate",
        ),
        (
            ("new", "x", "--scopes", "ask,approve", "--expires", "9d", "--owner", "a"),
            "create two keys",
        ),
        (("new", "x", "--scopes", "approve", "--expires", "9d"), "--owner USER"),
    ],
)
def test_invalid_options_create_no_key_and_error_says_why(
    home: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], why: str
) -> None:
    assert why in run_command(capsys, *words, status=2)
    assert run_command(capsys, "list") == "There is no API key."


@pytest.mark.parametrize("time", ["0d", "90", "for ever", "367d"])
def test_invalid_or_too_long_expiry_is_refused(
    home: Path, capsys: pytest.CaptureFixture[str], time: str
) -> None:
    with pytest.raises(SystemExit):
        main(["api-keys", "new", "shop", "--scopes", "ask", "--expires", time])
    assert "write for example 90d or 12h" in capsys.readouterr().err
