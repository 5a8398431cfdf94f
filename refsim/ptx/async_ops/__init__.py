"""What goes on while threads compute."""
