"""What 8 bits save beside the products' rate: activations kept for backward, and values on their way to a product."""

from __future__ import annotations

from dataclasses import replace

import pytest

from labkit.cli import main
from labkit.hardware import Link, topology
from labkit.predict import COMPONENTS, Plan, Transformer, model, predict
from labkit.predict.costs.collectives import Wires, group

FREE = replace(
    COMPONENTS, collective_base=0.0, hop_seconds=0.0, gather_base=0.0, gather_hop=0.0, network_hops=0.0,
    fill_seconds=0.0,
)  # fmt: skip
"""Collectives cost their bytes only."""
NODE = topology("dgx-h100", intra_node=Link("round", 100.0, 0.0, "made up"))
GPT = Transformer("gpt", 8, 1024, 16, 32_000, 2048, biases=False)
LLAMA = Transformer("llama", 8, 1024, 16, 32_000, 2048, gated=True, ffn=4096, biases=False, rotary=True, rms_norm=True)


def seconds(described: Transformer, plan: Plan, name: str) -> float:
    return predict(described, plan, NODE, constants=FREE).seconds(name)


@pytest.mark.parametrize(
    ("described", "flash", "wide", "narrow"),
    [
        # in bytes per token and width, without attention's statistics. 16 bits: two norms' inputs 4, both parts' inputs
        # 4, queries, keys, values and the projection's input 8, GELU's input and output 16. 8 bits: a byte less for
        # each value of the two parts' inputs, of the projection's input and of GELU's output; but fused attention
        # keeps the projection's input too, as its own output in 16 bits
        (GPT, False, 32, 32 - 2 - 1 - 4),
        (GPT, True, 32, 32 - 2 + 1 - 4),
        (LLAMA, True, 40, 40 - 2 + 1 - 4),  # gate, up and their product, with SiLU computed again
    ],
)
def test_a_layer_keeps_its_products_inputs_in_8_bits(
    described: Transformer, flash: bool, wide: int, narrow: int
) -> None:
    statistics = 4 * described.heads if flash else 2 * described.heads * described.sequence
    for of_products, each in ((None, wide), (1, narrow)):
        kept = described.activation_bytes(1, flash=flash, fused=True, of_products=of_products)
        assert kept / described.sequence - statistics == pytest.approx(each * described.width)


def test_8_bit_activations_shrink_the_memory_of_a_plan_and_save_passes() -> None:
    plan = Plan(batch=16, microbatch=2, data=8, precision="fp8")
    wide, narrow = (predict(GPT, replace(plan, fp8_activations=on), NODE) for on in (False, True))
    saved = GPT.layers * 2 * GPT.sequence * 5 * GPT.width
    assert wide.memory.kept - narrow.memory.kept == pytest.approx(saved)
    # neither the norms nor the activation write their outputs of h, h and 4h values in 16 bits
    microbatch = 2 * GPT.sequence * 6 * GPT.width * 2
    rate = NODE.gpu.memory_gb_per_s * 1e9 * NODE.gpu.memory_efficiency * 0.742
    assert wide.seconds("forward") - narrow.seconds("forward") == pytest.approx(GPT.layers * microbatch / rate)


def test_fsdp_gathers_layers_in_8_bits_and_scatters_gradients_in_16() -> None:
    plan = Plan(batch=8, data=8, zero=3, precision="fp8", overlap=False)
    wires, shard = Wires(NODE, FREE), group(8, 1, NODE)
    gather, scatter = (wires.all_gather(GPT.layer_parameters * nbytes, shard) for nbytes in (1, 2))
    ends = GPT.parameters / GPT.layer_parameters - GPT.layers  # embedding and head, as layers of as many parameters
    expected = 2 * GPT.layers * gather + (GPT.layers + 2 * ends) * scatter  # these are gathered once, in 16 bits
    assert seconds(GPT, replace(plan, fp8_transfers=True), "parameter shards") == pytest.approx(expected)
    assert seconds(GPT, plan, "parameter shards") == pytest.approx((3 * GPT.layers + 2 * ends) * scatter)
    held = [predict(GPT, replace(plan, fp8_transfers=on), NODE).memory.gathered for on in (False, True)]
    assert held[0] - held[1] == pytest.approx(2 * GPT.layer_parameters)


def test_zero_1_gathers_new_parameters_of_layers_in_8_bits() -> None:
    plan = Plan(batch=8, data=8, zero=1, precision="fp8", overlap=False)
    layers = GPT.layers * GPT.layer_parameters
    wide, narrow = (seconds(GPT, replace(plan, fp8_transfers=on), "new parameters") for on in (False, True))
    assert narrow / wide == pytest.approx((2 * GPT.parameters - layers) / (2 * GPT.parameters))
    assert seconds(GPT, plan, "gradients") == seconds(GPT, replace(plan, fp8_transfers=True), "gradients")


def test_sequence_parallelism_gathers_in_8_bits_and_sums_up_in_16() -> None:
    plan = Plan(batch=8, tensor=8, sequence_parallel=True, precision="fp8")
    wide, narrow = (predict(GPT, replace(plan, fp8_transfers=on), NODE, constants=FREE) for on in (False, True))
    # 4 pairs in each of 8 layers, one at each end; a pair's gather is half of it, and the ends' stay in 16 bits
    assert narrow.seconds("tensor parallel") / wide.seconds("tensor parallel") == pytest.approx(
        (32 * 0.75 + 2) / (32 + 2)
    )
    assert "an all-gather in 8 bits" in narrow.explain()
    summed = replace(plan, sequence_parallel=False)
    assert seconds(GPT, summed, "tensor parallel") == seconds(
        GPT, replace(summed, fp8_transfers=True), "tensor parallel"
    )


def test_tokens_go_to_experts_in_8_bits_and_come_back_in_16() -> None:
    plan = Plan(batch=8, data=8, expert=8, precision="fp8")
    experts = replace(GPT, experts=8, active_experts=2)
    wide, narrow = (seconds(experts, replace(plan, fp8_transfers=on), "expert parallel") for on in (False, True))
    assert narrow / wide == pytest.approx(0.75)


@pytest.mark.parametrize("name", ["fp8-activations", "fp8-transfers"])
def test_both_are_options_and_need_products_in_8_bits(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = f"predict --model llama3-8b --cluster h100x8 --batch 8 --data 8 --zero 3 --recompute full --{name}"
    assert main(asked.split()) == 2
    assert f"{name.replace('-', '_')} are of products in 8 bits" in capsys.readouterr().err
    assert main([*asked.split(), "--precision", "fp8"]) == 0
    assert model("llama3-8b").name in capsys.readouterr().out
