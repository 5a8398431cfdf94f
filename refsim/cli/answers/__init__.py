"""View models: the content of an answer, before it becomes text, JSON or a picture."""
