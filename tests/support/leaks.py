"""A pytest plugin that finds leaks of secrets in logs, problems, metrics, tool errors and pages.

The plugin listens during the whole run and fails the test in which a secret leaked. It recognizes a
secret by its form (tokens, links, cookies, e-mail addresses) or because it occurred in the test's
own traffic (states, verifiers, typed answers). A finding names the place and the kind of the
secret, never its value.

The plugin reads every log record, the responses of applications that are served in this process
(support/serving.py) or in a process that passes on what it hears (tests/crash), the standard error
of every process that a test starts (support/processes.py), and what pytest captures. Metrics are
read from responses of /metrics. If you export metrics in another way, add that way here.

Risks: the plugin misses a level or a logger. So it reads our loggers at every level, other loggers
from INFO, which an MCP library can set, and uvicorn and `TALKATIVE_LOGGERS` from WARNING, the level
at which `elicit serve` logs them. Or a listener is disconnected and finds nothing, so a
disconnected listener raises Deaf.
"""

import base64
import copy
import json
import logging
import os
import re
import sys
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from functools import cache
from html import unescape
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

import pytest

from webapp.command import TALKATIVE_LOGGERS
from webapp.http.exchange import ASGIApp, Message, Receive, Scope, Send
from webapp.logs.events import TOOL_LOGGERS, Events, mask_secrets
from webapp.records.ids import made_at

OUR_PACKAGES = ("webapp", "flows")
_LEVELS = {
    "": logging.INFO,
    "uvicorn": logging.WARNING,
    **dict.fromkeys(TALKATIVE_LOGGERS, logging.WARNING),
    **dict.fromkeys(OUR_PACKAGES, logging.DEBUG),
}
_BODY_BYTES_AT_MOST = 1 << 20

_GIVEN = "access_token|refresh_token|id_token|code_verifier|client_secret|device_code|user_code"
_IN_QUERIES = f"{_GIVEN}|code|state|nonce|csrf|session_state|id_token_hint|login_hint|token"
_FORMS = {
    "JWT": r"(?<![\w-])eyJ[\w-]{8,}\.[\w-]{8,}",
    "token": r"(?<![\w-])AQ[\w-]{60,}\.[\w-]{43}",
    "link": r"/(?:e|pair)/[\w.~-]{16,}",
    "callback": r"/(?:callback|return|signin)\b[^\s?\"'<>]*\?[^\s\"'<>]+",
    "query": rf"[?&](?:{_IN_QUERIES})=[^&\s\"'<>]+",
    "named": rf"\b(?:{_GIVEN})\b[\"']?\s*[=:]\s*[\"']?(?=[\w.~+/-]*\d)[\w.~+/-]{{8,}}",
    "cookie": r"(?:__Host-elicit[\w-]*|elicit_(?:session_|signin_)?\d+)=[\w.~+/-]{8,}",
    "bearer": r"\b[Bb]earer (?=[\w.~+/-]*\d)[\w.~+/-]{12,}",
    "key": r"\b(?:gh[oprsu]_|github_pat_|glpat-|xox[a-z](?:-\d)?-|ya29\.|sandbox_[ar]t_"
    r"|[sr]k_(?:test|live)_|whsec_)[\w+/=-]{6,}",
    # Match a code only if no word character or hyphen is next to it: some random ids contain one.
    # The lookbehind follows the first letter, because searching for a letter first is faster.
    "letters": r"[B-DF-HJ-NP-TV-XZ](?<![\w-].)[B-DF-HJ-NP-TV-XZ]{3}[- ]?"
    r"[B-DF-HJ-NP-TV-XZ]{4}(?![\w-])",
    "email": r"[\w.+-]+@[\w-]+(?:\.[\w-]+)*\.[A-Za-z]{2,}\b",
}
# Parts of each form's matches. A text that contains no part of a form cannot match the form, so the
# form is not searched for: a search for a part takes a hundredth of the time.
_PARTS = {
    "JWT": ("eyJ",),
    "token": ("AQ",),
    "link": ("/e/", "/pair/"),
    "callback": ("/callback", "/return", "/signin"),
    "query": tuple(f"{mark}{name}=" for mark in "?&" for name in _IN_QUERIES.split("|")),
    "named": tuple(_GIVEN.split("|")),
    "cookie": ("__Host-elicit", "elicit_"),
    "bearer": ("earer ",),
    "key": (
        *(f"gh{letter}_" for letter in "oprsu"),
        *("github_pat_", "glpat-", "xox", "ya29.", "sandbox_at_", "sandbox_rt_"),
        *("k_test", "k_live", "whsec_"),
    ),
    "letters": ("",),
    "email": ("@",),
}
_IN_JSON = frozenset(
    {*_GIVEN.split("|"), "requestState", "request_state", "assertion", "registration_access_token"}
)
_IN_PAIRS = frozenset({*_IN_QUERIES.split("|"), "password", "assertion"})
_TYPED_AT_LEAST = 8
_URL_ELICITATION_REQUIRED = -32042  # its data are the links, as the protocol requires
_PASSED_ON = "\x1e"  # JSON follows, unless its writer was killed (RFC 7464)


class LeakFound(AssertionError):
    """A secret leaked into a text that others can read."""


class Deaf(AssertionError):
    """A listener that must receive text was disconnected or received nothing."""


@cache
def _any_of(kinds: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(f"(?P<{kind}>{_FORMS[kind]})" for kind in kinds))


def kinds_in(text: str) -> set[str]:
    """Return the kinds of secrets that the text contains, recognized by their form."""
    possible = tuple(kind for kind in _FORMS if any(part in text for part in _PARTS[kind]))
    return {
        str(found.lastgroup)
        for found in _any_of(possible).finditer(text)
        if found.lastgroup != "token" or _is_token(found[0])
    }


def _is_token(text: str) -> bool:
    """Return True if the text has our token's envelope: version 1, a valid day, a signature."""
    body, _, signature = text.rpartition(".")
    try:
        blob = base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))
        return blob[0] == 1 and int.from_bytes(blob[1:3]) < 36525 and len(signature) == 43
    except (ValueError, IndexError):  # not base64, or not ASCII
        return False


def _is_id(text: str) -> bool:
    """Return True if the text has the form of `fresh_id`, with a time in this century."""
    made = made_at(text)
    return made is not None and made.year // 100 == 20


class Secrets:
    """The secrets in one test's traffic, and their kinds."""

    def __init__(self, *, pass_on: Callable[..., None] | None = None) -> None:
        self._kinds: dict[str, str] = {}
        self._ids: set[str] = set()
        self._pass_on = pass_on

    def note(self, kind: str, value: object) -> None:
        """Remember a secret, unless the value is short or a plain word."""
        if not isinstance(value, str) or len(value) < 6 or (value.isalpha() and value.islower()):
            return
        # A part of a long secret already is a leak. The first bytes of a token are not secret.
        whole = value[32:56] if len(value) >= 56 else value
        if self._pass_on is not None and whole not in self._kinds:
            self._pass_on(noted=(kind, value))
        self._kinds.setdefault(whole, kind)
        if (quoted := quote(whole)) != whole:
            self._kinds.setdefault(quoted, kind)

    def in_text(self, text: str) -> set[str]:
        return {
            kind
            for value, kind in self._kinds.items()
            if value in text and not any(value in id for id in self._ids)
        }

    def forms_in(self, text: str) -> set[str]:
        """Return the kinds that `kinds_in` finds outside public ids.

        An id has random characters, and a few of them can have the form of a key.
        """
        if not (found := kinds_in(text)):
            return found
        ids = {id for id in re.findall(r"[\w-]{44}(?![\w-])", text) if _is_id(id)}
        return kinds_in(_without(text, self._ids | ids))

    def note_id(self, id: object) -> None:
        """Remember a public id, which gives no access.

        Ignore values that do not look like an id.
        """
        if isinstance(id, str) and _is_id(id):
            self._ids.add(id)

    def note_request_id(self, request_id: object) -> None:
        """Remember the random name of a request of a call, which gives no access."""
        if isinstance(request_id, str) and re.fullmatch(r"[\w-]{16}", request_id):
            self._ids.add(request_id)

    def in_address(self, address: str) -> None:
        parts = urlsplit(address)
        self.in_pairs(parts.query)
        for piece in parts.path.split("/"):
            if _is_token(piece):
                self.note("token", piece)

    def in_pairs(self, text: str, *, is_typed: bool = False) -> None:
        for name, value in parse_qsl(text):
            if name in _IN_PAIRS:
                self.note(name, value)
            elif is_typed and len(value) >= _TYPED_AT_LEAST:
                self.note("typed", value)

    def in_json(self, value: object) -> None:
        if isinstance(value, Mapping):
            for name, inner in value.items():
                if name in _IN_JSON:
                    self.note(name, inner)
                else:
                    self.in_json(inner)
        elif isinstance(value, list):
            for inner in value:
                self.in_json(inner)

    def in_authorization(self, header: str) -> None:
        scheme, _, value = header.partition(" ")
        if scheme.lower() == "basic":
            try:
                user, _, password = base64.b64decode(value, validate=True).decode().partition(":")
            except ValueError:
                return
            self.note("password", password)
            self.note("user", user if user.startswith("sk_") else None)
        self.note("bearer", value)

    def in_cookies(self, header: str) -> None:
        for pair in header.split("; "):
            self.note("cookie", pair.partition("=")[2])


class LeakSearch:
    """The listener that searches the output of each test for secrets of its traffic."""

    def __init__(self) -> None:
        self.secrets = Secrets()
        self._texts: dict[str, list[str]] = {}  # place -> texts
        self._reported: set[str] = set()
        self._written: list[Written] = []
        self._shown: dict[str, list[str]] = {}
        self._passes_on = False
        self.handler = _Handler(self)
        self._levels: dict[str, int] = {}

    def open(self) -> None:
        for name in ("", *OUR_PACKAGES):  # other loggers keep their level, for tests that lower it
            logger = logging.getLogger(name)
            self._levels[name] = logger.level
            logger.setLevel(_LEVELS[name])

    def close(self) -> None:
        for written in list(self._written):
            written.close()
        for name, level in self._levels.items():
            logging.getLogger(name).setLevel(level)
        for logger in _ends():
            logger.removeHandler(self.handler)

    def begin(self) -> None:
        """Forget the previous test, and attach to loggers that no longer propagate."""
        self.secrets = Secrets(pass_on=_pass_on if self._passes_on else None)
        self._texts.clear()
        self._reported.clear()
        self._listen()

    def check(self, where: str, text: str) -> None:
        """Collect a text in which no secret may occur. It is searched after the test."""
        if self._passes_on:
            _pass_on(said=(where, text))
        else:
            self._texts.setdefault(where, []).append(text)

    def check_messages(self, where: str, value: object) -> None:
        """Collect the failures in one or several MCP messages."""
        self.secrets.in_json(value)
        for message in value if isinstance(value, list) else [value]:
            if isinstance(message, Mapping) and "jsonrpc" in message:
                for failure in failures_in(message):
                    self.check(where, failure)

    def pass_on(self) -> None:
        """Listen in a process that a test started, and pass everything on to the test's process."""
        self._passes_on = True
        self.open()
        self.begin()
        _pass_on(said=("leaks", ""))

    def listen(self, name: str, *, passes_on: bool = False) -> "Written":
        """Return a new file for a process's standard error. Close it when the process has ended."""
        written = Written(name, leaks=self, passes_on=passes_on)
        self._written.append(written)
        return written

    def stop_listening(self, written: "Written") -> None:
        self._written.remove(written)

    def read_on(self) -> None:
        """Read what processes wrote since the last call."""
        for written in list(self._written):
            written.read_on()

    def show(self, name: str, text: str) -> None:
        """Add a text to the report of a failed test. `name` says what wrote it."""
        if text:
            self._shown.setdefault(name, []).append(text)

    def take_shown(self) -> list[tuple[str, str]]:
        """Return the report texts since the last call, with their names, and clear them."""
        shown, self._shown = self._shown, {}
        return [(name, "".join(texts)) for name, texts in shown.items()]

    def must_be_attached(self) -> None:
        """Raise Deaf once if one of our loggers is disconnected."""
        loggers = [logging.getLogger(name) for name in ("", *OUR_PACKAGES)]
        deaf = [logger.name for logger in loggers if not _is_watched(logger)]
        self._listen()
        if deaf:
            raise Deaf(f"not heard any more: {', '.join(deaf)}")

    def findings(self) -> list[str]:
        """Return the place and the kind of each secret that was found."""
        found = []
        for where, texts in self._texts.items():
            text = "\n".join(texts)
            # The name of a library's event can itself contain the secret.
            place = where.partition(":")[0] if self._kinds_in(where) else where
            found += [f"{place}: {kind}" for kind in self._kinds_in(text)]
        return sorted(found)

    def raise_new_leaks(self) -> None:
        """Raise LeakFound once for each leak."""
        self.read_on()
        if found := [one for one in self.findings() if one not in self._reported]:
            self._reported.update(found)
            raise LeakFound("leaked: " + "; ".join(found))

    def _listen(self) -> None:
        for logger in _ends():
            if self.handler not in logger.handlers:
                logger.addHandler(self.handler)

    def _kinds_in(self, text: str) -> set[str]:
        return self.secrets.forms_in(text) | self.secrets.in_text(text)


class Written:
    """A file with a process's standard error, read while the process runs and when it has ended.

    With `passes_on` the process runs this plugin too, and writes its results into the same file.
    """

    def __init__(self, name: str, *, leaks: LeakSearch, passes_on: bool) -> None:
        self.name = name
        self._ears = leaks
        # Append mode: each write goes to the end of the file, also if two processes write.
        self._file = tempfile.TemporaryFile("ab+", buffering=0)  # noqa: SIM115 - see close
        self._passes_on = passes_on
        self._has_passed_on = False
        self._read = 0  # bytes
        self._text = ""

    def fileno(self) -> int:
        return self._file.fileno()

    def text(self) -> str:
        """Return all complete lines until now, without the passed-on messages."""
        self.read_on()
        return self._text

    def read_on(self, *, has_ended: bool = False) -> None:
        """Read the lines since the last call. If `has_ended`, read an incomplete last line too."""
        if self._file.closed:
            return
        size = os.fstat(self.fileno()).st_size
        blob = os.pread(self.fileno(), size - self._read, self._read)
        if not has_ended:
            blob = blob[: blob.rfind(b"\n") + 1]
        self._read += len(blob)
        plain = blob.decode(errors="replace")
        if self._passes_on:
            lines = [line.split(_PASSED_ON) for line in plain.split("\n")]
            plain = "\n".join(before for before, *more in lines if before or not more)
            for _, *more in lines:
                for each in more:
                    self._take(each)
        if plain:
            self._text += plain
            self._ears.check(f"standard error of {self.name}", plain)
            self._ears.show(f"stderr of {self.name}", plain)

    def close(self) -> None:
        """Read the rest and close the file.

        Raise Deaf if the process had to pass on messages and did not.
        """
        if self._file.closed:
            return
        self.read_on(has_ended=True)
        self._file.close()
        self._ears.stop_listening(self)
        if self._passes_on and not self._has_passed_on:
            raise Deaf(f"{self.name} did not pass on its output")

    def _take(self, passed_on: str) -> None:
        match _parsed(passed_on):
            case {"said": [str(where), str(text)]}:
                self._has_passed_on = True
                self._ears.check(f"{where} in {self.name}", text)
                if text:
                    self._ears.show(f"stderr of {self.name}", f"{text}\n")
            case {"noted": [str(kind), str(value)]}:
                self._ears.secrets.note(kind, value)


def _pass_on(**finding: tuple[str, str]) -> None:
    os.write(sys.stderr.fileno(), f"{_PASSED_ON}{json.dumps(finding)}\n".encode())


class _Handler(logging.Handler):
    """A handler that formats each record as a log would, with all of its attributes."""

    def __init__(self, leaks: LeakSearch) -> None:
        super().__init__(logging.NOTSET)
        self._ears = leaks
        self._our_formatter = Events()
        self._other_formatter = logging.Formatter()
        self._standard = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}

    def emit(self, record: logging.LogRecord) -> None:
        package = record.name.partition(".")[0]
        if record.levelno < _LEVELS.get(package, _LEVELS[""]):
            return
        written = copy.copy(record)  # formatters store the traceback's text in the record
        written.exc_text = None
        if record.name in TOOL_LOGGERS or package in OUR_PACKAGES:
            mask_secrets(written)
        formatter = self._our_formatter if package in OUR_PACKAGES else self._other_formatter
        if package in OUR_PACKAGES:
            self._ears.secrets.note_id(vars(record).get("id"))
            self._ears.secrets.note_request_id(vars(record).get("call"))
        more = [f"{v!s} {v!r}" for k, v in vars(record).items() if k not in self._standard]
        where = f"{record.levelname} {record.name}: {record.msg}"
        self._ears.check(where, "\n".join([formatter.format(written), *more]))


def _is_watched(logger: logging.Logger | None) -> bool:
    """Return True if this logger reaches our handler or a captured event log of a command."""
    while logger is not None:
        if any(isinstance(h, _Handler) or isinstance(h.formatter, Events) for h in logger.handlers):
            return True
        logger = logger.parent if logger.propagate else None
    return False


def _ends() -> Iterator[logging.Logger]:
    """Yield the root logger and every logger that does not propagate."""
    yield logging.getLogger()
    for logger in list(logging.root.manager.loggerDict.values()):
        if isinstance(logger, logging.Logger) and not logger.propagate:
            yield logger


LEAKS = LeakSearch()


def overheard(app: ASGIApp, leaks: LeakSearch = LEAKS) -> ASGIApp:
    """Wrap the app: note the secrets in its traffic, and collect its public texts."""

    async def listening(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        exchange = _Exchange(leaks, scope)

        async def taken() -> Message:
            message = await receive()
            exchange.take(message)
            return message

        async def given(message: Message) -> None:
            exchange.give(message)
            await send(message)

        try:
            await app(scope, taken, given)
        finally:
            exchange.end()

    return listening


class _Exchange:
    """A request and its response."""

    def __init__(self, leaks: LeakSearch, scope: Scope) -> None:
        self._ears = leaks
        self._path: str = scope["path"]
        self._method: str = scope["method"]
        self._asked = _headers(scope["headers"])
        self._request = bytearray()
        self._status = 0
        self._answered: dict[str, list[str]] = {}
        self._answer = bytearray()
        secrets = leaks.secrets
        secrets.in_address(f"{self._path}?{scope['query_string'].decode('latin-1')}")
        for header in self._asked.get("authorization", ()):
            secrets.in_authorization(header)
        for header in self._asked.get("cookie", ()):
            secrets.in_cookies(header)

    def take(self, message: Message) -> None:
        if len(self._request) < _BODY_BYTES_AT_MOST:
            self._request += message.get("body", b"")
        if not message.get("more_body", False):
            self._note_request()

    def give(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._answered = _headers(message.get("headers", ()))
            for header in self._answered.get("set-cookie", ()):
                self._ears.secrets.in_cookies(header.partition(";")[0])
            for header in self._answered.get("location", ()):
                self._ears.secrets.in_address(header)
            for header in self._answered.get("www-authenticate", ()):
                self._ears.check(self._where("challenge"), header)
        elif len(self._answer) < _BODY_BYTES_AT_MOST:
            self._answer += message.get("body", b"")

    def end(self) -> None:
        self._note_request()  # note the request again, in case the app did not read its whole body
        text = self._answer.decode(errors="replace")
        kind = _kind(self._answered)
        if kind == "application/problem+json":
            self._ears.check(self._where("problem"), text)
        elif kind == "text/html" and self._status >= 400:
            self._ears.check(self._where("page"), visible(text))
        elif self._path == "/metrics":
            self._ears.check("metrics", text)
        elif kind == "application/json":
            self._check_json(text)
        elif kind == "text/event-stream":
            for line in text.splitlines():
                if line.startswith("data:"):
                    self._check_json(line.removeprefix("data:"))

    def _note_request(self) -> None:
        text, self._request = self._request.decode(errors="replace"), bytearray()
        kind = _kind(self._asked)
        if kind == "application/x-www-form-urlencoded":
            is_our_page = self._path.startswith(("/e/", "/pair/", "/signin", "/connections"))
            self._ears.secrets.in_pairs(text, is_typed=is_our_page)
        elif kind == "application/json":
            self._ears.secrets.in_json(_parsed(text))

    def _check_json(self, text: str) -> None:
        self._ears.check_messages(self._where("failed tool"), _parsed(text))

    def _where(self, what: str) -> str:
        first = "/".join(piece for piece in self._path.split("/")[:2] if len(piece) < 32)
        return f"{what} {self._status} of {self._method} {first}"


def failures_in(message: Mapping[str, Any]) -> Iterator[str]:
    """Yield the failure texts of an MCP message, without the links that the person is to open."""
    if isinstance(error := message.get("error"), Mapping):
        yield str(error.get("message"))
        if error.get("code") != _URL_ELICITATION_REQUIRED:
            yield json.dumps(error.get("data"))
    result = message.get("result")
    if isinstance(result, Mapping) and result.get("isError"):
        meta = result.get("_meta") or {}
        pending = [meta.get("elicitationPending", {}), *meta.get("elicitationsPending", [])]
        links = [one.get("url", "\0") for one in pending]
        yield _without(json.dumps(meta), links)
        for part in result.get("content", ()):
            yield _without(str(part.get("text")), links)


def visible(page: str) -> str:
    """Return the visible text of a page, without markup and field values."""
    unseen = r"<(script|style|textarea|title)\b.*?</\1>|<!--.*?-->|<[^>]*>"
    return unescape(re.sub(unseen, " ", page, flags=re.DOTALL | re.IGNORECASE))


def _without(text: str, links: Iterable[str]) -> str:
    for link in links:
        text = text.replace(link, "")
    return text


def _headers(pairs: Iterable[tuple[bytes, bytes]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in pairs:
        found.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
    return found


def _kind(headers: Mapping[str, list[str]]) -> str:
    return headers.get("content-type", [""])[0].partition(";")[0].strip().lower()


def _parsed(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def pytest_configure() -> None:
    LEAKS.open()


def pytest_unconfigure() -> None:
    LEAKS.close()


def pytest_report_header(config: pytest.Config) -> str | None:
    """Warn if output is not captured and so not searched."""
    if config.getoption("capture") != "fd":
        return "leaks: printed text is not searched without --capture=fd"
    return None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    LEAKS.begin()
    return (yield from _listening(item, "setup"))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    return (yield from _listening(item, "call"))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    return (yield from _listening(item, "teardown"))


def _listening(item: pytest.Item, when: str) -> Generator[None, object, object]:
    try:
        result = yield
    finally:
        LEAKS.read_on()
        for name, text in LEAKS.take_shown():
            item.add_report_section(when, name, text)
        # Captured output includes processes that inherit it. Only this private attribute has it.
        for during, name, text in item._report_sections:
            if during == when and name in {"stdout", "stderr"}:
                LEAKS.check(f"captured {name}", text)
    try:
        LEAKS.raise_new_leaks()
    finally:
        LEAKS.must_be_attached()
    return result
