"""Programs of the checks of `autotune`, and the landscapes that they search."""
