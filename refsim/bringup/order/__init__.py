"""The order in which a matrix product adds: found by probing, described in words, compared with the bits of test
cases."""

from typing import TYPE_CHECKING

__all__ = [
    "AtM",
    "Fingerprint",
    "FirstDifference",
    "Node",
    "NodeArithmetic",
    "OrderSubject",
    "SumOrder",
    "compared",
    "computed",
    "fingerprint",
    "function_named",
    "of_function",
    "of_kernel",
    "of_row_sums",
]

if TYPE_CHECKING:
    from refsim.bringup.order.arithmetic import NodeArithmetic, computed
    from refsim.bringup.order.asking import OrderSubject
    from refsim.bringup.order.finding import AtM, Fingerprint, FirstDifference, SumOrder, compared, fingerprint
    from refsim.bringup.order.subjects import function_named, of_function, of_kernel, of_row_sums
    from refsim.bringup.order.trees import Node
else:
    from refsim.lazy import exports

    __getattr__, __dir__ = exports(
        __name__,
        {
            "refsim.bringup.order.arithmetic": ("NodeArithmetic", "computed"),
            "refsim.bringup.order.asking": ("OrderSubject",),
            "refsim.bringup.order.finding": (
                "AtM",
                "FirstDifference",
                "Fingerprint",
                "SumOrder",
                "compared",
                "fingerprint",
            ),
            "refsim.bringup.order.subjects": ("function_named", "of_function", "of_kernel", "of_row_sums"),
            "refsim.bringup.order.trees": ("Node",),
        },
    )
    del exports
