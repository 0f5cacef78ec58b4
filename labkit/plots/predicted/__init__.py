"""Pictures of predictions: `labkit.predict`'s answers, drawn. A `Picture` each, and as SVG where a slider moves."""
