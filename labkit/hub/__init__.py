"""A learner's side of JupyterHub: the server that the hub starts, and what processes in it learn of the hub's rules."""
