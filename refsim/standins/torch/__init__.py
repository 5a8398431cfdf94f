"""PyTorch's GPU on the simulated one: tensors of the host that say they are on it, once torch is imported."""
