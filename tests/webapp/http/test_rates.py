"""Rate limits: the number of calls for each key is limited, and so is the memory for counting."""

from datetime import timedelta
from typing import Any

import pytest

from tests.support.clock import Clock
from webapp.http.rate_limit import ConcurrencyLimit, Rates, TooOften, address_key


@pytest.fixture
def clock() -> Clock:
    return Clock()


def rates(clock: Clock, **changes: Any) -> Rates:
    limits: dict[str, Any] = {"burst": 3, "every": timedelta(seconds=10), **changes}
    return Rates(clock=clock, **limits)


def test_burst_is_allowed_and_then_single_call_per_interval(clock: Clock) -> None:
    some = rates(clock)
    assert [some.consume("a") for _ in range(4)] == [0, 0, 0, 10]
    clock.tick(seconds=9)
    assert some.consume("a") == 1
    clock.tick(seconds=1)
    assert [some.consume("a") for _ in range(2)] == [0, 10]


def test_require_raises_too_often_with_seconds_to_wait(clock: Clock) -> None:
    some = rates(clock, burst=1)
    some.require("a")
    clock.tick(seconds=2.5)
    with pytest.raises(TooOften) as refused:
        some.require("a")
    assert refused.value.seconds == 8


def test_refused_calls_do_not_extend_wait(clock: Clock) -> None:
    some = rates(clock)
    for _ in range(100):
        some.consume("a")
    clock.tick(seconds=10)
    assert some.consume("a") == 0


def test_bucket_refills_up_to_burst(clock: Clock) -> None:
    some = rates(clock)
    for _ in range(3):
        some.consume("a")
    clock.tick(seconds=100_000)
    assert [some.consume("a") for _ in range(4)] == [0, 0, 0, 10]


@pytest.mark.parametrize("hours", [-2, 2, 8, -20_000])
def test_changed_clock_neither_blocks_nor_frees_limit(clock: Clock, hours: float) -> None:
    # finding: H2
    some = rates(clock)
    assert [some.consume("a") for _ in range(3)] == [0, 0, 0]
    clock.set(hours=hours)
    assert [some.consume("a") for _ in range(2)] == [10, 10]
    clock.tick(seconds=10)
    assert some.consume("a") == 0


def test_keys_have_separate_limits(clock: Clock) -> None:
    some = rates(clock, burst=1)
    assert some.consume("a") == 0
    assert some.consume("b") == 0
    assert some.consume("a") > 0


def test_number_of_keys_is_limited_and_least_recently_used_is_dropped(clock: Clock) -> None:
    some = rates(clock, burst=1, keys_at_most=3)
    for key in "abc":
        some.consume(key)
    some.consume("a")  # refused, and counted as recently used
    some.consume("d")
    assert len(some) == 3
    assert some.consume("a") > 0
    assert some.consume("b") == 0  # the limiter has forgotten this key


def test_flood_of_addresses_is_limited_to_ten_thousand_keys(clock: Clock) -> None:
    some = rates(clock)
    for number in range(10_500):
        some.consume(str(number))
    assert len(some) == 10_000


def test_clock_set_back_refuses_without_error(clock: Clock) -> None:
    some = rates(clock, burst=1)
    some.consume("a")
    clock.tick(seconds=-5)
    assert some.consume("a") == 15


@pytest.mark.parametrize("wrong", [{"burst": 0}, {"every": timedelta()}, {"keys_at_most": 0}])
def test_invalid_limits_are_refused(clock: Clock, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        rates(clock, **wrong)


@pytest.mark.parametrize(
    ("client", "key"),
    [
        (("203.0.113.7", 4000), "203.0.113.7"),
        (("::ffff:203.0.113.7", 4000), "203.0.113.7"),
        (("2001:db8:1:2:3:4:5:6", 4000), "2001:db8:1:2::/64"),
        (("2001:db8:1:2:ffff::1", 4000), "2001:db8:1:2::/64"),
        (("fe80::1%eth0", 4000), "fe80::/64"),
        (None, ""),
        (("a unix socket", 0), ""),
    ],
)
def test_addresses_of_same_customer_network_share_key(client: object, key: str) -> None:
    assert address_key({"client": client}) == key


def test_concurrent_uses_per_key_are_limited_and_ended_uses_are_forgotten() -> None:
    some = ConcurrencyLimit(2)
    with some.slot("a") as first, some.slot("a") as second:
        with some.slot("a") as third, some.slot("b") as other:
            assert (first, second, third, other) == (True, True, False, True)
        with pytest.raises(KeyError), some.slot("c"):
            raise KeyError
    with some.slot("a") as again:
        assert again
    assert len(some) == 0
