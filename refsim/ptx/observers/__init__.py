"""Observers of a launch: the statements that run, and the accesses to an address range."""
