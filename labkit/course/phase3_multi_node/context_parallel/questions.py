"""Questions of context_parallel. Answers follow from counting chunks and bytes, predictions' from the runs."""

from __future__ import annotations

from labkit.questions import Number

KEYS_MB = 2**20 / 64 * 8 * 128 * 2 / 1e6
"""Size of a rank's keys in MB: a million tokens on 64 ranks, 8 heads of 128, bfloat16."""

QUESTIONS = [
    Number(
        name="million_ms",
        text="**Predict**: above is the time that one GPU takes for 65,536 tokens, forward. If 64 GPUs share a million "
        "(2²⁰) of them and lose nothing, how many milliseconds does the forward pass take?",
        answer=lambda ideal_ms: ideal_ms,
        solution="169 * 16 ** 2 / 64",
        unit="ms",
        tolerance=0.03,
        near={
            "169 * 16 / 64": "sixteen times as many tokens are 256 times as many pairs.",
            "169 * 16 ** 2": "64 GPUs share the work.",
            "169": "four times as much work is left for each GPU.",
        },
        otherwise="How many times as many pairs of tokens are there? And how many GPUs share them?",
        why="16 times the tokens are 256 times the pairs, for 64 GPUs: {answer:.0f} ms.",
        shown_by="the picture below",
    ),
    Number(
        name="contiguous_ratio",
        text="**Predict**: 8 ranks attend with a causal mask, in contiguous parts. How many times as long does the "
        "rank with the most work compute as it would if all had the same?",
        answer=lambda fullest: fullest["contiguous"][2],
        solution="7.5 / 4",
        tolerance=0.02,
        near={
            "2": "that is the limit for many ranks. On 8, count: the last rank has half of its own block and 7 others.",
            "8": "other ranks are not idle all the time: how many blocks are there for all of them together?",
            "7.5": "that is how many blocks the last rank computes. How many does a rank compute on average?",
        },
        otherwise="Count the blocks of the last rank, its own one half, and those of all ranks together.",
        why="The last rank computes half of its own block and 7 whole ones; on average a rank computes 4. {answer:.3g} "
        "times as long.",
        shown_by="the picture below",
    ),
    Number(
        name="ring_mb",
        text="**a** A ring of 64 ranks, a million (2²⁰) tokens, 8 heads of 128 in bfloat16. How many MB does a rank "
        "send in a forward pass?",
        answer=lambda: 63 * 2 * KEYS_MB,
        solution="63 * 2 * (2 ** 20 / 64) * 8 * 128 * 2 / 1e6",
        unit="MB",
        tolerance=0.01,
        near={
            "64 * 2 * 33.6": "the last block is not passed on: 63 messages, not 64.",
            "63 * 33.6": "keys and values.",
            "2 * 33.6": "that is one block; how many does a rank pass on?",
        },
        otherwise="A block are the keys and the values of 2²⁰ / 64 tokens. How many blocks does a rank pass on?",
        why="63 times a block of keys and values, 33.6 MB each: {answer:,.0f} MB.",
    ),
    Number(
        name="ulysses_ratio",
        text="**b** And with Ulysses? How many times as many bytes does a rank of the ring send, on 64 ranks?",
        answer=lambda: 63 * 2 / (4 * 63 / 64),
        solution="63 * 2 / (4 * 63 / 64)",
        tolerance=0.01,
        near={
            "64": "a rank of Ulysses sends four tensors: q, k and v, and the result.",
            "63 * 2 / 4": "1/64 of what it exchanges stays where it is.",
            "63 / 4": "the ring passes on keys and values.",
        },
        otherwise="Ulysses exchanges q, k, v and the result once; 63/64 of each goes to others.",
        why="The ring sends 63 times two tensors, Ulysses 63/64 of four: {answer:.0f} times as many. How long it "
        "waits for them is another question: the ring computes meanwhile.",
    ),
    Number(
        name="hidden_tokens",
        text="**c** A zigzag step computes half of L² pairs of tokens, 4·D FLOPs for each pair and head; its message "
        "has the keys and values of L tokens, D bfloat16 numbers each. How many tokens L must a rank have so that "
        "messages are hidden, at 400 TFLOP/s and 50 GB/s?",
        answer=lambda: 2 * 400e12 / 50e9,
        solution="2 * 400e12 / 50e9",
        unit="tokens",
        tolerance=0.03,
        near={
            "400e12 / 50e9": "a message has 4·L·D bytes for a head: k and v, 2 bytes each.",
            "4 * 400e12 / 50e9": "half of the pairs are computed, so 2·L²·D FLOPs for a head.",
        },
        otherwise="Set the times equal: 2·L²·D / 400e12 and 4·L·D / 50e9.",
        why="2·L²·D / 400e12 = 4·L·D / 50e9, so L = {answer:,.0f}, whatever heads and their sizes are. In part 6 "
        "32 ranks with half of it were too many for 262,144 tokens.",
    ),
]
