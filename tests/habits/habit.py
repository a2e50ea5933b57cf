"""A habit of providers, the declaration that expresses it, and a server that enforces it."""

from dataclasses import dataclass, field
from enum import StrEnum

import httpx

from flows.elicitation.flow import SetupReport
from flows.errors import Failed
from flows.oauth.provider import Client, Provider
from flows.oauth.registered_client import RegisteredClient
from flows.oauth.registration import examined
from tests.support.clock import NOON
from tests.support.strict_provider import (
    RETURN,
    SECRET,
    Habits,
    Refused,
    RefusedOnPage,
    StrictProvider,
    led,
    secret_for,
    walk,
)
from webapp.settings.config_file import read_declarations

ADDRESSES = """
authorize = "https://hub.example/authorize"
token = "https://hub.example/token"
api = "https://api.hub.example"
"""
PERSON = 'person = { url = "https://api.hub.example/me", id = "id", label = "email" }'
HERE = Habits(
    authorize="https://hub.example/authorize",
    token="https://hub.example/token",
    person=("GET", "https://api.hub.example/me"),
    who={"id": 7, "email": "a@hub.example"},
)
ISSUER = "https://login.hub.example"
METADATA = {
    "issuer": ISSUER,
    "authorization_endpoint": f"{ISSUER}/authorize",
    "token_endpoint": f"{ISSUER}/token",
    "userinfo_endpoint": f"{ISSUER}/userinfo",
    "jwks_uri": f"{ISSUER}/jwks",
}


class Stage(StrEnum):
    """The step at which connecting fails if the declaration lacks the lines of a habit."""

    NEVER = "nothing changes"
    START = "the log at the start and `elicit doctor` say so"
    DOCTOR = "the log at the start and `elicit doctor` show the provider's answer"
    PAGE = "the provider refuses before the person consents"
    AFTER = "fails after consent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Habit:
    """A row of the table, with the habit that a simulated server has.

    `at` has names of the catalogue, or other names from the reports. `declares` has lines of the
    provider's table in elicit.toml. `without` says what happens if these lines are missing. If
    connecting then fails only after consent, `without` has to say why nothing shows it earlier.
    """

    at: tuple[str, ...] = ()
    plays: Habits = field(default=HERE)
    declares: str = ""
    person: str = PERSON
    addresses: str = ADDRESSES
    without: str = ""

    @property
    def declared(self) -> Provider:
        return self._read(self.declares)

    @property
    def undeclared(self) -> Provider:
        return self._read("")

    def _read(self, lines: str) -> Provider:
        more = "" if "person = " in lines else self.person
        text = f"[providers.hub]\n{self.addresses}\n{more}\n{lines}\n"
        return read_declarations(text, source="elicit.toml").providers["hub"]

    def stage(self) -> Stage:
        """Return the step at which connecting fails without this row's lines."""
        provider = self.undeclared
        try:
            walk(provider, self.plays, scopes=("read", "write"))
        except RefusedOnPage:
            return Stage.PAGE
        except (Refused, Failed):
            pass
        else:
            return Stage.NEVER
        findings = [one for one in report_on(provider, self.plays).findings if one.fix is not None]
        if any(one.is_wrong for one in findings):
            return Stage.START
        return Stage.DOCTOR if findings else Stage.AFTER


class _Answering(StrictProvider):
    """A strict provider that answers a refused request with the standard's error."""

    def reply(self, request: httpx.Request) -> httpx.Response:
        place, _, _ = str(request.url).partition("?")
        if place == self.habits.authorize:  # as for prompt=none without a session
            back = f"{RETURN}?error=login_required"
            return httpx.Response(302, headers={"location": back})
        try:
            return super().reply(request)
        except Refused as error:
            return self.shaped(
                {"error": error.code, "error_description": str(error)},
                status=401 if error.code == "invalid_client" else 400,
            )


def report_on(provider: Provider, plays: Habits) -> SetupReport:
    """Return the report of `elicit doctor` about this declaration at this server."""
    server = _Answering(plays)
    server.secret = secret_for(plays.auth)
    secret = secret_for(provider.client_auth)
    client = Client(provider=provider, client_id="our id", client_secret=secret or SECRET)
    registration = RegisteredClient(client=client, redirect_uri=RETURN)
    return led(examined(registration, now=NOON), server)


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A row whose habit other tests simulate. `test` is the name of one of these tests."""

    at: tuple[str, ...] = ()
    declares: str = ""
    result: str
    test: str
