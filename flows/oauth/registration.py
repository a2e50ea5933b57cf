"""The check of this server's registration at an issuer or provider, before people depend on it.

`elicit doctor` and the start of the server run it. It reads the metadata and the keys, compares
what the issuer demands with what this server does, asks the authorization endpoint without a
session, and tries the client secret with a made-up code: `invalid_grant` means that the secret is
right, and `invalid_client` that it is wrong. The check changes nothing at the issuer.

Risks: a report looks good although a check did not happen, so the report has a note for each check
that could not be completed. Or an issuer's own text fills the operator's terminal, so the text is
cut and quoted (`shown`).
"""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qsl

import httpx

from flows.elicitation.flow import SetupFinding, SetupReport, Talk
from flows.errors import Failed
from flows.oauth.access_token import SUBJECT_CLAIM
from flows.oauth.authorization_code import NONCE_BYTES, VERIFIER_BYTES, exchange
from flows.oauth.client_assertion import algorithm_of
from flows.oauth.discovery import (
    METHODS,
    Metadata,
    MetadataRefused,
    fetch_metadata,
    read_metadata,
    shown,
)
from flows.oauth.dpop import ALGORITHM, new_key
from flows.oauth.id_token import ALGORITHMS, usable_keys
from flows.oauth.provider import Client
from flows.oauth.pushed_request import address_to_leave_to
from flows.oauth.requests import Unreachable, ask, authorize_parameters, get
from flows.oauth.responses import keys_of
from flows.oauth.sign_in import SCOPES
from flows.oauth.token_errors import (
    UNAUTHORIZED_CLIENT,
    Refusal,
    TokenRefused,
    no_token_in,
    refusal_in,
)

# Errors that providers send for a made-up code once they have accepted the client.
_OF_THE_CODE: Final = frozenset(
    {"invalid_grant", "bad_verification_code", "invalid_code", "invalid_authorization_code"}
)
# Errors of the authorization endpoint for a browser without a session (OIDC Core 1.0, 3.1.2.6).
_NO_SESSION: Final = frozenset(
    {
        *("login_required", "interaction_required", "consent_required"),
        *("account_selection_required", "access_denied"),
    }
)
_KEY_TYPES: Final = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}
# characters; a text that was cut may contain only the beginning of a secret
_SECRET_START: Final = 8
_ACCEPTED: Final = "RS256, ES256 or EdDSA"


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredClient:
    """This server's registration, as its operator configured it.

    `claim` are the claims that identify people who sign in; None if the registration is for
    accounts. `audiences` are the names of this server in the issuer's access tokens. With
    `introspects`, the server asks the issuer about tokens that are not JWTs.
    """

    client: Client
    redirect_uri: str
    claim: tuple[str, ...] | None = None
    audiences: tuple[str, ...] = ()
    introspects: bool = False

    def setting(self, name: str) -> str:
        """Return the name of the setting for `issuer`, `client_id` or another field."""
        provider = self.client.provider
        if self.claim is not None:
            return "ELICIT_ISSUER" if name == "issuer" else f"ELICIT_ISSUER_{name.upper()}"
        if name in ("client_id", "client_secret"):
            return f"ELICIT_{provider.name.upper()}_{name.upper()}"
        return f"{name} in [providers.{provider.name}] of elicit.toml"

    def set_to(self, name: str, value: str) -> str:
        """Return the instruction to set a field to a value."""
        if self.claim is not None:
            return f"set {self.setting(name)}={value}"
        written = value if value == "true" else f'"{value}"'
        return f"write {name} = {written} in [providers.{self.client.provider.name}] of elicit.toml"


def examined(registration: RegisteredClient, *, now: datetime) -> Talk[SetupReport]:
    """Check the registration. A finding without `fix` says what works."""
    client = registration.client
    provider = client.provider
    if provider.tenants:
        says = f"{provider.label} has a host for each customer, so it cannot be checked without one"
        return SetupReport(findings=(SetupFinding(says=says),))
    metadata, told_at, found = None, None, list[SetupFinding]()
    if provider.discovers:
        try:
            reply = yield from fetch_metadata(provider)
            told_at = reply.headers.get("date")
            metadata = read_metadata(reply, provider)
        except Failed as error:
            return SetupReport(findings=(_unusable(registration, error),), told_at=told_at)
        found += yield from _of_keys(registration, metadata)
        found += _of_methods(registration, metadata)
        found += _of_people(registration, metadata)
        found += _of_proof(registration, metadata)
    tried = yield from _tried_secret(registration, metadata, now=now)
    found += [finding for finding in tried.findings if finding not in found]
    told_at = told_at or tried.told_at
    if metadata is None:
        found.append(_to_register(registration))
    elif not any(one.is_wrong for one in found if one.fix is not None):
        found += yield from _of_redirect(registration, metadata, now=now)
    elif tried.is_refused:
        found += yield from _of_client_id(registration, metadata, now=now)
    return SetupReport(findings=tuple(found), told_at=told_at)


def _wrong(says: str, fix: str) -> SetupFinding:
    return SetupFinding(says=says, fix=fix)


def _note(says: str, fix: str) -> SetupFinding:
    return SetupFinding(says=says, fix=fix, is_wrong=False)


def _unusable(registration: RegisteredClient, error: Failed) -> SetupFinding:
    issuer, setting = registration.client.provider.issuer, registration.setting("issuer")
    why = error.why if isinstance(error, MetadataRefused) else str(error).rstrip(".")
    if isinstance(error, Unreachable):
        return _wrong(f"{issuer} cannot be reached: {why}", error.fix)
    return _wrong(
        f"{issuer} cannot be used: {why}",
        f"{setting} must equal the issuer in its /.well-known/openid-configuration (or "
        "/.well-known/oauth-authorization-server), letter by letter",
    )


def _of_keys(registration: RegisteredClient, metadata: Metadata) -> Talk[list[SetupFinding]]:
    """Check that the keys can be fetched, and that they can verify the issuer's signatures."""
    provider = registration.client.provider
    needs_keys = registration.claim is not None or ("openid" in provider.always and provider.nonce)
    if not needs_keys:
        return []
    at = f"at {registration.client.provider.label}"
    named = metadata.id_token_algorithms
    accepted = [one for one in named if one in ALGORITHMS]
    if named and not accepted:
        return [
            _wrong(
                f"{provider.label} signs ID tokens only with {', '.join(named[:5])}, which this "
                "server does not accept",
                f"configure it to sign this client's ID tokens with {_ACCEPTED} "
                f"(id_token_signed_response_alg {at})",
            )
        ]
    if metadata.jwks is None:
        says = f"{provider.label} publishes no address of its keys (jwks_uri)"
        return [_wrong(says, f"{registration.setting('issuer')} must be an OpenID Connect issuer")]
    where = f"the keys of {provider.label}"
    try:
        reply = yield from ask(get(metadata.jwks, provider=provider), provider)
    except Failed as error:
        fix = error.fix if isinstance(error, Unreachable) else f"see the metadata {at}"
        says = f"{where} cannot be fetched from {metadata.jwks}: {str(error).rstrip('.')}"
        return [_wrong(says, fix)]
    keys = keys_of(reply)
    if keys is None:
        says = f"{where} cannot be read: {metadata.jwks} answers HTTP {reply.status_code}"
        return [_wrong(says, f"make that address return a key set (JWKS) {at}")]
    usable = usable_keys(keys)
    kinds = {_KEY_TYPES[one[:2]] for one in accepted or ALGORITHMS}
    if not any(key.key_type in kinds for key in usable):
        says = f"{where} contain no key that can verify its signatures ({len(keys)} keys)"
        fix = f"add a key for {_ACCEPTED} there; an RSA key needs at least 2048 bits"
        return [_wrong(says, f"{fix} ({metadata.jwks})")]
    return []


def _of_methods(registration: RegisteredClient, metadata: Metadata) -> Iterator[SetupFinding]:
    """Yield the faults in the way in which this server authenticates at the token endpoint."""
    client, named = registration.client, metadata.client_auths
    label, ours = client.provider.label, metadata.client_auth(client.provider.client_auth)
    theirs = [METHODS[one] for one in named if one in METHODS]
    plain = {"basic_raw": "basic", "both": "basic"}.get(ours, ours)
    if named and plain not in theirs:
        says = f"{label} accepts only {', '.join(named[:6])} at its token endpoint, and this "
        says += f"server uses {ours}"
        fix = "this server supports none of these methods: allow another one for this client there"
        if theirs:
            fix = registration.set_to("client_auth", theirs[0])
            if theirs[0].endswith("_jwt"):
                key = "the private key" if theirs[0] == "private_key_jwt" else "the secret"
                fix += f", and {registration.setting('client_secret')} to {key}"
        yield _wrong(says, fix)
    elif ours.endswith("_jwt") and metadata.assertion_algorithms:
        algorithm = algorithm_of(client.client_secret, client_auth=ours)
        if algorithm not in metadata.assertion_algorithms:
            accepted = ", ".join(metadata.assertion_algorithms[:6])
            says = f"{label} accepts client assertions signed with {accepted}, and the key in "
            says += f"{registration.setting('client_secret')} signs with {algorithm}"
            fix = (
                "register a key of another type there, and set "
                f"{registration.setting('client_secret')}"
            )
            yield _wrong(says, f"{fix} to it")
    if metadata.requires_par and metadata.par is None:
        says = f"{label} requires pushed authorization requests (PAR) and publishes no endpoint"
        yield _wrong(says, f"turn PAR off for this client at {label}, or publish the endpoint")


def _of_people(registration: RegisteredClient, metadata: Metadata) -> Iterator[SetupFinding]:
    """Yield findings about the subjects that identify people, and about access tokens."""
    types = metadata.subject_types
    if registration.claim == SUBJECT_CLAIM and types and "public" not in types:
        label = registration.client.provider.label
        yield _wrong(
            f"{label} gives each client a different subject for the same person "
            f"({', '.join(types[:3])}), so a person who signs in never matches the person whose "
            f"assistant asked",
            "set ELICIT_SUBJECT_CLAIM to a claim that is the same for all clients (oid,tid at "
            f"Microsoft Entra), or let {label} use public subjects",
        )
    if registration.introspects and metadata.introspect is None:
        says = f"{registration.client.provider.label} publishes no introspection endpoint"
        yield _wrong(says, "unset ELICIT_INTROSPECT, and let the issuer create JWT access tokens")
    if registration.audiences:
        names = " or ".join(registration.audiences)
        yield SetupFinding(
            says=f"access tokens must have the audience {names}, which only a call can show: if "
            "the server refuses a token, the log line bearer.refused has the token's audience"
        )


def _of_proof(registration: RegisteredClient, metadata: Metadata) -> Iterator[SetupFinding]:
    client, named = registration.client, metadata.dpop_algorithms
    if client.provider.dpop and named and ALGORITHM not in named:
        yield _wrong(
            f"{client.provider.label} accepts DPoP proofs signed with {', '.join(named[:5])}, and "
            f"this server signs with {ALGORITHM}",
            f"let it accept {ALGORITHM}, or turn DPoP off: {registration.setting('dpop')}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tried:
    findings: tuple[SetupFinding, ...]
    told_at: str | None = None
    is_refused: bool = False  # the client id or the secret was refused


def _tried_secret(
    registration: RegisteredClient, metadata: Metadata | None, *, now: datetime
) -> Talk[_Tried]:
    """Try the client secret at the token endpoint with a made-up code."""
    client = registration.client
    provider = client.provider
    endpoint = provider.token if metadata is None else metadata.token
    ours = provider.client_auth if metadata is None else metadata.client_auth(provider.client_auth)
    assert endpoint is not None
    named = () if metadata is None else metadata.client_auths
    try:
        reply = yield from _with_made_up_code(registration, endpoint, ours, now=now)
        refusal = refusal_in(reply, provider) or no_token_in(reply, provider)
        other = {"basic": "post", "post": "basic"}.get(ours)
        is_refused = refusal.means == "client" and not refusal.wants_proof
        if is_refused and other is not None and (not named or f"client_secret_{other}" in named):
            again = yield from _with_made_up_code(registration, endpoint, other, now=now)
            second = refusal_in(again, provider)
            if second is not None and _is_of_code(second):
                says = (
                    f"{provider.label} refuses the client secret sent as {ours}, and accepts it "
                    "sent as "
                )
                wrong = _wrong(says + other, registration.set_to("client_auth", other))
                return _Tried(findings=(wrong,), told_at=reply.headers.get("date"))
    except Failed as error:
        fix = error.fix if isinstance(error, Unreachable) else "check its status page"
        says = f"the token endpoint {endpoint} cannot be reached: {str(error).rstrip('.')}"
        return _Tried(findings=(_wrong(says, fix),))
    return _Tried(
        findings=(_of_reply(registration, endpoint, reply, refusal),),
        told_at=reply.headers.get("date"),
        is_refused=is_refused,
    )


def _with_made_up_code(
    registration: RegisteredClient, endpoint: str, client_auth: str, *, now: datetime
) -> Talk[httpx.Response]:
    provider = registration.client.provider
    return (
        yield from exchange(
            registration.client,
            endpoint=endpoint,
            code=f"made-up-by-elicit-doctor-{secrets.token_urlsafe(24)}",
            redirect_uri=registration.redirect_uri,
            verifier=secrets.token_urlsafe(VERIFIER_BYTES) if provider.pkce else "",
            client_auth=client_auth,
            now=now,
            key=new_key() if provider.dpop else None,
        )
    )


def _is_of_code(refusal: Refusal) -> bool:
    return refusal.means == "ended" or refusal.error in _OF_THE_CODE


def _of_reply(
    registration: RegisteredClient, endpoint: str, reply: httpx.Response, refusal: Refusal
) -> SetupFinding:
    """Return the finding for a reply to a made-up code."""
    label = registration.client.provider.label
    described = _described(registration, refusal)
    if reply.has_redirect_location:
        return _of_address(registration, endpoint, reply, refusal)
    if refusal.wants_proof and refusal.means == "client":
        fix = registration.set_to("dpop", "1" if registration.claim is not None else "true")
        if registration.client.provider.dpop:
            fix = f"let {label} accept DPoP proofs signed with {ALGORITHM}"
        return _wrong(f"{label} requires DPoP{refusal.shown}{described}", fix)
    is_unnamed = reply.status_code == HTTPStatus.UNAUTHORIZED and not refusal.error
    if refusal.means == "client" or is_unnamed:
        names = f"{registration.setting('client_id')} and {registration.setting('client_secret')}"
        says = f"{label} refuses this server's client id or secret{refusal.shown}{described}"
        return _wrong(says, f"correct {names}")
    if refusal.means == "redirect":
        return _unregistered(registration)
    if _is_of_code(refusal):
        return SetupFinding(says=f"{label} accepts this server's client id and secret")
    if refusal.error == UNAUTHORIZED_CLIENT:
        return _wrong(
            f"{label} does not let this client redeem codes ({refusal.error}){described}",
            f"allow the grant type authorization_code for this client at {label}",
        )
    return _of_address(registration, endpoint, reply, refusal)


def _described(registration: RegisteredClient, refusal: Refusal) -> str:
    """Return the provider's own text in brackets, or "" if it repeats the client secret."""
    text, secret = refusal.description or "", registration.client.client_secret
    is_safe = text and not (secret and secret[:_SECRET_START] in text)
    return f" ({shown(text)})" if is_safe else ""


def _of_address(
    registration: RegisteredClient, endpoint: str, reply: httpx.Response, refusal: Refusal
) -> SetupFinding:
    """Return the finding for a reply that neither accepts nor refuses the client."""
    label, status = registration.client.provider.label, reply.status_code
    where = f"the token endpoint {endpoint}"
    at = registration.setting("issuer" if registration.client.provider.discovers else "token")
    if reply.has_redirect_location:
        to = shown(reply.headers.get("location"))
        return _wrong(
            f"{where} redirects to {to}",
            f"correct {at}: no secret is sent elsewhere",
        )
    if refusal.is_passing:
        says = f"the client secret could not be tried: {where} answers HTTP {status}"
        return _note(says, "run elicit doctor again later")
    if status in (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.GONE):
        return _wrong(f"{where} answers HTTP {status}", f"correct {at}, or the client id")
    if refusal.is_page or not refusal.is_readable:
        return _wrong(f"{where} answers with a web page (HTTP {status})", f"correct {at}")
    described = _described(registration, refusal)
    says = f"the client secret could not be tried: {label} answers{refusal.shown}{described}"
    return _note(says, "connect one account, or sign in once, to be sure")


def _to_register(registration: RegisteredClient) -> SetupFinding:
    label, redirect = registration.client.provider.label, registration.redirect_uri
    return SetupFinding(says=f"{label} must have this redirect URI: {redirect}")


def _unregistered(registration: RegisteredClient) -> SetupFinding:
    client, redirect = registration.client, registration.redirect_uri
    return _wrong(
        f"{client.provider.label} refuses to redirect people to {redirect}",
        f"register exactly this redirect URI for the client {client.client_id} there, or set "
        f"{registration.setting('client_id')} to the client that has it",
    )


def _of_redirect(
    registration: RegisteredClient, metadata: Metadata, *, now: datetime
) -> Talk[list[SetupFinding]]:
    """Check that the issuer redirects browsers to our address."""
    label, unknown = registration.client.provider.label, _to_register(registration)
    try:
        answer = yield from _takes_back(registration, metadata, now=now)
    except TokenRefused as error:
        if error.refusal.means == "redirect":
            return [_unregistered(registration)]
        described = _described(registration, error.refusal)
        says = f"{label} refuses a pushed authorization request{error.refusal.shown}{described}"
        return [_wrong(says, f"allow pushed authorization requests for this client at {label}")]
    except Failed as error:
        is_demanded = metadata.requires_par
        says = f"{label} did not show whether it accepts the redirect URI: {str(error).rstrip('.')}"
        fix = f"check the endpoint for pushed authorization requests at {label}"
        return [_wrong(says, fix)] if is_demanded else [unknown]
    if answer is None:
        return [unknown]
    if answer is False:
        return [_unregistered(registration)]
    if answer in _NO_SESSION or answer is True:
        return [SetupFinding(says=f"{label} redirects people to {registration.redirect_uri}")]
    says = f"{label} refuses this server's authorization requests ({shown(answer)})"
    return [_wrong(says, f"allow code, PKCE and the scopes of this client at {label}")]


def _of_client_id(
    registration: RegisteredClient, metadata: Metadata, *, now: datetime
) -> Talk[list[SetupFinding]]:
    """Return a finding that says which is wrong, if that is known: client id or secret."""
    try:
        answer = yield from _takes_back(registration, metadata, now=now)
    except Failed:
        return []
    setting = registration.setting
    if answer is False:
        says = f"the authorization endpoint does not know {setting('client_id')} either, or lacks "
        return [_note(says + "its redirect URI", f"correct {setting('client_id')} first")]
    if answer is None:
        return []
    says = f"the authorization endpoint knows {setting('client_id')}, so the secret is wrong"
    return [_note(says, f"correct {setting('client_secret')}")]


def _takes_back(
    registration: RegisteredClient, metadata: Metadata, *, now: datetime
) -> Talk[bool | str | None]:
    """Return the error with which the issuer redirects a browser without a session to this server.

    Return False if the issuer does not redirect to this server, True if it redirects without an
    error, and None if that cannot be known. The request has `prompt=none`. For a registered
    address, the issuer then redirects with `login_required`. For another address, the issuer must
    not redirect (RFC 6749, 4.1.2.1), and most issuers answer 400.
    """
    client, redirect = registration.client, registration.redirect_uri
    provider = client.provider
    more = SCOPES if registration.claim is not None else ()
    scopes = provider.asks(more)
    if "openid" not in scopes:
        return None
    parameters = authorize_parameters(
        client,
        redirect_uri=redirect,
        scopes=scopes,
        state=secrets.token_urlsafe(NONCE_BYTES),
        verifier=secrets.token_urlsafe(VERIFIER_BYTES) if provider.pkce else None,
        nonce=secrets.token_urlsafe(NONCE_BYTES),
    )
    address = yield from address_to_leave_to(
        client,
        metadata,
        {**parameters, "prompt": "none"},
        client_auth=metadata.client_auth(provider.client_auth),
        now=now,
    )
    try:
        reply = yield from ask(get(address, provider=provider), provider)
    except Failed:
        return None
    to, _, query = reply.headers.get("location", "").partition("?")
    if reply.is_redirect and to == redirect:
        try:
            says = dict(parse_qsl(query.partition("#")[0], max_num_fields=20))
        except ValueError:
            return None
        return says.get("error") or True
    return False if reply.status_code == HTTPStatus.BAD_REQUEST else None
