"""The tests, a package so that its modules share their fakes by name and import once."""
