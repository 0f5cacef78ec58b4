"""A power limit lowers the clocks of products and attention by the cube root of the power, and leaves memory alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from labkit.cli import main
from labkit.hardware import GPUS, topology
from labkit.predict import COMPONENTS, Plan, model, predict
from labkit.predict.costs.matmul import Processor
from labkit.predict.describe.work import Product

H100 = GPUS["h100-80gb"]


def test_at_an_eighth_of_the_power_products_and_attention_take_twice_as_long() -> None:
    full, capped = H100, replace(H100, power_limit_watts=H100.power_watts / 8)
    assert capped.clock_share == pytest.approx(0.5)
    assert capped.seconds(1e15, 0, "bfloat16") == pytest.approx(2 * full.seconds(1e15, 0, "bfloat16"), rel=1e-4)
    assert capped.attention_seconds(1e15, 0, "bfloat16") == pytest.approx(
        2 * full.attention_seconds(1e15, 0, "bfloat16"), rel=1e-4
    )
    assert capped.seconds(0, 1e12, "bfloat16") == full.seconds(0, 1e12, "bfloat16"), "memory keeps its clocks"
    for precision in ("bfloat16", "float8_e4m3fn"):
        fast, slow = (Processor(gpu, precision, COMPONENTS) for gpu in (full, capped))
        square = Product(8192, 8192, 8192)
        assert slow.product(square) == pytest.approx(2 * fast.product(square), rel=0.01)
        assert (slow.flash, slow.backward_flash) == pytest.approx((fast.flash / 2, fast.backward_flash / 2))
        assert slow.passes(1e9) == fast.passes(1e9)


def test_a_step_at_500_watts_is_longer_by_less_than_its_clocks_are_lower() -> None:
    """Its products and its attention take (700 / 500)^(1/3) = 1.119 times as long, its passes do not."""
    plan = Plan(batch=64, microbatch=1, data=8, zero=3, recompute="full")
    full = predict(model("llama3-8b"), plan, topology("dgx-h100"))
    capped = predict(model("llama3-8b"), plan, topology("dgx-h100", settings={"gpu.power_limit_watts": 500}))
    assert 1.06 < capped.step_seconds / full.step_seconds < 1.119
    assert capped.seconds("optimizer") == full.seconds("optimizer")


def test_the_shell_takes_a_limit_and_refuses_one_above_the_card(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["predict", "--model", "gpt-1.3b", "--cluster", "h100x8", "--batch", "64", "--data", "8", "--tensor", "1"]
    asked += ["--pipeline", "1", "--microbatch", "1"]
    assert main([*asked, "--set", "gpu.power_limit_watts=500"]) == 0
    assert "power_limit_watts set to 500" in capsys.readouterr().out
    assert main([*asked, "--set", "gpu.power_limit_watts=800"]) == 2
    assert "power_limit_watts must be above 0 and at most power_watts = 700, got 800" in capsys.readouterr().err


@pytest.mark.parametrize("name", GPUS)
def test_every_card_says_at_which_power_it_is_held(name: str) -> None:
    assert 70 <= GPUS[name].power_watts <= 1000
