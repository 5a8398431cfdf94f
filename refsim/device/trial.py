"""One kernel through every tool that a verdict needs: compile it, assemble it, run it, compare its bits."""

from dataclasses import dataclass

import numpy as np

from refsim.bundled import bundled
from refsim.conversions import encode
from refsim.device import Device
from refsim.device.assembling import assembled
from refsim.device.compile import CompiledPtx, compile_ptx
from refsim.errors import Kind, RefsimError

_ENTRY = "doctor_encode"
_COUNT = 256
OK, MISSING, FAILS, WRONG_BITS = "ok", "missing", "fails", "wrong"
_CODES = {OK: 0, MISSING: 0, FAILS: Kind.INCONCLUSIVE.value, WRONG_BITS: Kind.FAULT.value}


@dataclass(frozen=True)
class TrialStep:
    """A step of the trial: `by` is the tool that did it, or why it failed; `brought` the origin of the tool."""

    name: str
    state: str
    by: str
    brought: str = ""

    @property
    def exit_code(self) -> int:
        """Return 0 for success or a missing tool, 5 for an installed tool that fails, 1 for differing bits."""
        return _CODES[self.state]


def tried(device: Device) -> list[TrialStep]:
    """Return the steps for the target of a device; the trial ends if compilation fails."""
    try:
        made = compile_ptx(bundled("gpu/probes/doctor.cu"), device.target)
    except RefsimError as error:
        return [_failed("compile", error)]
    origin = made.compiler_from if made.origin == "nvrtc" else f"{made.origin} PTX, nothing here compiles it"
    return [TrialStep("compile", OK, made.compiler, origin), _assembled(made), _run(device)]


def _assembled(made: CompiledPtx) -> TrialStep:
    try:
        cubin = assembled(made.text, made.target)
    except RefsimError as error:
        return _failed("assemble", error)
    return TrialStep("assemble", OK, cubin.assembler, cubin.assembler_from)


def _run(device: Device) -> TrialStep:
    """Run the kernel on floats from 2^-20 to 2^11 of both signs and compare with the model.

    Subnormal, rounded and saturated codes are among the outputs.
    """
    values = (np.random.default_rng(1).uniform(-1, 1, _COUNT) * 2.0 ** np.arange(-20, 12).repeat(_COUNT // 32)).astype(
        "f4"
    )
    try:
        with device.probing().launcher(bundled("gpu/probes/doctor.cu")) as launcher:
            given = launcher.upload(values, name="in")
            kinds = ("e4m3", np.dtype("u1")), ("bf16", np.dtype("u2"))
            outputs = {name: launcher.output(_COUNT, dtype, name=name) for name, dtype in kinds}
            launcher.launch(_ENTRY, (2,), (_COUNT // 2,), [given, *outputs.values()])
            wrong = sum(
                np.count_nonzero(launcher.read(buffer) != encode(values, name)) for name, buffer in outputs.items()
            )
    except RefsimError as error:
        return _failed("run", error)
    facts = device.describe()
    if wrong:
        return TrialStep("run", WRONG_BITS, f"{wrong} of {2 * _COUNT} codes are not the model's", facts["device"])
    return TrialStep("run", OK, facts["device"], facts.get("assembler", "the simulator"))


def _failed(name: str, error: RefsimError) -> TrialStep:
    return TrialStep(name, MISSING if error.kind is Kind.MISSING else FAILS, error.what, error.help)
