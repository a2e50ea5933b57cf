"""The tests, as a package so that modules can import shared fakes."""
