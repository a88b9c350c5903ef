"""What ops do with the elements of their operands, by name: whatever is in no table here is not followed.

An op that moves elements runs again on their origins. One that is in no table ends the chain of what it makes, by name:
no gradient that comes out of it counts as reduced, accumulated or matched.
"""

from __future__ import annotations

MOVES = frozenset((
    "aten::clone", "aten::copy_", "aten::_to_copy", "aten::cat", "aten::cat.out", "aten::stack", "aten::expand",
    "aten::repeat", "aten::flip", "aten::roll", "aten::contiguous", "aten::constant_pad_nd", "aten::_foreach_copy_",
    "aten::split_with_sizes_copy", "aten::split_with_sizes_copy.out", "aten::_chunk_cat", "aten::_chunk_cat.out",
    "aten::slice_backward", "aten::select_backward", "aten::slice_scatter", "aten::select_scatter", "aten::_copy_from",
    "aten::_unsafe_view", "aten::_reshape_copy", "aten::view_copy", "aten::transpose_copy", "aten::unbind_copy",
    "aten::lift_fresh_copy", "aten::clone.out", "fsdp::all_gather_copy_in", "fsdp::chunk_cat", "fsdp::copy_",
    "fsdp::split_with_sizes_copy", "fsdp::chunk_cat_mixed_dtype",
))
"""Ops that copy elements to other places, and fill up with zeros."""

VIEWS_ONLY = frozenset(("_c10d_functional::wait_tensor", "aten::lift_fresh", "_c10d_functional::_wrap_tensor_autograd",
                        "aten::_local_scalar_dense", "aten::resize_", "aten::record_stream", "aten::is_same_size",
                        "aten::equal", "profiler::_record_function_enter_new", "profiler::_record_function_exit",
                        "aten::set_", "fsdp::record_grad_output_stream"))
"""Ops after which every element is where it was."""

EMPTIES = frozenset(("aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty",
                     "aten::new_empty_strided", "aten::empty_permuted"))

CONSTANTS = {
    "aten::zeros": 0.0, "aten::zeros_like": 0.0, "aten::new_zeros": 0.0, "aten::zero_": 0.0,
    "aten::_foreach_zero_": 0.0,
    "aten::ones": 1.0, "aten::ones_like": 1.0, "aten::new_ones": 1.0, "aten::full": None, "aten::full_like": None,
    "aten::new_full": None, "aten::fill_": None, "aten::scalar_tensor": None,
}
"""Op that makes a constant -> the constant; None where it is an argument."""

UNSCALES = "aten::_amp_foreach_non_finite_check_and_unscale_"
"""A GradScaler's op, which multiplies a list by its third operand."""

SCALES = {
    "aten::mul": 1, "aten::mul_": 1, "aten::mul.out": 1, "aten::_foreach_mul": 1, "aten::_foreach_mul_": 1,
    UNSCALES: 1,
    "aten::div": -1, "aten::div_": -1, "aten::div.out": -1, "aten::_foreach_div": -1, "aten::_foreach_div_": -1,
}
"""Op that multiplies by its second operand, if that is a number -> the power of it."""

NEGATES = frozenset(("aten::neg", "aten::neg_", "aten::_foreach_neg", "aten::_foreach_neg_"))

SUMS = {
    "aten::add": 1, "aten::add_": 1, "aten::add.out": 1, "aten::_foreach_add": 1, "aten::_foreach_add_": 1,
    "aten::sub": -1, "aten::sub_": -1, "aten::_foreach_sub": -1, "aten::_foreach_sub_": -1,
}
"""Op that adds its second operand, times `alpha` -> its sign."""

GRADIENTS = frozenset((
    "aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm", "aten::sum", "aten::embedding_dense_backward",
    "aten::native_layer_norm_backward", "aten::_fused_rms_norm_backward", "aten::convolution_backward",
    "aten::linear_backward", "aten::_grouped_mm", "aten::native_batch_norm_backward",
    "aten::native_group_norm_backward",
))
"""Ops that contract a microbatch's tokens: a gradient of a parameter is made by one of them, in backward."""

LOSSES = {"aten::nll_loss_backward": ("reduction", "total_weight"), "aten::nll_loss2d_backward": ("reduction",
                                                                                                "total_weight")}
"""Backward of a loss -> its arguments that say how it is averaged: by how many tokens."""

NORMS = frozenset(("aten::linalg_vector_norm", "aten::_foreach_norm", "aten::norm"))
"""Ops that sum squares: a factor on what they read counts squared."""

TURNED = frozenset(f"aten::{n}_" for n in ("t", "transpose", "swapaxes", "swapdims", "squeeze", "unsqueeze",
                                           "as_strided"))
"""Ops that make a view of a tensor in its place: no element moves."""
