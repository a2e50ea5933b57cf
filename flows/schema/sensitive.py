"""Words that ask for a secret: a password, a key, a token, card data.

Risks: no list of words is complete, and a word may mean something else. The check finds mistakes;
only the author knows what a field is for. An author whose field is refused wrongly can change its
name or title, or offer a choice instead of a text field. A one-time code does not count as a
secret: it has expired by the time another person reads it.
"""

import re
from collections.abc import Sequence
from typing import Final

from flows.schema.fields import TYPED, Field

# The borders between the words of a name: `user_pin`, `user-pin`, `userPin`, `USERPin`, `pin2`.
_BORDER: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|[\W\d_]+")
# The borders between the parts of a question: words are compared within a part only.
_PART: Final = re.compile(r"[,.?!:;]+(?:\s+|$)")
# Secrets anywhere in a word: `newpasswordagain`.
_WITHIN: Final = ("password", "passwd", "passphrase", "passcode", "passkey")
# Secrets at the end of a word: `clientsecret`, but not `secretary` or `tokenizer`.
_ENDS: Final = ("pwd", "secret", "token", "credential")
# Secrets as a whole word: `user_pin`, but not `pinned` or `opinion`.
_WORDS: Final = frozenset({"pin", "cvv", "cvc", "ccn", "jwt", "bearer"})
# Words that are secrets only after one of these words: `api_key`, `apiKey`, `myapikey`, and not
# `sort_key`.
_PAIRS: Final = {
    "key": "api private secret access ssh gpg pgp signing encryption decryption master auth oauth "
    "recovery wallet license licence openai anthropic stripe github aws",
    "code": "pass pin card security access recovery backup",
    "phrase": "pass seed recovery mnemonic",
    "pass": "user login admin root database db smtp ftp wifi",
    "card": "credit debit",
    "cookie": "session auth login",
    "number": "card mastercard pin",
    "pan": "card",
    "word": "pass",
    "id": "secret",
}
_APART: Final = {f"{first} {last}" for last, line in _PAIRS.items() for first in line.split()}
_TOGETHER: Final = tuple(pair.replace(" ", "") for pair in _APART)
# Secrets only if they are the whole name of a text: `pass`, but not `boarding_pass` or
# `frying_pan`.
_WHOLE: Final = (["pass"], ["pan"])
# Words after a secret's name that make the name harmless: `token_count` asks for no token.
_FOLLOWING: Final = (
    "count length limit budget usage amount price supply symbol name title type kind format policy "
    "strength hint manager reset age ttl lifetime expiry expiration expire url uri endpoint id "
    "location color colour santa question ingredient brand issuer holder company network payment "
    "statement last"
)
_ABOUT: Final = frozenset(_FOLLOWING.split())
# Words before "tokens" that make the name a number of tokens: `max_tokens`.
_COUNTED: Final = (" max", " maximum", " min", " minimum", " many", " number of")
_WORDS_AT_MOST: Final = 4  # words that are checked together: `one_time_access_code`


def asks_for_a_secret(text: str, *, is_number: bool = False) -> bool:
    """Return True if a name, title or question asks for a secret.

    A number is never a token or a `pass`.
    """
    if _words_of(text) in _WHOLE:
        return not is_number
    return any(_asks(_words_of(part), is_number=is_number) for part in _PART.split(text))


def looks_secret(field: Field) -> bool:
    """Return True if a field's name or title asks for a secret. Choices and booleans never do."""
    if field.kind not in TYPED:
        return False
    name, title = field.name, field.title
    # A title that was generated from the name has lost the borders of its words.
    is_made = _characters(title) == _characters(name)
    return any(
        asks_for_a_secret(text, is_number=field.kind != "string")
        for text in ([name] if is_made else [name, title])
    )


def _characters(text: str) -> str:
    return "".join(sign for sign in text.lower() if sign.isalpha())


def _asks(words: Sequence[str], *, is_number: bool) -> bool:
    return any(
        _is_secret(words[max(0, end - _WORDS_AT_MOST) : end], is_number=is_number)
        and not _ABOUT.intersection(words[end : end + 1])
        for end in range(1, len(words) + 1)
    )


def _words_of(text: str) -> list[str]:
    """Return the words of a text, in lower case and singular, without numbers."""
    words = [word.lower() for word in _BORDER.sub(" ", text).split()]
    return [
        word.removesuffix("s") if len(word) > len("aws") and not word.endswith("ss") else word
        for word in words
        if word != "s"  # of `card's`
    ]


def _is_secret(words: Sequence[str], *, is_number: bool) -> bool:
    """Return True if the last word means a secret, considering the words before it."""
    *others, last = words
    before = f" {' '.join(others)}"
    if " one time" in before:
        return False
    if last.endswith("token") and (is_number or before.endswith(_COUNTED)):
        return False
    return (
        any(word in last for word in _WITHIN)
        or last.endswith((*_ENDS, *_TOGETHER))
        or last in _WORDS
        or " ".join(words[-2:]) in _APART
    )
