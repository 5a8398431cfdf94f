"""Functions of PyTorch whose results have the bits of a GPU's kernels although the host computes them, by name."""

from refsim.standins.seams import names_in

MOVED_OR_ROUNDED_ONCE = names_in("""
    abs add all allclose amax amin any arange argmax argmin as_strided as_tensor bitwise_and bitwise_not bitwise_or
    bitwise_xor bool broadcast_to bucketize cat ceil chunk clamp clone concat contiguous copy_ count_nonzero cpu cuda
    cummax cummin data data_ptr detach diag diagonal div double eq equal empty_like expand expand_as fill_ flatten flip
    float floor full_like gather ge gt half index_select int is_contiguous isclose isfinite isinf isnan item le
    logical_and logical_not logical_or long lt masked_fill masked_select max maximum min minimum movedim mul narrow ne
    neg nonzero numel ones_like pad permute ravel relu repeat repeat_interleave reshape roll round scatter select
    sign slice sort split sqrt squeeze stack sub swapaxes t take tile to tolist topk transpose tril triu true_divide
    trunc type type_as unbind unflatten unfold unique unsqueeze view view_as where zero_ zeros_like add_ sub_ mul_ div_
    __add__ __radd__ __iadd__ __sub__ __rsub__ __isub__ __mul__ __rmul__ __imul__ __truediv__ __rtruediv__ __itruediv__
    __getitem__ __setitem__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __and__ __or__ __xor__ __invert__ __neg__ __abs__
    __len__ __bool__ __int__ __float__ __index__ __format__ __repr__ __contains__ __get__ __set__ __delete__ __array__
    __deepcopy__ __reduce_ex__ assert_close bfloat16 size stride dim ndimension nelement element_size requires_grad_
    storage_offset untyped_storage register_hook is_floating_point is_complex is_signed get_device as_subclass
    retain_grad new_empty new_zeros new_ones new_full new_tensor resize_ set_ uniform_ normal_ random_ bernoulli_
    rand_like randn_like randint_like exponential_ log_normal_ cauchy_ geometric_ multinomial bernoulli result_type
    is_same_size broadcast_tensors meshgrid vstack hstack unfold tensor_split hsplit vsplit ne_ index_copy_ scatter_
    masked_fill_ clamp_ relu_ neg_ share_memory_ is_tensor numpy backward
""")
"""Functions that move or compare numbers, round a real result once, return facts, or draw random numbers, which no seed
reproduces across devices. `backward` stands for the function that began it."""
