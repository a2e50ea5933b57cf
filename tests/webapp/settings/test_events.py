"""Settings of outgoing events: named receiver addresses are read, and mistakes are reported."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.event_env import OTHER_SECRET, SECRET
from tests.support.settings import problems_in
from webapp.events.addresses import EventAddress
from webapp.settings.settings import read_settings, unknown_names

URL = "https://crm.example/hooks?of=elicit"
CRM = {"ELICIT_EVENTS_CRM_URL": URL, "ELICIT_EVENTS_CRM_SECRET": SECRET}


def read(environment: Mapping[str, str], home: Path) -> tuple[EventAddress, ...]:
    return read_settings({"HOME": str(home), **environment}).events


def test_no_address_is_set_by_default_and_address_wants_all_events(tmp_path: Path) -> None:
    assert read({}, tmp_path) == ()
    (crm,) = read(CRM, tmp_path)
    assert crm == EventAddress(name="crm", url=URL, secrets=(SECRET,))
    assert crm.wants("question.asked")
    assert crm.wants("account.lapsed")


def test_several_addresses_have_separate_types_and_secrets(
    tmp_path: Path,
) -> None:
    more = {
        "ELICIT_EVENTS_BACK_OFFICE_URL": "http://127.0.0.1:9000/in",
        "ELICIT_EVENTS_BACK_OFFICE_SECRET": f"{OTHER_SECRET}, {SECRET}",
        "ELICIT_EVENTS_BACK_OFFICE_TYPES": "payment.*, question.expired",
    }
    office, crm = read({**CRM, **more}, tmp_path)
    assert (office.name, crm.name) == ("back_office", "crm")
    assert office.secrets == (OTHER_SECRET, SECRET)
    wanted = ("payment.paid", "question.expired", "question.asked", "account.connected")
    assert [office.wants(each) for each in wanted] == [True, True, False, False]
    assert unknown_names({**CRM, **more}) == []


def test_repr_of_settings_shows_no_secret_or_address(tmp_path: Path) -> None:
    text = repr(read_settings({"HOME": str(tmp_path), **CRM}))
    assert SECRET not in text
    assert "crm.example" not in text


@pytest.mark.parametrize(
    ("changes", "named", "words"),
    [
        ({"ELICIT_EVENTS_CRM_SECRET": ""}, "ELICIT_EVENTS_CRM_SECRET", "not set"),
        ({"ELICIT_EVENTS_CRM_URL": ""}, "ELICIT_EVENTS_CRM_URL", "not set"),
        *(
            ({"ELICIT_EVENTS_CRM_URL": url}, "ELICIT_EVENTS_CRM_URL", "https address")
            for url in (
                *("http://crm.example/", "ftp://crm.example/", "https://", "crm.example"),
                *("https://me:hunter2@crm.example/", "https://crm.example/#x", "https://[::1/"),
                *("https://crm.example:99999/", "https://999.999.1.1/", "https://[v1.a]/"),
            )
        ),
        *(
            ({"ELICIT_EVENTS_CRM_SECRET": secret}, "ELICIT_EVENTS_CRM_SECRET", "events secret")
            for secret in ("hunter2", "whsec_", "whsec_c2hvcnQ=", "whsec_" + "A" * 400, "whsec_é")
        ),
        (
            {"ELICIT_EVENTS_CRM_TYPES": "question.*,answers"},
            "ELICIT_EVENTS_CRM_TYPES",
            "'answers' is not a type of event",
        ),
    ],
)
def test_mistake_is_reported_with_variable_name(
    changes: Mapping[str, str], named: str, words: str
) -> None:
    (problem,) = problems_in({"HOME": "/nowhere", "ELICIT_STORE": "memory:", **CRM, **changes})
    assert problem.startswith(f"{named}: ")
    assert words in problem


def test_more_than_eight_addresses_are_refused(tmp_path: Path) -> None:
    many = {
        f"ELICIT_EVENTS_N{number}_{what}": value
        for number in range(9)
        for what, value in (("URL", URL), ("SECRET", SECRET))
    }
    (problem,) = problems_in({"HOME": str(tmp_path), **many})
    assert "8 at most" in problem
