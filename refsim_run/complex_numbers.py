"""Complex numbers in CUDA C++ for programs of CuPy and PyCUDA, in place of the headers that these packages bring."""

import re

from refsim_run.session import current

_INCLUDED = re.compile(
    r'^[ \t]*#[ \t]*include[ \t]*[<"](cupy/complex\.cuh|pycuda-complex\.hpp)[>"][ \t]*$', re.MULTILINE
)

COMPLEX = """
template <typename T> struct alignas(2 * sizeof(T)) complex {
    typedef T value_type;
    T re_, im_;
    __host__ __device__ complex(T re = T(), T im = T()) : re_(re), im_(im) {}
    template <typename U> __host__ __device__ complex(const complex<U> &z) : re_(z.re_), im_(z.im_) {}
    __host__ __device__ T real() const { return re_; }
    __host__ __device__ T imag() const { return im_; }
    __host__ __device__ void real(T value) { re_ = value; }
    __host__ __device__ void imag(T value) { im_ = value; }
    template <typename U> __host__ __device__ complex &operator+=(const U &z) { return *this = *this + z; }
    template <typename U> __host__ __device__ complex &operator-=(const U &z) { return *this = *this - z; }
    template <typename U> __host__ __device__ complex &operator*=(const U &z) { return *this = *this * z; }
    template <typename U> __host__ __device__ complex &operator/=(const U &z) { return *this = *this / z; }
};
#define _NUMBER typename complex<T>::value_type
#define _OF template <typename T> __host__ __device__ inline
_OF complex<T> operator+(const complex<T> &a) { return a; }
_OF complex<T> operator-(const complex<T> &a) { return complex<T>(-a.re_, -a.im_); }
_OF complex<T> operator+(const complex<T> &a, const complex<T> &b) { return complex<T>(a.re_ + b.re_, a.im_ + b.im_); }
_OF complex<T> operator-(const complex<T> &a, const complex<T> &b) { return complex<T>(a.re_ - b.re_, a.im_ - b.im_); }
_OF complex<T> operator*(const complex<T> &a, const complex<T> &b) {
    return complex<T>(a.re_ * b.re_ - a.im_ * b.im_, a.re_ * b.im_ + a.im_ * b.re_);
}
_OF complex<T> operator/(const complex<T> &a, const complex<T> &b) {
    T s = fabs(b.re_) + fabs(b.im_), o = T(1) / s, ar = a.re_ * o, ai = a.im_ * o, br = b.re_ * o, bi = b.im_ * o;
    o = T(1) / (br * br + bi * bi);
    return complex<T>((ar * br + ai * bi) * o, (ai * br - ar * bi) * o);
}
_OF bool operator==(const complex<T> &a, const complex<T> &b) { return a.re_ == b.re_ && a.im_ == b.im_; }
_OF bool operator!=(const complex<T> &a, const complex<T> &b) { return !(a == b); }
_OF complex<T> operator+(const complex<T> &a, const _NUMBER &b) { return complex<T>(a.re_ + b, a.im_); }
_OF complex<T> operator+(const _NUMBER &a, const complex<T> &b) { return complex<T>(a + b.re_, b.im_); }
_OF complex<T> operator-(const complex<T> &a, const _NUMBER &b) { return complex<T>(a.re_ - b, a.im_); }
_OF complex<T> operator-(const _NUMBER &a, const complex<T> &b) { return complex<T>(a - b.re_, -b.im_); }
_OF complex<T> operator*(const complex<T> &a, const _NUMBER &b) { return complex<T>(a.re_ * b, a.im_ * b); }
_OF complex<T> operator*(const _NUMBER &a, const complex<T> &b) { return complex<T>(a * b.re_, a * b.im_); }
_OF complex<T> operator/(const complex<T> &a, const _NUMBER &b) { return complex<T>(a.re_ / b, a.im_ / b); }
_OF complex<T> operator/(const _NUMBER &a, const complex<T> &b) { return complex<T>(a) / b; }
_OF T real(const complex<T> &a) { return a.re_; }
_OF T imag(const complex<T> &a) { return a.im_; }
_OF complex<T> conj(const complex<T> &a) { return complex<T>(a.re_, -a.im_); }
_OF T norm(const complex<T> &a) { return a.re_ * a.re_ + a.im_ * a.im_; }
_OF T abs(const complex<T> &a) { return hypot(a.re_, a.im_); }
_OF T arg(const complex<T> &a) { return atan2(a.im_, a.re_); }
_OF complex<T> polar(const T &size, const T &angle = T()) { return complex<T>(size * cos(angle), size * sin(angle)); }
_OF complex<T> exp(const complex<T> &a) { return polar(T(exp(a.re_)), a.im_); }
_OF complex<T> log(const complex<T> &a) { return complex<T>(log(abs(a)), arg(a)); }
_OF complex<T> sqrt(const complex<T> &a) { return polar(T(sqrt(abs(a))), arg(a) / T(2)); }
#undef _OF
#undef _NUMBER
namespace pycuda {
using ::complex; using ::real; using ::imag; using ::conj; using ::norm; using ::abs; using ::arg; using ::polar;
using ::exp; using ::log; using ::sqrt;
}
"""
"""Sums, products and conjugates match both packages; the last bits of quotients and functions may differ."""


def including_complex(source: str) -> str:
    """Return a generated source, with an include of PyCUDA's header before it where it has complex numbers."""
    return f"#include <pycuda-complex.hpp>\n{source}" if "complex<" in source else source


def with_complex(source: str, name: str = "source.cu") -> str:
    """Return a source with complex numbers in place of a package's header; line numbers stay as they are."""
    if not _INCLUDED.search(source):
        return source
    current().answered_by_host("complex numbers in kernels, whose quotients and functions are not the package's own")
    return f'{COMPLEX}#line 1 "{name}"\n' + _INCLUDED.sub("", source)
