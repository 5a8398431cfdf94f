"""What a user asked to see of a launch: statements as they run, accesses to an address."""
