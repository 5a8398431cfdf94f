"""pycuda.autoinit on the simulated GPU: a context from the first import to the end of the program."""

import atexit

from refsim_run.pycuda.context import Context, Device, init

init()
device = Device(0)
context: Context = device.make_context()
atexit.register(context.detach)
