"""The `elicit` command that a hint shows: it works in the current folder and environment."""

import sys
from pathlib import Path

import pytest

from webapp.command import own_command


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install the command in an environment below the current folder."""
    command = tmp_path / "env/bin/elicit"
    command.parent.mkdir(parents=True)
    command.write_text("")
    command.chmod(0o700)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(sys, "argv", [str(command), "serve"])
    monkeypatch.setattr(sys, "executable", str(command.with_name("python")))
    return command


def test_own_command_is_elicit_if_path_finds_same_installation(installed, monkeypatch):
    monkeypatch.setenv("PATH", str(installed.parent))
    assert own_command() == "elicit"


def test_own_command_is_relative_path_if_path_finds_no_or_other_installation(
    installed, tmp_path, monkeypatch
):
    assert own_command() == "env/bin/elicit"
    another = tmp_path / "another/elicit"
    another.parent.mkdir()
    another.write_text("")
    another.chmod(0o700)
    monkeypatch.setenv("PATH", str(another.parent))
    assert own_command() == "env/bin/elicit"
    monkeypatch.chdir(another.parent)
    assert own_command() == str(installed)


def test_own_command_is_script_next_to_python_if_run_as_module(installed, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/somewhere/elicit_url.py"])
    assert own_command() == "env/bin/elicit"
    installed.unlink()
    assert own_command() == f"{installed.with_name('python')} -m elicit_url"
