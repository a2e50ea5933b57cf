"""Limits for calls and connections. A question has its own timeout."""

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class CallLimits:
    """Limits of calls. Clients give up after 60 s, even with progress, and after ten rounds."""

    call: timedelta = timedelta(seconds=50)  # for any call that waits, from its beginning
    retry: timedelta = timedelta(seconds=40)  # for a retried request, from its beginning
    request_at_least: timedelta = timedelta(seconds=5)
    rounds: int = 10  # the maximum of the Python and TypeScript clients
    link: timedelta = timedelta(seconds=25)  # for a repeated call of a client without URL mode
    progress: timedelta = timedelta(seconds=5)
    # The time limit for a client that has never answered a question. After that, the person also
    # gets the link.
    silence: timedelta = timedelta(seconds=20)
    hook: timedelta = timedelta(seconds=5)  # for one hook of a plugin


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """Limits for strangers who open connections or send slowly.

    The connections fit into the number of files that most systems allow a process (1,024).
    """

    reading: timedelta = timedelta(seconds=30)  # first for a request's head, then for its body
    # The idle time of a connection between two requests. It has to be longer than the limit of the
    # clients (5 s for httpx, 4 s for Node.js). Otherwise a client could send a request at the
    # moment in which this server closes the connection. The settings allow a longer time for a
    # configured proxy.
    idle: timedelta = timedelta(seconds=10)
    connections: int = 900
    own_user: int = 50  # more connections for the user who runs the server, on the same machine
