"""Variants of pipeline_parallel: other right solutions."""

from autograder.mutants import Variant

VARIANTS = {
    "short_warm_up": Variant(base="tags").edited("""
        Right: with chunks, fewer warm-up forwards: fewer activations are kept, and messages have less time.

        Each forward still comes before its backward, in an order that all ranks can follow.

        - warm = 2 * (stages - rank - 1) + (chunks - 1) * sizes[0]
        + warm = stages - rank - 1 + (chunks - 1) * sizes[0]
    """),
}
