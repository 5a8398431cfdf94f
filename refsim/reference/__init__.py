"""Second definitions, slow and independent, that tests hold the model to."""
