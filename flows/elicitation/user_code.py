"""The code from the page to the chat: eight letters that tell who opened from who asked.

What could go wrong: it is weaker than a sign-in. Whoever is talked into reading the letters to
somebody else has given the link away, and the page says so. Guessing is bounded: five tries at a
code, fifty at a question, of 25,600,000,000 each, for each secret of the ring. Somebody else who
has the link may ask for letters too; that takes nobody else's away, but for the oldest of more
than three. Letters are shown to one browser only and are kept nowhere: they are a keyed hash of the
elicitation, the browser and the number of the code, so that a page can show them again without
changing anything.
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
SHOWN_AT_MOST = 3  # browsers with letters of one question; a guess may meet those of each
TYPED_AT_MOST = 64

PAGE_WORDS = (
    "Type these letters into the chat in which you asked for this. They tell your assistant that "
    "it is you who has this page open. If somebody sent you this link, close the page: give the "
    "letters to nobody, whoever asks for them. This protects less than signing in would, and the "
    "operator of this server has chosen it."
)
USERS_PAGE_WORDS = (
    "Type these letters into the page where you asked for this. They tell it that it is you who "
    "has this page open. If somebody sent you this link, close it: give the letters to nobody, "
    "whoever asks for them. This protects less than signing in would, and the operator of this "
    "server has chosen it."
)
CHAT_WORDS = (
    "Open the link yourself. It shows eight letters; type them here, and the page goes on. This "
    "protects less than signing in would: never pass the link on, nor letters that somebody else "
    "gave you."
)
WRONG_WORDS = "These are not the letters that the page shows. Look again, and type all eight."
FRESH_WORDS = "That was wrong too often, so the page has new letters: reload it, and type those."
CLOSED_WORDS = "Nobody has opened the link yet. Open it, and type the letters that it shows."


class Code(Struct, frozen=True, kw_only=True):
    """Letters in one browser; `browser` is the hash of its binding cookie."""

    browser: str
    number: int


class BrowserBinding(Struct, frozen=True, kw_only=True):
    """Which browsers are shown letters, the last one last; once confirmed, that one alone."""

    codes: tuple[Code, ...] = ()
    number: int = 0  # of the last code
    tries: int = 0  # at these letters
    wrong: int = 0  # at all letters of this question
    confirmed_at: datetime | None = None

    def code_of(self, browser: str) -> Code | None:
        """The letters that stand in this browser."""
        given = browser.encode()
        for code in self.codes:
            if hmac.compare_digest(code.browser.encode(), given):
                return code
        return None


def bind(current: BrowserBinding | None, *, browser: str) -> BrowserBinding:
    """A browser asks for letters; another one than before gets other letters.

    Those of the others stay right: whoever else has the link must not be able to take the asker's
    away. Raises NotAllowed where the asker has confirmed another browser.
    """
    current = current or BrowserBinding()
    if current.code_of(browser) is not None:
        return current
    if current.confirmed_at is not None:
        raise NotAllowed("This was opened in another browser, and confirmed in the chat.")
    number = current.number + 1
    codes = (*current.codes, Code(browser=browser, number=number))
    return replace(current, codes=codes[-SHOWN_AT_MOST:], number=number)


def is_confirmed(current: BrowserBinding | None, *, browser: str) -> bool:
    """Whether the asker has given the letters of this very browser."""
    return (
        current is not None
        and current.confirmed_at is not None
        and current.code_of(browser) is not None
    )


class UserCodeGenerator:
    """Makes codes with the first of the keys, and knows those of all.

    `keys` gives what they are now: 32 bytes each, for this use alone, the newest first.
    """

    __slots__ = ("_keys",)

    def __init__(self, keys: Callable[[], Sequence[bytes]]) -> None:
        self._keys = keys

    def user_code(self, elicitation_id: str, code: Code) -> str:
        """The letters for the page of the code's browser, as BCDF-GHJK."""
        user_code = _characters(self._keys()[0], elicitation_id, code)
        return f"{user_code[:4]}-{user_code[4:]}"

    def confirm(
        self, elicitation_id: str, binding: BrowserBinding, *, typed: str, now: datetime
    ) -> BrowserBinding:
        """The binding as it is after the asker typed this: confirmed, a try less, or new codes.

        What comes back must be stored before the asker is told anything. Raises TooManyAttempts
        after fifty wrong ones, whatever was typed.
        """
        if binding.confirmed_at is not None:
            return binding
        if binding.wrong >= WRONG_AT_MOST:
            raise TooManyAttempts(limit=WRONG_AT_MOST)
        given = _plain(typed).encode("utf-8", "replace")
        for code in binding.codes:
            ours = [_characters(key, elicitation_id, code).encode() for key in self._keys()]
            if any(hmac.compare_digest(given, each) for each in ours):
                return replace(binding, codes=(code,), confirmed_at=now)
        tried = replace(binding, tries=binding.tries + 1, wrong=binding.wrong + 1)
        return tried if tried.tries < TRIES_AT_MOST else _renewed(tried)


def _characters(key: bytes, elicitation_id: str, code: Code) -> str:
    text = f"{len(elicitation_id)} {elicitation_id} {code.browser} {code.number}"
    rest = int.from_bytes(hmac.digest(key, text.encode(), hashlib.sha256), "big")
    user_code: list[str] = []
    for _ in range(LETTERS):
        rest, index = divmod(rest, len(ALPHABET))
        user_code.append(ALPHABET[index])
    return "".join(user_code)


def _renewed(current: BrowserBinding) -> BrowserBinding:
    """Other letters in each browser, and as many wrong ones before them."""
    codes = tuple(
        replace(code, number=number)
        for number, code in enumerate(current.codes, start=current.number + 1)
    )
    return replace(current, codes=codes, number=current.number + len(codes), tries=0)


def _plain(typed: str) -> str:
    """Without what people put between letters, in capitals."""
    kept = typed[:TYPED_AT_MOST].upper()
    return "".join(letter for letter in kept if letter.isalnum())
