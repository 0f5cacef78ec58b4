"""The exercises of phase1_data_parallel, a package each."""
