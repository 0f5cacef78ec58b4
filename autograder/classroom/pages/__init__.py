"""The course's page on the hub, for everybody in the course: what one has submitted, and the challenges.

service.py       addresses and who may see what; a service of the hub
servers.py       what learners' servers use, for instructors
rendering.py     HTML from the templates beside it, without scripts
"""
