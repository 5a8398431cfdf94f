"""Checks of the results of `run` and `oracle`; a result that does not fit the declaration is an error with a fix."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.compare.differences import in_best_order
from refsim.errors import RefsimError, nearest
from refsim.kernels import Bounded, Buffer, Expected, Kernel, Outputs, Unordered
from refsim.ptx.text.syntax import Module
from refsim.testing.user_code import called
from refsim.typed_arrays import native


def checked(kernel: Kernel, label: str, outputs: Any, formats: Mapping[str, str]) -> Mapping[str, Any]:
    """Return the outputs of `run` or `oracle`: arrays, or Bounded values of an oracle, under the declared names.

    Raises RefsimError wrong-output for any other result.
    """
    where = f"{label} of kernel {kernel.name}"
    if not isinstance(outputs, Mapping):
        what = f"{label} returns {_named(outputs)}, not a mapping of names to arrays"
        example = "launcher.read(y)" if label == "run" else "want"
        raise RefsimError("wrong-output", what, where=where, help=f'return {{"{next(iter(formats))}": {example}}}')
    arrays: Mapping[str, Any] = called(kernel, label, lambda: {name: _read(value) for name, value in outputs.items()})
    _same_names(label, arrays, formats, where)
    for name, value in arrays.items():
        if isinstance(value, Bounded) and label != "run":
            if not kernel.promise.is_bounded:
                what = (
                    f"{label} returns Bounded values for {name!r}, the promise is {str(kernel.promise).split(':')[0]}"
                )
                help = "promise=Promise.BOUNDED(because=...) decides by them"
                raise RefsimError("wrong-output", what, where=where, help=help)
        elif isinstance(value, Unordered) and label != "run":
            if not kernel.promise.is_set:
                what = f"{label} returns an Unordered value for {name!r}, the promise is {str(kernel.promise).split(':')[0]}"
                raise RefsimError("wrong-output", what, where=where, help="promise=Promise.SET() frees its order")
        elif not isinstance(value, np.ndarray):
            what = f"{label} returns {_named(value)} for {name!r}, not a NumPy array"
            raise RefsimError("wrong-output", what, where=where, help=_way_out(label, name, value))
    if label == "oracle" and kernel.promise.is_set:
        axis = kernel.promise.axis
        if axis is not None:
            return {name: Unordered(v, axis) if isinstance(v, np.ndarray) else v for name, v in arrays.items()}
        if not any(isinstance(v, Unordered) for v in arrays.values()):
            what = "the promise is Promise.SET, and oracle returns no Unordered value"
            help = "return {name: Unordered(value)}, or give SET an axis"
            raise RefsimError("wrong-output", what, where=where, help=help)
    elif kernel.promise.is_bounded and label == "oracle" and not any(isinstance(v, Bounded) for v in arrays.values()):
        what = "the promise is Promise.BOUNDED, and oracle returns no bounds"
        raise RefsimError("wrong-output", what, where=where, help="return {name: Bounded(value, bound)}")
    return arrays


def check_conflict_free(kernel: Kernel, module: Module) -> None:
    """Raise RefsimError bad-kernel for a prefix of `conflict_free` that no instruction of the kernel's PTX has."""
    opcodes = sorted(frozenset[str]().union(*(function.opcodes for function in module.functions.values())))
    for prefix in kernel.conflict_free:
        if not any(opcode.startswith(prefix) for opcode in opcodes):
            what = f"conflict_free names {prefix!r}, and no instruction of the kernel begins so"
            help = f"nearest: {', '.join(nearest(prefix, opcodes))}"
            raise RefsimError("bad-kernel", what, f"kernel {kernel.name}", "a promise must hold for something", help)


def check_shape(kernel: Kernel, name: str, got: Any, want: Any) -> None:
    """Raise RefsimError bad-shape unless the oracle's output has the shape of the kernel's."""
    shape = value_of(want).shape
    if got.shape != shape:
        what = f"run returns {name!r} in shape {got.shape}, oracle in shape {shape}"
        raise RefsimError("bad-shape", what, where=f"kernel {kernel.name}", help="both return the same elements")


def value_of(want: Any) -> NDArray[Any]:
    """Return the array of an oracle's output, which may be Bounded or Unordered."""
    return want.value if isinstance(want, Bounded | Unordered) else want


def settled(
    kernel: Kernel, got: Outputs, want: Expected, formats: Mapping[str, str] | None = None
) -> tuple[dict[str, Any], dict[str, tuple[str, ...]]]:
    """Return the oracle's outputs with Unordered values in the order of `got`, and what is missing or extra in each."""
    found: dict[str, Any] = dict(want)
    said: dict[str, tuple[str, ...]] = {}
    sets = {name: each for name, each in want.items() if isinstance(each, Unordered)}
    for name, first in sets.items():
        if name in said:
            continue
        tied = [each for each, it in sets.items() if each == name or (it.together and it.together == first.together)]
        facts = {(sets[each].value.shape[: first.axis + 1], sets[each].axis, tuple(sets[each].groups)) for each in tied}
        if len(facts) > 1:
            what = f"{', '.join(tied)} move together, and differ in the axis, its length or the groups"
            raise RefsimError("wrong-output", what, where=f"oracle of kernel {kernel.name}")
        mine, right = [got[each] for each in tied], [sets[each].value for each in tied]
        lines: list[str] = []
        alike = all(a.shape == b.shape and a.itemsize == b.itemsize for a, b in zip(mine, right, strict=True))
        if alike and mine[0].size:
            spelled = [(formats or {}).get(each, "") for each in tied]
            right, lines = in_best_order(mine, right, first.axis, first.groups, spelled)
        found |= dict(zip(tied, right, strict=True))
        said |= dict.fromkeys(tied, tuple(lines))
    return found, said


def in_output(kernel: Kernel, name: str, format: str, error: RefsimError) -> RefsimError:
    """Return the error of a comparison with the name of the output and, for floats in place of codes, the fix."""
    error.where = error.where or f"output {name!r} of kernel {kernel.name}"
    if not error.help and format and error.code in ("bad-dtype", "format-mismatch"):
        error.help = f'run and oracle both return codes: refsim.encode(values, "{format}") gives those of floats'
    return error


def _same_names(label: str, outputs: Mapping[Any, Any], formats: Mapping[str, str], where: str) -> None:
    """Raise RefsimError wrong-output unless the outputs have exactly the declared names."""

    def listed(names: "list[Any]") -> str:
        return ", ".join(repr(name) for name in names)

    undeclared = [name for name in outputs if name not in formats]
    missing = [name for name in formats if name not in outputs]
    if undeclared:
        what = f"{label} returns {listed(undeclared)}, declared are {listed(list(formats))}"
        help = f'outputs={{"{undeclared[0]}": "<format>"}} declares it; "" stands for plain integers'
        raise RefsimError("wrong-output", what, where=where, help=help)
    if missing:
        what = f"{label} does not return {listed(missing)}, which is declared; it returns {listed(list(outputs)) or 'nothing'}"
        raise RefsimError("wrong-output", what, where=where, help="return every output of outputs=, or declare fewer")


def _read(value: Any) -> Any:
    """Return an array in this machine's byte order; return any other value unchanged."""
    return native(value) if isinstance(value, np.ndarray) else value


def _way_out(label: str, name: str, value: Any) -> str:
    if isinstance(value, Buffer):
        return f'"{name}": launcher.read({value.name}) gives its elements'
    if hasattr(value, "__array__"):
        return "numpy.asarray(...) makes it one"
    return "return codes, or floats of the format's own NumPy dtype, as an array in the shape of the output"


def _named(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"
