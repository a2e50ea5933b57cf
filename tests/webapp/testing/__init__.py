"""Tests of the test kit for authors, as an author uses it."""
