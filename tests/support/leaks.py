"""Leaks: what a log, a problem, a metric, a failed tool or an error page may never hold.

A plugin that listens during the whole run, and fails the test in which something leaked: by its
form (tokens, links, cookies, e-mail addresses), or because it was seen in the test's own traffic
(states, verifiers, what a person typed). A finding says where and what kind, never the value.

It hears every log record, what an app answers that is served in this process (support/serving.py)
or in one that passes on what it hears (tests/crash), and the standard error of every process that
a test starts (support/processes.py), or that writes into what pytest captures. There are no metrics
yet; what is served at /metrics is heard, and whoever exports them in another way adds that here.
What could go wrong: a level or a logger that is left out. So ours are heard whole, and all others
as `elicit serve` shows them: from INFO, which a server's library sets, the talkative from WARNING.
Or nothing is heard and all looks clean: whoever is deaf says so.
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
from html import unescape
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

import pytest

from webapp.command import TALKATIVE_LOGGERS
from webapp.http.connection import ASGIApp, Message, Receive, Scope, Send
from webapp.logs.events import TOOL_LOGGERS, Events, mask_secrets
from webapp.records.ids import made_at

OURS = ("webapp", "flows")
_LEVELS = {
    "": logging.INFO,
    "uvicorn": logging.WARNING,
    **dict.fromkeys(TALKATIVE_LOGGERS, logging.WARNING),
    **dict.fromkeys(OURS, logging.DEBUG),
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
    # By themselves: of many random ids one has them in the middle.
    "letters": r"(?<![\w-])[B-DF-HJ-NP-TV-XZ]{4}[- ]?[B-DF-HJ-NP-TV-XZ]{4}(?![\w-])",
    "email": r"[\w.+-]+@[\w-]+(?:\.[\w-]+)*\.[A-Za-z]{2,}\b",
}
_ANY_FORM = re.compile("|".join(f"(?P<{kind}>{form})" for kind, form in _FORMS.items()))
_IN_JSON = frozenset(
    {*_GIVEN.split("|"), "requestState", "request_state", "assertion", "registration_access_token"}
)
_IN_PAIRS = frozenset({*_IN_QUERIES.split("|"), "password", "assertion"})
_TYPED_AT_LEAST = 8
_URL_ELICITATION_REQUIRED = -32042  # its data are the links, as the protocol wants it
_PASSED_ON = "\x1e"  # what follows is JSON, if it is whole: its writer may be killed (RFC 7464)


class LeakFound(AssertionError):
    """Something came out that nobody may read."""


class Deaf(AssertionError):
    """Nothing was heard where something must have been said."""


def kinds_in(text: str) -> set[str]:
    """What can be told by its form."""
    return {
        str(found.lastgroup)
        for found in _ANY_FORM.finditer(text)
        if found.lastgroup != "token" or _is_token(found[0])
    }


def _is_token(text: str) -> bool:
    """Whether it has the envelope of ours: version 1, a day within a century, a signature."""
    body, _, signature = text.rpartition(".")
    try:
        blob = base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))
        return blob[0] == 1 and int.from_bytes(blob[1:3]) < 36525 and len(signature) == 43
    except (ValueError, IndexError):  # no base64, or not even ASCII
        return False


class Secrets:
    """What went by during one test, and what each was called there."""

    def __init__(self, *, pass_on: Callable[..., None] | None = None) -> None:
        self._kinds: dict[str, str] = {}
        self._ids: set[str] = set()
        self._pass_on = pass_on

    def note(self, kind: str, value: object) -> None:
        """Remember it, unless it is a word that stands in many texts anyway."""
        if not isinstance(value, str) or len(value) < 6 or (value.isalpha() and value.islower()):
            return
        # Of a long one a part is enough to be a leak; the first bytes of a token are not secret.
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

    def note_id(self, id: object) -> None:
        """An id opens nothing, wherever it is tried; only what looks like one counts as one."""
        if isinstance(id, str) and made_at(id) is not None:
            self._ids.add(id)

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


class Ears:
    """Hears what one test after the other says, and compares it with what went by."""

    def __init__(self) -> None:
        self.secrets = Secrets()
        self._said: dict[str, list[str]] = {}  # where -> texts
        self._told: set[str] = set()
        self._written: list[Written] = []
        self._shown: dict[str, list[str]] = {}
        self._passes_on = False
        self.handler = _Handler(self)
        self._levels: dict[str, int] = {}

    def open(self) -> None:
        for name in ("", *OURS):  # the others' own stay, for tests that want to hear more of them
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
        """Forget the test before, and hear also the loggers that have become an end since then."""
        self.secrets = Secrets(pass_on=_pass_on if self._passes_on else None)
        self._said.clear()
        self._told.clear()
        self._listen()

    def hear(self, where: str, text: str) -> None:
        """A text that nothing may leak into; it is searched when the test has gone on."""
        if self._passes_on:
            _pass_on(said=(where, text))
        else:
            self._said.setdefault(where, []).append(text)

    def hear_messages(self, where: str, value: object) -> None:
        """One message of MCP or several: what they say of a failure."""
        self.secrets.in_json(value)
        for message in value if isinstance(value, list) else [value]:
            if isinstance(message, Mapping) and "jsonrpc" in message:
                for said in failures_in(message):
                    self.hear(where, said)

    def pass_on(self) -> None:
        """Be the ears of a process that a test has started: all is for those who started it."""
        self._passes_on = True
        self.open()
        self.begin()
        _pass_on(said=("ears", ""))

    def listen(self, name: str, *, passes_on: bool = False) -> "Written":
        """A new file for the standard error of a process, to be closed at the end of that."""
        written = Written(name, ears=self, passes_on=passes_on)
        self._written.append(written)
        return written

    def stop_listening(self, written: "Written") -> None:
        self._written.remove(written)

    def read_on(self) -> None:
        """Hear what was written since the last time."""
        for written in list(self._written):
            written.read_on()

    def show(self, name: str, text: str) -> None:
        """A text for whoever reads why a test has failed."""
        self._shown.setdefault(name, []).append(text)

    def take_shown(self) -> list[tuple[str, str]]:
        """What was to be shown since the last time, by its name."""
        shown, self._shown = self._shown, {}
        return [(name, "".join(texts)) for name, texts in shown.items()]

    def must_hear(self) -> None:
        """Raises Deaf, once, where a logger of ours is not heard any more."""
        loggers = [logging.getLogger(name) for name in ("", *OURS)]
        deaf = [logger.name for logger in loggers if not _is_heard(logger)]
        self._listen()
        if deaf:
            raise Deaf(f"not heard any more: {', '.join(deaf)}")

    def findings(self) -> list[str]:
        """Where something was heard, and of what kind."""
        found = []
        for where, texts in self._said.items():
            text = "\n".join(texts)
            # The words of a library's event may be what leaks.
            place = where.partition(":")[0] if self._kinds_in(where) else where
            found += [f"{place}: {kind}" for kind in self._kinds_in(text)]
        return sorted(found)

    def tell(self) -> None:
        """Raises LeakFound, once for each leak."""
        self.read_on()
        if found := [one for one in self.findings() if one not in self._told]:
            self._told.update(found)
            raise LeakFound("leaked: " + "; ".join(found))

    def _listen(self) -> None:
        for logger in _ends():
            if self.handler not in logger.handlers:
                logger.addHandler(self.handler)

    def _kinds_in(self, text: str) -> set[str]:
        return kinds_in(text) | self.secrets.in_text(text)


class Written:
    """What a process writes to its standard error, heard while it runs and when it is over.

    With `passes_on` it has ears of its own there, and writes in between what those hear.
    """

    def __init__(self, name: str, *, ears: Ears, passes_on: bool) -> None:
        self._name = name
        self._ears = ears
        # Every write goes to the end, whoever writes, and wherever somebody reads.
        self._file = tempfile.TemporaryFile("ab+", buffering=0)  # noqa: SIM115 - see close
        self._passes_on = passes_on
        self._has_passed_on = False
        self._read = 0  # bytes
        self._text = ""

    def fileno(self) -> int:
        return self._file.fileno()

    def text(self) -> str:
        """All lines that have come until now, without what was passed on."""
        self.read_on()
        return self._text

    def read_on(self, *, has_ended: bool = False) -> None:
        """Hear the lines that have come since; a last one without an end once it is over."""
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
            self._ears.hear(f"standard error of {self._name}", plain)
            self._ears.show(self._name, plain)

    def close(self) -> None:
        """It is over; raises Deaf if it was to pass on what it heard, and did not."""
        if self._file.closed:
            return
        self.read_on(has_ended=True)
        self._file.close()
        self._ears.stop_listening(self)
        if self._passes_on and not self._has_passed_on:
            raise Deaf(f"what {self._name} heard was not passed on")

    def _take(self, passed_on: str) -> None:
        match _parsed(passed_on):
            case {"said": [str(where), str(text)]}:
                self._has_passed_on = True
                self._ears.hear(f"{where} in {self._name}", text)
                if text:
                    self._ears.show(self._name, f"{text}\n")
            case {"noted": [str(kind), str(value)]}:
                self._ears.secrets.note(kind, value)


def _pass_on(**heard: tuple[str, str]) -> None:
    os.write(sys.stderr.fileno(), f"{_PASSED_ON}{json.dumps(heard)}\n".encode())


class _Handler(logging.Handler):
    """Writes each record as it would stand in a log, with everything that it was given."""

    def __init__(self, ears: Ears) -> None:
        super().__init__(logging.NOTSET)
        self._ears = ears
        self._ours = Events()
        self._theirs = logging.Formatter()
        self._standard = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}

    def emit(self, record: logging.LogRecord) -> None:
        package = record.name.partition(".")[0]
        if record.levelno < _LEVELS.get(package, _LEVELS[""]):
            return
        written = copy.copy(record)  # a formatter leaves the traceback's text in what it is given
        written.exc_text = None
        if record.name in TOOL_LOGGERS or package in OURS:
            mask_secrets(written)
        formatter = self._ours if package in OURS else self._theirs
        if package in OURS:
            self._ears.secrets.note_id(vars(record).get("id"))
        more = [f"{v!s} {v!r}" for k, v in vars(record).items() if k not in self._standard]
        where = f"{record.levelname} {record.name}: {record.msg}"
        self._ears.hear(where, "\n".join([formatter.format(written), *more]))


def _is_heard(logger: logging.Logger | None) -> bool:
    """Whether ears are on its way, or else what a command writes as events, which is captured."""
    while logger is not None:
        if any(isinstance(h, _Handler) or isinstance(h.formatter, Events) for h in logger.handlers):
            return True
        logger = logger.parent if logger.propagate else None
    return False


def _ends() -> Iterator[logging.Logger]:
    """The root, and every logger that passes nothing on to it."""
    yield logging.getLogger()
    for logger in list(logging.root.manager.loggerDict.values()):
        if isinstance(logger, logging.Logger) and not logger.propagate:
            yield logger


EARS = Ears()


def overheard(app: ASGIApp, ears: Ears = EARS) -> ASGIApp:
    """The app as it is; what is secret in its traffic is noted, and what is public is heard."""

    async def listening(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        exchange = _Exchange(ears, scope)

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
    """One request and its answer."""

    def __init__(self, ears: Ears, scope: Scope) -> None:
        self._ears = ears
        self._path: str = scope["path"]
        self._method: str = scope["method"]
        self._asked = _headers(scope["headers"])
        self._request = bytearray()
        self._status = 0
        self._answered: dict[str, list[str]] = {}
        self._answer = bytearray()
        secrets = ears.secrets
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
                self._ears.hear(self._where("challenge"), header)
        elif len(self._answer) < _BODY_BYTES_AT_MOST:
            self._answer += message.get("body", b"")

    def end(self) -> None:
        self._note_request()  # also of a body that the app did not read to its end
        text = self._answer.decode(errors="replace")
        kind = _kind(self._answered)
        if kind == "application/problem+json":
            self._ears.hear(self._where("problem"), text)
        elif kind == "text/html" and self._status >= 400:
            self._ears.hear(self._where("page"), visible(text))
        elif self._path == "/metrics":
            self._ears.hear("metrics", text)
        elif kind == "application/json":
            self._hear_json(text)
        elif kind == "text/event-stream":
            for line in text.splitlines():
                if line.startswith("data:"):
                    self._hear_json(line.removeprefix("data:"))

    def _note_request(self) -> None:
        text, self._request = self._request.decode(errors="replace"), bytearray()
        kind = _kind(self._asked)
        if kind == "application/x-www-form-urlencoded":
            is_ours = self._path.startswith(("/e/", "/pair/", "/signin", "/connections"))
            self._ears.secrets.in_pairs(text, is_typed=is_ours)
        elif kind == "application/json":
            self._ears.secrets.in_json(_parsed(text))

    def _hear_json(self, text: str) -> None:
        self._ears.hear_messages(self._where("failed tool"), _parsed(text))

    def _where(self, what: str) -> str:
        first = "/".join(piece for piece in self._path.split("/")[:2] if len(piece) < 32)
        return f"{what} {self._status} of {self._method} {first}"


def failures_in(message: Mapping[str, Any]) -> Iterator[str]:
    """What a message of MCP says of a failure, but for the links that a person is to open."""
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
    """What a page shows as text: no markup, and not what its fields hold."""
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
    EARS.open()


def pytest_unconfigure() -> None:
    EARS.close()


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say what is not heard in this run."""
    if config.getoption("capture") != "fd":
        return "leaks: without --capture=fd what is printed is not heard"
    return None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    EARS.begin()
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
        EARS.read_on()
        for name, text in EARS.take_shown():
            item.add_report_section(when, f"stderr of {name}", text)
        # Also of the processes that inherit it. There is no other way to it than pytest's own.
        for during, name, text in item._report_sections:
            if during == when and name in {"stdout", "stderr"}:
                EARS.hear(f"captured {name}", text)
    try:
        EARS.tell()
    finally:
        EARS.must_hear()
    return result
