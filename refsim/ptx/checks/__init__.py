"""What a launch checks, and what it found."""
