"""The exercises of phase3_multi_node, a package each."""
