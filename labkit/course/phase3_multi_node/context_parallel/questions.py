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
        name="kv_heads",
        text="8 ranks, 64 heads of queries, and 64, 32, 16, 8, 4 or 2 heads of keys and values. With how "
        "many of them, at most, do ring and gather send fewer bytes than Ulysses?",
        answer=lambda: 8,
        solution="8",
        near={
            "16": "8 · 16 is 128; Ulysses sends 64 + 16.",
            "4": "that is few enough. Are 8 too many? 8 · 8 against 64 + 8.",
            "7": "7 does not divide 64 heads; and Ulysses must divide the heads of keys and values as well.",
        },
        otherwise="For each token of a rank the ring sends 2·G·7 heads, Ulysses 7/8 of 2·H + 2·max(G, 8).",
        why="N·G must be less than H + max(G, N): 8 · 8 = 64 is less than 64 + 8, and 8 · 16 = 128 is more than 64 + "
        "16. So {answer}; the table below counts them.",
    ),
    Number(
        name="ring_mb",
        text="**a** A ring of 64 ranks, a million (2²⁰) tokens, 64 heads of queries, 8 of keys and values, each of 128 "
        "numbers in bfloat16. How many MB does a rank send in a forward pass?",
        answer=lambda: 63 * 2 * KEYS_MB,
        solution="63 * 2 * (2 ** 20 / 64) * 8 * 128 * 2 / 1e6",
        unit="MB",
        tolerance=0.01,
        near={
            "64 * 2 * 33.6": "the last block is not passed on: 63 messages, not 64.",
            "63 * 33.6": "keys and values.",
            "2 * 33.6": "that is one block; how many does a rank pass on?",
            "63 * 2 * 33.6 * 8": "queries stay; only heads of keys and values travel.",
        },
        otherwise="A block are the keys and the values of 2²⁰ / 64 tokens, 8 heads. How many blocks does a rank pass "
        "on?",
        why="63 times a block of keys and values, 33.6 MB each: {answer:,.0f} MB.",
    ),
    Number(
        name="ulysses_ratio",
        text="**b** And with Ulysses, which has fewer heads of keys and values than ranks? How many times as many "
        "bytes does a rank of the ring send?",
        answer=lambda: 63 * 2 * 8 / (63 / 64 * (2 * 64 + 2 * 64)),
        solution="63 * 2 * 8 / (63 / 64 * (2 * 64 + 2 * 64))",
        tolerance=0.01,
        near={
            "63 * 2 * 8 / (63 / 64 * (2 * 64 + 2 * 8))": "each rank needs a whole head of keys and values: 64 copies "
            "in place of 8 heads.",
            "63 * 2 * 8 / (2 * 64 + 2 * 64)": "1/64 of what it exchanges stays where it is.",
            "32": "that is without groups: the ring sends 8 heads, not 64.",
            "1 / 4": "other way round: the ring's bytes over those of Ulysses.",
        },
        otherwise="For each token of a rank: the ring sends 63 · 2 · 8 heads, Ulysses 63/64 of q and the result, 64 "
        "heads each, and of k and v, repeated.",
        why="The ring sends 63 · 16 heads of each token, Ulysses 63/64 of 256: {answer:.0f} times as many. How long a "
        "rank waits for them is another question: the ring computes meanwhile.",
    ),
    Number(
        name="hidden_tokens",
        text="**c** A zigzag step computes half of L² pairs of tokens, 4·D FLOPs for each pair and each of H heads of "
        "queries; its message has keys and values of L tokens and G heads, D bfloat16 numbers each. How many tokens L "
        "must a rank have so that messages are hidden, at 400 TFLOP/s and 50 GB/s, with H = 64 and G = 8?",
        answer=lambda: 2 * 8 / 64 * 400e12 / 50e9,
        solution="2 * 8 / 64 * 400e12 / 50e9",
        unit="tokens",
        tolerance=0.03,
        near={
            "2 * 400e12 / 50e9": "that is with G = H. Keys and values have 8 heads, queries 64.",
            "8 / 64 * 400e12 / 50e9": "a message has 4·L·D bytes for a head: k and v, 2 bytes each.",
            "4 * 8 / 64 * 400e12 / 50e9": "half of the pairs are computed, so 2·L²·D FLOPs for a head.",
        },
        otherwise="Rule 18. Set the times equal: 2·L²·D·H / 400e12 and 4·L·D·G / 50e9.",
        why="2·L²·D·H / 400e12 = 4·L·D·G / 50e9, so L = 2 · G/H · 8,000 = {answer:,.0f}, whatever D is. With one head "
        "of keys and values for each of queries it would be 16,000.",
    ),
]
