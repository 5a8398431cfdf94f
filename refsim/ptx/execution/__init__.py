"""The state of a running launch: its shape, sets of lanes, and their registers."""
