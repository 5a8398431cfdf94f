"""Functions of CuPy that NumPy computes, by name, and the functions whose bits match a GPU's kernels."""

from refsim_run.seams import names_in

UFUNCS = names_in("""
    abs absolute acos acosh add arccos arccosh arcsin arcsinh arctan arctan2 arctanh asin asinh atan atan2 atanh
    bitwise_and bitwise_count bitwise_invert bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor
    cbrt ceil conj conjugate copysign cos cosh deg2rad degrees divide divmod equal exp exp2 expm1 fabs float_power floor
    floor_divide fmax fmin fmod frexp gcd greater greater_equal heaviside hypot invert isfinite isinf isnan lcm ldexp
    left_shift less less_equal log log10 log1p log2 logaddexp logaddexp2 logical_and logical_not logical_or logical_xor
    maximum minimum mod modf multiply negative nextafter not_equal positive pow power rad2deg radians reciprocal
    remainder right_shift rint sign signbit sin sinh sqrt square subtract tan tanh true_divide trunc
""")
"""Functions of each element."""

ARRAY_FUNCTIONS = names_in("""
    all allclose amax amin angle any append arange argmax argmin argpartition argsort argwhere around array_equal
    array_equiv array_split asarray_chkfinite astype atleast_1d atleast_2d atleast_3d average bartlett bincount blackman
    broadcast_arrays broadcast_to choose clip column_stack compress concat concatenate convolve corrcoef correlate
    count_nonzero cov cross cumprod cumsum cumulative_prod cumulative_sum delete diag diag_indices diag_indices_from
    diagflat diagonal diff digitize dot dsplit dstack ediff1d einsum expand_dims extract eye fix flatnonzero flip fliplr
    flipud frombuffer fromfile fromiter fromstring full genfromtxt gradient hamming hanning histogram histogram2d
    histogramdd hsplit hstack i0 identity imag indices inner interp intersect1d isclose iscomplex isin isneginf isposinf
    isreal ix_ kaiser kron lexsort linspace load loadtxt logspace mask_indices matmul matrix_transpose max mean median
    meshgrid min moveaxis nan_to_num nanargmax nanargmin nancumprod nancumsum nanmax nanmean nanmedian nanmin nanprod
    nanstd nansum nanvar nonzero ones outer packbits pad partition percentile permute_dims prod ptp quantile ravel
    ravel_multi_index real real_if_close repeat reshape resize roll rollaxis rot90 round row_stack searchsorted select
    setdiff1d setxor1d sinc sort sort_complex split squeeze stack std sum swapaxes take take_along_axis tensordot tile
    trace transpose trapezoid tri tril tril_indices tril_indices_from trim_zeros triu triu_indices triu_indices_from
    union1d unique unique_all unique_counts unique_inverse unique_values unpackbits unravel_index unwrap vander var vdot
    vsplit vstack where zeros
""")
"""Functions of arrays that return arrays."""

CHANGING = names_in("""
    copyto fill_diagonal place put put_along_axis putmask
""")
"""Functions that change their first argument."""

FACTS = names_in("""
    array2string array_repr array_str base_repr binary_repr broadcast_shapes can_cast common_type
    format_float_positional format_float_scientific get_printoptions iscomplexobj isdtype isfortran isrealobj isscalar
    issubdtype iterable may_share_memory min_scalar_type mintypecode ndim printoptions promote_types result_type save
    savetxt savez savez_compressed set_printoptions shape shares_memory size typename
""")
"""Functions that return facts about arrays or write arrays to a file; they return no array."""

CONSTANTS = names_in("""
    bool bool_ byte c_ cdouble complex128 complex64 complexfloating csingle double dtype e euler_gamma finfo float16
    float32 float64 floating generic half iinfo index_exp inexact inf int16 int32 int64 int8 int_ intc integer intp long
    longlong nan newaxis number pi s_ short signedinteger single ubyte uint uint16 uint32 uint64 uint8 uintc uintp ulong
    ulonglong unsignedinteger ushort
""")
"""NumPy's own types, numbers and ways to write an index."""

LINALG = names_in("""
    cholesky cond cross det eig eigh eigvals eigvalsh inv lstsq matmul matrix_norm matrix_power matrix_rank
    matrix_transpose norm outer pinv qr slogdet solve svd svdvals tensorinv tensorsolve trace vecdot vector_norm
""")
FFT = names_in("""
    fft fft2 fftfreq fftn fftshift hfft ifft ifft2 ifftn ifftshift ihfft irfft irfft2 irfftn rfft rfft2 rfftfreq rfftn
""")

SAME_BITS = names_in("""
    abs absolute add all amax amin any arange argmax argmin argwhere around array_equal array_split
    astype atleast_1d atleast_2d atleast_3d broadcast_arrays broadcast_to ceil choose clip column_stack compress concat
    concatenate conj conjugate copysign count_nonzero delete diag diagflat diagonal divide dsplit dstack equal
    expand_dims extract eye fabs fix flatnonzero flip fliplr flipud floor fmax fmin fmod frexp frombuffer fromfile
    fromiter fromstring full genfromtxt greater greater_equal hsplit hstack identity imag isfinite isin isinf isnan
    isneginf isposinf isreal ix_ ldexp less less_equal load loadtxt logical_and logical_not logical_or
    logical_xor matrix_transpose max maximum meshgrid min minimum modf moveaxis multiply nan_to_num nanargmax nanargmin
    nanmax nanmin negative nonzero not_equal ones pad permute_dims positive ptp ravel real repeat
    reshape resize rint roll rollaxis rot90 round row_stack searchsorted select sign signbit split sqrt square
    squeeze stack subtract swapaxes take take_along_axis tile transpose tri tril trim_zeros triu true_divide trunc
    vsplit vstack where zeros
""")
"""Functions that move numbers or round a real result once: their floating-point bits match CuPy's kernels.

Tested on an H200 with CuPy 14.2.0: equal except for NaN payloads. Sorts and nextafter differed and are left out.
"""
COMPLEX_BITS = SAME_BITS - {"abs", "absolute", "divide", "multiply", "sqrt", "square", "true_divide", "sign"}
"""Functions whose bits of complex numbers match CuPy's kernels."""

RENAMED = {
    "arange": {"start": ""},
    "array_str": {"arr": "a"},
    "concat": {"tup": ""},
    "concatenate": {"tup": ""},
    "corrcoef": {"a": "x"},
    "cov": {"a": "m"},
    "delete": {"indices": "obj"},
    "ediff1d": {"arr": "ary"},
    "extract": {"a": "arr"},
    "flip": {"a": "m"},
    "fliplr": {"a": "m"},
    "flipud": {"a": "m"},
    "histogram": {"x": "a"},
    "intersect1d": {"arr1": "ar1", "arr2": "ar2"},
    "linalg.matrix_power": {"M": "a"},
    "linalg.matrix_rank": {"M": "A"},
    "linalg.matrix_transpose": {"a": "x"},
    "percentile": {"interpolation": "method"},
    "quantile": {"interpolation": "method"},
    "reshape": {"newshape": "shape"},
    "rot90": {"a": "m"},
    "stack": {"tup": "arrays"},
    "take_along_axis": {"a": "arr"},
    "union1d": {"arr1": "ar1", "arr2": "ar2"},
    "unravel_index": {"dims": "shape"},
}
"""Arguments with different names in CuPy and NumPy: by function, CuPy's name and NumPy's; "" is a first argument
without a name in NumPy."""
GIVEN_UP = {"row_stack": "vstack"}
"""Functions of CuPy that NumPy 2.5 removed, and the functions that replace them."""
