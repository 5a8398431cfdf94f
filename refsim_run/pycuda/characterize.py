"""pycuda.characterize on the simulated GPU."""

from refsim_run.seams import always, refusing

__getattr__ = refusing("pycuda.characterize")


has_double_support = has_stack = always(True)


platform_bits = always(64)
