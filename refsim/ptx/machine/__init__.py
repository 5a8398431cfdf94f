"""The machine that runs a launch: lanes, schedule, registers, programs."""
