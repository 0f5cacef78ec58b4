"""The exercises of phase2_advanced, a package each."""
