"""Who is who, as the operator sets it: where people sign in, and where a code may do instead."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from flows.errors import InvalidQuestion
from flows.oauth.access_token import SUBJECT_CLAIM
from flows.oauth.provider import Client
from flows.providers import openid
from webapp.identity.identity import IdentityRules
from webapp.settings.environment import switch, words

NAMES = ("ELICIT_ISSUER_CLIENT_ID", "ELICIT_ISSUER_CLIENT_SECRET")
PROVIDER = "signin"
_OF_THE_ISSUER = (
    *("ELICIT_AUDIENCE", "ELICIT_SCOPES", "ELICIT_ADVERTISED_SCOPES", "ELICIT_SUBJECT_CLAIM"),
    "ELICIT_INTROSPECT",
)
# A client that is told of no scope asks for none, and many issuers then give nothing.
_ASKED_FOR = ("openid",)
# What people say of themselves (OpenID Connect Core, 5.1, and what Microsoft adds), so that one can
# become another by it; what many have in common; and what is another one at each sign-in.
_NOBODYS = frozenset(
    {
        *("name", "given_name", "family_name", "middle_name", "nickname", "preferred_username"),
        *("profile", "picture", "website", "email", "email_verified", "gender", "birthdate"),
        *("zoneinfo", "locale", "phone_number", "phone_number_verified", "address", "updated_at"),
        *("upn", "unique_name", "mail", "emails", "verified_primary_email"),
        *("aud", "azp", "client_id", "cid", "appid", "hd", "groups", "roles", "scope", "scp"),
        *("acr", "amr", "nonce", "iat", "exp", "nbf", "auth_time", "jti", "sid"),
    }
)
# Of all people of a place, so that they need another claim beside them.
_EVERYBODYS = frozenset({"iss", "tid"})
_CLAIM = re.compile(r"[A-Za-z0-9_:/.-]{1,100}")
_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,200}")


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentitySettings:
    """`client` is our registration at the issuer where people sign in.

    `scopes` are what an access token must have, `advertised_scopes` what clients ask for besides.
    `server_issuer` is whose the served server's own access tokens are, where they do not say.
    """

    client: Client | None = None
    claim: tuple[str, ...] = SUBJECT_CLAIM
    audiences: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()
    advertised_scopes: tuple[str, ...] = ()
    binds_by_code: bool = False
    asks_anonymous: bool = False
    lets_model_answer: bool = False
    introspects: bool = False  # access tokens that only their issuer can read
    pairs_for_yes: bool = False
    server_issuer: str | None = None

    @property
    def issuer(self) -> str | None:
        return None if self.client is None else self.client.provider.issuer

    @property
    def rules(self) -> IdentityRules:
        return IdentityRules(
            issuer=self.issuer,
            claim=self.claim,
            binds_by_code=self.binds_by_code,
            asks_anonymous=self.asks_anonymous,
            lets_model_answer=self.lets_model_answer,
            pairs_for_yes=self.pairs_for_yes,
        )

    @property
    def knows_people(self) -> bool:
        """Whether anybody beyond this machine's own user can be asked at all."""
        return self.client is not None or self.binds_by_code or self.asks_anonymous


def read_identity(environment: Mapping[str, str], problems: list[str]) -> IdentitySettings:
    """From variables; each problem names its variable."""
    claim = tuple(words(environment, "ELICIT_SUBJECT_CLAIM"))
    scopes = tuple(words(environment, "ELICIT_SCOPES"))
    advertised = tuple(words(environment, "ELICIT_ADVERTISED_SCOPES"))
    problems += [
        f"ELICIT_SUBJECT_CLAIM: {name!r} can be no claim's name."
        for name in claim
        if not _CLAIM.fullmatch(name)
    ]
    problems += [
        f"ELICIT_SUBJECT_CLAIM: {name!r} can change, or is somebody else's too, who would then be "
        "that person here; use what the issuer itself gives each person for good: sub, or oid,tid "
        "at Microsoft Entra."
        for name in claim
        if name.lower() in _NOBODYS or _EVERYBODYS.issuperset(claim)
    ]
    problems += [
        f"{variable}: {name!r} can be no scope (RFC 6749, 3.3)."
        for variable, names in (("ELICIT_SCOPES", scopes), ("ELICIT_ADVERTISED_SCOPES", advertised))
        for name in names
        if not _SCOPE.fullmatch(name)
    ]
    return IdentitySettings(
        client=_client(environment, problems),
        claim=claim or SUBJECT_CLAIM,
        audiences=tuple(words(environment, "ELICIT_AUDIENCE")),
        scopes=scopes,
        advertised_scopes=advertised or (() if scopes else _ASKED_FOR),
        binds_by_code=_is_code(environment, "ELICIT_BIND", problems),
        asks_anonymous=_is_code(environment, "ELICIT_ANONYMOUS", problems),
        lets_model_answer=switch(environment, "ELICIT_MODEL_ANSWERS", problems, default=False),
        introspects=switch(environment, "ELICIT_INTROSPECT", problems, default=False),
        pairs_for_yes=_pairs_for_yes(environment, problems),
        server_issuer=environment.get("ELICIT_SERVER_ISSUER", "").strip() or None,
    )


def _client(environment: Mapping[str, str], problems: list[str]) -> Client | None:
    issuer = environment.get("ELICIT_ISSUER", "").strip()
    given = {name: environment.get(name, "").strip() for name in NAMES}
    if not issuer:
        problems += [
            f"{name}: set, but ELICIT_ISSUER is not."
            for name in (*NAMES, *_OF_THE_ISSUER)
            if environment.get(name, "").strip()
        ]
        return None
    missing = [name for name, value in given.items() if not value]
    problems += [f"{name}: needed, as people sign in at ELICIT_ISSUER." for name in missing]
    try:
        # Everybody knows `login`; not all let people choose among accounts.
        provider = openid(PROVIDER, issuer, label=urlsplit(issuer).netloc, switch="login")
    except (InvalidQuestion, ValueError) as error:
        problems += [f"ELICIT_ISSUER: {line}" for line in str(error).splitlines()]
        return None
    if missing:
        return None
    return Client(provider=provider, client_id=given[NAMES[0]], client_secret=given[NAMES[1]])


def _pairs_for_yes(environment: Mapping[str, str], problems: list[str]) -> bool:
    value = environment.get("ELICIT_LOCAL_YES", "").strip()
    if value not in ("", "paired"):
        problems.append("ELICIT_LOCAL_YES: it is `paired`, or left out.")
    elif value and environment.get("ELICIT_ISSUER", "").strip():
        problems.append("ELICIT_LOCAL_YES: leave it out, as people sign in at ELICIT_ISSUER.")
    return value == "paired"


def _is_code(environment: Mapping[str, str], name: str, problems: list[str]) -> bool:
    value = environment.get(name, "").strip()
    if value not in ("", "code"):
        problems.append(f"{name}: it is `code`, or left out.")
    return value == "code"
