"""Costs of the parts of a step, and its terms: matrix products, collectives, layers, schedules, memory."""
