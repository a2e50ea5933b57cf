"""The check of this server's registration at an issuer or provider, before people depend on it.

`elicit doctor` and the start of the server run the check. It has four steps:

1. Fetch the issuer's metadata and keys.
2. Compare the requirements in the metadata with the features of this server.
3. Send an authorization request without a browser session, to test the redirect URI.
4. Send token requests, to test the client id and secret (`token_trial`).

The check changes nothing at the issuer.

Risks:
- A report looks good although a check did not run. So the report has a note for each check that
  could not be completed.
- Text from the issuer fills the operator's terminal. So the text is cut and quoted (`shown`).
"""

import secrets
from collections.abc import Iterator, Sequence
from datetime import datetime
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qsl

from flows.elicitation.flow import SetupFinding, SetupReport, Talk
from flows.errors import Failed
from flows.oauth.access_token import SUBJECT_CLAIM
from flows.oauth.authorization_code import NONCE_BYTES, VERIFIER_BYTES
from flows.oauth.client_assertion import algorithm_of
from flows.oauth.discovery import (
    Metadata,
    discover,
    fetch_metadata,
    read_metadata,
    shown,
)
from flows.oauth.dpop import ALGORITHM
from flows.oauth.id_token import ALGORITHMS, algorithm_fix, keys_fix, usable_keys
from flows.oauth.pushed_request import address_to_leave_to
from flows.oauth.registered_client import (
    RegisteredClient,
    described,
    issuer_fix,
    method_finding,
    note,
    target_fix,
    wrong,
)
from flows.oauth.requests import SetupFault, Unreachable, ask, authorize_parameters, get
from flows.oauth.responses import keys_of
from flows.oauth.sign_in import SCOPES
from flows.oauth.token_errors import OF_TARGET, TokenRefused
from flows.oauth.token_trial import (
    exchange_of,
    made_up_code,
    own_token,
    tried,
    tried_key,
    unregistered,
)
from flows.shown import counted

# Errors of the authorization endpoint for a browser without a session (OIDC Core 1.0, 3.1.2.6).
_NO_SESSION: Final = frozenset(
    {
        *("login_required", "interaction_required", "consent_required"),
        *("account_selection_required", "access_denied"),
    }
)
_KEY_TYPES: Final = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}


def examined(registration: RegisteredClient, *, now: datetime) -> Talk[SetupReport]:
    """Check the registration, and return the findings. A finding without `fix` is not a fault."""
    client = registration.client
    provider = client.provider
    if provider.tenants:
        says = f"{provider.label} has a host for each customer, so it cannot be checked without one"
        return SetupReport(findings=(SetupFinding(says=says),))
    if provider.key is not None:
        return (yield from tried_key(registration, now=now))
    metadata, reported_at, found = None, None, list[SetupFinding]()
    if provider.discovers:
        try:
            reply = yield from fetch_metadata(provider)
            reported_at = reply.headers.get("date")
            metadata = read_metadata(reply, provider)
        except Failed as error:
            return SetupReport(findings=(_unusable(registration, error),), reported_at=reported_at)
        found += yield from _of_keys(registration, metadata)
        found += _of_methods(registration, metadata)
        found += _of_people(registration, metadata)
        found += _of_proof(registration, metadata)
    is_own = provider.service_account
    trial = own_token(registration) if is_own else made_up_code(registration)
    result = yield from tried(trial, metadata, now=now)
    found += [finding for finding in result.findings if finding not in found]
    reported_at = reported_at or result.reported_at
    if not is_own:
        found += yield from _of_browsers(
            registration, metadata, found, is_refused=result.is_refused, now=now
        )
    if metadata is not None and registration.claim is not None:
        found += _of_sign_out(registration, metadata)
    if provider.exchange is not None and not result.is_refused:
        found += yield from _of_exchange(registration, metadata, now=now)
    return SetupReport(findings=tuple(found), reported_at=reported_at)


def _of_browsers(
    registration: RegisteredClient,
    metadata: Metadata | None,
    found: Sequence[SetupFinding],
    *,
    is_refused: bool,
    now: datetime,
) -> Talk[list[SetupFinding]]:
    """Return the findings about the redirect URI and the client id.

    Test the redirect URI only if `found` has no faults. If the token endpoint refused the client
    (`is_refused`), find out whether the client id or the secret is wrong.
    """
    if metadata is None:
        return [_to_register(registration)]
    if not any(one.is_wrong for one in found if one.fix is not None):
        return (yield from _of_redirect(registration, metadata, now=now))
    return (yield from _of_client_id(registration, metadata, now=now)) if is_refused else []


def _of_exchange(
    registration: RegisteredClient, metadata: Metadata | None, *, now: datetime
) -> Talk[list[SetupFinding]]:
    """Check whether this server may exchange the tokens of people."""
    found = list[SetupFinding]()
    for trial in exchange_of(registration):
        at, known = trial.registration, metadata
        if at is not registration:
            try:
                known = yield from discover(at.client.provider)
            except Failed as error:
                return [_unusable(at, error)]
        found += (yield from tried(trial, known, now=now)).findings
    return found


def _unusable(registration: RegisteredClient, error: Failed) -> SetupFinding:
    issuer = registration.client.provider.issuer
    why = (error.why if isinstance(error, SetupFault) else str(error)).rstrip(".")
    if isinstance(error, Unreachable):
        return wrong(f"{issuer} cannot be reached: {why}", error.fix)
    return wrong(f"{issuer} cannot be used: {why}", issuer_fix(registration))


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
            wrong(
                f"{provider.label} signs ID tokens only with {', '.join(named[:5])}, which this "
                "server does not accept",
                algorithm_fix(provider),
            )
        ]
    if metadata.jwks is None:
        says = f"{provider.label} publishes no address of its keys (jwks_uri)"
        return [wrong(says, f"{registration.setting('issuer')} must be an OpenID Connect issuer")]
    where = f"the keys of {provider.label}"
    try:
        reply = yield from ask(get(metadata.jwks, provider=provider), provider)
    except Failed as error:
        fix = error.fix if isinstance(error, Unreachable) else f"check jwks_uri {at}"
        says = f"{where} cannot be fetched from {metadata.jwks}: {str(error).rstrip('.')}"
        return [wrong(says, fix)]
    keys = keys_of(reply)
    if keys is None:
        says = f"{where} cannot be read: {metadata.jwks} answers HTTP {reply.status_code}"
        return [wrong(says, f"let that address {at} return a key set (JWKS)")]
    usable = usable_keys(keys)
    kinds = {_KEY_TYPES[one[:2]] for one in accepted or ALGORITHMS}
    if not any(key.key_type in kinds for key in usable):
        says = (
            f"{where} contain no key that can verify its signatures ({counted(len(keys), 'key')})"
        )
        return [wrong(says, keys_fix(metadata.jwks))]
    return []


def _of_methods(registration: RegisteredClient, metadata: Metadata) -> Iterator[SetupFinding]:
    """Yield the faults of this server's client authentication, and of pushed requests (PAR)."""
    client = registration.client
    label, method = client.provider.label, metadata.client_auth(client.provider.client_auth)
    # Do not look for `none` in the metadata: many issuers accept public clients without listing
    # `none`. The trial at the token endpoint shows whether the issuer accepts them.
    found = None if method == "none" else method_finding(registration, metadata.client_auths)
    if found is not None:
        yield found
    elif method.endswith("_jwt") and metadata.assertion_algorithms:
        algorithm = algorithm_of(client.client_secret, client_auth=method)
        if algorithm not in metadata.assertion_algorithms:
            accepted = ", ".join(metadata.assertion_algorithms[:6])
            says = f"{label} accepts client assertions signed with {accepted}, and the key in "
            says += f"{registration.setting('client_secret')} signs with {algorithm}"
            fix = (
                "register a key of another type there, and set "
                f"{registration.setting('client_secret')}"
            )
            yield wrong(says, f"{fix} to that key")
    if metadata.requires_par and metadata.par is None:
        says = f"{label} requires pushed authorization requests (PAR) and publishes no endpoint"
        yield wrong(says, f"turn PAR off for this client at {label}, or publish the endpoint")


def _of_people(registration: RegisteredClient, metadata: Metadata) -> Iterator[SetupFinding]:
    """Yield findings about the subjects that identify people, and about access tokens."""
    types = metadata.subject_types
    if registration.claim == SUBJECT_CLAIM and types and "public" not in types:
        label = registration.client.provider.label
        setting = _of(registration, "claim", "ELICIT_SUBJECT_CLAIM")
        yield wrong(
            f"{label} gives each client a different subject for the same person "
            f"({', '.join(types[:3])}), so a person who signs in never matches the person whose "
            f"assistant asked",
            f"set {setting} to a claim that is the same for all clients (oid,tid at "
            f"Microsoft Entra), or let {label} use public subjects",
        )
    if registration.introspects and metadata.introspect is None:
        says = f"{registration.client.provider.label} publishes no introspection endpoint"
        setting = _of(registration, "introspect", "ELICIT_INTROSPECT")
        yield wrong(says, f"unset {setting}, and let the issuer create JWT access tokens")
    if registration.audiences:
        names = " or ".join(registration.audiences)
        yield SetupFinding(
            says=f"access tokens must have the audience {names}, which only a call can show: if "
            "the server refuses a token, the log line bearer.refused has the token's audience"
        )


def _of_sign_out(registration: RegisteredClient, metadata: Metadata) -> Iterator[SetupFinding]:
    """Yield the addresses to register for sign-out, or what the issuer cannot do."""
    label = registration.client.provider.label
    if metadata.end_session is None:
        yield SetupFinding(
            says=f"{label} publishes no end_session_endpoint: a sign-out here leaves the person "
            "signed in there"
        )
    else:
        yield SetupFinding(
            says=f"{label} ends its session too at a sign-out here, if it has the post-logout "
            f"redirect URI {registration.signed_out_uri}"
        )
    if metadata.ends_sessions:
        yield SetupFinding(
            says=f"{label} reports sessions that end there, if it has the back-channel logout URI "
            f"{registration.logout_uri}"
        )
    else:
        yield SetupFinding(
            says=f"{label} does not say that it reports sessions that end there (back-channel "
            "logout): without it, a browser stays signed in here until its session ends"
        )


def _of(registration: RegisteredClient, key: str, setting: str) -> str:
    """Return the name of an issuer's setting.

    For an issuer in a table [issuers.NAME], the setting is the field `key` of the table. For
    ELICIT_ISSUER, the setting is the environment variable `setting`.
    """
    return registration.setting(key) if registration.table else setting


def _of_proof(registration: RegisteredClient, metadata: Metadata) -> Iterator[SetupFinding]:
    client, named = registration.client, metadata.dpop_algorithms
    if client.provider.dpop and named and ALGORITHM not in named:
        yield wrong(
            f"{client.provider.label} accepts DPoP proofs signed with {', '.join(named[:5])}, and "
            f"this server signs with {ALGORITHM}",
            f"let it accept {ALGORITHM}, or turn DPoP off: {registration.setting('dpop')}",
        )
    elif ALGORITHM in named and not client.provider.dpop:
        setting = registration.set_to("dpop", "1" if registration.claim is not None else "true")
        yield SetupFinding(
            says=f"{client.provider.label} offers DPoP, which makes stolen tokens useless; if "
            f"the API accepts DPoP tokens, {setting}"
        )


def _to_register(registration: RegisteredClient) -> SetupFinding:
    label, redirect = registration.client.provider.label, registration.redirect_uri
    return SetupFinding(says=f"{label} must have this redirect URI: {redirect}")


def _of_redirect(
    registration: RegisteredClient, metadata: Metadata, *, now: datetime
) -> Talk[list[SetupFinding]]:
    """Check that the issuer redirects browsers to our address."""
    label, unknown = registration.client.provider.label, _to_register(registration)
    try:
        answer = yield from _redirect_answer(registration, metadata, now=now)
    except TokenRefused as error:
        if error.refusal.means == "redirect":
            return [unregistered(registration)]
        text = described(registration, error.refusal)
        says = f"{label} refuses a pushed authorization request{error.refusal.shown}{text}"
        return [wrong(says, f"allow pushed authorization requests for this client at {label}")]
    except Failed as error:
        is_demanded = metadata.requires_par
        says = f"cannot find out whether {label} accepts the redirect URI: {str(error).rstrip('.')}"
        fix = f"check the endpoint for pushed authorization requests at {label}"
        return [wrong(says, fix)] if is_demanded else [unknown]
    if answer is None:
        return [unknown]
    if answer is False:
        return [unregistered(registration)]
    if answer in _NO_SESSION or answer is True:
        return [SetupFinding(says=f"{label} redirects people to {registration.redirect_uri}")]
    says = f"{label} refuses this server's authorization requests ({shown(answer)})"
    if answer in OF_TARGET:
        return [wrong(says, target_fix(registration))]
    return [wrong(says, f"allow code, PKCE and the scopes of this client at {label}")]


def _of_client_id(
    registration: RegisteredClient, metadata: Metadata, *, now: datetime
) -> Talk[list[SetupFinding]]:
    """Return a note that says whether the client id or the secret is wrong.

    Return an empty list if the authorization endpoint's answer does not show it.
    """
    try:
        answer = yield from _redirect_answer(registration, metadata, now=now)
    except Failed:
        return []
    setting = registration.setting
    if answer is False:
        says = f"the authorization endpoint does not know {setting('client_id')}, or does not have "
        return [note(says + "its redirect URI", f"correct {setting('client_id')} first")]
    if answer is None:
        return []
    says = f"the authorization endpoint knows {setting('client_id')}, so the secret is wrong"
    return [note(says, f"correct {setting('client_secret')}")]


def _redirect_answer(
    registration: RegisteredClient, metadata: Metadata, *, now: datetime
) -> Talk[bool | str | None]:
    """Send an authorization request without a session, and return how the issuer redirects.

    The request has `prompt=none`. If the redirect URI is registered, the issuer redirects to this
    server with the error `login_required`. If it is not registered, the issuer must not redirect
    (RFC 6749, 4.1.2.1), and most issuers answer with HTTP 400.

    Returns:
        The error code if the issuer redirects to this server with an error, True if it redirects
        without an error, False if it answers with HTTP 400, and None for any other answer.
    """
    client, redirect = registration.client, registration.redirect_uri
    provider = client.provider
    more = SCOPES if registration.claim is not None else ()
    scopes = provider.scopes_to_request(more)
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
