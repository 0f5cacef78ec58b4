"""The class at a glance: who has handed in what, with which marks, and where learners lose them.

judged.py            result of one exercise in one submission, from a stored verdict
attempts.py          one learner's attempts at one exercise: who is stuck; which wrong answers are common
pace.py              how long exercises take the class, and where learners stop
gradebook_marks.py   all marks and due dates of the gradebook, in two queries
folder_records.py    collected submissions, and feedback pages
class_reader.py      all of it together, for one learner or the whole class

Everything is read from files that the hub owns. Nothing in it was written by a submission.
"""
