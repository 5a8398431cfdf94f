"""What a launch may find: the checks, the errors, the record of a launch."""
