"""How long a call is held, and how requests arrive; a question lives for its own timeout."""

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class CallLimits:
    """Clients give up on a call after 60 s, whatever they hear, and on retries after ten rounds."""

    call: timedelta = timedelta(seconds=50)  # any call that waits, from its beginning
    leg: timedelta = timedelta(seconds=40)  # a retried leg, from its beginning
    leg_at_least: timedelta = timedelta(seconds=5)
    rounds: int = 10  # what the Python and TypeScript clients afford
    link: timedelta = timedelta(seconds=25)  # the same call made again, without URL mode
    progress: timedelta = timedelta(seconds=5)
    # What a client is asked for the first time: by then the person gets the link as well.
    silence: timedelta = timedelta(seconds=20)
    hook: timedelta = timedelta(seconds=5)  # what one hook of a plugin may take


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """What a stranger may hold of us by connecting, and by sending slowly.

    The connections fit in what most systems let a process open (1,024 files).
    """

    reading: timedelta = timedelta(seconds=30)  # a request's head, and then its body
    # How long a connection may stay idle between two requests. Behind a proxy it is longer than the
    # proxy's own limit (60 s for nginx), or the proxy sends a request just as we close.
    idle: timedelta = timedelta(seconds=5)
    connections: int = 900
    own_user: int = 50  # beyond that, for the user who runs the server, on the same machine
