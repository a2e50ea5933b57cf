"""The fields of a form, and the validation of their values.

Risks: a pattern takes exponential time on a malicious text and blocks the process. Patterns are
therefore matched with pydantic's engine, whose time is linear in the text (it has neither
look-around nor back-references).

The check for words that ask for a secret only finds mistakes: no list of words is complete, and a
word may mean something else. Only the author knows what a field is for. An author whose field is
refused wrongly can change its name or title, or offer a choice instead of a text field. A one-time
code does not count as a secret: it has expired by the time another person reads it.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from functools import lru_cache
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import StringConstraints, TypeAdapter, ValidationError
from pydantic_core import SchemaError

from flows.elicitation.states import Json

Kind: TypeAlias = Literal["string", "number", "integer", "boolean", "choice", "choices"]
# The person types values of these kinds, and chooses or ticks values of the other kinds.
TYPED: frozenset[Kind] = frozenset({"string", "number", "integer"})
FORMATS = frozenset({"email", "uri", "date", "date-time", "password", "multiline"})
PATTERN_AT_MOST = 200
MATCHED_AT_MOST = 4096
NUMBER_BELOW = 10**40
LINE_AT_MOST = 500  # a field that allows a longer text shows several lines
# Autofill tokens of HTML about a person or an address. Tokens about cards, passwords and codes are
# left out: forms must not ask for these, and secrets have a page with its own rules.
AUTOFILL: frozenset[str] = frozenset(
    {
        *("name", "honorific-prefix", "given-name", "additional-name", "family-name"),
        *("honorific-suffix", "nickname", "username", "organization-title", "organization"),
        *("street-address", "address-line1", "address-line2", "address-line3", "address-level1"),
        *("address-level2", "address-level3", "address-level4", "country", "country-name"),
        *("postal-code", "language", "bday", "bday-day", "bday-month", "bday-year", "sex", "url"),
        *("tel", "tel-country-code", "tel-national", "tel-area-code", "tel-local"),
        *("tel-extension", "email", "impp"),
    }
)
AUTOFILL_OF_FORMATS = {"email": "email", "uri": "url"}

_EMAIL = re.compile(r"[^@\s\x00-\x1f]{1,64}@[^@\s\x00-\x1f.]+(\.[^@\s\x00-\x1f.]+)*")
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[^\s\x00-\x1f<>\"{}|\\^`]+")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_MOMENT = re.compile(
    r"\d{4}-\d{2}-\d{2}[Tt]\d{2}:\d{2}:\d{2}(\.\d{1,9})?([Zz]|[+-]\d{2}:\d{2})", re.ASCII
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A value to choose, with the title that the person reads."""

    value: str
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a value.

    `least` and `most` are inclusive bounds of a text's length, a number, or the count of choices.
    """

    least: float | None = None
    most: float | None = None
    pattern: str | None = None
    format: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A field of a form. `default` is None if there is none.

    `autocomplete` is the token with which browsers fill the field, such as `given-name`.
    """

    name: str
    title: str
    kind: Kind
    is_required: bool
    description: str | None = None
    default: Json = None
    choices: tuple[Option, ...] = ()
    limits: Limits = Limits()
    is_secret: bool = False
    autocomplete: str | None = None

    @property
    def input_name(self) -> str:
        """The name in an HTML form; the prefix avoids conflicts with the page's own inputs."""
        return f"answer.{self.name}"

    @property
    def is_multiline(self) -> bool:
        """True if the field accepts several lines, such as a PEM key."""
        if self.kind != "string" or self.limits.format not in (None, "password", "multiline"):
            return False
        is_long = self.limits.most is None or self.limits.most > LINE_AT_MOST
        return is_long or self.limits.format == "multiline"

    @property
    def is_lines(self) -> bool:
        """True if the field is meant for several lines."""
        return self.is_multiline and (
            self.limits.format == "multiline" or self.limits.most is not None
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """An error for the person who answered. `path` is the field's name, "" for the whole form.

    `is_of_tool`: the author's code raised an error, so nobody knows if the answer is valid.
    """

    path: str
    message: str
    is_of_tool: bool = False


def fault_in(field: Field, value: Json) -> str | None:
    """Return the error of a value, without the value itself; None if the value is valid."""
    match field.kind:
        case "string":
            return _fault_in_text(field.limits, value)
        case "number" | "integer":
            return _fault_in_number(field, value)
        case "boolean":
            return None if isinstance(value, bool) else "Answer yes or no."
        case "choice":
            values = {choice.value for choice in field.choices}
            chosen = isinstance(value, str) and value in values
            return None if chosen else "Choose one of the choices on this page."
        case "choices":
            return _fault_in_choices(field, value)


def why_no_pattern(pattern: str) -> str | None:
    """Return the reason why a pattern cannot be used, or None if it can be matched safely."""
    if len(pattern) > PATTERN_AT_MOST:
        return f"a pattern can have at most {PATTERN_AT_MOST} characters"
    try:
        re.compile(pattern)
        _matcher(pattern)
    except (re.error, RecursionError, OverflowError):
        return "this is not a regular expression"
    except SchemaError:
        return "the pattern is too large, or has look-around or back-references"
    return None


@lru_cache(maxsize=256)  # enough for the patterns of a server's questions
def _matcher(pattern: str) -> TypeAdapter[str]:
    return TypeAdapter(Annotated[str, StringConstraints(pattern=pattern)])


def _fault_in_text(limits: Limits, value: Json) -> str | None:
    if not isinstance(value, str):
        return "This must be text."
    try:
        value.encode()
    except UnicodeEncodeError:  # a lone surrogate
        return "This contains half a character, which cannot be saved. Remove it."
    length = len(value)
    if limits.least is not None and length < limits.least:
        return f"This is too short: {length} of at least {limits.least:.0f} characters."
    if limits.most is not None and length > limits.most:
        return f"This is too long: {length} characters, {limits.most:.0f} at most."
    if limits.pattern is not None:
        if length > MATCHED_AT_MOST:
            return f"This is too long: {length} characters, {MATCHED_AT_MOST} at most."
        try:
            _matcher(limits.pattern).validate_python(value)
        except ValidationError:
            return "This does not have the expected format. Did you copy all of it?"
    return _fault_in_format(limits.format, value)


def _fault_in_format(wanted: str | None, value: str) -> str | None:
    match wanted:
        case "email" if len(value) > 254 or not _EMAIL.fullmatch(value):
            return "Write an e-mail address, like name@example.org."
        case "uri" if not _URI.fullmatch(value):
            return "Write a whole address, like https://example.org."
        case "date" if not (_DATE.fullmatch(value) and _is_read(date.fromisoformat, value)):
            return "Write a date as year, month and day, like 2031-05-28."
        case "date-time" if not (_MOMENT.fullmatch(value) and _is_read(_moment, value)):
            return "Write a date and a time with its time zone, like 2031-05-28T14:30:00Z."
        case _:
            return None


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text.upper())


def _is_read(read: Callable[[str], date], value: str) -> bool:
    try:
        read(value)
    except ValueError:
        return False
    return True


def _fault_in_number(field: Field, value: Json) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "Write a number, in digits."
    if not -NUMBER_BELOW < value < NUMBER_BELOW:
        return "This number is too large."
    if field.kind == "integer" and value != int(value):
        return "Write a whole number."
    limits = field.limits
    if limits.least is not None and value < limits.least:
        return f"This must be {_shown(limits.least)} or more."
    if limits.most is not None and value > limits.most:
        return f"This must be {_shown(limits.most)} or less."
    return None


def _fault_in_choices(field: Field, value: Json) -> str | None:
    values = {choice.value for choice in field.choices}
    if not isinstance(value, list | tuple) or not all(
        isinstance(one, str) and one in values for one in value
    ):
        return "Choose only from the choices on this page."
    if len(set(value)) != len(value):
        return "Choose each choice only once."
    limits = field.limits
    if limits.least is not None and len(value) < limits.least:
        return f"Choose at least {limits.least:.0f}."
    if limits.most is not None and len(value) > limits.most:
        return f"Choose {limits.most:.0f} at most."
    return None


def _shown(number: float) -> str:
    return str(int(number)) if number == int(number) else str(number)


# Words that ask for a secret: a password, a key, a token, card data.

# The borders between the words of a name: `user_pin`, `user-pin`, `userPin`, `USERPin`, `pin2`.
_BORDER: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|[\W\d_]+")
# The borders between the parts of a question: words are compared within a part only.
_PART: Final = re.compile(r"[,.?!:;]+(?:\s+|$)")
# Texts that mean a secret anywhere in a word: `newpasswordagain`.
_WITHIN: Final = ("password", "passwd", "passphrase", "passcode", "passkey")
# Texts that mean a secret at the end of a word: `clientsecret`, but not `secretary` or `tokenizer`.
_ENDS: Final = ("pwd", "secret", "token", "credential")
# Words that mean a secret: `user_pin`, but not `pinned` or `opinion`.
_WORDS: Final = frozenset({"pin", "cvv", "cvc", "ccn", "jwt", "bearer"})
# Each key is a word that means a secret only after one of the words in its value: `api_key`,
# `apiKey` and `myapikey`, but not `sort_key`.
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
# Words that mean a secret only if they are the whole name of a text field: `pass`, but not
# `boarding_pass` or `frying_pan`.
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
        if word != "s"  # the end of `card's`
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
