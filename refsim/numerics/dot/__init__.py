"""The fused dot product of a tensor core: `definition` spells it over Python integers, `arrays` computes it on arrays.

Products are aligned to the largest exponent, cut below a fixed bit, summed exactly and rounded once. The two modules
are one function, tested against each other; `definition` decides the meaning.
"""
