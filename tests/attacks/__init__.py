"""Tests that attack."""
