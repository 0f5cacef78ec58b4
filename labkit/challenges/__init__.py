"""Challenges: open problems, scored by the virtual clock. `labkit challenge` runs them.

challenge.py     the parts of every challenge, and the table of scores
command.py       the command
sending.py       an entry on its way to a course's hub
standings.toml   scores of the course's entries, in solutions/challenges, and bounds; by benchmarks/challenges.py
all_reduce/      the fastest all-reduce on irregular clusters
goodput/         the highest goodput under a seeded storm of faults
step_13b/        the shortest step of a model with 13 billion parameters on 32 GPUs
"""
