"""Stand-ins for packages that talk to a GPU: Python programs written for them run on the simulated GPU instead."""
