"""What browsers, services and operators reach over HTTP."""
