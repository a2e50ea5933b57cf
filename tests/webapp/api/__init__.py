"""Tests of the HTTP API, with the requests of a program."""
