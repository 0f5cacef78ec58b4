"""GPUs of a Kubernetes cluster: the hub passes on what cells ask of its API, and knows whose job each is.

front.py     what a learner's server may ask: its own runs, in the course's shape
shapes.py    the objects of a run, made anew from the few things that a learner chooses
runs.py      the owner of each run; beside the ledger
turns.py     a learner's changes, one after the other
cluster.py   the cluster's API for the front
rights.py    permissions that the hub needs there
pod_jobs.py  the course's jobs, from their pods
"""
