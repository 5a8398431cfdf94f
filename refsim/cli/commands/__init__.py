"""One module a command: what it asks, what it answers; imported when the command is used."""
