"""Costs of the parts of a step: matrix products, collectives, layers, schedules, memory."""
