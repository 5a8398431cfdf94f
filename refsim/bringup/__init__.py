"""Bring-up of a GPU: suites that compare a device with the model, and the report of the results."""
