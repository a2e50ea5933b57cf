"""Limits for sessions of 2025-11-25: how many may be open, and how long without use.

Risks: anonymous callers open all sessions that the server can hold, and everybody else is refused.
Each address, each person and all anonymous callers together therefore have separate limits. Some
sessions are reserved for this machine's own user, and an unused session ends.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from webapp.identity.identity import Sender

# Look for unused sessions at most once a second, because each search reads all sessions.
_SWEEP_EVERY_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRoom:
    """Limits: numbers of open sessions, and the seconds after which an unused session ends."""

    for_all: int = 10_000  # the library's own limit
    for_own_user: int = 500  # reserved for this machine's own user
    for_nameless: int = 2_000
    for_address: int = 100  # of anonymous callers
    for_person: int = 500
    idle_without_call: float = 5 * 60.0
    idle: float = 30 * 60.0  # the library's own limit


@dataclass(slots=True, kw_only=True, eq=False)
class ClientSession:
    """A session that is open or being opened."""

    sender: Sender
    user: object  # the user that the library saw when the session was opened
    used_at: float
    in_flight: int = 1
    has_called: bool = False  # a tool was called in this session


@dataclass(slots=True, kw_only=True)
class Shares:
    room: SessionRoom = field(default_factory=SessionRoom)
    _sessions: dict[ClientSession, None] = field(default_factory=dict[ClientSession, None])
    _counts: Counter[str] = field(default_factory=Counter[str])
    _nameless: int = 0
    _swept_at: float = 0.0

    def __len__(self) -> int:
        return len(self._sessions)

    def has_room(self, sender: Sender) -> bool:
        """Return True if the sender may open one more session now."""
        room, used = self.room, self._counts[sender.share]
        if sender.is_nameless:
            if used >= room.for_address or self._nameless >= room.for_nameless:
                return False
        elif used >= room.for_person:
            return False
        reserved = 0 if sender.is_own_user else room.for_own_user
        return len(self._sessions) < room.for_all - reserved

    def open(self, sender: Sender, *, user: object, now: float) -> ClientSession:
        """Count and return a new session, before the library opens it."""
        session = ClientSession(sender=sender, user=user, used_at=now)
        self._sessions[session] = None
        self._counts[sender.share] += 1
        self._nameless += sender.is_nameless
        return session

    def close(self, session: ClientSession) -> None:
        """Stop counting a session."""
        if session in self._sessions:
            del self._sessions[session]
            self._counts[session.sender.share] -= 1
            if not self._counts[session.sender.share]:
                del self._counts[session.sender.share]
            self._nameless -= session.sender.is_nameless

    def unused(self, now: float) -> list[ClientSession]:
        """Return the sessions that were unused for too long.

        If the last search was less than a second ago, return none.
        """
        if now - self._swept_at < _SWEEP_EVERY_SECONDS:
            return []
        self._swept_at = now
        return [each for each in self._idle(self._sessions) if now >= self._ends_at(each)]

    def longest_unused_of(self, sender: Sender) -> ClientSession | None:
        """Return the person's longest unused session, to be ended in favour of a new one."""
        own = (each for each in self._sessions if each.sender.share == sender.share)
        return min(self._idle(own), key=lambda each: each.used_at, default=None)

    def _idle(self, sessions: Iterable[ClientSession]) -> Iterable[ClientSession]:
        return (each for each in sessions if not each.in_flight)

    def _ends_at(self, session: ClientSession) -> float:
        room = self.room
        return session.used_at + (room.idle if session.has_called else room.idle_without_call)
