"""View models: what an answer shows, before it is text, JSON or a picture."""
