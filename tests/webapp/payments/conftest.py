"""Fixtures: payment providers, and a shop that sells through the author's own provider."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.acme import KEY
from tests.support.own_provider import OTHER, Orchard
from tests.support.payment_env import Mollie, PaymentEnv, selling
from webapp.settings.settings import read_settings


@pytest.fixture
def at_mollie() -> Mollie:
    return Mollie()


@pytest.fixture
def orchard() -> Orchard:
    return Orchard()


@pytest.fixture
async def other(orchard: Orchard, tmp_path: Path) -> AsyncIterator[PaymentEnv]:
    (tmp_path / "elicit.toml").write_text(OTHER, "utf-8")
    settings = read_settings(
        {
            "HOME": str(tmp_path),
            "ELICIT_CONFIG": str(tmp_path / "elicit.toml"),
            "ELICIT_ORCHARD_KEY": KEY,
            "ELICIT_ORCHARD_WEBHOOK_SECRET": "whsec_x",
            "ELICIT_ORCHARD_SHOP": "s-1",
        }
    )
    async with selling(settings.sellers["orchard"], orchard) as payment_env:
        yield payment_env
