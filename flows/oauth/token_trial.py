"""A trial of this server's registration at a token endpoint or an API, with made-up credentials.

The server sends a made-up authorization code, user token or API key. If the client id and secret
are correct, the provider rejects only the made-up credential. For a service account, the server
requests a real token and discards it, because only a real token shows whether the declared scopes
and audience are correct.

Risks: the trial reports success although the reply proves nothing. So a reply that this module does
not recognize becomes a note that the secret was not tested. An endpoint that accepts a made-up
credential is reported as a fault.
"""

import secrets
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from http import HTTPStatus
from typing import Final
from urllib.parse import quote

import httpx
import msgspec

from flows.elicitation.flow import SetupFinding, SetupReport, Talk
from flows.errors import Failed
from flows.oauth.access_token import SUBJECT_CLAIM
from flows.oauth.api_key import PASSING
from flows.oauth.authorization_code import VERIFIER_BYTES
from flows.oauth.discovery import Metadata, shown
from flows.oauth.dpop import new_key
from flows.oauth.provider import Client, Provider
from flows.oauth.registered_client import (
    RegisteredClient,
    as_public,
    described,
    note,
    redirect_fix,
    refusal_fix,
    target_fix,
    wrong,
)
from flows.oauth.requests import ApiAccess, Unreachable, ask_token, asked_who
from flows.oauth.responses import read_person, read_token_reply
from flows.oauth.token_errors import (
    OF_TARGET,
    UNAUTHORIZED_CLIENT,
    Refusal,
    no_token_in,
    refusal_in,
)
from flows.oauth.token_exchange import SubjectToken, at_issuer, at_provider

# Errors that providers send for a made-up code once they have accepted the client.
_OF_THE_CODE: Final = frozenset(
    {"invalid_grant", "bad_verification_code", "invalid_code", "invalid_authorization_code"}
)
# Errors for a made-up subject token or assertion (RFC 8693, 2.2.2; RFC 7523, 3.1; Keycloak).
_OF_THE_SUBJECT: Final = frozenset({"invalid_grant", "invalid_request", "invalid_token"})
_NOT_ALLOWED: Final = frozenset({UNAUTHORIZED_CLIENT, "access_denied"})
MADE_UP: Final = "made-up-by-elicit-doctor"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A token request, and the settings that are wrong if the endpoint refuses one of its parts.

    Attributes:
        grant: The grant type as findings name it, such as `client_credentials`.
        scopes: The scopes that the request asks for.
        is_of_person: The request contains a made-up user token (token exchange).
    """

    registration: RegisteredClient
    grant: str
    values: Mapping[str, str] = field(repr=False)
    scopes: tuple[str, ...] = ()
    scope_setting: str = ""
    target_setting: str = ""
    is_of_person: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """The result of a trial. `reported_at` is the Date header of the reply."""

    findings: tuple[SetupFinding, ...]
    reported_at: str | None = None
    is_refused: bool = False  # the client id or the secret was refused


def made_up_code(registration: RegisteredClient) -> Trial:
    provider = registration.client.provider
    values = {
        "grant_type": "authorization_code",
        "code": f"{MADE_UP}-{secrets.token_urlsafe(24)}",
        "redirect_uri": registration.redirect_uri,
    }
    if provider.pkce:
        values["code_verifier"] = secrets.token_urlsafe(VERIFIER_BYTES)
    return Trial(
        registration=registration,
        grant="authorization_code",
        values={**values, **provider.resource_parameter, **dict(provider.token_extra)},
    )


def own_token(registration: RegisteredClient) -> Trial:
    """Return the request for a token of this server's own account, with the declared scopes."""
    provider = registration.client.provider
    scopes = provider.scopes_to_request(())
    values = {"grant_type": "client_credentials", **provider.scope_parameters(scopes)}
    target = "resource" if provider.resource is not None else "token_extra"
    return Trial(
        registration=registration,
        grant="client_credentials",
        values={**values, **provider.resource_parameter, **dict(provider.token_extra)},
        scopes=scopes,
        scope_setting=registration.setting("always"),
        target_setting=registration.setting(target),
    )


def exchange_of(registration: RegisteredClient) -> tuple[Trial, ...]:
    """Return the token requests that exchange a made-up user token.

    The last request goes to the provider. With ID-JAG, a first request asks the issuer for an
    assertion, if this server has a registration there.
    """
    provider = registration.client.provider
    how = provider.exchange
    assert how is not None
    subject = _made_up_subject(how.issuer)
    scopes = provider.scopes_to_request(())
    more = provider.scope_parameters(scopes)
    target = "resource" if how.audience is None and how.resource is not None else "audience"
    last = Trial(
        registration=registration,
        grant="token-exchange" if how.kind == "token_exchange" else "jwt-bearer",
        values=at_provider(how, subject, more, assertion=subject.text),
        scopes=scopes,
        scope_setting=registration.setting("always"),
        target_setting=registration.setting(f"exchange.{target}"),
        is_of_person=True,
    )
    if how.kind != "id_jag" or registration.issuer is None:
        return (last,)
    audience = how.audience or provider.issuer or ""
    values = at_issuer(how, subject, more, audience=audience)
    first = replace(last, registration=registration.issuer, grant="token-exchange", values=values)
    return first, last


def _made_up_subject(issuer: str) -> SubjectToken:
    """Return a user token in the format of a JWT, with random bytes as its signature."""
    header = {"alg": "RS256", "typ": "at+jwt", "kid": MADE_UP}
    parts = [msgspec.json.encode(one) for one in (header, {"iss": issuer, "sub": MADE_UP})]
    parts.append(secrets.token_bytes(256))
    text = ".".join(urlsafe_b64encode(one).rstrip(b"=").decode() for one in parts)
    return SubjectToken(text=text, issuer=issuer, subject=MADE_UP, claim=SUBJECT_CLAIM)


def _other_ways(client: Client, method: str, *, named: Sequence[str]) -> Iterator[str]:
    """Yield the other client authentication methods that work with the same settings.

    `named` are the methods that the metadata lists. Skip methods that send the secret and are not
    in that list. Yield `none` even if it is not in the list, because many issuers accept `none`
    without listing it.
    """
    if method == "post" and (not named or "client_secret_basic" in named):
        yield "basic"
    if method == "basic" and (not named or "client_secret_post" in named):
        yield "post"
    if method in ("basic", "post") and client.provider.pkce:
        yield "none"
    if method != "basic":
        return
    if not named or "client_secret_basic" in named:
        if any(quote(text, safe="") != text for text in (client.client_id, client.client_secret)):
            yield "basic_raw"
        yield "both"


def tried(trial: Trial, metadata: Metadata | None, *, now: datetime) -> Talk[Tried]:
    """Send the request to the token endpoint, and return the findings about the reply."""
    registration = trial.registration
    provider = registration.client.provider
    endpoint = provider.token if metadata is None else metadata.token
    method = (
        provider.client_auth if metadata is None else metadata.client_auth(provider.client_auth)
    )
    assert endpoint is not None
    named = () if metadata is None else metadata.client_auths
    try:
        reply = yield from _sent(trial, endpoint, method, now=now)
        refusal = refusal_in(reply, provider)
        is_refused = refusal is not None and _is_of_client(refusal)
        # Some servers answer `unauthorized_client` if they cannot read the secret.
        is_unclear = refusal is not None and refusal.error == UNAUTHORIZED_CLIENT
        others = _other_ways(registration.client, method, named=named)
        for other in others if is_refused or is_unclear else ():
            again = yield from _sent(trial, endpoint, other, now=now)
            second = refusal_in(again, provider)
            is_accepted = not again.is_error if second is None else _is_expected(trial, second)
            if is_accepted:
                says = f"{provider.label} refuses the client secret sent as {method}, and accepts "
                if other == "none":
                    says, fix = f"{says}this client without one", as_public(registration)
                else:
                    fix = registration.set_to("client_auth", other)
                    says += f"it sent as {other}"
                found = wrong(says, fix)
                return Tried(findings=(found,), reported_at=reply.headers.get("date"))
    except Failed as error:
        fix = error.fix if isinstance(error, Unreachable) else "check its status page"
        says = f"the token endpoint {endpoint} cannot be reached: {str(error).rstrip('.')}"
        return Tried(findings=(wrong(says, fix),))
    if refusal is not None:
        refusal = replace(refusal, methods=named)
    return Tried(
        findings=(_of_reply(trial, endpoint, reply, refusal, now=now),),
        reported_at=reply.headers.get("date"),
        is_refused=is_refused,
    )


def _sent(trial: Trial, endpoint: str, client_auth: str, *, now: datetime) -> Talk[httpx.Response]:
    client = trial.registration.client
    key = new_key() if client.provider.dpop else None
    return ask_token(client, endpoint, trial.values, client_auth=client_auth, now=now, key=key)


def _is_of_client(refusal: Refusal) -> bool:
    is_of_grant = refusal.error == "unsupported_grant_type"
    return refusal.means == "client" and not refusal.wants_proof and not is_of_grant


def _is_expected(trial: Trial, refusal: Refusal) -> bool:
    """Return True if the refusal shows that only the made-up credential was wrong."""
    if trial.is_of_person:
        return refusal.error in _OF_THE_SUBJECT
    is_code = trial.grant == "authorization_code"
    return is_code and (refusal.means == "ended" or refusal.error in _OF_THE_CODE)


def _of_reply(
    trial: Trial, endpoint: str, reply: httpx.Response, refusal: Refusal | None, *, now: datetime
) -> SetupFinding:
    """Return the finding for a reply of the token endpoint."""
    registration = trial.registration
    provider = registration.client.provider
    label = provider.label
    if reply.has_redirect_location:
        return _of_address(trial, endpoint, reply)
    if refusal is None and trial.grant != "authorization_code":
        return _of_token(trial, endpoint, reply, now=now)
    refusal = refusal or no_token_in(reply, provider)
    text = f"{refusal.shown}{described(registration, refusal)}"
    if refusal.wants_proof and refusal.means == "client":
        return wrong(f"{label} requires DPoP{text}", refusal_fix(refusal, registration))
    if _is_of_client(refusal) or refusal.is_unauthorized:
        says = f"{label} refuses this server's client id or secret{text}"
        return wrong(says, refusal_fix(refusal, registration))
    if refusal.means == "redirect" and trial.grant == "authorization_code":
        return unregistered(registration)
    if _is_expected(trial, refusal):
        says = f"{label} accepts this server's client id and secret"
        if trial.is_of_person:
            says += f", and refuses a made-up token{text}: only a real token can test the exchange"
        return SetupFinding(says=says)
    return _of_part(trial, refusal, text) or _of_address(trial, endpoint, reply, refusal)


def _of_token(trial: Trial, endpoint: str, reply: httpx.Response, *, now: datetime) -> SetupFinding:
    """Return the finding for a token request that the endpoint did not refuse."""
    registration = trial.registration
    provider = registration.client.provider
    try:
        granted = read_token_reply(reply, provider, now=now, is_bound=provider.dpop)
    except Failed as error:
        refusal = no_token_in(reply, provider)
        if refusal.is_page or not refusal.is_readable:
            return _of_address(trial, endpoint, reply, refusal)
        at = registration.setting("token_types or token_path")
        return wrong(str(error).rstrip("."), f"correct {at}")
    if trial.is_of_person:
        return wrong(
            f"{provider.label} exchanges a made-up token, so anyone gets any person's account",
            f"let it verify the tokens, or remove {registration.setting('exchange')}",
        )
    has = provider.granted(trial.scopes, named=granted.scopes or None)
    missing = provider.missing(trial.scopes, granted=has)
    if missing:
        says = f"{provider.label} issues a token without the scopes {', '.join(missing)}"
        fix = f"grant them to this client there, or correct {trial.scope_setting}"
        return wrong(says, fix)
    return SetupFinding(says=f"{provider.label} issues a token of this server's own account")


def _of_part(trial: Trial, refusal: Refusal, text: str) -> SetupFinding | None:
    """Return the finding for the part of the request that was refused, such as a scope.

    Return None if the refusal does not name a part.
    """
    registration, error = trial.registration, refusal.error or ""
    label = registration.client.provider.label
    allow = f"allow the grant type {trial.grant} for this client at {label}"
    if error == "unsupported_grant_type":
        says = f"{label} does not support the grant type {trial.grant}{text}"
        return wrong(says, f"{allow}, or declare another method to connect accounts")
    if trial.grant == "authorization_code" and error in OF_TARGET:
        says = f"{label} does not know the API that the tokens are for{text}"
        return wrong(says, target_fix(registration))
    if trial.grant == "authorization_code":
        says = f"{label} does not let this client redeem codes{text}"
        return wrong(says, allow) if error == UNAUTHORIZED_CLIENT else None
    if error in _NOT_ALLOWED:
        says = f"{label} does not let this client use {trial.grant}{text}"
        return wrong(says, f"{allow}, and its access to {trial.target_setting}")
    if error in OF_TARGET:
        says = f"{label} does not know the API that the token is for{text}"
        return wrong(says, f"correct {trial.target_setting}")
    if error == "invalid_scope":
        says = f"{label} refuses the scopes {' '.join(trial.scopes) or '(none)'}{text}"
        return wrong(says, f"correct {trial.scope_setting}, or grant them to this client there")
    if not refusal.is_temporary and refusal.is_readable and error and not trial.is_of_person:
        says = f"{label} issues no token of this server's own account{text}"
        return wrong(says, f"{allow}, and check {trial.target_setting}")
    return None


def _of_address(
    trial: Trial, endpoint: str, reply: httpx.Response, refusal: Refusal | None = None
) -> SetupFinding:
    """Return the finding for a reply that neither accepts nor refuses the client."""
    registration, status = trial.registration, reply.status_code
    label = registration.client.provider.label
    where = f"the token endpoint {endpoint}"
    at = registration.setting("issuer" if registration.client.provider.discovers else "token")
    if refusal is None:
        to = shown(reply.headers.get("location"))
        return wrong(f"{where} redirects to {to}", f"correct {at}: no secret is sent elsewhere")
    if refusal.is_temporary:
        says = f"the client secret could not be tried: {where} answers HTTP {status}"
        return note(says, "run elicit doctor again later")
    if status in (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.GONE):
        return wrong(f"{where} answers HTTP {status}", f"correct {at}, or the client id")
    if refusal.is_page or not refusal.is_readable:
        return wrong(f"{where} answers with a web page (HTTP {status})", f"correct {at}")
    text = described(registration, refusal)
    says = f"the client secret could not be tried: {label} answers{refusal.shown}{text}"
    return note(says, "connect one account, or sign in once, to test the secret")


def unregistered(registration: RegisteredClient) -> SetupFinding:
    client, redirect = registration.client, registration.redirect_uri
    says = f"{client.provider.label} refuses to redirect people to {redirect}"
    return wrong(says, redirect_fix(registration))


def tried_key(registration: RegisteredClient, *, now: datetime) -> Talk[SetupReport]:
    """Send a made-up API key in the request that tests keys, and return the findings."""
    provider = registration.client.provider
    label, declared, probe = provider.label, provider.key, provider.person
    assert declared is not None
    assert probe is not None
    at, address = registration.setting("person.url"), str(probe.url).partition("?")[0]
    token = f"{MADE_UP}-{secrets.token_urlsafe(12)}"
    if declared.user is not None:
        token = b64encode(f"elicit:{token}".encode()).decode()
    where = f"the address that tests each {declared.label}, {address},"
    try:
        reply = yield from asked_who(provider, probe, access=ApiAccess(token=token, now=now))
    except Failed as error:
        fix = error.fix if isinstance(error, Unreachable) else f"correct {at}"
        says = f"{where} cannot be reached: {str(error).rstrip('.')}"
        return SetupReport(findings=(wrong(says, fix),))
    assert reply is not None
    status, reported_at = reply.status_code, reply.headers.get("date")
    correct = f"correct {at}"
    if reply.is_redirect:
        to = shown(reply.headers.get("location"))
        found = wrong(f"{where} redirects to {to}", f"{correct}: no key is sent elsewhere")
    elif reply.is_server_error or status in PASSING:
        found = note(f"{where} answers HTTP {status}", "run elicit doctor again later")
    elif status in (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.GONE):
        found = wrong(f"{where} answers HTTP {status}", correct)
    elif reply.is_client_error or _names_nobody(reply, provider):
        found = SetupFinding(says=f"{label} refuses a made-up {declared.label}, as it should")
    else:
        says = f"{where} accepts a made-up {declared.label} (HTTP {status})"
        found = wrong(says, f"{correct}: the address must require a valid {declared.label}")
    return SetupReport(findings=(found,), reported_at=reported_at)


def _names_nobody(reply: httpx.Response, provider: Provider) -> bool:
    """Return True if the reply has the status of success but does not name an account.

    `api_key.tested` refuses such a reply, too.
    """
    assert provider.key is not None
    assert provider.person is not None
    if reply.status_code != provider.key.status:
        return False
    try:
        read_person(reply, provider, provider.person, others={})
    except Failed:
        return True
    return False
