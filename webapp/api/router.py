"""The routes of the HTTP API, compiled once, with their OpenAPI document.

Risks: a browser runs or stores a response, or an error does not say what to do. So every response
has headers that forbid running and storing it, and every error is problem details (RFC 9457).
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from http import HTTPStatus
from typing import Any, Final, cast

from litestar import Litestar, Response
from litestar.di import Provide
from litestar.exceptions import ClientException, HTTPException, ValidationException
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.spec import Components, SecurityScheme
from litestar.routes import HTTPRoute
from litestar.types import Method

from flows.errors import (
    ElicitError,
    Failed,
    InvalidAnswer,
    InvalidSchema,
    NotConfigured,
    TooManyPending,
)
from webapp.api import (
    accounts,
    approvals,
    decisions,
    events,
    payments,
    proxy,
    questions,
    runs,
)
from webapp.api.access import (
    PERSON_HEADER,
    AccessTokenRefused,
    ApiLimits,
    IssuerUnavailable,
    RequiresScope,
    TokenUses,
    requester_of,
    slot_of,
)
from webapp.api.accounts import ProviderFailed
from webapp.api.payments import RefundNotDone
from webapp.api.reference import ReferencePage, complete, reference_router
from webapp.http.exchange import ASGIApp, Receive, Scope, Send
from webapp.http.parts import AnyRequest, answer_from, handlers_in, part, provided
from webapp.http.rate_limit import TooOften
from webapp.identity.access_tokens import Verifier
from webapp.identity.api_keys import ApiKeyRefused
from webapp.routes.answers import RETRY_SECONDS, Answers, problem
from webapp.service import Service
from webapp.telemetry.work import working

BODY_BYTES_AT_MOST: Final = 64 * 1024
VERSION: Final = "1"
_HEADERS: Final = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
# In a tool, the tool's author or the operator causes these errors. In a request to the API, the
# program that sends the request causes them.
_STATUS: Final[Mapping[type[ElicitError], int]] = {InvalidSchema: 400, NotConfigured: 422}
_REFERENCE: Final = "/api/reference"  # the only routes that everybody may read
RESOURCES: Final = frozenset(
    (
        *("questions", "approvals", "runs", "secrets", "inbox"),
        *("accounts", "payments", "webhooks", "events", "reference"),
    )
)


def api_routes(
    app: ASGIApp,
    *,
    service: Service,
    answers: Answers,
    tokens: Verifier | None,
    uses: TokenUses,
) -> ASGIApp:
    """Return the application of `/api`. Requests for other resources below `/api` go to `app`.

    `tokens` verifies access tokens; without it, no program can act for a person. `uses` are the
    audiences and scopes that such tokens must have.
    """
    paces = ApiLimits(clock=service.clock, observer=service.elicitations.telemetry.observer)
    parts = {"service": service, "answers": answers, "paces": paces, "tokens": tokens, "uses": uses}
    tracer = service.elicitations.telemetry.tracer

    async def route(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or RESOURCES.isdisjoint(scope["path"].split("/", 3)[2:3]):
            await app(scope, receive, send)
            return
        with working(f"{scope['method']} /api", tracer=tracer), slot_of(scope):
            await answer_from(api(), scope, receive, send, parts=parts)

    return route


@cache
def api() -> Litestar:
    """Return the API application, compiled once. Requests carry the service that handles them."""
    answers_of: Callable[[AnyRequest], Answers] = part("answers")

    def details(request: AnyRequest, error: Exception) -> Response[Any]:
        response = _problem(error) or answers_of(request).problem_for_error(request, error)
        response.content.update(_facts(error))
        return response

    app = Litestar(
        handlers_in(questions, approvals, runs, accounts, proxy, payments, events, decisions),
        dependencies={
            **provided(service="service"),
            "requester": Provide(requester_of, sync_to_thread=False),
        },
        exception_handlers={Exception: details, HTTPException: details},
        response_headers=_HEADERS,
        openapi_config=OpenAPIConfig(
            title="elicit-url",
            version=VERSION,
            summary="A program asks its users, and waits for what they do in a browser.",
            openapi_router=reference_router(),
            render_plugins=[ReferencePage()],
            use_handler_docstrings=True,
            operation_id_creator=_operation_id,
            components=Components(
                security_schemes={
                    "key": SecurityScheme(
                        type="http", scheme="bearer", description="A key of `elicit api-keys new`."
                    ),
                    "person": SecurityScheme(
                        type="apiKey",
                        name=PERSON_HEADER,
                        security_scheme_in="header",
                        description="The access token of a person that a program acts for, made "
                        "for {ELICIT_URL}/api.",
                    ),
                    "alone": SecurityScheme(
                        type="http",
                        scheme="bearer",
                        description="A person's own access token, made for {ELICIT_URL}/api/inbox.",
                    ),
                }
            ),
        ),
        logging_config=None,
        request_max_body_size=BODY_BYTES_AT_MOST,
    )
    for route in app.routes:
        for handler in route.route_handlers if isinstance(route, HTTPRoute) else ():
            if "OPTIONS" not in handler.http_methods and not route.path.startswith(_REFERENCE):
                handler.security = needs_of(handler).security
    complete(app.openapi_schema)
    return app


def needs_of(handler: HTTPRouteHandler) -> RequiresScope:
    """Return the credentials that a route needs. Raises RuntimeError for a route without any."""
    found = cast("Sequence[object]", cast("Any", handler).guards or ())
    guards = [guard for guard in found if isinstance(guard, RequiresScope)]
    if len(guards) != 1:
        raise RuntimeError(
            f"{handler} of the HTTP API declares no credentials: add guards=[requires(...)]."
        )
    return guards[0]


def _operation_id(handler: HTTPRouteHandler, method: Method, _: object) -> str:
    """Return the handler's function name, which generated clients use as their function name."""
    name = handler.handler_name
    return name if len(handler.http_methods) == 1 else f"{name}_{method.lower()}"


def _problem(error: Exception) -> Response[Any] | None:
    """Return the problem response, or None if `problem_for_error` handles the error."""
    match error:
        case TooOften():
            response = problem(error.http_status, detail=str(error), code=error.name)
            response.headers["retry-after"] = str(error.seconds)
        case ApiKeyRefused():
            response = problem(error.http_status, detail=str(error), code=error.name)
            response.headers["www-authenticate"] = "Bearer"
        case AccessTokenRefused():
            response = problem(error.status, detail=str(error), code=error.name)
            response.headers["www-authenticate"] = error.challenge
        case IssuerUnavailable():
            response = problem(error.http_status, detail=str(error), code=error.name)
            response.headers["retry-after"] = str(RETRY_SECONDS)
        case ElicitError() if type(error) in _STATUS:
            response = problem(_STATUS[type(error)], detail=str(error), code=error.name)
        case Failed() | ProviderFailed() | RefundNotDone():  # the provider's fault
            response = problem(error.http_status, detail=str(error), code=error.name)
        case RecursionError():  # raised by JSON decoders
            response = problem(400, detail="The body is nested too deeply.", code="INVALID_INPUT")
        case ValidationException():
            response = problem(error.status_code, detail=_faults_in(error), code="INVALID_INPUT")
        case ClientException() if error.status_code == HTTPStatus.BAD_REQUEST:
            detail = "The body cannot be read: it must be JSON, in UTF-8, without NaN or Infinity."
            response = problem(error.status_code, detail=detail, code="INVALID_INPUT")
        case _:
            return None
    return response


def _facts(error: Exception) -> Mapping[str, Any]:
    """Return the error's facts, so that a program need not parse the error text."""
    match error:
        case NotConfigured():
            return {"missing": list(error.missing)}
        case TooManyPending():
            return {"limit": error.limit}
        case InvalidAnswer():
            return {"errors": list(error.details)}
        case _:
            return {}


def _faults_in(error: ValidationException) -> str:
    """Return the invalid fields and their faults.

    The framework's own message is left out, because it contains this server's URL.
    """
    faults = cast("list[dict[str, str]]", error.extra if isinstance(error.extra, list) else [])
    problems = [f"{fault.get('key', 'body')}: {fault.get('message')}" for fault in faults]
    return f"The request is invalid: {'; '.join(problems) or 'its body'}. See /api/reference."
