"""The times at which a provider is polled again."""

from datetime import timedelta

import pytest

from flows.payments.checkout_page import next_turn, turn_after_trouble
from tests.support.clock import NOON

SECONDS = (5, 10, 60)
PACE = [timedelta(seconds=seconds) for seconds in SECONDS]


@pytest.mark.parametrize(
    ("since", "after"), [(0, 5), (4, 1), (5, 10), (14, 1), (15, 60), (74, 1), (75, 60), (7200, 15)]
)
def test_provider_is_polled_at_its_pace_and_last_pause_repeats(since: int, after: int) -> None:
    now = NOON + timedelta(seconds=since)
    assert next_turn(PACE, begun_at=NOON, now=now) == now + timedelta(seconds=after)


def test_clock_set_back_delays_next_poll_by_longest_pause() -> None:
    # finding: H2
    now = NOON - timedelta(hours=2)
    for plan in (next_turn, turn_after_trouble):
        assert plan(PACE, begun_at=NOON, now=now) == now + PACE[-1]
