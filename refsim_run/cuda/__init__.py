"""cuda.bindings and cuda.core on the simulated GPU: their names are replaced after import, as numba-cuda uses them."""
