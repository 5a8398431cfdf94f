"""What GPUs returned: the operands they were given, recordings of their results, and the model's answer to the same."""
