"""GPUs that a course shares: who has used how much of them, and limits that learners cannot lift.

configure.py     the hub's service, and the preset of `%cluster` in learners' servers
jobs.py          what the ledger needs of a job, and of what schedules it
slurm_jobs.py    the course's jobs, as Slurm says
kubernetes       the course's jobs, as pods say; and how cells get at them
ledger.py        who had how many GPUs from when to when; a file of the hub's
watch.py         looks at the jobs every few seconds
rules.py         which jobs are cancelled or shortened, and why
service.py       answers cells, and shows instructors a page
gpu_page.py      what its pages have in common
"""
