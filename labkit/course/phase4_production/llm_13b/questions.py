"""Questions of llm_13b. Predictions' answers come from the notebook's cells; the others from counting."""

from __future__ import annotations

from labkit.questions import Number

QUESTIONS = [
    Number(
        name="days_at_45",
        text="**Predict**: how many days do 25 billion tokens take on 32 A100, at 45 % of their 312e12 operations a "
        "second? The operations are above.",
        answer=lambda shares, days: days[shares.index(45)],
        solution="1.93e21 / (32 * 312e12 * 0.45) / 86400",
        unit="days",
        tolerance=0.03,
        near={"1.93e21 / (32 * 312e12) / 86400": "that is at 100 %.", "119": "those are hours."},
        otherwise="Operations, over 32 times 312e12 times 0.45, are seconds; a day has 86,400.",
        why="1.93e21 operations over 4.5e15 a second: {answer:.2f} days.",
        shown_by="the next picture",
    ),
    Number(
        name="efficiency_32",
        text="**Predict**: the same model is planned for one node of 8 GPUs, too, with a quarter of the batch. How "
        "many percent of a GPU's tokens per second there does a GPU have among 32?",
        answer=lambda rates: 100 * rates[32] / rates[8],
        solution="101",
        unit="%",
        tolerance=0.05,
        near={"80": "that is what is asked for; what of a step is longer on four nodes, and what is shorter?"},
        otherwise="Gradients cross nodes once a step of 13 seconds. And what can the plan do with smaller shards?",
        why="gradients cost little, and smaller shards make room for larger microbatches: {answer:.0f} %.",
        shown_by="the cell below",
    ),
    Number(
        name="cloud_save",
        text="**Predict**: how many seconds does it take to save, if each of the four nodes writes 1 GB/s? 12.85 "
        "billion parameters, 14 bytes for each.",
        answer=lambda cloud: cloud.checkpoint_seconds,
        solution="12.85 * 14 / 4 / 1",
        unit="s",
        tolerance=0.03,
        near={
            "12.85 * 14": "four nodes write at the same time.",
            "12.85 * 12 / 4": "16-bit weights are saved, too.",
        },
        otherwise="The bytes of one node's share, over its rate.",
        why="a quarter of 180 GB at 1 GB/s: {answer:.0f} s.",
        shown_by="the cell below",
    ),
    Number(
        name="state_gb",
        text="**a** 26 billion parameters, pipeline 4, data 8, ZeRO 1: how many GB of weights, gradients and optimizer "
        "state does a GPU hold, at 2 + 2 + 12 bytes?",
        answer=lambda: 26 / 4 * (2 + 2 + 12 / 8),
        solution="26 / 4 * (2 + 2 + 12 / 8)",
        unit="GB",
        tolerance=0.02,
        near={"26 / 4 * 16": "that is without shards.", "26 / 32 * 16": "ZeRO 1 shards optimizer state only."},
        otherwise="A stage has a quarter of the parameters; of their 16 bytes, which are in shards of 8 ranks?",
        why="6.5 billion parameters with 4 bytes whole and 12 in eighths: {answer:.2f} GB.",
    ),
    Number(
        name="tokens_deserved",
        text="**b** Hoffmann et al. 2022 find about 20 tokens for each parameter best for a number of operations. "
        "For how many billion parameters are 25 billion tokens right?",
        answer=lambda: 25 / 20,
        solution="25 / 20",
        unit="billion",
        tolerance=0.02,
        near={"13 * 20": "so many tokens, in billions, would 13 billion parameters deserve."},
        otherwise="Tokens over 20.",
        why="{answer:.2f} billion: the model of this notebook would deserve ten times the tokens, and 40 days.",
    ),
    Number(
        name="common_step",
        text="**c** Place pp0 has steps 300, 400 and 500, place pp1 has 200, 300 and 400, but its 400 is torn. From "
        "which step does the training go on?",
        answer=lambda: 300,
        solution="300",
        tolerance=0.0,
        near={"400": "one place cannot load it.", "500": "the other place does not have it."},
        otherwise="The newest that both places have and can load.",
        why="500 is missing in pp1, 400 is torn there: {answer:.0f}.",
    ),
]
