"""Tests that attack the server."""
