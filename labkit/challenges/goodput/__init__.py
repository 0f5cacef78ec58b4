"""The highest goodput under a storm of faults: nodes that crash, come back, slow down, and crash again."""
