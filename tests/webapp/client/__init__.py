"""Tests of the Python client, which uses the HTTP API."""
