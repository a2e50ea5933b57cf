"""The part of elicit-url with side effects: sockets, files, clocks, stores and pages.

The logic without side effects is in `flows`. The public names are here and in `webapp.testing`, the
kit for tests. All other modules are private and may change (docs/explanation/architecture.md).
"""
# This package belongs to elicit-url. elicit_url.py looks for this line.

import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flows.elicitation.shown_link import ShownLink
    from webapp.app import create_app
    from webapp.connecting import connect
    from webapp.coroutines import asking, completing
    from webapp.identity.accepting import Accepted
    from webapp.serving.running import add_pages
    from webapp.settings.settings import read_settings
    from webapp.stores import Store

__all__ = [
    "Accepted",
    "ShownLink",
    "Store",
    "add_pages",
    "asking",
    "completing",
    "connect",
    "create_app",
    "read_settings",
]
_MODULES = {
    "Accepted": "webapp.identity.accepting",
    "ShownLink": "flows.elicitation.shown_link",
    "Store": "webapp.stores",
    "add_pages": "webapp.serving.running",
    "asking": "webapp.coroutines",
    "completing": "webapp.coroutines",
    "connect": "webapp.connecting",
    "create_app": "webapp.app",
    "read_settings": "webapp.settings.settings",
}

if sys.platform == "win32":
    raise ImportError(
        "webapp, the half of elicit-url that serves, runs on Linux and macOS; on Windows run it in "
        "WSL. `flows` can be imported there."
    )


def __getattr__(name: str) -> object:
    """Import a public name on first use, so that a command does not load every package."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
