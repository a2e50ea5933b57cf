"""How long a call is held; how long a question lives is another matter, its own timeout."""

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Clients give up on a call after 60 s, whatever they hear, and on retries after ten rounds."""

    call: timedelta = timedelta(seconds=50)  # any call that waits, from its beginning
    leg: timedelta = timedelta(seconds=40)  # a retried leg, from its beginning
    leg_at_least: timedelta = timedelta(seconds=5)
    rounds: int = 10  # what the Python and TypeScript clients afford
    link: timedelta = timedelta(seconds=25)  # the same call made again, without URL mode
    progress: timedelta = timedelta(seconds=5)
