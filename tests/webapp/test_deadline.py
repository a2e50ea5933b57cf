"""Deadlines, on a monotonic clock."""

from datetime import timedelta

from webapp.deadline import NOON, Deadline


def test_deadline_without_remaining_microsecond_has_ended():
    ticks = [0.1]
    deadline = Deadline(timedelta(seconds=0.2), ticks=lambda: ticks[0])
    assert not deadline.has_ended
    ticks[0] = 0.3  # slightly less than 0.1 + 0.2 in floating point, too little to wait for
    assert deadline.at(NOON) == NOON
    assert deadline.has_ended
