"""The classroom: a course for many learners on a JupyterHub, from one command on one machine.

`labkit hub` prepares a classroom's folder and runs JupyterHub with `cluster/jupyterhub/jupyterhub_config.py`; the
site's settings are in `cluster/jupyterhub/site.toml`. docs/classroom.md is the instructors' guide.
"""
