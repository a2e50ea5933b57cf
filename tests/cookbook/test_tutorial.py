"""The tutorial, followed from an empty folder: each file and each command of the page."""

import os
import re
import shlex
import sys
from pathlib import Path

from tests.support.cli import PROJECT, called, environment_of, serving
from tests.support.processes import ended, start
from tests.support.samples import PAGES, samples

PAGE = "docs/tutorials/first-server.md"
NAME = re.compile(r"# (\w+\.py)\n")


async def test_tutorial_works_from_an_empty_folder(tmp_path: Path) -> None:
    account, payment, test = samples(PAGE, "python")
    install, serve, call, call_paid, replay, call_other, pytest = samples(PAGE, "console")
    printed = [text.strip() for text in samples(PAGE, "text")]
    assert _lines(install)[:2] == ["python3 -m venv .venv", ". .venv/bin/activate"]
    assert _lines(install)[2].startswith('pip install "elicit-url[testing]"')

    _save(tmp_path, account)
    async with serving(*_words(serve), home=tmp_path) as server:
        for _ in range(2):  # the second call asks nobody
            assert printed[0] in await _demo(call, server.url, home=tmp_path)

    with (tmp_path / "tutorial.py").open("a") as file:
        file.write(payment)
    async with serving(*_words(serve), home=tmp_path) as server:
        assert printed[1] in await _demo(call_paid, server.url, home=tmp_path)

    async with serving(*_words(replay), home=tmp_path) as server:
        assert "about forks" in await _demo(call_other, server.url, home=tmp_path)
        server.process.terminate()
        table = (await ended(server.process)).out
    assert "replay: buy_summary ran " in table
    assert "!" not in table.partition("replay: ")[2]

    _save(tmp_path, test)
    (command,) = _lines(pytest)
    program, *words = shlex.split(command)
    assert program == "pytest"
    path = f"{tmp_path}:{PROJECT}"
    environment = {**environment_of(tmp_path), "PYTHONPATH": path, "PATH": os.environ["PATH"]}
    tests = await ended(
        await start(
            *(sys.executable, "-m", "pytest", *words),
            name="pytest",
            cwd=tmp_path,
            env=environment,
        )
    )
    assert tests.status == 0, tests.out
    assert "5 passed" in tests.out
    assert "Five tests pass." in PAGES[PAGE]


def _save(folder: Path, text: str) -> None:
    named = NAME.match(text)
    assert named is not None
    (folder / named[1]).write_text(text)


def _lines(block: str) -> list[str]:
    return block.strip().splitlines()


def _words(block: str) -> list[str]:
    """Return the arguments of `elicit serve`, the last line of the block."""
    program, command, *words = shlex.split(_lines(block)[-1])
    assert (program, command) == ("elicit", "serve")
    return words


async def _demo(block: str, url: str, *, home: Path) -> str:
    """Run `elicit demo`, the last line of the block, which then walks the pages itself."""
    program, *words = shlex.split(_lines(block)[-1])
    assert (program, words[0]) == ("elicit", "demo")
    at = ("--url", url, "--no-browser", "--mode", "2026-07-28")
    demo = await called(*words, *at, home=home)
    assert demo.status == 0, demo.err + demo.out
    return demo.out
