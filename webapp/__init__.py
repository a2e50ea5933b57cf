"""The half that acts: sockets, files, clocks, stores and pages around what `flows` thinks."""
# Of elicit-url, as elicit_url.py reads here.

import sys

if sys.platform == "win32":
    raise ImportError(
        "webapp, the half of elicit-url that serves, runs on Linux and macOS; on Windows run it in "
        "WSL. `flows` can be imported there."
    )
