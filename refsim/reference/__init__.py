"""Second definitions, slow and independent of the model, with which tests compare the model."""
