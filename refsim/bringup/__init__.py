"""Bringing up a GPU: suites that ask whether a device does what the model says, and the report of what they found."""
