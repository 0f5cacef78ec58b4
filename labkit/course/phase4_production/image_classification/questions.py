"""Questions of image_classification. Predictions' answers come from the notebook's cells; the others from formulas."""

from __future__ import annotations

from labkit.questions import Number

QUESTIONS = [
    Number(
        name="ddp_billions",
        text="**Predict**: up to how many billion parameters does DDP fit on a GPU of 80 GB, without activations?",
        answer=lambda with_ddp: with_ddp[80],
        solution="80 / (4 + 4 + 4 + 8)",
        unit="billion",
        tolerance=0.02,
        near={"80 / 16": "DDP has a bucket beside each gradient: 4 bytes more.", "80 / 12": "AdamW has two moments."},
        otherwise="80 GB over the bytes that a parameter, its gradient, its bucket and its moments have together.",
        why="4 + 4 + 4 + 8 = 20 bytes for each parameter: {answer:.0f} billion.",
        shown_by="the next picture",
    ),
    Number(
        name="hours_on_8",
        text="**Predict**: how many hours do 90 epochs of ImageNet take on 8 A100s at the predicted images per second, "
        "above? An epoch has 1.28 million images.",
        answer=lambda hours: hours[8],
        solution="90 * 1281167 / 21128 / 3600",
        unit="hours",
        tolerance=0.1,
        near={
            "1281167 / 21128 / 60": "that is one epoch, in minutes.",
            "90 * 1281167 / 16621 / 3600": "that is NVIDIA's measured rate; take the predicted one.",
        },
        otherwise="All images of 90 epochs over the images per second, in hours.",
        why="115 million images over the images per second: {answer:.2f} hours. At NVIDIA's measured rate it is 1.9.",
        shown_by="the picture below",
    ),
    Number(
        name="peak_rate",
        text="**a** A learning rate of 0.1 for 256 images, 64 GPUs with 32 images each. What is the peak rate?",
        answer=lambda: 0.1 * 64 * 32 / 256,
        solution="0.1 * 64 * 32 / 256",
        tolerance=0.01,
        near={"0.1 * 64": "a GPU has 32 images, not 256.", "0.1": "the rate grows with the global batch."},
        otherwise="The global batch over 256, times 0.1.",
        why="2,048 images are 8 times 256: {answer:.1f}.",
    ),
    Number(
        name="warmup_rate",
        text="**b** The peak is 0.8, warm-up lasts 4 steps. What is the rate of the third step, number 2?",
        answer=lambda: 0.8 * 3 / 5,
        solution="0.8 * (2 + 1) / (4 + 1)",
        tolerance=0.01,
        near={"0.8 * 2 / 4": "step 0 would have a rate of 0 then.", "0.8 * 3 / 4": "step 4 has the peak, not step 3."},
        otherwise="The line goes through 0 one step before step 0, and through the peak at step 4.",
        why="three of five parts of 0.8: {answer:.2f}.",
    ),
    Number(
        name="clipped_norm",
        text="**c** On two ranks the shards of a gradient have norms of 3 and 4; `gradient_clip_val` is 1. What is the "
        "norm of the first rank's shard after clipping?",
        answer=lambda: 3 / 5,
        solution="3 / 5",
        tolerance=0.01,
        near={"1": "each rank would clip its own shard then, and the direction of the gradient would change."},
        otherwise="The norm of the whole gradient is the root of the sum of squares: by what is each shard divided?",
        why="the whole gradient has a norm of 5, so every shard is divided by 5: {answer:.1f}.",
    ),
]
