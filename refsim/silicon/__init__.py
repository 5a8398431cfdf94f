"""Recorded results of GPUs: the operands they were given, the recordings, and the model's results for equal
operands."""
