"""Retention settings: how long records stay, and never less than a late payment needs."""

from datetime import timedelta
from pathlib import Path

import pytest

from flows.elicitation.states import RECORD_RETENTION
from tests.support.clock import Clock
from tests.support.service_env import asked, process
from webapp.settings.quotas import PolicySettings
from webapp.settings.settings import BadSettings, read_settings
from webapp.stores.sqlite import MemoryStore


@pytest.mark.parametrize(
    ("kind", "days", "retained"),
    [
        ("url", 2, 2),
        ("url", 90, 90),
        ("payment", 2, RECORD_RETENTION.days),
        ("payment", 90, 90),
    ],
)
async def test_question_is_retained_as_configured_and_payment_at_least_a_month(
    kind: str, days: int, retained: int
) -> None:
    store, policies = MemoryStore(), PolicySettings(keep_records=timedelta(days=days))
    async with process(store, Clock(), policies=policies) as service:
        question = await asked(service, kind=kind)
        (record,) = await store.list("elicitation")
        assert record.erase_at == question.expires_at + timedelta(days=retained)
        just_before = question.expires_at + timedelta(days=retained, seconds=-1)
        assert await store.erase(before=just_before, owner=question.owner) == 0
        assert await store.erase(before=record.erase_at, owner=question.owner) == 1


async def test_default_retention_follows_rules_of_each_kind() -> None:
    store = MemoryStore()
    async with process(store, Clock()) as service:
        question = await asked(service)
        (record,) = await store.list("elicitation")
        assert record.erase_at == question.erase_at


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ELICIT_KEEP_RECORDS", "12h"),
        ("ELICIT_KEEP_RECORDS", "20y"),
        ("ELICIT_KEEP_WEBHOOKS", "6d"),
        ("ELICIT_KEEP_EVENTS", "6d"),
    ],
)
def test_too_short_or_invalid_retention_is_refused(tmp_path: Path, name: str, text: str) -> None:
    with pytest.raises(BadSettings, match=name):
        read_settings({"HOME": str(tmp_path), name: text})
    read_settings({"HOME": str(tmp_path), name: "90d"})
