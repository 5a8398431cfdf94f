"""What executes: the shape of a launch, sets of lanes, their registers."""
