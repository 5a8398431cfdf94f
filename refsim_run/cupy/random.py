"""cupy.random on the simulated GPU: NumPy's generators, whose numbers differ from cuRAND's."""

from typing import Any

import numpy as np

from refsim_run.cupy.creation import array
from refsim_run.seams import names_in, refuse
from refsim_run.session import current

LEGACY = names_in("""
    beta binomial chisquare choice dirichlet exponential f gamma geometric gumbel hypergeometric laplace logistic
    lognormal logseries multinomial multivariate_normal negative_binomial noncentral_chisquare noncentral_f normal
    pareto permutation poisson power rand randint randn random random_sample ranf rayleigh sample standard_cauchy
    standard_exponential standard_gamma standard_normal standard_t triangular uniform vonmises wald weibull zipf
""")
METHODS = names_in("""
    beta binomial chisquare dirichlet exponential f gamma geometric hypergeometric integers logseries
    multivariate_normal normal permutation poisson power random standard_exponential standard_gamma standard_normal
    uniform
""")


def _drawn(owner: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return numbers that NumPy drew, on the device, in the requested type."""
    current().answered_by_host(f"cupy.random.{name}")
    kind = kwargs.pop("dtype", None) if name not in ("integers", "randint") else None
    host = [each.get() if hasattr(each, "get") else each for each in args]
    return array(getattr(owner, name)(*host, **kwargs), kind)


class RandomState:
    """The generator numpy.random.RandomState, with its numbers on the device."""

    def __init__(self, seed: Any = None, method: Any = None) -> None:
        self._inner = np.random.RandomState(seed)

    def seed(self, seed: Any = None) -> None:
        self._inner.seed(seed)

    def shuffle(self, a: Any) -> None:
        order = self._inner.permutation(len(a))
        current().answered_by_host("cupy.random.shuffle")
        a[...] = array(a.get()[order])

    def __getattr__(self, name: str) -> Any:
        if name not in LEGACY:
            raise refuse("cupy.random.RandomState", name)
        return lambda *args, **kwargs: _drawn(self._inner, name, args, kwargs)


class Generator:
    """The generator numpy.random.Generator, with its numbers on the device."""

    def __init__(self, bit_generator: Any) -> None:
        self._inner = np.random.default_rng(bit_generator)

    def __getattr__(self, name: str) -> Any:
        if name not in METHODS:
            raise refuse("cupy.random.Generator", name)
        return lambda *args, **kwargs: _drawn(self._inner, name, args, kwargs)


def default_rng(seed: Any = None) -> Generator:
    return Generator(seed)


_STATE = [RandomState()]


def seed(seed: Any = None) -> None:
    _STATE[0].seed(seed)


def get_random_state() -> RandomState:
    return _STATE[0]


def set_random_state(rs: RandomState) -> None:
    _STATE[0] = rs


def shuffle(a: Any) -> None:
    _STATE[0].shuffle(a)


def __getattr__(name: str) -> Any:
    if name in LEGACY:
        return getattr(_STATE[0], name)
    raise refuse("cupy.random", name)
