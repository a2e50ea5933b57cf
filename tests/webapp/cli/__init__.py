"""Tests of the command line, which runs as a process of its own."""
