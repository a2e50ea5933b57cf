"""How many sessions of 2025-11-25 anybody may have open, and for how long without using them.

What could go wrong: whoever has no name opens every session that there is room for, and everybody
else is turned away. So what one address, one person and all those without a name may have is
limited apart, this machine's own user has room of their own, and an unused session ends.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from webapp.identity.identity import Sender

# Once a second is enough for those that nobody uses, and cheap whoever asks.
_SWEEP_EVERY_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRoom:
    """Sessions at most, and seconds without a request in flight."""

    for_all: int = 10_000  # what the library has room for
    for_own_user: int = 500  # of these, left free by all others
    for_nameless: int = 2_000
    for_address: int = 100  # without a name
    for_person: int = 500
    idle_without_call: float = 5 * 60.0
    idle: float = 30 * 60.0  # as the library has it


@dataclass(slots=True, kw_only=True, eq=False)
class ClientSession:
    """One that is open, or being opened."""

    sender: Sender
    user: object  # whom the library saw open it
    used_at: float
    in_flight: int = 1
    has_called: bool = False  # a tool


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
        """Whether one more may be opened for them as it is."""
        room, taken = self.room, self._counts[sender.share]
        if sender.is_nameless:
            if taken >= room.for_address or self._nameless >= room.for_nameless:
                return False
        elif taken >= room.for_person:
            return False
        kept_free = 0 if sender.is_own_user else room.for_own_user
        return len(self._sessions) < room.for_all - kept_free

    def open(self, sender: Sender, *, user: object, now: float) -> ClientSession:
        """Count one more, from before it is open."""
        session = ClientSession(sender=sender, user=user, used_at=now)
        self._sessions[session] = None
        self._counts[sender.share] += 1
        self._nameless += sender.is_nameless
        return session

    def close(self, session: ClientSession) -> None:
        """Count it no more."""
        if session in self._sessions:
            del self._sessions[session]
            self._counts[session.sender.share] -= 1
            if not self._counts[session.sender.share]:
                del self._counts[session.sender.share]
            self._nameless -= session.sender.is_nameless

    def unused(self, now: float) -> list[ClientSession]:
        """Those whose time is over."""
        if now - self._swept_at < _SWEEP_EVERY_SECONDS:
            return []
        self._swept_at = now
        return [each for each in self._idle(self._sessions) if now >= self._ends_at(each)]

    def longest_unused_of(self, sender: Sender) -> ClientSession | None:
        """What makes room for one more of a person's: nobody is shut out by their own leftovers."""
        own = (each for each in self._sessions if each.sender.share == sender.share)
        return min(self._idle(own), key=lambda each: each.used_at, default=None)

    def _idle(self, sessions: Iterable[ClientSession]) -> Iterable[ClientSession]:
        return (each for each in sessions if not each.in_flight)

    def _ends_at(self, session: ClientSession) -> float:
        room = self.room
        return session.used_at + (room.idle if session.has_called else room.idle_without_call)
