"""The checks of a launch, and their findings."""
