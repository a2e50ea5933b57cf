"""Rate limits: how often a key may come, and bounded memory for counting."""

from datetime import timedelta
from typing import Any

import pytest

from tests.support.clock import Clock
from webapp.http.rate_limit import AtOnce, Rates, TooOften, address_key


@pytest.fixture
def clock() -> Clock:
    return Clock()


def rates(clock: Clock, **changes: Any) -> Rates:
    limits: dict[str, Any] = {"burst": 3, "every": timedelta(seconds=10), **changes}
    return Rates(clock=clock, **limits)


def test_a_burst_goes_through_and_then_one_in_each_interval(clock: Clock) -> None:
    some = rates(clock)
    assert [some.allow("a") for _ in range(4)] == [0, 0, 0, 10]
    clock.tick(seconds=9)
    assert some.allow("a") == 1
    clock.tick(seconds=1)
    assert [some.allow("a") for _ in range(2)] == [0, 10]


def test_what_is_required_is_refused_with_the_seconds_to_wait(clock: Clock) -> None:
    some = rates(clock, burst=1)
    some.require("a")
    clock.tick(seconds=2.5)
    with pytest.raises(TooOften) as refused:
        some.require("a")
    assert refused.value.seconds == 8


def test_refusals_are_not_counted_against_whoever_asks_again(clock: Clock) -> None:
    some = rates(clock)
    for _ in range(100):
        some.allow("a")
    clock.tick(seconds=10)
    assert some.allow("a") == 0


def test_a_bucket_fills_up_again_and_no_further(clock: Clock) -> None:
    some = rates(clock)
    for _ in range(3):
        some.allow("a")
    clock.tick(seconds=100_000)
    assert [some.allow("a") for _ in range(4)] == [0, 0, 0, 10]


@pytest.mark.parametrize("hours", [-2, 2, 8, -20_000])
def test_a_clock_that_is_set_holds_nobody_back_and_lets_nobody_through(
    clock: Clock, hours: float
) -> None:
    # finding: H2
    some = rates(clock)
    assert [some.allow("a") for _ in range(3)] == [0, 0, 0]
    clock.set(hours=hours)
    assert [some.allow("a") for _ in range(2)] == [10, 10]
    clock.tick(seconds=10)
    assert some.allow("a") == 0


def test_keys_are_apart(clock: Clock) -> None:
    some = rates(clock, burst=1)
    assert some.allow("a") == 0
    assert some.allow("b") == 0
    assert some.allow("a") > 0


def test_no_more_keys_are_kept_than_allowed_and_the_idlest_makes_room(clock: Clock) -> None:
    some = rates(clock, burst=1, keys_at_most=3)
    for key in "abc":
        some.allow(key)
    some.allow("a")  # refused, and counted as recently used
    some.allow("d")
    assert len(some) == 3
    assert some.allow("a") > 0
    assert some.allow("b") == 0  # the limiter has forgotten this key


def test_a_flood_of_addresses_is_held_to_ten_thousand_keys(clock: Clock) -> None:
    some = rates(clock)
    for number in range(10_500):
        some.allow(str(number))
    assert len(some) == 10_000


def test_a_clock_that_goes_back_refuses_and_does_not_fail(clock: Clock) -> None:
    some = rates(clock, burst=1)
    some.allow("a")
    clock.tick(seconds=-5)
    assert some.allow("a") == 15


@pytest.mark.parametrize("wrong", [{"burst": 0}, {"every": timedelta()}, {"keys_at_most": 0}])
def test_limits_that_limit_nothing_are_refused(clock: Clock, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="or more"):
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
def test_one_customer_of_a_network_is_one_key(client: object, key: str) -> None:
    assert address_key({"client": client}) == key


def test_so_many_at_once_of_each_and_nothing_is_remembered_of_those_that_are_over() -> None:
    some = AtOnce(2)
    with some.one_more("a") as first, some.one_more("a") as second:
        with some.one_more("a") as third, some.one_more("b") as other:
            assert (first, second, third, other) == (True, True, False, True)
        with pytest.raises(KeyError), some.one_more("c"):
            raise KeyError
    with some.one_more("a") as again:
        assert again
    assert len(some) == 0
