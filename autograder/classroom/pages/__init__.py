"""The course's page on the hub, for everybody in the course: what one has submitted, and the challenges.

service.py       addresses, and pages for everybody; a service of the hub
page.py          base class of the pages: identifies the user, and answers
class_pages.py   the class at a glance, for instructors
servers.py       what learners' servers use, for instructors
rendering.py     HTML from the templates beside it, without scripts
"""
