"""The start of the command: packages that hide or overwrite ours are reported, not imported."""

import os
import pwd
import signal
import subprocess
import sys
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from tests.support.cli import PROJECT, environment_of, run, serving, start
from tests.support.processes import ended, killed
from webapp.settings.key_file import data_folder

# The modules that `elicit --help` imports on Python 3.11, of which 5 belong to this project.
MODULES_OF_HELP = 113


def started(*arguments: str, home: Path, before: str = "") -> subprocess.CompletedProcess[str]:
    """Run the command as the installed script starts it."""
    code = f"import sys; {before}; import elicit_url; sys.exit(elicit_url.main())"
    return subprocess.run(
        (sys.executable, "-c", code, *arguments),
        capture_output=True,
        text=True,
        env=environment_of(home),
        cwd=home,
        check=False,
        timeout=300,
    )


@pytest.mark.parametrize("name", ["flows", "webapp"])
async def test_foreign_package_before_our_package_is_refused(tmp_path: Path, name: str) -> None:
    # finding: H6
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("raise RuntimeError('not yours')")
    extra = {"PYTHONPATH": f"{tmp_path}:{PROJECT}"}
    end = await run("serve", "--port", "0", home=tmp_path, extra=extra)
    assert (end.status, end.out) == (2, "")
    assert f"`import {name}` finds {tmp_path / name / '__init__.py'}" in end.err
    assert "Traceback" not in end.err


@pytest.mark.parametrize("name", ["flows", "webapp"])
async def test_overwritten_package_is_reported_with_a_fix(tmp_path: Path, name: str) -> None:
    # finding: H6
    for each in ("elicit_url.py", "flows", "webapp"):
        if each != name:
            (tmp_path / each).symlink_to(PROJECT / each)
    (tmp_path / "elicit_url.py").unlink()
    (tmp_path / "elicit_url.py").write_bytes((PROJECT / "elicit_url.py").read_bytes())
    other = "webapp" if name == "flows" else "flows"
    (tmp_path / other).unlink()
    for each in (name, other):
        (tmp_path / each).mkdir()
        text = (
            (PROJECT / each / "__init__.py").read_text() if each == other else "version = '1.2.1'"
        )
        (tmp_path / each / "__init__.py").write_text(text)
    end = await run("serve", home=tmp_path, extra={"PYTHONPATH": str(tmp_path)})
    assert end.status == 2
    assert f"Another package has written over {tmp_path / name / '__init__.py'}" in end.err
    assert "pip install --force-reinstall elicit-url" in end.err


def test_windows_error_names_the_supported_systems(tmp_path: Path) -> None:
    # finding: H7
    end = started("serve", home=tmp_path, before="sys.platform = 'win32'")
    assert (end.returncode, end.stdout) == (2, "")
    assert end.stderr == (
        "elicit: The server runs on Linux and macOS; on Windows run it in WSL. Clients there can "
        "use a server that runs elsewhere, and tools can import `flows`.\n"
    )


def test_help_imports_no_library_and_few_modules(tmp_path: Path) -> None:
    """`elicit --help` starts fast, because only the module of a requested command is imported."""
    at_exit = (
        "before = set(sys.modules); import atexit; "
        "atexit.register(lambda: sys.stderr.write(' '.join(set(sys.modules) - before)))"
    )
    end = started("--help", home=tmp_path, before=at_exit)
    assert end.returncode == 0
    assert end.stdout.startswith("usage: elicit")
    imported = end.stderr.split()
    own = {"elicit_url", "webapp", "webapp.cli", "webapp.cli.arguments", "webapp.cli.main"}
    assert {name for name in imported if name.split(".")[0] not in sys.stdlib_module_names} == own
    assert len(imported) <= 1.3 * MODULES_OF_HELP


async def test_unencodable_output_characters_do_not_fail_a_command(tmp_path: Path) -> None:
    # finding: H8
    extra = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    end = await run("approvals", "list", home=tmp_path, extra=extra)
    assert end.status == 0
    result = started(
        "keys",
        "new",
        home=tmp_path,
        before="import webapp.printing as p; sys.stdout.reconfigure(encoding='ascii'); "
        "p.print_text('caf\\u00e9\\u2026')",
    )
    assert result.stdout.startswith("caf??\n")


@pytest.mark.parametrize(
    ("to", "status", "errors"),
    [
        ("/dev/full", 1, "elicit: the output cannot be written: No space left on device.\n"),
        (None, 141, ""),
    ],
)
async def test_unwritable_output_prints_no_traceback(
    tmp_path: Path, to: str | None, status: int, errors: str
) -> None:
    # finding: H8
    if to is None:
        reading, output = os.pipe()
        os.close(reading)
    else:
        output = os.open(to, os.O_WRONLY)
    try:
        process = await start("keys", "new", home=tmp_path, stdout=output)
        end = await ended(process)
    finally:
        os.close(output)
    assert (end.status, end.err) == (status, errors)


@pytest.mark.parametrize("home", ["", "somewhere", None])
def test_relative_data_folder_is_ignored(home: str | None) -> None:
    # finding: H8
    environment = {"XDG_DATA_HOME": "data"} | ({} if home is None else {"HOME": home})
    own = Path(pwd.getpwuid(os.getuid()).pw_dir)
    assert data_folder(environment) == own / ".local/share/elicit-url"
    assert data_folder({"HOME": "/home/ann", "XDG_DATA_HOME": ""}) == Path(
        "/home/ann/.local/share/elicit-url"
    )
    assert data_folder({"HOME": "/x", "XDG_DATA_HOME": "/data"}) == Path("/data/elicit-url")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process adopt its orphans")
async def test_command_run_by_the_fork_server_behaves_like_a_new_process(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "elsewhere.py").write_text("mcp = 'no server'")
    extra = {
        "ELICIT_URL": "https://tools.example.com",
        "HOME": str(tmp_path / "home"),
        "PYTHONPATH": f"{PROJECT}:{tmp_path}",
    }
    (tmp_path / "home" / "elicit.toml").write_text("[brand]\nname = 'Acme'\n")
    not_forked = {"PYTHONNOUSERSITE": "1"}  # Python reads this variable when it starts
    for arguments in (("settings",), ("serve", "elsewhere:mcp"), ("no-command",)):
        forked, started = [
            await run(*arguments, home=tmp_path, cwd=tmp_path / "home", extra={**extra, **more})
            for more in ({}, not_forked)
        ]
        assert forked == started, arguments
    async with serving(home=tmp_path / "home", cwd=tmp_path / "home") as server:
        command = psutil.Process(server.process.pid).cmdline()
        assert "tests.support.fork_server" in command
        server.process.send_signal(signal.SIGTERM)
        assert (await ended(server.process)).status == 0
        with pytest.raises(ProcessLookupError):
            server.process.terminate()
    async with serving(home=tmp_path / "home", cwd=tmp_path / "home") as server:
        await killed(server.process)
        assert server.process.returncode == -signal.SIGKILL
