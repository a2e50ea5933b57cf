"""Tests of the service on the memory store."""
