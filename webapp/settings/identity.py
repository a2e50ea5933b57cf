"""The identity settings: where people sign in, and who can use a one-time code instead."""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, cast, get_args
from urllib.parse import urlsplit

from flows.errors import InvalidQuestion
from flows.oauth.access_token import SUBJECT_CLAIM, Team
from flows.oauth.client_assertion import key_fault
from flows.oauth.declaration import SHARED_TENANT, ClientAuth, issuer_of_tenant
from flows.oauth.id_token import ALGORITHMS as KNOWN_ALGORITHMS
from flows.oauth.provider import Client, Provider
from flows.providers import openid
from webapp.identity.approvers import ApprovalRules, Approver
from webapp.identity.identity import IdentityRules
from webapp.identity.operators import OperatorRules
from webapp.settings.parsers import duration, each, matching, one_of, only, switch, words
from webapp.settings.table import Setting, Values, rows_of, setting

PROVIDER = "signin"
ISSUER = Setting(
    name="ELICIT_ISSUER",
    parse=str,
    says="the OpenID Connect issuer where people sign in and that issues callers' access tokens",
)
CLIENT_ID = Setting(
    name="ELICIT_ISSUER_CLIENT_ID",
    parse=str,
    says="the client id of the pages at this issuer",
)
CLIENT_SECRET = Setting(
    name="ELICIT_ISSUER_CLIENT_SECRET",
    parse=str,
    says="the client secret of the pages at this issuer; with "
    "`ELICIT_ISSUER_CLIENT_AUTH=private_key_jwt`, the private key",
)
CLIENT_AUTH = Setting(
    name="ELICIT_ISSUER_CLIENT_AUTH",
    parse=one_of(*get_args(ClientAuth)),
    default="basic",
    says="how the pages prove their client id to the issuer: as `client_auth` of a provider "
    "([client authentication](../how-to/providers.md#client-authentication)). With `none` there is "
    "no secret. If the issuer accepts only one of `basic` and `post`, the server uses that one",
)
DPOP = Setting(
    name="ELICIT_ISSUER_DPOP",
    parse=switch,
    default="0",
    says="`1`: the sign-in proves a key with each request (DPoP, RFC 9449), for issuers that "
    "require it for this client",
)
TENANTS = Setting(
    name="ELICIT_ISSUER_TENANTS",
    parse=words,
    says="the ids of the tenants whose people may sign in, if `ELICIT_ISSUER` is an issuer of "
    "several tenants, whose address has `{tenantid}` as a part of its path. People of all other "
    "tenants are refused",
)
ALGORITHMS = Setting(
    name="ELICIT_ISSUER_ALGORITHMS",
    parse=each(one_of(*KNOWN_ALGORITHMS)),
    otherwise="RS256 to RS512, PS256 to PS512, ES256 to ES512, EdDSA and Ed25519",
    says="the only signatures that tokens of this issuer may have",
)
# These fields have no effect if ELICIT_ISSUER is not set.
_OF_THE_ISSUER = (
    *("claim", "audiences", "scopes", "advertised_scopes", "introspects", "approvers_scopes"),
    *("operators", "operator_issuers"),
)
# If no scope is advertised, clients request none, and many issuers return nothing useful.
_ASKED_FOR = ("openid",)
# Claims that do not identify a person: people can change them (OpenID Connect Core, 5.1, and
# Microsoft's additions), many people share them, or they differ at each sign-in.
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
# Claims that cannot make a person an approver. `groups` and `roles` can: issuers assign them.
OF_PEOPLES_OWN = _NOBODYS - {"groups", "roles"}
# Claims that all people of an organization share: valid only together with another claim.
_EVERYBODYS = frozenset({"iss", "tid"})
_NAME = re.compile(r"[A-Za-z0-9_:/.-]{1,100}")
_OPERATOR_CLAIMS_AT_MOST = 20  # a cookie contains the claims


def claim_of(text: str) -> tuple[str, ...]:
    claim = words(text)
    wrong = [f"{name!r} is not a valid claim name." for name in claim if not _NAME.fullmatch(name)]
    wrong += [
        f"{name!r} can change or belong to several people, so it cannot identify a person. Use a "
        "claim that the issuer assigns permanently: sub, or oid,tid at Microsoft Entra."
        for name in claim
        if name.lower() in _NOBODYS or _EVERYBODYS.issuperset(claim)
    ]
    if wrong:
        raise ValueError(*wrong)
    return claim or SUBJECT_CLAIM


scopes_of = each(
    matching(r"[\x21\x23-\x5b\x5d-\x7e]{1,200}", "is not a valid scope (RFC 6749, section 3.3).")
)


def _scope(text: str) -> str | None:
    found = scopes_of(text)
    if len(found) > 1:
        raise ValueError("set only one scope.")
    return found[0] if found else None


def operators_of(text: str) -> OperatorRules:
    """Return the operators in the text of the setting. Raises ValueError for an invalid word."""
    subjects, claims, problems = set[str](), set[tuple[str, str]](), list[str]()
    for word in words(text):
        name, equals, value = word.partition("=")
        if not equals or name == "sub":
            subjects.add(value if equals else name)
        elif name.lower() in OF_PEOPLES_OWN:
            problems.append(
                f"{word!r}: people can change this claim or share it with others; use a group or a "
                "role that the issuer assigns, such as groups=ops."
            )
        elif not _NAME.fullmatch(name) or not value.strip("="):
            problems.append(
                f"{word!r} is not a claim and its value, such as groups=ops; write a subject that "
                "contains = as sub=SUBJECT."
            )
        else:
            claims.add((name, value))
    if len(claims) > _OPERATOR_CLAIMS_AT_MOST:
        problems.append(f"name at most {_OPERATOR_CLAIMS_AT_MOST} claims; use one group for all.")
    if problems or "" in subjects:
        raise ValueError(*problems or ["sub= needs a subject of ELICIT_ISSUER."])
    return OperatorRules(subjects=frozenset(subjects), claims=frozenset(claims))


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuerSettings:
    """An issuer where people sign in: ELICIT_ISSUER, or a table `[issuers.NAME]`.

    `name` is "" for ELICIT_ISSUER. `client` is this server's registration there; until the settings
    of the registration are read, its id and secret are empty. The other fields mean the same as in
    IdentitySettings, but apply only to this issuer. If `scopes` are None, those of ELICIT_ISSUER
    apply.
    """

    name: str = ""
    client: Client
    claim: tuple[str, ...] = SUBJECT_CLAIM
    audiences: tuple[str, ...] = ()
    scopes: tuple[str, ...] | None = None
    advertised_scopes: tuple[str, ...] = ()
    introspects: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentitySettings:
    """The settings of the sign-in. `client` is our registration at the issuer.

    `further_issuers`, `approvers` and `teams` come from `elicit.toml`. `scopes` are required in an
    access token, and `advertised_scopes` are further scopes that clients should request.
    `server_issuer` is the issuer of access tokens that have no `iss` and that the author's MCP
    server itself verifies.
    """

    client: Client | None = None
    further_issuers: tuple[IssuerSettings, ...] = ()
    approvers: tuple[Approver, ...] = ()
    teams: tuple[Team, ...] = ()
    claim: tuple[str, ...] = setting(
        "ELICIT_SUBJECT_CLAIM",
        parse=claim_of,
        default="sub",
        says="the claims that identify a person. Microsoft Entra needs `oid,tid`, because its "
        "`sub` differs from client to client. Claims that people can change, such as `email`, "
        "are refused",
    )
    server_issuer: str | None = setting(
        "ELICIT_SERVER_ISSUER",
        parse=lambda text: text or None,
        says="the issuer of your server's own access tokens, if they do not contain it (no `iss`)",
    )
    audiences: tuple[str, ...] = setting(
        "ELICIT_AUDIENCE",
        parse=words,
        says="the audiences (`aud`) that this server accepts in access tokens, in addition to "
        "`{ELICIT_URL}/mcp`",
    )
    scopes: tuple[str, ...] = setting(
        "ELICIT_SCOPES", parse=scopes_of, says="the scopes that an access token must have"
    )
    advertised_scopes: tuple[str, ...] = setting(
        "ELICIT_ADVERTISED_SCOPES",
        parse=scopes_of,
        otherwise="`ELICIT_SCOPES`, or `openid` if that is not set",
        says="the scopes that clients should request from the issuer. Microsoft Entra and others "
        "need a scope of their own API here, `api://{id}/{name}`",
    )
    act_scope: str | None = setting(
        "ELICIT_API_SCOPE",
        parse=_scope,
        otherwise="none: a token needs the audience `{ELICIT_URL}/api`",
        says="the scope with which an access token for `/mcp` also lets a program act for its "
        "person (`User-Access-Token`), for issuers that cannot issue a token for another "
        "audience. Set it only if assistants get tokens without this scope",
    )
    own_scope: str | None = setting(
        "ELICIT_INBOX_SCOPE",
        parse=_scope,
        otherwise="none: a token needs the audience `{ELICIT_URL}/api/inbox`",
        says="the scope with which an access token for `/mcp` can also read, end and decide its "
        "person's questions at the HTTP API. An assistant whose token has this scope can "
        "decide in its person's place",
    )
    introspects: bool = setting(
        "ELICIT_INTROSPECT",
        parse=switch,
        default="0",
        says="`1`: the server checks an access token that is not a JWT at the issuer (RFC 7662 "
        "introspection) and caches the answer for a minute. The answer has to name this "
        "server as audience (`aud`)",
    )
    binds_by_code: bool = setting(
        "ELICIT_BIND",
        parse=only("code"),
        says="`code`: people who cannot sign in here can be asked too, with a one-time code",
    )
    asks_anonymous: bool = setting(
        "ELICIT_ANONYMOUS",
        parse=only("code"),
        says="`code`: anonymous callers can be asked too, with a one-time code",
    )
    lets_model_answer: bool = setting(
        "ELICIT_MODEL_ANSWERS",
        parse=switch,
        default="0",
        says="`1`: if a client cannot show a form, its model can fill in plain forms with the tool "
        "`elicitation_result`; such an answer is marked as the model's. The model can never "
        "confirm, approve, pay, connect an account or enter a secret",
    )
    pairs_for_yes: bool = setting(
        "ELICIT_LOCAL_YES",
        parse=only("paired"),
        otherwise="any of your browsers, or a client's form",
        says="`paired`: on your own machine, you can approve a tool call only on the server's "
        "page, in a browser that is paired by `elicit pair` (or by the address that the "
        "server prints), never in a client's form. This stops a program that can only send "
        "requests, but not a program that can run `elicit pair` or read the key file",
    )

    askers_decide: bool = setting(
        "ELICIT_APPROVERS_ASKER",
        parse=only("may"),
        otherwise="nobody approves their own requests",
        says="`may`: approvers can also approve their own requests "
        "([approvals](../how-to/approvals.md)), and an approver can be identified by another "
        "method than the asker, for example a user of your application and a person who signs in "
        "at `ELICIT_ISSUER`",
    )
    decides_after_sign_in: timedelta = setting(
        "ELICIT_APPROVERS_SIGN_IN",
        parse=duration(timedelta(days=7), "7 days"),
        default="1h",
        says="how long after signing in on the server's pages a person can decide as an approver: "
        "seconds, or a duration such as `12h` or `30m`. After that, they sign in again, and the "
        "server reads their groups from the issuer again",
    )
    approvers_scopes: tuple[str, ...] = setting(
        "ELICIT_APPROVERS_SCOPES",
        parse=scopes_of,
        says="the scopes that the server's pages request at sign-in, in addition to `openid` and "
        "`profile`, if the issuer needs them to return groups, such as `groups`",
    )

    operators: OperatorRules = setting(
        "ELICIT_OPERATORS",
        parse=operators_of,
        otherwise="nobody; on your own machine, `elicit operator` prints a one-time link",
        says="who may open [the operator's pages](../how-to/operating.md#the-operators-pages) at "
        "`{ELICIT_URL}/operator`: subjects of `ELICIT_ISSUER`, or a claim that it assigns, such as "
        "`groups=ops`, separated by commas or spaces. Claims that people can change are refused. A "
        "sign-in proves this for as long as `ELICIT_APPROVERS_SIGN_IN` says",
    )

    operator_issuers: tuple[str, ...] = setting(
        "ELICIT_OPERATORS_ISSUER",
        parse=words,
        otherwise="`ELICIT_ISSUER`",
        says="the issuers whose subjects and claims `ELICIT_OPERATORS` names, if people sign in at "
        "several issuers or tenants: exactly as `iss` in their tokens",
    )

    @property
    def issuers(self) -> tuple[IssuerSettings, ...]:
        """The issuers where people sign in. ELICIT_ISSUER is the first."""
        if self.client is None:
            return ()
        first = IssuerSettings(
            client=self.client,
            claim=self.claim,
            audiences=self.audiences,
            scopes=self.scopes,
            advertised_scopes=self.advertised_scopes,
            introspects=self.introspects,
        )
        return (first, *self.further_issuers)

    @property
    def claims_by_issuer(self) -> Mapping[str, tuple[str, ...]]:
        """The claims that identify a person, for each `iss` value of the issuers' tokens."""
        return {name: one.claim for one in self.issuers for name in one.client.provider.issuers}

    @property
    def first_names(self) -> frozenset[str]:
        """The `iss` value of subjects and claims for which the settings name no issuer.

        It is empty if ELICIT_ISSUER has several tenants: the tenant would be ambiguous.
        """
        names = frozenset[str]() if self.client is None else frozenset(self.client.provider.issuers)
        return names if len(names) == 1 else frozenset()

    @property
    def sign_in_claims(self) -> frozenset[tuple[str, str]]:
        """The claims to check when a person signs in."""
        return self.token_claims | self.operators.claims

    @property
    def token_claims(self) -> frozenset[tuple[str, str]]:
        """The (claim, value) pairs to look for in access tokens."""
        return self.approval.claims.union(*(one.pairs for one in self.teams))

    @property
    def approval(self) -> ApprovalRules:
        return ApprovalRules(
            approvers=self.approvers,
            lets_askers_decide=self.askers_decide,
            sign_in_counts_for=self.decides_after_sign_in,
        )

    @property
    def issuer(self) -> str | None:
        return None if self.client is None else self.client.provider.issuer

    @property
    def operator_rules(self) -> OperatorRules:
        return replace(self.operators, issuers=frozenset(self.operator_issuers) or self.first_names)

    @property
    def rules(self) -> IdentityRules:
        return IdentityRules(
            issuers=self.claims_by_issuer,
            binds_by_code=self.binds_by_code,
            asks_anonymous=self.asks_anonymous,
            lets_model_answer=self.lets_model_answer,
            pairs_for_yes=self.pairs_for_yes,
            teams=self.teams,
            sign_in_counts_for=self.decides_after_sign_in,
        )

    @property
    def can_ask_people(self) -> bool:
        """True if the server can ask anybody other than this machine's own user."""
        return self.client is not None or self.binds_by_code or self.asks_anonymous


def read_identity(values: Values) -> IdentitySettings:
    found = IdentitySettings(client=_client(values), **values.fields_of(IdentitySettings))
    if found.introspects and values.text(TENANTS):
        values.problems.append(
            "ELICIT_INTROSPECT: unset it, because a token that is not a JWT names no tenant."
        )
    if found.pairs_for_yes and values.text(ISSUER):
        values.problems.append(
            "ELICIT_LOCAL_YES: unset it, because people sign in at ELICIT_ISSUER."
        )
    if found.scopes or found.advertised_scopes:
        return found
    return replace(found, advertised_scopes=_ASKED_FOR)


def with_approvers(
    found: IdentitySettings, approvers: tuple[Approver, ...], problems: list[str]
) -> IdentitySettings:
    """Return the settings with the approvers of a file. Append missing settings to `problems`."""
    if found.client is not None:
        problems += [
            f"approvers.{one.name}.{fault}"
            for one in approvers
            if one.subjects or one.claims
            for fault in issuer_faults(found, one.issuers)
        ]
        if found.operators.names_somebody:
            problems += [
                f"ELICIT_OPERATORS_ISSUER, as {fault}"
                for fault in issuer_faults(found, found.operator_issuers)
            ]
    problems += [
        f"ELICIT_ISSUER: required, because approvers.{one.name} names subjects or claims of people "
        "who sign in there."
        for one in approvers
        if found.client is None and (one.subjects or one.claims)
    ]
    return replace(found, approvers=approvers)


def issuer_faults(found: IdentitySettings, issuers: Collection[str]) -> Iterator[str]:
    """Yield a fault if `issuers` is empty but required, or names an issuer that is not set up."""
    known = found.claims_by_issuer
    if not issuers and not found.first_names:
        yield (
            "issuers: required, because people of several tenants sign in at ELICIT_ISSUER: name "
            f"{' or '.join(known)}."
        )
    for one in issuers:
        if one not in known:
            yield f"issuers: nobody signs in at {one!r}; the issuers are {', '.join(known)}."


def provider_of(
    issuer: str,
    *,
    name: str = PROVIDER,
    label: str | None = None,
    client_auth: str,
    dpop: bool,
    tenants: tuple[str, ...],
    algorithms: tuple[str, ...],
) -> Provider:
    """Return the declaration of an issuer where people sign in.

    Raises:
        InvalidQuestion: The issuer is not a valid address, or a tenant is missing or not valid.
        ValueError: The issuer is not a URL.
    """
    shared = issuer_of_tenant(issuer, SHARED_TENANT) if tenants else issuer
    return replace(
        # Every issuer supports `prompt=login`, but some do not support a choice of accounts.
        openid(name, shared, label=label or urlsplit(issuer).netloc, switch="login"),
        issuer=issuer,
        issuer_tenants=tenants,
        algorithms=algorithms,
        client_auth=cast("ClientAuth", client_auth),
        dpop=dpop,
    )


def _client(values: Values) -> Client | None:
    issuer, id, secret = (values.text(row) for row in (ISSUER, CLIENT_ID, CLIENT_SECRET))
    client_auth, has_dpop = values.read(CLIENT_AUTH), values.read(DPOP)
    if not issuer:
        rows = rows_of(IdentitySettings)
        values.problems += [
            f"{row.name}: set, but ELICIT_ISSUER is not."
            for row in (*_OWN_ROWS, *(rows[name] for name in _OF_THE_ISSUER))
            if values.text(row)
        ]
        return None
    values.problems += [
        f"{row.name}: required, because people sign in at ELICIT_ISSUER."
        for row in (CLIENT_ID, *(() if client_auth == "none" else (CLIENT_SECRET,)))
        if not values.text(row)
    ]
    if client_auth == "none" and secret:
        values.problems.append(f"{CLIENT_SECRET.name}: remove it: a public client has no secret.")
    elif secret and (fault := key_fault(secret, client_auth=client_auth)) is not None:
        values.problems.append(f"{CLIENT_SECRET.name}: {fault}")
    try:
        provider = provider_of(
            issuer,
            client_auth=client_auth,
            dpop=has_dpop,
            tenants=values.read(TENANTS),
            algorithms=values.read(ALGORITHMS),
        )
    except (InvalidQuestion, ValueError) as error:
        values.problems += [f"ELICIT_ISSUER: {line}" for line in str(error).splitlines()]
        return None
    if not id or not (secret or client_auth == "none"):
        return None
    return Client(provider=provider, client_id=id, client_secret=secret)


_OWN_ROWS: tuple[Setting[Any], ...] = (
    *(CLIENT_ID, CLIENT_SECRET, CLIENT_AUTH, DPOP),
    *(TENANTS, ALGORITHMS),
)
IDENTITY = (ISSUER, *_OWN_ROWS, *rows_of(IdentitySettings).values())
