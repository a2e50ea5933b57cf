"""Replay mode: a tool runs again after each question, and repeated side effects are listed."""

import asyncio
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from flows import elicit
from tests.support.mcp_server import new_server
from tests.support.samples import FILES, PAGES
from tests.webapp.testing import replayed_servers as planted
from tests.webapp.testing.conftest import DECLARES
from webapp.testing import AskedPerson, elicit_person

# Use every library, revision and `declares` value, but not every combination of them.
pytestmark = pytest.mark.diagonal


def confirm_all(person: AskedPerson) -> None:
    for _ in planted.ITEMS:
        person.accepts()


def pay(person: AskedPerson) -> None:
    person.pays()


def fill(person: AskedPerson) -> None:
    person.fills(response="Ada")


ACTS: dict[str, Callable[[AskedPerson], None]] = {
    "pay_all": confirm_all,
    "pay_each_once": confirm_all,
    "hold_seat": pay,
    "sell_seat": pay,
    "count_calls": fill,
    "count_answers": fill,
}


@pytest.fixture(autouse=True)
def _cleared() -> None:
    planted.clear()


async def replayed(library: str, folder: Path, tool: str, **options: Any) -> Any:
    server = planted.new_tools(library, folder)
    async with elicit_person(server, replay=True, **options) as person:
        ACTS[tool](person)
        assert not (await person.call(tool)).is_error
        (call,) = person.replayed
        return call


FOUND = {
    "pay_all": ["changes paid"],
    "hold_seat": ["changes held", "changes releases, in finally or except"],
    "count_calls": ["writes journal.txt", "changes statistics.count"],
}


@pytest.mark.diagonal
@pytest.mark.parametrize("declares", DECLARES)
@pytest.mark.parametrize("tool", FOUND)
async def test_repeated_side_effects_are_found(library, revision, declares, tool, tmp_path):
    # finding: XA9
    options: dict[str, Any] = {"revision": revision, "declares": DECLARES[declares]}
    call = await replayed(library, tmp_path, tool, **options)
    for words in FOUND[tool]:
        assert any(words in effect for effect in call.repeated), call
    assert all("replayed_servers.py:" in effect for effect in call.repeated)
    assert "Repeated outside of elicit.once" in str(call)


@pytest.mark.diagonal
@pytest.mark.parametrize("declares", DECLARES)
@pytest.mark.parametrize("tool", ["pay_each_once", "sell_seat", "count_answers"])
async def test_correct_tools_have_no_repeated_side_effects(
    library, revision, declares, tool, tmp_path
):
    options: dict[str, Any] = {"revision": revision, "declares": DECLARES[declares]}
    call = await replayed(library, tmp_path, tool, **options)
    assert call.repeated == ()
    assert "!" not in str(call)


@pytest.mark.parametrize("declares", DECLARES)
async def test_replay_counts_are_the_same_with_each_client(library, revision, declares, tmp_path):
    # finding: XA9
    options: dict[str, Any] = {"revision": revision, "declares": DECLARES[declares]}
    call = await replayed(library, tmp_path, "pay_all", **options)
    assert (call.tool, call.starts) == ("pay_all", 5)
    assert [(lines.ran, lines.recorded) for lines in call.lines] == [
        (5, 4),
        (4, 3),
        (3, 2),
        (2, 1),
        (1, 0),
    ]
    assert len(planted.paid) == 10


@pytest.mark.parametrize(
    ("spoken", "declares", "payments"),
    [
        ("2025-11-25", "form", 4),
        ("2025-11-25", "nothing", 10),
        ("2026-07-28", "form", 10),
        ("2026-07-28", "nothing", 10),
    ],
)
async def test_without_replay_the_client_decides_how_often_a_loop_pays(
    library, spoken, declares, payments, tmp_path
):
    # finding: XA9
    server = planted.new_tools(library, tmp_path)
    declared = DECLARES[declares]
    async with elicit_person(server, revision=spoken, declares=declared) as person:
        confirm_all(person)
        await person.call("pay_all")
        assert len(planted.paid) == payments
        assert person.replayed == []


async def test_printed_table_shows_questions_and_number_of_runs(library, tmp_path):
    call = await replayed(library, tmp_path, "count_calls", revision="2025-11-25")
    head, names, first, second = str(call).splitlines()[:4]
    assert head == "replay: count_calls ran 2 times"
    assert names.split() == ["from", "to", "times", "run", "stored", "answers"]
    assert "the start" in first
    assert "form 'Who are you?'" in first
    assert first.split()[-2:] == ["2", "1"]
    assert second.split()[-4:] == ["the", "result", "1", "0"]


@pytest.mark.parametrize(
    ("spoken", "declares", "payments"),
    [("2025-11-25", "form", 3), ("2025-11-25", "nothing", 6), ("2026-07-28", "form", 6)],
)
async def test_page_states_how_often_its_sample_pays(spoken, declares, payments, tmp_path):
    # finding: XA9
    page = PAGES["docs/explanation/what-runs-again.md"]
    for replay in (False, True):
        sample = sample_in(tmp_path)
        options: dict[str, Any] = {"revision": spoken, "declares": DECLARES[declares]}
        async with elicit_person(sample.mcp, replay=replay, **options) as person:
            for _ in range(3):
                person.accepts()
            await person.call("pay_everybody")
            assert len(sample.paid) == (6 if replay else payments)
            assert f"it pays {payments} times" in page
            for call in person.replayed:
                assert f"```text\n{call}\n```" in page, call


def sample_in(folder: Path) -> Any:
    (folder / "payouts.py").write_text(FILES["payouts.py"])
    spec = spec_from_file_location("payouts", folder / "payouts.py")
    assert spec is not None
    assert spec.loader is not None
    sample = module_from_spec(spec)
    spec.loader.exec_module(sample)
    return sample


async def test_questions_asked_together_are_replayed(library, revision):
    server = new_server(library)

    @server.tool()
    async def ask_all() -> str:
        first, second = await elicit.together(elicit.form("Who?"), elicit.form("Where?"))
        third = await asyncio.gather(elicit.form("When?"), elicit.form("Why?"))
        return f"{first} {second} {third}"

    async with elicit_person(server, revision=revision, replay=True) as person:
        for answer in "abcd":
            person.fills(response=answer)
        assert "a" in (await person.call("ask_all")).text
        (call,) = person.replayed
        assert call.repeated == ()
        assert call.lines[0].ran == call.starts


async def test_once_before_payment_is_not_repeated(library, revision):
    # finding: XA9
    server = new_server(library)
    held: list[str] = []

    @server.tool()
    async def buy() -> str:
        await elicit.once("hold", lambda: held.append("4A"))
        receipt = await elicit.payment(planted.TEA, "Seat 4A")
        await elicit.once("sell", lambda: held.append("sold"))
        return f"{receipt.price}"

    async with elicit_person(server, revision=revision, replay=True) as person:
        person.pays()
        assert (await person.call("buy")).text == "9.00 EUR"
        assert held == ["4A", "sold"]
        assert person.replayed[0].repeated == ()


@pytest.mark.parametrize(
    ("spoken", "declares", "starts"),
    [("2025-11-25", "form", 1), ("2025-11-25", "nothing", 5), ("2026-07-28", "form", 5)],
)
async def test_watched_calls_run_as_often_as_the_client_needs(
    library, spoken, declares, starts, tmp_path
):
    # finding: XA9
    server = planted.new_tools(library, tmp_path)
    declared = DECLARES[declares]
    async with elicit_person(server, revision=spoken, declares=declared, watch=True) as person:
        confirm_all(person)
        await person.call("pay_all")
        assert person.replayed[0].starts == starts
        assert bool(person.replayed[0].repeated) == (starts > 1)
        assert len(planted.paid) == (4 if starts == 1 else 10)


async def test_declined_question_is_replayed(library, revision):
    server = new_server(library)

    @server.tool()
    async def ask_name() -> str:
        return f"{await elicit.form('Who?').or_none()}"

    async with elicit_person(server, revision=revision, replay=True) as person:
        person.declines()
        assert (await person.call("ask_name")).text == "None"
        assert person.replayed[0].starts == 2


async def test_repeated_connections_and_processes_are_found_also_in_threads(library, revision):
    # finding: XA9
    server = new_server(library)
    received: list[bytes] = []

    async def receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await reader.read())
        writer.close()

    async def connect() -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()
        await writer.wait_closed()

    @server.tool()
    async def work() -> str:
        await connect()
        await asyncio.to_thread(subprocess.run, [sys.executable, "-S", "-c", ""], check=True)
        await elicit.confirm("Go on?")
        await connect()
        return "done"

    async with await asyncio.start_server(receive, "127.0.0.1", 0) as listener:
        port = listener.sockets[0].getsockname()[1]
        async with elicit_person(server, revision=revision, replay=True) as person:
            person.accepts()
            assert (await person.call("work")).text == "done"
            network, process = person.replayed[0].repeated
            assert "connects to the network (3 times)" in network
            assert process == "after the start, in a thread: starts a process (2 times)"


@pytest.mark.parametrize("has_prefix", [False, True])
async def test_bytecode_cache_of_an_import_is_no_side_effect(
    library, tmp_path, monkeypatch, has_prefix
):
    server = new_server(library)
    names = [f"imported_in_tool_{n}" for n in range(2)]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    cache = tmp_path / "cache"
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", str(cache) if has_prefix else None)

    @server.tool()
    async def work() -> str:
        for name in names:
            monkeypatch.delitem(sys.modules, name, raising=False)
            import_module(name)
        await elicit.confirm("Go on?")
        return "done"

    async with elicit_person(server, replay=True) as person:
        person.accepts()
        assert (await person.call("work")).text == "done"
        assert len([*tmp_path.rglob("*.pyc")]) == 2
        assert cache.exists() == has_prefix
        assert person.replayed[0].starts == 2
        assert person.replayed[0].repeated == ()


async def test_repeated_folders_and_renames_are_found(library, tmp_path):
    server = new_server(library)

    @server.tool()
    async def work() -> str:
        (tmp_path / "draft").mkdir()
        (tmp_path / "draft").rename(tmp_path / "final")
        await elicit.confirm("Go on?")
        return "done"

    async with elicit_person(server, replay=True) as person:
        person.accepts()
        await person.call("work")
        folder, rename = person.replayed[0].repeated
        assert folder.endswith("makes a folder (2 times)")
        assert rename.endswith("renames a file (2 times)")
