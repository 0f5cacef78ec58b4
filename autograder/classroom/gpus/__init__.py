"""GPUs that a course shares: who has used how much of them, and limits that learners cannot lift.

configure.py     the hub's service, and the preset of `%cluster` in learners' servers
jobs.py          a job and its scheduler, as the ledger needs them
slurm_jobs.py    the course's jobs, as Slurm lists them
kubernetes       the course's jobs, from their pods; and the API by which cells start them
ledger.py        who had how many GPUs from when to when; a file of the hub's
watch.py         looks at the jobs every few seconds
rules.py         which jobs are cancelled or shortened, and why
service.py       answers cells, and shows instructors a page
gpu_page.py      base classes of its answers
"""
