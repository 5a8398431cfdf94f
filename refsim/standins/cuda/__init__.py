"""cuda.bindings and cuda.core on the simulated GPU: their names replaced once they are imported, as numba-cuda uses them."""
