"""Tests of tools that ask people, through a real client over real HTTP."""
