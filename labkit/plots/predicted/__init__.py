"""Pictures of `labkit.predict`'s results: a `Picture` each, and SVG for sliders."""
