"""User codes: the page shows a code of eight letters, which the person types into the chat.

The code proves that the person who opened the page is the person who asked.

Risks: a code is weaker than a sign-in. An attacker who talks the person into reading out the code
can open the link, so the page warns the person. There are 25,600,000,000 codes. After five wrong
tries, all codes of the question change. After fifty wrong tries, no code is accepted. Each secret
of the ring makes one more code valid. Another person with the link can request codes too. The
asker's code stays valid, unless three newer browsers have received a code. A code is shown to one
browser only and is not stored: it is a keyed hash of the elicitation, the browser and the number of
the code, so the page can show it again without a write.
"""

import hashlib
import hmac
from collections.abc import Callable, Sequence
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from flows.errors import NotAllowed, TooManyAttempts

# RFC 8628, 6.1: no vowels, so that codes are not words, and no letters that look alike.
ALPHABET = "BCDFGHJKLMNPQRSTVWXZ"
USER_CODE_CHARACTERS = 8
TRIES_AT_MOST = 5
WRONG_AT_MOST = 50
SHOWN_AT_MOST = 3  # browsers with a code for one question; a guess is compared with all of them
TYPED_AT_MOST = 64

PAGE_WORDS = (
    "Type this code into the chat in which you asked for this. It shows your assistant that "
    "you have this page open. If somebody sent you this link, close the page, and never give "
    "the code to anyone. A code protects you less than signing in; the operator of this server "
    "chose to use codes."
)
USERS_PAGE_WORDS = (
    "Type this code into the page where you asked for this. It shows the application that you "
    "have this page open. If somebody sent you this link, close this page, and never give the code "
    "to anyone. A code protects you less than signing in; the operator of this server chose "
    "to use codes."
)
CHAT_WORDS = (
    "Open the link yourself. The page shows a code of eight letters. Type the code here, and "
    "the page continues. A code protects you less than signing in: never pass the link on, and "
    "never type a code that somebody else gave you."
)
WRONG_WORDS = (
    "This is not the code that the page shows. Check the page again, and type all eight letters."
)
FRESH_WORDS = (
    "Too many wrong codes were typed, so the page has a new code. Reload the page, and type "
    "the new code."
)
CLOSED_WORDS = "Nobody has opened the link yet. Open it, and type the code that the page shows."


class Code(Struct, frozen=True, kw_only=True):
    """The code of one browser. `browser` is the hash of its binding cookie."""

    browser: str
    number: int


class BrowserBinding(Struct, frozen=True, kw_only=True):
    """The browsers that have a code, the latest last; or the confirmed browser alone."""

    codes: tuple[Code, ...] = ()
    number: int = 0  # number of the latest code
    tries: int = 0  # wrong tries at the current codes
    wrong: int = 0  # wrong tries at all codes of this question
    confirmed_at: datetime | None = None

    def code_of(self, browser: str) -> Code | None:
        """Return this browser's current code, or None."""
        given = browser.encode()
        for code in self.codes:
            if hmac.compare_digest(code.browser.encode(), given):
                return code
        return None


def bind(current: BrowserBinding | None, *, browser: str) -> BrowserBinding:
    """Create a code for a browser that has none yet.

    The codes of other browsers stay valid: another person with the link must not be able to
    invalidate the asker's code. Raises NotAllowed if the asker has confirmed another browser.
    """
    current = current or BrowserBinding()
    if current.code_of(browser) is not None:
        return current
    if current.confirmed_at is not None:
        raise NotAllowed("This link was opened in another browser, and confirmed in the chat.")
    number = current.number + 1
    codes = (*current.codes, Code(browser=browser, number=number))
    return replace(current, codes=codes[-SHOWN_AT_MOST:], number=number)


def is_confirmed(current: BrowserBinding | None, *, browser: str) -> bool:
    """Return True if the asker has typed the code of this browser."""
    return (
        current is not None
        and current.confirmed_at is not None
        and current.code_of(browser) is not None
    )


class UserCodeGenerator:
    """A generator that computes codes with the newest key and accepts codes of all keys.

    `keys` returns the current keys: 32 bytes each, only for this use, the newest first.
    """

    __slots__ = ("_keys",)

    def __init__(self, keys: Callable[[], Sequence[bytes]]) -> None:
        self._keys = keys

    def user_code(self, elicitation_id: str, code: Code) -> str:
        """Return the code for the page of the code's browser, as BCDF-GHJK."""
        user_code = _characters(self._keys()[0], elicitation_id, code)
        return f"{user_code[:4]}-{user_code[4:]}"

    def confirm(
        self, elicitation_id: str, binding: BrowserBinding, *, typed: str, now: datetime
    ) -> BrowserBinding:
        """Return the binding after the asker typed a code: confirmed, one try less, or new codes.

        The returned binding must be stored before the asker receives an answer. Raises
        TooManyAttempts after fifty wrong tries, whatever was typed.
        """
        if binding.confirmed_at is not None:
            return binding
        if binding.wrong >= WRONG_AT_MOST:
            raise TooManyAttempts(limit=WRONG_AT_MOST)
        given = _plain(typed).encode("utf-8", "replace")
        for code in binding.codes:
            expected = [_characters(key, elicitation_id, code).encode() for key in self._keys()]
            if any(hmac.compare_digest(given, each) for each in expected):
                return replace(binding, codes=(code,), confirmed_at=now)
        tried = replace(binding, tries=binding.tries + 1, wrong=binding.wrong + 1)
        return tried if tried.tries < TRIES_AT_MOST else _renewed(tried)


def _characters(key: bytes, elicitation_id: str, code: Code) -> str:
    text = f"{len(elicitation_id)} {elicitation_id} {code.browser} {code.number}"
    rest = int.from_bytes(hmac.digest(key, text.encode(), hashlib.sha256), "big")
    user_code: list[str] = []
    for _ in range(USER_CODE_CHARACTERS):
        rest, index = divmod(rest, len(ALPHABET))
        user_code.append(ALPHABET[index])
    return "".join(user_code)


def _renewed(current: BrowserBinding) -> BrowserBinding:
    """Give each browser a new code, and reset the tries."""
    codes = tuple(
        replace(code, number=number)
        for number, code in enumerate(current.codes, start=current.number + 1)
    )
    return replace(current, codes=codes, number=current.number + len(codes), tries=0)


def _plain(typed: str) -> str:
    """Return the typed code in capitals, without separators."""
    capitals = typed[:TYPED_AT_MOST].upper()
    return "".join(character for character in capitals if character.isalnum())
