"""A store that does not open: every command reports the same error, without the password."""

from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from tests.support.cli import called
from tests.support.postgres_server import fresh_database
from tests.support.valkey_server import fresh_valkey

PASSWORD = "correct-horse"
SECRET = {"ELICIT_SECRET": "a" * 32}
NOBODY_THERE = {
    "postgres": f"postgresql://tester:{PASSWORD}@127.0.0.1:1/elicit",
    "valkey": f"valkey://tester:{PASSWORD}@127.0.0.1:1/0",
}
COMMANDS = (
    ("payments", "list"),
    ("connect",),
    ("keys", "list"),
    ("vacuum",),
    ("doctor",),
    ("backup", "copy.db"),
    ("serve", "--port", "0"),
)


async def run_command(*command: str, home: Path, extra: Mapping[str, str]) -> str:
    ended = await called(*command, home=home, extra=extra)
    assert ended.status != 0
    assert PASSWORD not in ended.out + ended.err
    return ended.out + ended.err


@pytest.fixture(params=["nobody there", "password", "database", "scheme", "Valkey's database"])
async def wrong(request: pytest.FixtureRequest) -> AsyncIterator[tuple[str, str]]:
    """Yield a wrong address and the expected message."""
    match request.param:
        case "nobody there":
            yield NOBODY_THERE["postgres"], "check that the server runs"
        case "password":
            _, _, place = fresh_valkey().url.partition("://")
            address = f"valkey://tester:{PASSWORD}@{place.rpartition('@')[2]}"
            yield address, "put the correct user and password in ELICIT_STORE"
        case "database":
            async with fresh_database() as url:
                yield url.replace("@/test", "@/elsewhere"), "create the database (createdb)"
        case "scheme":
            yield f"postgre://tester:{PASSWORD}@127.0.0.1/elicit", "there is no store type"
        case _:
            yield fresh_valkey().url.replace("db=0", "db=4711"), "has no database 4711"


@pytest.mark.parametrize("secret", [SECRET, {}], ids=["with a secret", "with a key file"])
async def test_each_command_reports_the_same_error_for_a_store_that_does_not_open(
    tmp_path: Path, wrong: tuple[str, str], secret: Mapping[str, str]
) -> None:
    address, words = wrong
    lines = set[str]()
    for command in COMMANDS:
        if command[0] == "keys" and not secret:
            continue  # there are no keys to list
        text = await run_command(*command, home=tmp_path, extra={"ELICIT_STORE": address, **secret})
        assert words in text, command
        (line,) = [line for line in text.splitlines() if words in line]
        for start in ("elicit: ", "NO  settings    ", "NO  store       "):
            line = line.removeprefix(start)
        lines.add(line)
    assert len(lines) == 1, lines


# finding: XD5
@pytest.mark.parametrize(
    "words", [("audit", "verify"), ("audit", "key"), ("payments", "list"), ("doctor",)]
)
async def test_reading_command_creates_no_store_at_a_wrong_address(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    missing = tmp_path / "elcit.db"
    result = await called(*words, home=tmp_path, extra={"ELICIT_STORE": f"sqlite:///{missing}"})
    assert result.status == (1 if words == ("doctor",) else 2)
    assert (
        f"There is no store at sqlite:///{missing}. Correct ELICIT_STORE" in result.out + result.err
    )
    assert not missing.exists()
