"""Form parameters as Stripe accepts them, and Stripe's errors.

Every parameter is read by name, and unread ones are refused. Otherwise a misspelt parameter would
have no effect, and the program that sent it would not notice.
"""

import re
from collections.abc import Sequence
from typing import Literal, TypeAlias
from urllib.parse import parse_qsl, urlsplit

from flows.elicitation.states import Json
from webapp.sandbox.checkout.answers import SandboxRefused

ErrorType: TypeAlias = Literal["invalid_request_error", "idempotency_error", "api_error"]
_PARAMETERS_AT_MOST = 500
_TEXT_AT_MOST = 5000
_SHOWN_AT_MOST = 80
_METADATA_AT_MOST = 50
_METADATA_NAME_AT_MOST = 40
_METADATA_VALUE_AT_MOST = 500
_EXPAND = re.compile(r"expand\[[0-9]*\]")


class StripeError(SandboxRefused):
    """An error in the format of Stripe's error object."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        error_type: ErrorType = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
    ) -> None:
        super().__init__(message, status=status)
        self.error_type: ErrorType = error_type
        self.code = code
        self.param = param

    def as_json(self) -> Json:
        facts = {
            "type": self.error_type,
            "message": self.message,
            "code": self.code,
            "param": self.param,
        }
        return {"error": {name: fact for name, fact in facts.items() if fact is not None}}


def missing_resource(kind: str, id: str, *, param: str, status: int = 404) -> StripeError:
    return StripeError(
        f"No such {kind}: '{_shown(id)}'", status=status, code="resource_missing", param=param
    )


def read_pairs(encoded: bytes) -> tuple[tuple[str, str], ...]:
    """Return the names and values of a form or a query.

    Raises:
        StripeError: The form is invalid.
    """
    try:
        pairs = parse_qsl(
            encoded.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=bool(encoded),
            errors="strict",
            max_num_fields=_PARAMETERS_AT_MOST,
        )
    except ValueError:  # not ASCII, not UTF-8 after decoding, or with no or too many pairs
        raise StripeError(
            "Invalid request (check that your POST content type is "
            "application/x-www-form-urlencoded)."
        ) from None
    return tuple(pairs)


class CheckoutForm:
    """The parameters of a form. Each can be read only once. Empty values count as missing."""

    def __init__(self, pairs: Sequence[tuple[str, str]]) -> None:
        self._expand = {value for name, value in pairs if _EXPAND.fullmatch(name)}
        self._unread = {name: value for name, value in pairs if not _EXPAND.fullmatch(name)}

    def text(self, name: str, *, at_most: int = _TEXT_AT_MOST) -> str:
        value = self.text_or_none(name, at_most=at_most)
        if value is None:
            raise StripeError(
                f"Missing required param: {name}.", code="parameter_missing", param=name
            )
        return value

    def text_or_none(self, name: str, *, at_most: int = _TEXT_AT_MOST) -> str | None:
        value = self._unread.pop(name, "")
        if len(value) > at_most:
            raise StripeError(
                f"Invalid string: {_shown(value)}; must be at most {at_most} characters",
                code="parameter_invalid_string",
                param=name,
            )
        return value or None

    def choice(self, name: str, *choices: str) -> str:
        value = self.text(name)
        if value not in choices:
            words = f"must be one of {', '.join(choices)}, not {_shown(value)}"
            raise StripeError(f"Invalid {name}: {words}", param=name)
        return value

    def whole(self, name: str, *, least: int, most: int) -> int:
        """Return an integer within limits, both included."""
        text = self.text(name, at_most=_SHOWN_AT_MOST)
        words = ""
        if not (text.isascii() and text.removeprefix("-").isdecimal()):
            words = f"Invalid integer: {text}"
        elif int(text) < least:
            words = f"Invalid value for {name}: must be greater than or equal to {least}."
        elif int(text) > most:
            words = f"Invalid value for {name}: must be at most {most}."
        if words:
            raise StripeError(words, code="parameter_invalid_integer", param=name)
        return int(text)

    def url(self, name: str) -> str:
        url = self.text(name)
        try:
            parts = urlsplit(url)
            is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and url.isascii()
        except ValueError:
            is_good = False
        if not is_good or not url.isprintable() or " " in url:
            raise StripeError("Not a valid URL", code="url_invalid", param=name)
        return url

    def metadata(self, name: str) -> dict[str, str]:
        """Return the values under `name[...]`. An empty value counts as missing."""
        found: dict[str, str] = {}
        for full in [full for full in self._unread if full.startswith(f"{name}[")]:
            key = full.removeprefix(f"{name}[").removesuffix("]")
            value = self.text_or_none(full, at_most=_METADATA_VALUE_AT_MOST)
            if not full.endswith("]") or "[" in key or not 0 < len(key) <= _METADATA_NAME_AT_MOST:
                raise StripeError(f"Invalid metadata key: {_shown(key)}", param=name)
            if value is not None:
                found[key] = value
        if len(found) > _METADATA_AT_MOST:
            raise StripeError(f"{name} can have {_METADATA_AT_MOST} keys at most.", param=name)
        return found

    def expands(self, name: str) -> bool:
        """Return True if the response must contain the full object, not only its id."""
        is_wanted = name in self._expand
        self._expand.discard(name)
        return is_wanted

    def gives(self, name: str) -> bool:
        """Return True if the parameter was sent with a value."""
        if not self._unread.get(name):
            self._unread.pop(name, None)
            return False
        return True

    def has(self, start: str) -> bool:
        """Return True if an unread parameter's name starts with `start`."""
        return any(name.startswith(start) for name in self._unread)

    def end(self) -> None:
        """Refuse parameters that no code has read."""
        for name in self._unread:
            shown = _shown(name)
            raise StripeError(
                f"Received unknown parameter: {shown}", code="parameter_unknown", param=shown
            )
        for name in self._expand:
            raise StripeError(f"This property cannot be expanded ({_shown(name)}).", param="expand")


def _shown(text: str) -> str:
    """Return a sent value for an error message, shortened if the value is too long."""
    return text if len(text) <= _SHOWN_AT_MOST else text[:_SHOWN_AT_MOST] + "…"
