"""The exercises of phase4_production, a package each."""
