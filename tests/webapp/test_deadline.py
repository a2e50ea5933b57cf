"""Deadlines, by a clock that nobody sets."""

from datetime import timedelta

from webapp.deadline import Deadline


def test_a_deadline_without_a_microsecond_left_is_over():
    ticks = [0.1]
    deadline = Deadline(timedelta(seconds=0.2), ticks=lambda: ticks[0])
    assert not deadline.is_over
    ticks[0] = 0.3  # a little less than 0.1 + 0.2 as floats have it: nobody can wait for the rest
    assert deadline.left == timedelta()
    assert deadline.is_over
