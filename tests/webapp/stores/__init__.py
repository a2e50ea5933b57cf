"""Tests of the stores: one contract for all, and the special risks of each."""
