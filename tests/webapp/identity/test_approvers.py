"""Approvers: who decides for whom, based on verified identity and the operator's settings."""

from dataclasses import replace
from datetime import timedelta

import pytest
from msgspec import structs

from flows.elicitation.states import Elicitation
from flows.errors import NotConfigured
from flows.oauth.access_token import claim_mark, claim_marks
from tests.support.clock import NOON, Clock
from tests.support.service_env import question_in_store
from webapp.identity.approvers import (
    OWN_USER,
    ApprovalRules,
    Approver,
    Approvers,
    Deciding,
    KnownBy,
)
from webapp.identity.identity import Caller, Viewer
from webapp.identity.sessions import BrowserSession
from webapp.service import Service

ISSUER = "https://login.example"
FINANCE = Approver(name="finance", subjects=frozenset({"frank"}), claims={"groups": ("finance",)})
WAREHOUSE = Approver(name="warehouse", users=frozenset({"ann"}))
ME = Approver(name="me", is_local=True)
ALL = ApprovalRules(approvers=(FINANCE, WAREHOUSE, ME))


def approvers(service: Service, rules: ApprovalRules = ALL) -> Approvers:
    return Approvers(
        rules=rules,
        owners=service.elicitations.owners,
        identity=service.identity,
        issuers=frozenset({ISSUER}),
        application="shop",
        clock=service.clock,
    )


def tag(service: Service, subject: str, *, issuer: str = ISSUER) -> str:
    return service.elicitations.owners.tag(issuer=issuer, subject=subject)


def person(service: Service, subject: str, **changes: object) -> Deciding:
    of_issuer = Deciding(
        owner=tag(service, subject),
        known_by=KnownBy.ISSUER,
        name=f"{ISSUER}#{subject}",
        label=subject,
        issuer=ISSUER,
        since=service.clock(),
    )
    return replace(of_issuer, **changes)  # type: ignore[arg-type]  # as they are


def asked_by(service: Service, subject: str) -> Elicitation:
    return question_in_store(service, issuer=ISSUER, subject=subject, kind="decision")


async def test_person_decides_under_each_matching_approver_name(here: Service) -> None:
    found = approvers(here)
    assert found.names_of(person(here, "frank")) == ["finance"]
    marks = frozenset({claim_mark("groups", "finance")})
    assert found.names_of(person(here, "carol", claims=marks)) == ["finance"]
    ann = here.elicitations.owners.tag_of_user("ann", application="shop")
    seen = found.deciding(Viewer(owner=ann, label="you, signed in at shop", is_user=True))
    assert seen is not None
    assert (found.names_of(seen), seen.name) == (["warehouse"], "ann")
    own = found.deciding(Viewer(owner=here.identity.local_owner, label="you"))
    assert own is not None
    assert found.names_of(own) == ["me"]
    for nobody in (
        person(here, "Frank"),
        person(here, "carol"),
        person(here, "frank", owner=tag(here, "frank", issuer="https://other.example")),
        person(here, "ann", known_by=KnownBy.APPLICATION, claims=marks),
    ):
        assert found.names_of(nobody) == []


async def test_person_of_paired_browser_is_named_as_the_user_of_the_machine(here: Service) -> None:
    session = BrowserSession(
        id="s", issuer="this machine", subject="1", label="you", signed_in_at=NOON, seen_at=NOON
    )
    own = approvers(here).deciding(
        Viewer(owner=here.identity.local_owner, label="you", session=session)
    )
    assert own is not None
    assert (own.known_by, own.name) == (KnownBy.MACHINE, OWN_USER)


async def test_claims_are_matched_against_current_settings(here: Service) -> None:
    carol = person(here, "carol", claims=frozenset({claim_mark("groups", "finance")}))
    renamed = replace(FINANCE, claims={"groups": ("treasury",)})
    for rules, names in ((ALL, ["finance"]), (ApprovalRules(approvers=(renamed,)), [])):
        assert approvers(here, rules).names_of(carol) == names


async def test_sign_in_is_valid_for_an_hour(here: Service, clock: Clock) -> None:
    found, frank = approvers(here), person(here, "frank")
    clock.tick(minutes=59)
    assert found.names_of(frank) == ["finance"]
    clock.tick(minutes=1)
    assert found.is_too_long_ago(frank)
    assert found.names_of(frank) == []
    longer = replace(ALL, sign_in_counts_for=timedelta(days=1))
    assert approvers(here, longer).names_of(frank) == ["finance"]


async def test_asker_or_possible_asker_cannot_decide(here: Service) -> None:
    found, frank = approvers(here), person(here, "frank")
    assert found.is_asker(frank, asked_by(here, "frank"))
    assert not found.is_asker(frank, asked_by(here, "alice"))
    elsewhere = asked_by(here, "alice")
    for unknown in (
        structs.replace(elsewhere, is_for_user=True),
        structs.replace(elsewhere, is_by_code=True),
        structs.replace(elsewhere, owner=here.identity.local_owner),
    ):
        assert found.is_asker(frank, unknown), (
            "a decider who may be the asker is treated as the asker"
        )
    lets = approvers(here, replace(ALL, lets_askers_decide=True))
    assert not lets.is_asker(frank, asked_by(here, "frank"))


async def test_call_without_possible_approver_names_missing_setting(here: Service) -> None:
    found = approvers(here)
    alice = Caller(owner=tag(here, "alice"), client="c", name="alice")
    found.must_decide_for("finance", alice)
    user = here.elicitations.owners.tag_of_user("bob", application="shop")
    found.must_decide_for("warehouse", Caller(owner=user, client="", is_user=True))
    for name, caller, missing in (
        ("legal", alice, "[approvers.legal] in elicit.toml"),
        ("warehouse", alice, "[approvers.warehouse]"),
        ("finance", replace(alice, by_code=True), "[approvers.finance]"),
        ("me", Caller(owner=here.identity.local_owner, client="c"), "ELICIT_APPROVERS_ASKER"),
    ):
        with pytest.raises(NotConfigured) as refused:
            found.must_decide_for(name, caller)
        assert missing in str(refused.value)


def test_claim_matches_exact_text_or_list_item() -> None:
    wanted = {("groups", "finance"), ("role", "cfo")}
    assert claim_marks({"groups": ["a", "finance"], "role": "cfo"}, wanted) == tuple(
        sorted(claim_mark(*pair) for pair in wanted)
    )
    for claims in (
        {},
        {"groups": "finances"},
        {"groups": {"finance": 1}},
        {"groups": [["finance"]]},
    ):
        assert claim_marks(claims, wanted) == ()
