"""PyTorch's GPU on the simulated GPU: once torch is imported, tensors of the host can be on cuda:0."""
