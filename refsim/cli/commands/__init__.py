"""One module for each command: its options and its answer. The module is imported when the command is used."""
