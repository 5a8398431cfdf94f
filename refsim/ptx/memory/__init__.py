"""State spaces and the accesses to them."""
