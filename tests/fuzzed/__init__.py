"""Tests that send generated requests to the HTTP API, based only on its OpenAPI document."""
