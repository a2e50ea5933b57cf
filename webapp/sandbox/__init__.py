"""The sandbox: an authorisation server and a checkout page that work offline, for demo and tests.

Nothing in it is real, and it is reached only over HTTP: no flow imports it.
"""

from webapp.sandbox.settings import Sandbox, new_sandbox

__all__ = ["Sandbox", "new_sandbox"]
