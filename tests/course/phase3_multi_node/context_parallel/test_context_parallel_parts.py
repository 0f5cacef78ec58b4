"""Given parts of context parallelism: argument checks name the argument, and blocks add up to the whole."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given as drawn
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention
from waiting import BROKEN_SECONDS

from labkit import Job, virtual
from labkit.course.phase3_multi_node.context_parallel import given
from labkit.course.phase3_multi_node.context_parallel.given.arguments import LAYOUTS
from labkit.course.phase3_multi_node.context_parallel.scenarios import parts

# a rank's part of tensors with 4 heads on 3 ranks; each case is wrong in one argument
WRONG = """
import torch, torch.distributed as dist
from labkit.course.phase3_multi_node.context_parallel import given

dist.init_process_group()
x, foreign = torch.ones(1, 4, 6, 2), dist.new_group([0])
cases = {
    "layout": lambda: given.check_attention(x, x, x, None, "spiral"),
    "q": lambda: given.check_attention(x[0], x, x, None, "zigzag"),
    "q must be a floating": lambda: given.check_attention(x.int(), x, x, None, "zigzag"),
    "q must have an even": lambda: given.check_attention(*[x[:, :, :3]] * 3, None, "zigzag"),
    "k must have a number of heads": lambda: given.check_attention(x, x[:, :3], x[:, :3], None, "zigzag"),
    "k must have shape": lambda: given.check_attention(x, x[:, :, :4], x[:, :, :4], None, "zigzag"),
    "v": lambda: given.check_attention(x, x, x.double(), None, "zigzag"),
    "q must have a multiple of 3 heads": lambda: given.check_heads(x, x, None),
    "k must have a multiple of 3 heads": lambda: given.check_heads(x[:, :3], x[:, :2], None),
    "x must have a multiple of 6": lambda: given.check_split(torch.ones(2, 9), None, "zigzag", 1),
    "x must have an even": lambda: given.check_merge(torch.ones(2, 9), None, "zigzag", 1),
    "x": lambda: given.check_split([1, 2], None, "zigzag", 0),
    "dim": lambda: given.check_split(torch.ones(2, 6), None, "contiguous", 2),
}
if dist.get_rank():
    cases["group"] = lambda: given.check_attention(x, x, x, foreign, "zigzag")
seen = []
for begins, call in cases.items():
    try:
        call()
        seen.append(f"{begins}: nothing raised")
    except ValueError as error:
        if not str(error).startswith(begins):
            seen.append(f"{begins}: {error}")
given.check_split(torch.ones(2, 6), None, "zigzag", -1), given.check_merge(torch.ones(2, 9), None, "contiguous", 1)
seen
"""


def test_errors_name_the_argument() -> None:
    assert virtual(nproc_per_node=3).run(Job(source=WRONG, timeout=BROKEN_SECONDS)).raise_if_failed().values == [[]] * 3


def close(seen: torch.Tensor, wanted: torch.Tensor | None, dtype: torch.dtype) -> None:
    tolerance = 0.05 if dtype is torch.bfloat16 else 1e-5
    torch.testing.assert_close(seen.double(), wanted, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("kv_heads", [6, 2, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_parts_of_blocks_add_up_to_the_whole(dtype: torch.dtype, kv_heads: int) -> None:
    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    generator = torch.Generator().manual_seed(0)
    q, k, v, grad = randn(2, 6, 4, 8), randn(2, kv_heads, 10, 8), randn(2, kv_heads, 10, 8), randn(2, 6, 4, 8)
    whole = [x.double().requires_grad_() for x in (q, k, v)]
    wanted = scaled_dot_product_attention(whole[0], whole[1], whole[2], enable_gqa=True)
    wanted.backward(grad.double())

    out, lse = given.attend(q, k, v, False)
    assert out.dtype == lse.dtype == torch.promote_types(dtype, torch.float32)
    close(out, wanted, dtype)
    blocks = [slice(7), slice(7, None)]
    parts = [given.attend_backward(grad, q, k[:, :, one], v[:, :, one], out, lse, False) for one in blocks]
    dq = torch.zeros_like(q, dtype=lse.dtype)
    for part in parts:
        given.add_to([dq], part[:1])
    close(dq, whole[0].grad, dtype)
    close(torch.cat([part[1] for part in parts], 2), whole[1].grad, dtype)
    close(torch.cat([part[2] for part in parts], 2), whole[2].grad, dtype)


def test_gradients_of_heads_that_share_keys_are_added_up_in_float32() -> None:
    # scores are 0, so each head's part of the gradient of the one value is its row: 256, and 7 times 0.5
    q, k, v = torch.zeros(1, 8, 1, 4), torch.zeros(1, 1, 1, 4), torch.zeros(1, 1, 1, 4)
    grad = torch.full((1, 8, 1, 4), 0.5)
    grad[:, 0] = 256
    q, k, v, grad = (x.bfloat16() for x in (q, k, v, grad))
    out, lse = given.attend(q, k, v, False)
    _, _, dv = given.attend_backward(grad, q, k, v, out, lse, False)
    assert dv.dtype == torch.float32
    assert dv.flatten().tolist() == [259.5] * 4


@drawn(ranks=st.integers(1, 5), chunk=st.integers(1, 3), causal=st.booleans(), layout=st.sampled_from(LAYOUTS))
def test_pairs_in_the_sequence_are_those_that_the_mask_leaves(
    ranks: int, chunk: int, causal: bool, layout: str
) -> None:
    tokens = chunk * (2 if layout == "zigzag" else 1)
    places = parts(torch.arange(2 * ranks * tokens), ranks, layout, 0)
    for rank, own in enumerate(places):
        seen = torch.zeros(2 * tokens, 2 * ranks * tokens, dtype=torch.int)
        for rows, columns, diagonal in given.visible_in_sequence(rank, ranks, 2 * tokens, causal, layout):
            part = torch.ones_like(seen[rows, columns])
            seen[rows, columns] += part.tril() if diagonal else part
        assert seen.equal((own[:, None] >= torch.arange(2 * ranks * tokens)).int() if causal else torch.ones_like(seen))
