"""Restart on file changes: this process keeps the socket, and a child process serves on it.

New connections wait in the socket's queue during a restart. The child is stopped with SIGTERM: held
calls are answered, and repeating the same call resumes it in the next child.

Risks: a file with a syntax error ends the child. This process therefore stays and waits for the
next change.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from socket import socket

from webapp.printing import print_text, printed

# -P: like the installed command, don't put the working directory first on sys.path.
THIS_PROGRAM = (sys.executable, "-P", "-m", "elicit_url")
_LOOK_SECONDS = 0.25
_WATCHED = frozenset({".py", ".html", ".toml"})
_FOREIGN = frozenset({"node_modules", "site-packages", "__pycache__"})
_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_WRONGLY_ASKED = 2  # exit status of a wrong command line, which no file change fixes

_Files = Mapping[str, tuple[int, int]]


def serve_again(arguments: Sequence[str], listener: socket, *, folder: Path) -> int:
    """Run `elicit` with these arguments on the socket until a signal arrives.

    Restart the command when a Python, template or TOML file in the folder changes. Return the exit
    status.
    """
    number = str(listener.fileno())
    command = [*THIS_PROGRAM, *arguments, "--fd", number]
    with _stopped() as stop:
        while True:
            before = files_in(folder)
            # In its own session, so that Ctrl+C reaches only this process, which ends the child.
            with subprocess.Popen(  # noqa: S603 - it runs this program again
                command, pass_fds=[listener.fileno()], start_new_session=True
            ) as process:
                changed = _changed(before, folder, process, stop)
                if changed:
                    names = ", ".join(printed(name) for name in changed[:3])
                    print_text(f"{names} changed: the server restarts. Repeat a call to resume it.")
                status = _ended(process, stop)
                if stop.signals or not changed:
                    return status


def files_in(folder: Path) -> _Files:
    """Return the author's files, each with its modification time and size."""
    found: dict[str, tuple[int, int]] = {}
    for place, folders, names in os.walk(folder):
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".")
            and name not in _FOREIGN
            and not Path(place, name, "pyvenv.cfg").exists()
        ]
        for name in names:
            if Path(name).suffix in _WATCHED:
                path = Path(place, name)
                try:
                    about = path.stat()
                except OSError:  # deleted in the meantime
                    continue
                found[str(path.relative_to(folder))] = about.st_mtime_ns, about.st_size
    return found


def _changed(
    before: _Files, folder: Path, process: "subprocess.Popen[bytes]", stop: "_Stop"
) -> list[str]:
    """Wait and return the names of changed files; empty if the program has ended or must stop."""
    has_reported = False
    while not stop.event.wait(_LOOK_SECONDS):
        now = files_in(folder)
        if now != before:
            return sorted(name for name, _ in now.items() ^ before.items())
        if process.poll() is not None:
            if process.returncode in (0, _WRONGLY_ASKED):
                break
            if not has_reported:
                print_text("elicit: the server restarts when a file changes; to stop: Ctrl+C.")
                has_reported = True
    return []


def _ended(process: "subprocess.Popen[bytes]", stop: "_Stop") -> int:
    """Terminate the child and return its exit status. A second signal ends it immediately."""
    if process.poll() is None:
        process.terminate()
    has_stopped_again = False
    while process.poll() is None:
        with suppress(subprocess.TimeoutExpired):
            process.wait(_LOOK_SECONDS)
        if stop.signals > 1 and not has_stopped_again:
            process.terminate()
            has_stopped_again = True
    return max(process.returncode, 0)


class _Stop:
    """The number of signals received."""

    def __init__(self) -> None:
        self.signals = 0
        self.event = threading.Event()

    def note(self, *_: object) -> None:
        self.signals += 1
        self.event.set()


@contextmanager
def _stopped() -> Generator[_Stop]:
    stop = _Stop()
    before = {number: signal.signal(number, stop.note) for number in _STOPS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
