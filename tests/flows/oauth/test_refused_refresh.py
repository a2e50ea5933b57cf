"""Refused refreshes by cause: an ended token, no proof of an end, a bad client, an outage."""

from dataclasses import replace

import httpx
import pytest

from flows.errors import Failed, InvalidQuestion
from flows.oauth.provider import KnownRefusal, Provider, as_data, provider_in
from flows.oauth.refresh import RefreshTokenGone, refresh
from flows.oauth.token_errors import TokenRefused
from flows.providers import atlassian, github, slack
from tests.support.account_life import PLAIN, a_client, a_connection, json_reply
from tests.support.clock import NOON
from tests.support.oauth_flow import talked
from tests.support.refusals import ENDED, OPERATORS, PAGES, PASSING


def refused(reply: httpx.Response, provider: Provider = PLAIN) -> TokenRefused:
    with pytest.raises(TokenRefused) as error:
        talked(refresh(a_client(provider), a_connection(provider), now=NOON), reply)
    return error.value


@pytest.mark.parametrize("reply", ENDED.values(), ids=ENDED)
def test_unknown_refusal_text_is_unsure(reply: httpx.Response) -> None:
    # finding: XO1
    assert refused(reply).refusal.means == "unsure"


@pytest.mark.parametrize("reply", PAGES.values(), ids=PAGES)
def test_page_instead_of_token_is_unsure(reply: httpx.Response) -> None:
    # finding: XO1
    refusal = refused(reply).refusal
    assert (refusal.means, refusal.is_page) == ("unsure", True)


def test_standard_error_with_retry_after_still_ends_token() -> None:
    # finding: XO1
    reply = httpx.Response(400, json={"error": "invalid_grant"}, headers={"retry-after": "0"})
    with pytest.raises(RefreshTokenGone):
        talked(refresh(a_client(), a_connection(), now=NOON), reply)


@pytest.mark.parametrize("reply", OPERATORS.values(), ids=OPERATORS)
def test_refused_client_is_reported_as_operators_problem(reply: httpx.Response) -> None:
    # finding: XO1
    error = refused(reply)
    assert error.refusal.means == "client"
    assert "operator" in str(error)
    assert "moment" not in str(error)


@pytest.mark.parametrize("reply", PASSING.values(), ids=PASSING)
def test_provider_outage_means_nothing_about_account(reply: httpx.Response) -> None:
    # finding: XO1
    with pytest.raises(Failed) as error:
        talked(refresh(a_client(), a_connection(), now=NOON), reply)
    refusal = getattr(error.value, "refusal", None)
    assert refusal is None or refusal.means == "passing"


@pytest.mark.parametrize(
    ("provider", "reply"),
    [
        (atlassian, ENDED["Atlassian"]),
        (github, json_reply(200, error="bad_refresh_token")),
        (slack, json_reply(200, ok=False, error="invalid_refresh_token")),
        (slack, json_reply(200, ok=False, error="token_expired")),
    ],
    ids=["Atlassian", "GitHub", "Slack", "Slack, expired"],
)
def test_built_in_provider_declares_its_refusals_of_ended_tokens(
    provider: Provider, reply: httpx.Response
) -> None:
    # finding: XO1
    with pytest.raises(RefreshTokenGone):
        talked(refresh(a_client(provider), a_connection(provider), now=NOON), reply)


@pytest.mark.parametrize(
    ("provider", "reply"),
    [
        (atlassian, json_reply(401, error="access_denied", error_description="Unauthorized")),
        (github, json_reply(200, error="incorrect_client_credentials")),
        (slack, json_reply(200, ok=False, error="bad_client_secret")),
    ],
    ids=["Atlassian", "GitHub", "Slack"],
)
def test_built_in_provider_declares_its_refusals_of_wrong_secret(
    provider: Provider, reply: httpx.Response
) -> None:
    # finding: XO1
    assert refused(reply, provider).refusal.means == "client"


@pytest.mark.parametrize(
    ("known", "is_ended"),
    [
        (KnownRefusal(member="status", value="BAD_REFRESH_TOKEN"), True),
        (KnownRefusal(status=400, member="status", value="BAD_REFRESH_TOKEN"), True),
        (KnownRefusal(status=400, description="unknown Refresh token"), True),
        (KnownRefusal(status=400), True),
        (KnownRefusal(status=401, member="status", value="BAD_REFRESH_TOKEN"), False),
        (KnownRefusal(member="status", value="BAD_CLIENT_ID"), False),
        (KnownRefusal(value="BAD_REFRESH_TOKEN"), False),
        (KnownRefusal(status=400, description="expired"), False),
    ],
)
def test_declared_refusal_matches_by_status_member_and_description(
    known: KnownRefusal, *, is_ended: bool
) -> None:
    # finding: XO1
    provider = replace(PLAIN, refusals=(known,))
    with pytest.raises(RefreshTokenGone if is_ended else TokenRefused):
        talked(refresh(a_client(provider), a_connection(provider), now=NOON), ENDED["HubSpot"])


@pytest.mark.parametrize(
    ("known", "reply"),
    [
        (KnownRefusal(member="error.code", value="190"), ENDED["Meta"]),
        (KnownRefusal(value="400"), ENDED["Reddit"]),
        (KnownRefusal(description="EXPIRED"), ENDED["Meta"]),
        (KnownRefusal(member="errcode", value="40030"), ENDED["WeChat"]),
    ],
)
def test_declared_refusal_reads_numbers_and_members_inside_others(
    known: KnownRefusal, reply: httpx.Response
) -> None:
    # finding: XO1
    provider = replace(PLAIN, refusals=(known,))
    with pytest.raises(RefreshTokenGone):
        talked(refresh(a_client(provider), a_connection(provider), now=NOON), reply)


def test_declared_meaning_takes_precedence_over_standard_meaning() -> None:
    # finding: XO1
    busy = replace(PLAIN, refusals=(KnownRefusal(value="invalid_grant", means="passing"),))
    assert refused(json_reply(400, error="invalid_grant"), busy).refusal.means == "passing"


def test_declared_refusal_is_ignored_for_outage_status() -> None:
    # finding: XO1
    provider = replace(PLAIN, refusals=(KnownRefusal(value="gone"),))
    for status in (429, 503):
        assert refused(json_reply(status, error="gone"), provider).refusal.means == "passing"


@pytest.mark.parametrize(
    "known",
    [KnownRefusal(), KnownRefusal(member="status"), KnownRefusal(value="x", means="never")],  # type: ignore[arg-type]
)
def test_declared_refusal_without_condition_or_valid_meaning_is_invalid(
    known: KnownRefusal,
) -> None:
    # finding: XO1
    with pytest.raises(InvalidQuestion, match="refusals: "):
        replace(PLAIN, refusals=(known,))


def test_declared_refusals_are_stored_with_the_account() -> None:
    # finding: XO1
    provider = replace(PLAIN, refusals=(KnownRefusal(status=400, value="gone"),))
    assert provider_in(as_data(provider)) == provider


def test_description_of_a_refusal_is_cut_for_the_log() -> None:
    # finding: XO4
    refusal = refused(json_reply(400, error="odd", error_description="x" * 5000)).refusal
    assert refusal.description == "x" * 300
