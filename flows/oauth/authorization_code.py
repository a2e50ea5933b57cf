"""The OAuth authorization code flow, used by questions of the kind `oauth`.

Risks (RFC 9700), and what prevents them:

- A code is intercepted: PKCE, always with S256.
- Another issuer answers: the parameter `iss`, and a separate redirect address for each provider.
- Two responses are mixed: a callback with repeated parameters is rejected.
- A code is redeemed twice: there is one exchange, which is never retried.

The callers of this module first check that the server created the `state`, and that the callback
comes from the browser that started the attempt.
"""

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, cast

import httpx
import msgspec

from flows.elicitation.flow import CallbackParams, Redirect, RedirectContext, Talk
from flows.elicitation.states import Elicitation, Json
from flows.errors import Denied, ElicitError, Failed, InvalidQuestion, NotConfigured
from flows.oauth.discovery import discover
from flows.oauth.dpop import new_key
from flows.oauth.id_token import fetched_keys, named_person, verified_claims, whose_account
from flows.oauth.provider import Client, Provider
from flows.oauth.pushed_request import address_to_leave_to
from flows.oauth.requests import (
    ApiAccess,
    ask_token,
    authorize_parameters,
    authorize_url,
)
from flows.oauth.responses import (
    Person,
    TokenReply,
    TokenSet,
    details_in,
    no_person,
)
from flows.oauth.token_errors import refusal_in_callback, refused, tokens_in
from flows.origin import origin_of

VERIFIER_BYTES = 64
NONCE_BYTES = 24
CODE_AT_MOST = 4096
_ONCE = ("code", "state", "iss", "error")
PARAMETERS = (*_ONCE, "error_description")  # the parameters of a callback that the server reads


class Mixed(ElicitError):
    """The error for a callback that must be ignored; `reason` is for logs, never for the sender."""

    name = "ELICITATION_MIXED_ANSWER"
    http_status = 400

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__("The response did not come from the provider, so the server ignored it.")


class AccountTerms(msgspec.Struct, frozen=True, kw_only=True):
    """The account and scopes that a question asks for: the elicitation's `asked.terms`.

    - `again`: ask for missing scopes again, even if the person did not grant them before.
    - `also`: the scopes of the account that is already connected. They are requested too, so that
      the new grant does not lose them.
    - `declared`: the provider's declaration, if only the tool's code declares the provider.
    - `tenant`: the host of the wanted tenant, if the tool names one.
    - `person_id`: the provider's id of the wanted account, if known. Unlike a label, the id cannot
      change or pass to another person.
    - `team`: the name of the team that owns the account, or None if a single person owns it.
    - `asker`: the verified name of the person who asks.
    """

    provider: str
    client_id: str
    scopes: tuple[str, ...]
    also: tuple[str, ...] = ()
    account: str | None = None
    tenant: str | None = None
    person_id: str | None = None
    reason: str | None = None
    again: bool = False
    declared: Json = None
    team: str | None = None
    asker: str | None = None

    def asked(self, *, switches: bool = False) -> tuple[str, ...]:
        """Return the scopes to request, without `also` if the person may choose another account."""
        return self.scopes if switches else tuple(dict.fromkeys((*self.scopes, *self.also)))

    @property
    def names_one(self) -> bool:
        """True if the tool asks for a specific account, or for an account of a specific tenant."""
        return self.account is not None or self.tenant is not None

    def wants(self, person: Person) -> bool:
        """Return True if this is the wanted account, or if the question names no account."""
        if self.person_id is not None:
            return self.person_id in (person.id, person.own_id)
        return self.account is None or person.is_called(self.account)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """The tokens of a grant, with its person. The scopes may be fewer than requested, or more.

    `asked` are the requested scopes. `names_scopes` is True if the token endpoint's reply lists
    scopes.
    """

    tokens: TokenSet
    scopes: tuple[str, ...]
    person: Person
    issuer: str
    details: Mapping[str, str] = field(default_factory=dict[str, str])
    tenant: str | None = None
    dpop_key: str | None = field(default=None, repr=False)
    asked: tuple[str, ...] = ()
    names_scopes: bool = False


class StoredAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """The state of an attempt, stored until the browser returns.

    It contains the endpoints that discovery found, so that the code is redeemed at them.
    """

    verifier: str
    redirect_uri: str
    scopes: tuple[str, ...] = ()  # as requested
    nonce: str | None = None
    issuer: str | None = None
    sends_issuer: bool = False
    token_endpoint: str | None = msgspec.field(default=None, name="token")
    jwks: str | None = None
    userinfo: str | None = None
    client_auth: str = "basic"
    client_auths: tuple[str, ...] = ()  # the methods that the metadata names
    tenant: str | None = None
    dpop_key: str | None = None

    def __repr__(self) -> str:
        return f"StoredAttempt(issuer={self.issuer!r}, token={self.token_endpoint!r})"


class OauthFlow:
    """The `oauth` implementation of flows.elicitation.flow.Flow, with the callback's handling."""

    def __init__(self, clients: Mapping[str, Client]) -> None:
        self._clients = clients

    def prepare(self, elicitation: Elicitation, context: RedirectContext) -> Json:
        terms, client = self._client(elicitation, tenant=context.tenant)
        provider = client.provider
        scopes = provider.scopes_to_request(terms.asked(switches=_switches(context, terms)))
        has_nonce = "openid" in scopes and provider.discovers and provider.nonce
        stored = StoredAttempt(
            verifier=secrets.token_urlsafe(VERIFIER_BYTES) if provider.pkce else "",
            scopes=scopes,
            nonce=secrets.token_urlsafe(NONCE_BYTES) if has_nonce else None,
            redirect_uri=context.return_url,
            issuer=provider.issuer,
            sends_issuer=provider.sends_issuer,
            token_endpoint=provider.token,
            client_auth=provider.client_auth,
            tenant=provider.tenant,
            dpop_key=new_key() if provider.dpop else None,
        )
        return cast("Json", msgspec.to_builtins(stored))

    def begin(self, elicitation: Elicitation, context: RedirectContext) -> Talk[Redirect]:
        """Return the redirect to the provider.

        Raises:
            Failed: The provider refused the request, or its metadata cannot be fetched or trusted.
        """
        stored = _stored_attempt(elicitation)
        terms, client = self._client(elicitation, tenant=stored.tenant)
        provider = client.provider
        parameters = authorize_parameters(
            client,
            redirect_uri=stored.redirect_uri,
            scopes=stored.scopes,
            state=context.state,
            verifier=stored.verifier or None,
            nonce=stored.nonce,
            account=terms.account,
            switches=_switches(context, terms),
            key=stored.dpop_key,
        )
        if provider.discovers:
            found = yield from discover(provider)
            if stored.nonce is not None and found.jwks is None:
                raise Failed(f"{provider.label} does not publish its signing keys.")
            if stored.nonce is None and provider.person is None and found.userinfo is None:
                raise Failed(
                    f"{provider.label} publishes no userinfo endpoint, so the server cannot find "
                    "out whose account it is."
                )
            stored = msgspec.structs.replace(
                stored,
                sends_issuer=stored.sends_issuer or found.sends_issuer,
                token_endpoint=found.token,
                jwks=found.jwks,
                userinfo=found.userinfo,
                client_auth=found.client_auth(stored.client_auth),
                client_auths=found.client_auths,
            )
            url = yield from address_to_leave_to(
                client,
                found,
                parameters,
                client_auth=stored.client_auth,
                now=context.now,
                key=stored.dpop_key,
            )
        else:
            url = authorize_url(provider.authorize, parameters)
        return Redirect(url=url, attempt_data=cast("Json", msgspec.to_builtins(stored)))

    def read_callback(
        self, elicitation: Elicitation, arrival: CallbackParams
    ) -> tuple[str, Mapping[str, str]]:
        """Return the code from the callback, and the parameters that the declaration reads.

        Raises:
            Mixed: The callback must be ignored, for example because a parameter is repeated.
            Denied: The person declined.
            Failed: The provider refused for another reason.
        """
        stored = _stored_attempt(elicitation)
        _, client = self._client(elicitation, tenant=stored.tenant)
        code = code_in(
            arrival,
            client.provider,
            issuer=stored.issuer,
            sends_issuer=stored.sends_issuer,
            denied=f"The person declined at {client.provider.label}.",
            elicitation_id=elicitation.id,
        )
        named = callback_names(client.provider)
        if any(len(arrival.all(name)) > 1 for name in named):
            raise Mixed("a parameter is repeated")
        return code, {name: value for name in named for value in arrival.all(name)}

    def finish(
        self,
        elicitation: Elicitation,
        *,
        code: str,
        now: datetime,
        callback: Mapping[str, str] | None = None,
        on_tokens: Callable[[TokenSet], None] = lambda _: None,
    ) -> Talk[Grant]:
        """Redeem the code, once, and return the grant with the account's person.

        `callback` are the parameters that `read_callback` returns. `on_tokens` receives the tokens
        before the request that identifies the account. If that request fails, the caller can revoke
        the tokens.

        Raises:
            Failed: The provider refused, did not identify the account, or named an API at a host
                that is not declared.
        """
        stored = _stored_attempt(elicitation)
        _, client = self._client(elicitation, tenant=stored.tenant)
        provider = client.provider
        assert stored.token_endpoint is not None
        reply = yield from exchange(
            client,
            endpoint=stored.token_endpoint,
            code=code,
            redirect_uri=stored.redirect_uri,
            verifier=stored.verifier,
            client_auth=stored.client_auth,
            now=now,
            key=stored.dpop_key,
        )
        is_bound, methods = stored.dpop_key is not None, stored.client_auths
        granted = tokens_in(reply, provider, now=now, is_bound=is_bound, methods=methods)
        on_tokens(granted.tokens)
        others = {"reply": granted.members, "callback": callback or {}, "tenant": stored.tenant}
        person, details = yield from _person(client, stored, granted, others, now=now)
        must_reach(provider, details)
        issuer = stored.issuer or origin_of(provider.authorize or provider.api)
        return Grant(
            tokens=granted.tokens,
            scopes=provider.granted(stored.scopes, named=granted.scopes),
            person=person,
            issuer=issuer,
            details=details,
            tenant=stored.tenant,
            dpop_key=stored.dpop_key,
            asked=stored.scopes,
            names_scopes=bool(granted.scopes),
        )

    def _client(
        self, elicitation: Elicitation, *, tenant: str | None
    ) -> tuple[AccountTerms, Client]:
        terms = msgspec.convert(elicitation.request.terms, AccountTerms)
        client = self._clients.get(terms.provider)
        if client is None:
            name = terms.provider.upper()
            raise NotConfigured(f"ELICIT_{name}_CLIENT_ID", f"ELICIT_{name}_CLIENT_SECRET")
        if client.client_id != terms.client_id:
            raise Failed(
                f"This server's registration at {client.provider.label} has changed since "
                "this question was asked.",
                elicitation_id=elicitation.id,
            )
        return terms, client.for_tenant(terms.tenant or tenant)


def callback_names(provider: Provider) -> list[str]:
    """Return the parameters of a callback that the declaration reads."""
    person = () if provider.person is None else provider.person.members()
    paths = (path.partition(".") for path in (*provider.keep.values(), *person))
    return sorted({rest for source, _, rest in paths if source == "callback"})


def must_reach(provider: Provider, details: Mapping[str, str]) -> None:
    """Check that the account's details lead to a declared API. Raises Failed."""
    try:
        provider.api_and_hosts(details)
    except InvalidQuestion as error:
        raise Failed(f"{provider.label} did not name a usable API: {error}") from None


def code_in(
    arrival: CallbackParams,
    provider: Provider,
    *,
    issuer: str | None,
    sends_issuer: bool,
    denied: str,
    elicitation_id: str | None = None,
) -> str:
    """Return the code from a callback of this issuer (RFC 9207).

    If `issuer` is None, `iss` is not compared. Only the redirect address, which is different for
    each provider, then shows which provider answered.

    Raises:
        Mixed: The callback must be ignored.
        Denied: The person declined.
        Failed: The provider refused for another reason.
    """
    fields = single(arrival)
    if fields["iss"] is None and sends_issuer:
        raise Mixed("the issuer is missing")
    if fields["iss"] is not None and issuer is not None and fields["iss"] != issuer:
        raise Mixed("another issuer answers")
    code, error = fields["code"], fields["error"]
    if code is not None and error is not None:
        raise Mixed("both a code and an error")
    if error is not None:
        description = next(iter(arrival.all("error_description")), None)
        refusal = refusal_in_callback(error, description, provider)
        if error in ("access_denied", *provider.declines) and refusal.sentence is None:
            raise Denied(denied, elicitation_id=elicitation_id)
        raise refused(refusal, provider, otherwise=f"{provider.label} refused")
    if not code:
        raise Mixed("neither a code nor an error")
    if len(code) > CODE_AT_MOST or not code.isascii() or not code.isprintable():
        raise Mixed("the code is not valid")
    return code


def single(arrival: CallbackParams) -> Mapping[str, str | None]:
    """Return the parameters that must not be repeated. Raises Mixed if one of them is repeated."""
    found = {name: arrival.all(name) for name in _ONCE}
    for name, values in found.items():
        if len(values) > 1:
            raise Mixed(f"{name} is repeated")
    return {name: next(iter(values), None) for name, values in found.items()}


def exchange(
    client: Client,
    *,
    endpoint: str,
    code: str,
    redirect_uri: str,
    verifier: str,
    client_auth: str,
    now: datetime,
    key: str | None = None,
) -> Talk[httpx.Response]:
    """Redeem a code and return the reply (RFC 6749, 4.1.3; RFC 7636, 4.5). Raises Failed.

    `verifier` is empty if the provider does not support PKCE. `key` is the DPoP key to which the
    provider binds the tokens, or None without DPoP.
    """
    values = {"grant_type": "authorization_code", "code": code, "redirect_uri": redirect_uri}
    if verifier:
        values["code_verifier"] = verifier
    values |= {**client.provider.resource_parameter, **dict(client.provider.token_extra)}
    return ask_token(client, endpoint, values, client_auth=client_auth, now=now, key=key)


def proven_claims(
    granted: TokenReply, client: Client, *, jwks: str, issuer: str, nonce: str, now: datetime
) -> Talk[Mapping[str, Any]]:
    """Return the id_token's claims, verified with the issuer's published keys. Raises Failed."""
    provider = client.provider
    keys = yield from fetched_keys(jwks, provider)
    return verified_claims(
        granted.id_token,
        provider=provider,
        client_id=client.client_id,
        issuer=issuer,
        nonce=nonce,
        keys=provider.keys_from(keys, issuer=issuer),
        now=now,
    )


def _switches(context: RedirectContext, terms: AccountTerms) -> bool:
    return context.switches and terms.account is None


def _person(
    client: Client,
    stored: StoredAttempt,
    granted: TokenReply,
    others: Mapping[str, Any],
    *,
    now: datetime,
) -> Talk[tuple[Person, Mapping[str, str]]]:
    provider, claims = client.provider, None
    access = ApiAccess(token=granted.tokens.access_token, key=stored.dpop_key, now=now)
    if stored.nonce is not None:
        assert stored.issuer is not None
        assert stored.jwks is not None
        claims = yield from proven_claims(
            granted, client, jwks=stored.jwks, issuer=stored.issuer, nonce=stored.nonce, now=now
        )
        if provider.person is None:
            person = yield from named_person(
                claims,
                client,
                userinfo=stored.userinfo,
                access=access,
                issuer=stored.issuer,
                jwks=stored.jwks,
            )
            if person is None:
                raise no_person(provider)
            return person, details_in({**others, "id_token": claims}, provider)
    return (
        yield from whose_account(
            client,
            access=access,
            others={**others, "id_token": claims or {}},
            userinfo=None if provider.nonce else stored.userinfo,
            issuer=stored.issuer,
            jwks=stored.jwks,
        )
    )


def _stored_attempt(elicitation: Elicitation) -> StoredAttempt:
    assert elicitation.attempt is not None
    return msgspec.convert(elicitation.attempt.kept, StoredAttempt)
