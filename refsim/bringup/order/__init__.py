"""The order in which a matrix product adds: found by probing, described in words, compared with the bits of test
cases."""

from typing import TYPE_CHECKING

from refsim.lazy import exports

if TYPE_CHECKING:
    from refsim.bringup.order.arithmetic import NodeArithmetic as NodeArithmetic
    from refsim.bringup.order.arithmetic import computed as computed
    from refsim.bringup.order.finding import AtM as AtM
    from refsim.bringup.order.finding import Fingerprint as Fingerprint
    from refsim.bringup.order.finding import FirstDifference as FirstDifference
    from refsim.bringup.order.finding import SumOrder as SumOrder
    from refsim.bringup.order.finding import compared as compared
    from refsim.bringup.order.finding import fingerprint as fingerprint
    from refsim.bringup.order.revealing import Node as Node
    from refsim.bringup.order.subjects import OrderSubject as OrderSubject
    from refsim.bringup.order.subjects import function_named as function_named
    from refsim.bringup.order.subjects import of_function as of_function
    from refsim.bringup.order.subjects import of_kernel as of_kernel
    from refsim.bringup.order.subjects import of_row_sums as of_row_sums
else:
    __getattr__, __dir__ = exports(__name__)
