"""Challenges of a classroom: learners' entries, judged by the grading service, and the standings.

entries.py        an entry as it was sent, read as data
judging.py        its run in the sandbox, on instances that nobody knows
grader.py         from the grading queue to the leaderboard
leaderboard.py    records of judged entries, and the standings
"""
