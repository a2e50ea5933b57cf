"""Settings of quotas: every problem is reported, and missing settings have their defaults."""

from collections.abc import Mapping
from datetime import timedelta

import pytest

from flows.question import TIMEOUT_AT_MOST
from tests.support.settings import problems_in
from webapp.settings.quotas import ListedClient, PolicySettings
from webapp.settings.settings import read_settings
from webapp.settings.table import Values

NAMES = (
    "ELICIT_FORMS_ON_PAGES",
    "ELICIT_ONE_PER_SESSION",
    "ELICIT_PENDING_PER_OWNER",
    "ELICIT_PENDING_AT_MOST",
    "ELICIT_TIMEOUT_AT_MOST",
)


def read(environment: Mapping[str, str]) -> tuple[PolicySettings, list[str]]:
    values = Values(environment)
    return PolicySettings(**values.fields_of(PolicySettings)), values.problems


def test_default_policies_allow_several_questions_and_use_pages_for_forms() -> None:
    assert read({}) == (PolicySettings(), [])
    assert read(dict.fromkeys(NAMES, " ")) == (PolicySettings(), [])
    found = PolicySettings()
    assert (found.forms_on_pages, found.one_per_session) == (True, False)
    assert (found.pending_per_owner, found.pending_at_most) == (50, 100_000)
    assert found.timeout_at_most == TIMEOUT_AT_MOST


def test_each_policy_setting_is_read() -> None:
    given = dict(zip(NAMES, ("0", "1", "7", "5000", "90"), strict=True))
    assert read(given) == (
        PolicySettings(
            forms_on_pages=False,
            one_per_session=True,
            pending_per_owner=7,
            pending_at_most=5000,
            timeout_at_most=timedelta(seconds=90),
        ),
        [],
    )
    assert read({NAMES[0]: "1", NAMES[1]: "0"}) == (PolicySettings(), [])
    assert read({NAMES[2]: "200"}) == (PolicySettings(pending_per_owner=200), [])


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("1", timedelta(seconds=1)),
        ("604800", timedelta(days=7)),
        ("7d", timedelta(days=7)),
        ("12h", timedelta(hours=12)),
        ("30m", timedelta(minutes=30)),
    ],
)
def test_longest_timeout_is_number_of_seconds_or_duration(text: str, found: timedelta) -> None:
    assert read({"ELICIT_TIMEOUT_AT_MOST": text})[0].timeout_at_most == found


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (NAMES[0], "yes"),
        (NAMES[1], "2"),
        (NAMES[2], "0"),
        (NAMES[2], "201"),
        (NAMES[2], "-1"),
        (NAMES[2], "five"),
        (NAMES[2], "\u0665"),
        (NAMES[3], "0"),
        (NAMES[3], "10000001"),
        (NAMES[3], "9" * 5000),
        (NAMES[4], "0"),
        (NAMES[4], "0m"),
        (NAMES[4], "8d"),
        (NAMES[4], "604801"),
        (NAMES[4], "30w"),
        (NAMES[4], "1.5"),
        (NAMES[4], "9" * 5000),
    ],
)
def test_invalid_value_is_reported_with_variable(name: str, text: str) -> None:
    found, problems = read({name: text})
    assert found == PolicySettings()
    (problem,) = problems
    assert problem.startswith(f"{name}:")


def test_problems_of_policies_are_reported_with_others(home: dict[str, str]) -> None:
    wrong = {**dict.fromkeys(NAMES, "x"), "ELICIT_PROXIES": "x", **home}
    assert len(problems_in(wrong)) == len(NAMES) + 1
    assert read_settings({**home, NAMES[1]: "1"}).policies.one_per_session


def test_patient_clients_are_separated_by_commas() -> None:
    found, problems = read({"ELICIT_PATIENT_CLIENTS": "my editor, , another"})
    assert (found.patient_clients, problems) == (frozenset({"my editor", "another"}), [])


@pytest.mark.parametrize(("text", "seconds"), [("0", 0), ("1", 1), ("30", 30), ("1m", 60)])
def test_min_answer_is_number_of_seconds_and_can_be_zero(text: str, seconds: int) -> None:
    found, problems = read({"ELICIT_MIN_ANSWER": text})
    assert (found.min_answer, problems) == (timedelta(seconds=seconds), [])
    assert PolicySettings().min_answer == timedelta(seconds=1)


@pytest.mark.parametrize("text", ["61", "2m", "-1", "1.5", "1w", "soon"])
def test_min_answer_is_at_most_a_minute(text: str) -> None:
    (problem,) = read({"ELICIT_MIN_ANSWER": text})[1]
    assert problem.startswith("ELICIT_MIN_ANSWER: must be a number of seconds")


def test_clients_are_listed_by_name_with_optional_version() -> None:
    text = "chat=nothing, my editor/1.2 = forms+links, a=links,b=forms, bot=answers:form+confirm"
    found, problems = read({"ELICIT_CLIENTS": text})
    assert problems == []
    both = frozenset({"form", "url"})
    assert found.clients == (
        ListedClient(name="chat", draws=frozenset()),
        ListedClient(name="my editor/1.2", draws=both),
        ListedClient(name="a", draws=frozenset({"url"})),
        ListedClient(name="b", draws=frozenset({"form"})),
        ListedClient(name="bot", draws=both, answers=frozenset({"form", "confirm"})),
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("chat", "write for example my-editor=nothing"),
        ("=nothing", "write for example my-editor=nothing"),
        ("chat=all", "nothing, forms, links or forms+links"),
        ("chat=", "nothing, forms, links or forms+links"),
        ("chat=answers:", "as answers:form+confirm"),
        ("chat=answers:form+payment", "as answers:form+confirm"),
        ("chat=forms, chat=links", "chat occurs twice"),
    ],
)
def test_invalid_client_entry_is_refused_with_reason(text: str, says: str) -> None:
    found, (problem,) = read({"ELICIT_CLIENTS": text})
    assert found == PolicySettings()
    assert problem.startswith("ELICIT_CLIENTS: ")
    assert says in problem
