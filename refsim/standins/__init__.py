"""Stand-ins for packages that talk to a GPU: programs of others run on the simulated one, at the seams of Python."""
