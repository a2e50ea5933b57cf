"""README's two commands on a system that does not report connection owners, simulating macOS.

The simulation removes netlink and the tables of /proc, and runs with and without psutil. The macOS
kernel and the psutil of macOS are not simulated.
"""

from pathlib import Path

import pytest

from tests.support.cli import PROJECT, run, serving
from webapp.demo.client import EXPECTED

# The text of sitecustomize.py, which Python imports automatically, before any of our modules.
AS_ON_A_MAC = """
import pathlib, socket, sys

for name in ("AF_NETLINK", "TCP_INFO"):
    delattr(socket, name)
is_there = pathlib.Path.exists
pathlib.Path.exists = lambda path: not str(path).startswith("/proc/") and is_there(path)
"""
WITHOUT_PSUTIL = 'sys.modules["psutil"] = None\n'


@pytest.mark.parametrize("has_psutil", [True, False])
async def test_readme_commands_work_without_connection_owner_lookup(
    tmp_path: Path, *, has_psutil: bool
) -> None:
    # finding: H1
    folder, home = tmp_path / "mac", tmp_path / "home"
    folder.mkdir()
    home.mkdir()
    text = AS_ON_A_MAC + ("" if has_psutil else WITHOUT_PSUTIL)
    (folder / "sitecustomize.py").write_text(text, "utf-8")
    played = {"PYTHONPATH": f"{folder}:{PROJECT}"}
    async with serving(home=home, extra=played, pairs=not has_psutil) as server:
        end = await run(
            "demo", "--no-browser", "--url", server.url, home=home, cwd=tmp_path, extra=played
        )
    assert (end.status, end.err) == (0, ""), end.out
    assert end.out.splitlines()[-12:] == [
        f"right  {revision}  {tool}"
        for revision in ("2025-11-25", "2026-07-28")
        for tool in EXPECTED
    ]
    assert ("So pair the browser first." in end.out) is not has_psutil
    assert ("key      elicit_local_" in server.output) is not has_psutil
