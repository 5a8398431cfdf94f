"""Bringing up a GPU: what its tensor cores return, launched through the model's own layouts."""
