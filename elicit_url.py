"""The entry point of the command `elicit`, which checks our packages before it imports them.

Risks: other projects use the names `flows` and `webapp` too. An author's folder of that name may
come first on Python's path, or a package of that name on PyPI overwrites our files. Each package is
therefore checked before it is imported, and an error message says what was found instead.
"""

import importlib.util
import sys
from pathlib import Path

PARTS = ("flows", "webapp")
MARK = "# This package belongs to elicit-url. elicit_url.py looks for this line."
_HERE = Path(__file__).resolve().parent
_WINDOWS = (
    "The server runs on Linux and macOS; on Windows run it in WSL. Clients there can use a server "
    "that runs elsewhere, and tools can import `flows`."
)


def main() -> int:
    """Run one command. Return 0, 1 if it failed, or 2 if its arguments are wrong."""
    wrong = _WINDOWS if sys.platform == "win32" else what_is_wrong()
    if wrong is not None:
        sys.stderr.write(f"elicit: {wrong}\n")
        return 2
    from webapp.cli.main import main as run  # noqa: PLC0415 - only after the checks

    return run()


def what_is_wrong() -> str | None:
    """Return what was found instead of our packages, and what to do. Return None if all is well."""
    for name in PARTS:
        spec = importlib.util.find_spec(name)
        origin = Path(spec.origin).resolve() if spec is not None and spec.origin else None
        if origin is None or origin.parent.parent != _HERE:
            found = "no file" if origin is None else str(origin)
            return (
                f"`import {name}` finds {found}, not the package of elicit-url in {_HERE}. Rename "
                "that one, or take its folder off PYTHONPATH."
            )
        if MARK not in origin.read_text("utf-8", "replace"):
            return (
                f"Another package has written over {origin}. Uninstall that one, then: "
                "pip install --force-reinstall elicit-url"
            )
    return None


if __name__ == "__main__":
    sys.exit(main())
