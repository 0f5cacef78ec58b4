"""Given parts of context parallelism: argument checks name the argument, and blocks add up to the whole."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from waiting import BROKEN_SECONDS

from labkit import Job, virtual
from labkit.course.phase3_multi_node.context_parallel import given

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
    "k": lambda: given.check_attention(x, x[:, :2], x, None, "zigzag"),
    "v": lambda: given.check_attention(x, x, x.double(), None, "zigzag"),
    "q must have a multiple of 3 heads": lambda: given.check_heads(x, None),
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_parts_of_blocks_add_up_to_the_whole(dtype: torch.dtype) -> None:
    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    generator = torch.Generator().manual_seed(0)
    q, k, v, grad = randn(2, 3, 4, 8), randn(2, 3, 10, 8), randn(2, 3, 10, 8), randn(2, 3, 4, 8)
    whole = [x.double().requires_grad_() for x in (q, k, v)]
    wanted = scaled_dot_product_attention(whole[0], whole[1], whole[2])
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
