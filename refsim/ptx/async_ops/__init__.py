"""Asynchronous work: operations that go on while threads compute."""
