"""Errors of the authorization endpoint that a provider's declaration explains further."""

import pytest

from flows.elicitation.flow import RedirectContext
from flows.errors import Denied, Failed
from flows.oauth.provider import Provider
from flows.providers.github import github
from flows.providers.openid import microsoft
from tests.support.clock import NOON
from tests.support.oauth_flow import CALLBACK, a_flow, arrived, departed, parameters_of, talked
from tests.support.oauth_flow import an_elicitation as an_elicitation_of

ENTRA = microsoft()
CONSENT = "AADSTS65001: The user or administrator has not consented to use the application."


def error_of(provider: Provider, **answer: str) -> Exception:
    _, away = departed(provider, scopes=())
    with pytest.raises((Denied, Failed)) as no:
        a_flow(provider).read_callback(away, arrived(**answer))
    return no.value


def test_admin_consent_error_raises_failed_instead_of_denied() -> None:
    no = error_of(ENTRA, error="access_denied", error_description=CONSENT)
    assert isinstance(no, Failed)
    assert str(no) == ENTRA.troubles["AADSTS65001"]
    assert "AADSTS" not in str(no)


@pytest.mark.parametrize("description", ["", "AADSTS65004: User declined to consent."])
def test_access_denied_with_unknown_description_raises_denied(description: str) -> None:
    no = error_of(ENTRA, error="access_denied", error_description=description)
    assert isinstance(no, Denied)


def test_unknown_error_description_is_not_shown() -> None:
    no = error_of(ENTRA, error="server_error", error_description="Call 555-0100 now")
    assert str(no) == "Microsoft refused (server_error)."


def test_error_description_next_to_code_is_ignored() -> None:
    _, away = departed(ENTRA, scopes=())
    assert a_flow(ENTRA).read_callback(away, arrived(code="c", error_description=CONSENT))[0] == "c"


@pytest.mark.parametrize(("account", "is_chosen"), [(None, True), ("octocat", False)])
def test_account_selection_is_requested_unless_account_is_named(
    account: str | None, is_chosen: bool
) -> None:
    context = RedirectContext(number=1, return_url=CALLBACK, state="s", now=NOON, switches=True)
    flow, asked = a_flow(), an_elicitation_of(account=account)
    going = an_elicitation_of(account=account, attempt_data=flow.prepare(asked, context))
    departure, _ = talked(flow.begin(going, context))
    parameters = parameters_of(departure.url)
    assert ("prompt" in parameters) == is_chosen
    assert parameters.get("prompt", ["select_account"]) == [value for _, value in github.switch]
    assert parameters.get("login") == (None if account is None else [account])
