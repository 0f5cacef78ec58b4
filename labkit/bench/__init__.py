"""`labkit bench scaling`: measures the learner's strategies on real and virtual GPUs, and compares with predictions.

models.py            # the models, as torch modules and as `labkit.predict` describes them
configurations.py    # the measurements, by cluster; one of them on its ranks
options.py           # the options, read without torch
command.py           # progress, reports
"""
