"""Tests of the client, over the HTTP API."""
