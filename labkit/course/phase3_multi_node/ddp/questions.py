"""Questions of ddp. Times and numbers of buckets are those of the notebook's runs."""

from __future__ import annotations

from labkit.questions import Number

QUESTIONS = [
    Number(
        name="ddp_hidden",
        text="**Predict**: if the all-reduce could run beside the backward pass from beginning to end, how long would "
        "both take together, in ms?",
        answer=lambda compute, after: max(compute, after - compute) * 1e3,
        solution="10.4",
        unit="ms",
        tolerance=0.1,
        near={
            "17.7": "that is one after the other.",
            "17.7 - 10.4": "that is the all-reduce; computing takes longer.",
        },
        otherwise="Which of the two is longer? The other one fits beside it.",
        why="The longer one decides: {answer:.1f} ms. Nobody reaches that: the first gradient comes when a layer is "
        "computed, and the last one has nothing to hide behind.",
    ),
    Number(
        name="ddp_best",
        text="**Predict**: how long is the backward pass of 64 machines with buckets of 8 MB, in ms? Computing takes "
        "as long as in part 1, and an all-reduce of 8 MB about 2 ms.",
        answer=lambda sweep: sweep[64, 8] * 1e3,
        solution="10.4 + 2 + 1",
        unit="ms",
        tolerance=0.12,
        near={
            "10.4": "that is the computing. What can the last bucket hide behind?",
            "10.4 + 5 * 2": "that is without any overlap.",
        },
        otherwise="All buckets but the last travel beside the computing, if it takes longer than they do.",
        why="In the run {answer:.1f} ms: computing, then the last bucket, and what waited for the network before.",
        shown_by="the picture below",
    ),
    Number(
        name="ddp_buckets",
        text="**a** How many all-reduces does a backward pass make for 101 layers of 4 MB (4 · 2²⁰ bytes), with "
        "bucket_cap_mb=25?",
        answer=lambda: 1 + -(-100 // 7),
        solution="1 + 15",
        near={
            "17": "a bucket takes the parameter that fills it: 7 layers, 28 MB.",
            "18": "a bucket takes the parameter that fills it: 7 layers, 28 MB. And which one is full at 1 MB?",
            "15": "the first bucket is full at 1 MB, with one layer.",
            "101": "that is one for each parameter.",
        },
        otherwise="How many layers fill the first bucket, and how many each other one?",
        why="The first layer is a bucket, then 7 layers each, which have 28 MB: 1 + 100/7, rounded up.",
    ),
    Number(
        name="ddp_memory",
        text="**b** How many bytes of gradients and buckets does a rank hold in a training of 10⁹ float32 parameters "
        "with gradient_as_bucket_view=True?",
        answer=lambda: 4e9,
        solution="4 * 10**9",
        unit="bytes",
        near={"8e9": "that is with a copy in `grad` and one in the bucket.", "12e9": "parameters do not count here."},
        otherwise="Where is a gradient, if it is a view of its bucket?",
        why="Each gradient is stored once, in its bucket: 4 bytes each. Without the views it is twice as much.",
    ),
    Number(
        name="ddp_resnet",
        text="**c** How many buckets has the ResNet-50 of part 6, 102 MB, with bucket_cap_mb=25? Buckets end with a "
        "whole parameter.",
        answer=lambda bucketed: float(sum(event.operation == "all_reduce" for event in bucketed.trace.collectives(0))),
        solution="5",
        near={"4": "the first bucket is full at 1 MB.", "161": "that is the number of its parameters."},
        otherwise="102 MB in buckets of 26 MB and more, of which the first is smaller.",
        why="One small one, the classifier's, and then 25 · 2²⁰ bytes or a little more each: {answer:.0f}.",
    ),
]
