"""The course's page on the hub, for everybody in the course: challenges with their standings.

service.py       addresses and who may see what; a service of the hub
rendering.py     HTML from the templates beside it, without scripts
"""
