"""The code from the page to the chat: eight letters that tell who opened from who asked.

What could go wrong: it is weaker than a sign-in. Whoever is talked into reading the letters to
somebody else has given the link away, and the page says so. Guessing is bounded: five tries at a
code, fifty at a question, of 25,600,000,000 each, for each secret of the ring. The letters are
shown to the bound browser only and are kept nowhere: they are a keyed hash of the elicitation, the
browser and the number of the code, so that a page can show them again without changing anything.
"""

import hashlib
import hmac
from collections.abc import Callable, Sequence
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from flows.errors import NotAllowed, TooManyAttempts

# RFC 8628, 6.1: no vowels, so that no word comes of it, and no two letters that look alike.
ALPHABET = "BCDFGHJKLMNPQRSTVWXZ"
LETTERS = 8
TRIES_AT_MOST = 5
WRONG_AT_MOST = 50
TYPED_AT_MOST = 64

PAGE_WORDS = (
    "Type these letters into the chat in which you asked for this. They tell your assistant that "
    "it is you who has this page open. If somebody sent you this link, close the page: give the "
    "letters to nobody, whoever asks for them. This protects less than signing in would, and the "
    "operator of this server has chosen it."
)
CHAT_WORDS = (
    "Open the link yourself. It shows eight letters; type them here, and the page goes on. This "
    "protects less than signing in would: never pass the link on, nor letters that somebody else "
    "gave you."
)
WRONG_WORDS = "These are not the letters that the page shows. Look again, and type all eight."
FRESH_WORDS = "That was wrong too often, so the page has new letters: reload it, and type those."
CLOSED_WORDS = "Nobody has opened the link yet. Open it, and type the letters that it shows."


class Binding(Struct, frozen=True, kw_only=True):
    """Which browser is shown letters; `browser` is the hash of its binding cookie."""

    browser: str
    number: int = 1
    tries: int = 0  # at these letters
    wrong: int = 0  # at all letters of this question
    confirmed_at: datetime | None = None


def bind(current: Binding | None, *, browser: str) -> Binding:
    """A browser asks for letters; another one than before gets other letters.

    Any number of them: whoever else has the link must not be able to use the letters up. Raises
    NotAllowed where the asker has confirmed another browser.
    """
    if current is None:
        return Binding(browser=browser)
    if current.browser == browser:
        return current
    if current.confirmed_at is not None:
        raise NotAllowed("This was opened in another browser, and confirmed in the chat.")
    return _next(current, browser=browser)


def is_confirmed(current: Binding | None, *, browser: str) -> bool:
    """Whether the asker has given the letters of this very browser."""
    return (
        current is not None
        and current.confirmed_at is not None
        and hmac.compare_digest(current.browser.encode(), browser.encode())
    )


class Codes:
    """Makes codes with the first of the keys, and knows those of all.

    `keys` gives what they are now: 32 bytes each, for this use alone, the newest first.
    """

    __slots__ = ("_keys",)

    def __init__(self, keys: Callable[[], Sequence[bytes]]) -> None:
        self._keys = keys

    def code(self, elicitation_id: str, binding: Binding) -> str:
        """The letters for the page of the bound browser, as BCDF-GHJK."""
        letters = _letters(self._keys()[0], elicitation_id, binding)
        return f"{letters[:4]}-{letters[4:]}"

    def confirm(
        self, elicitation_id: str, binding: Binding, *, typed: str, now: datetime
    ) -> Binding:
        """The binding as it is after the asker typed this: confirmed, a try less, or a new code.

        What comes back must be stored before the asker is told anything. Raises TooManyAttempts
        after fifty wrong ones, whatever was typed.
        """
        if binding.confirmed_at is not None:
            return binding
        if binding.wrong >= WRONG_AT_MOST:
            raise TooManyAttempts(limit=WRONG_AT_MOST)
        given = _plain(typed).encode("utf-8", "replace")
        ours = [_letters(key, elicitation_id, binding).encode() for key in self._keys()]
        if any(hmac.compare_digest(given, each) for each in ours):
            return replace(binding, confirmed_at=now)
        tried = replace(binding, tries=binding.tries + 1, wrong=binding.wrong + 1)
        return tried if tried.tries < TRIES_AT_MOST else _next(tried, browser=binding.browser)


def _letters(key: bytes, elicitation_id: str, binding: Binding) -> str:
    text = f"{len(elicitation_id)} {elicitation_id} {binding.browser} {binding.number}"
    rest = int.from_bytes(hmac.digest(key, text.encode(), hashlib.sha256), "big")
    letters: list[str] = []
    for _ in range(LETTERS):
        rest, index = divmod(rest, len(ALPHABET))
        letters.append(ALPHABET[index])
    return "".join(letters)


def _next(current: Binding, *, browser: str) -> Binding:
    """Other letters, and as many wrong ones before them."""
    return Binding(browser=browser, number=current.number + 1, wrong=current.wrong)


def _plain(typed: str) -> str:
    """Without what people put between letters, in capitals."""
    kept = typed[:TYPED_AT_MOST].upper()
    return "".join(letter for letter in kept if letter.isalnum())
