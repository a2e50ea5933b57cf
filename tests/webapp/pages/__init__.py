"""Tests of the pages, as HTML and in a browser."""
