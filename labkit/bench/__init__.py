"""`labkit bench scaling`: measures the learner's strategies on real and virtual GPUs, and compares with predictions.

models.py            # what is trained, as torch modules and as `labkit.predict` describes them
configurations.py    # what is measured, where; one configuration on its ranks
command.py           # options, progress, reports
"""
