"""What the parts of a step cost: products, collectives, layers, schedules, memory."""
