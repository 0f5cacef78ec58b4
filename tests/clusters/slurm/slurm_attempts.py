"""What a learner tries from a server that is a job of Slurm: other jobs, files, processes and ports of the node."""

TRIES = """
import contextlib, glob, os, socket, subprocess, urllib.error, urllib.request
from pathlib import Path

def tried(what, attempt):
    try:
        print(what, "=>", attempt())
    except Exception as problem:
        print(what, "=>", type(problem).__name__)

def slurm(*command):
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return "refused" if done.returncode or not done.stdout.strip() else f"done {done.stdout.strip()[:200]!r}"

for command in (
    ["scancel", JOB],
    ["scancel", "--signal=USR1", JOB],
    ["scontrol", "update", f"JobId={JOB}", "TimeLimit=1"],
    ["scontrol", "hold", JOB],
    ["scontrol", "suspend", JOB],
    ["scontrol", "requeue", JOB],
    ["scontrol", "write", "batch_script", JOB, "-"],
    ["sattach", f"{JOB}.batch"],
    ["srun", f"--jobid={JOB}", "--overlap", "id"],
    ["sstat", "--noheader", f"{JOB}.batch"],
    ["sbatch", f"--uid={OTHER}", "--wrap=id"],
    ["sbatch", "--uid=0", "--wrap=id"],
    ["scontrol", "update", "NodeName=node1", "State=DRAIN", "Reason=mine"],
    ["scontrol", "reconfigure"],
    ["scontrol", "shutdown"],
):
    tried(" ".join(command).replace(JOB, "JOB").replace(OTHER, "OTHER"), lambda: slurm(*command))

def readable(pattern):
    found = []
    for path in glob.glob(pattern, recursive=True):
        with contextlib.suppress(OSError):
            if os.path.isfile(path) and any(secret in open(path, errors="replace").read() for secret in SECRETS):
                found.append(path)
    return found

shown = subprocess.run(["scontrol", "show", "job", "--details", "--oneliner"], capture_output=True, text=True).stdout
shown += subprocess.run(["squeue", "--all", "--Format=UserName:40,Name:40,Command:400,StdOut:400"], capture_output=True,
    text=True).stdout
tried("secrets in scontrol show job, squeue", lambda: [name for name in SECRETS if name in shown])
tried("secrets in the folders of Slurm", lambda: readable(f"{SLURM}/**"))
tried("another's script in the spool", lambda: os.listdir(f"{SLURM}/spool/node1/job{int(JOB):05d}"))
tried("secrets in an open home", lambda: readable(f"{HOME}/**") + readable(f"{HOME}/.*") + readable(f"{HOME}/.*/**"))
tried("an open home", lambda: Path(HOME, "left").write_text(""))
pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
def of_processes(part):
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            if os.stat(f"/proc/{pid}").st_uid != os.getuid():
                text = Path(f"/proc/{pid}/{part}").read_bytes().decode(errors="replace")
                found |= {part for secret in SECRETS if secret in text}
    return sorted(found)
tried("secrets among arguments", lambda: of_processes("cmdline"))
tried("secrets in environments", lambda: of_processes("environ"))
def kills(pid):
    with contextlib.suppress(OSError):
        if os.stat(f"/proc/{pid}").st_uid != os.getuid():
            os.kill(pid, 0)
            return True
tried("signals to others' processes", lambda: list(filter(kills, pids)))
tried("secrets in the own environment", lambda: sorted(
    name for name in os.environ if any(map(name.count, ("TOKEN", "SECRET", "PASSW", "KEY", "CREDENTIAL")))))
tried("variables of the hub", lambda: os.environ["SECRET_OF_THE_HUB"])
tried("the hub's folder", lambda: os.listdir(HUB))
tried("others' submissions", lambda: os.listdir(f"{EXCHANGE}/inbound"))
for part in ("outbound", "feedback"):
    tried(f"the exchange's {part}", lambda: Path(EXCHANGE, part, "x").write_text("changed"))
tried("root", lambda: os.setuid(0))

def answer(url, **headers):
    try:
        return urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=LIMIT).status
    except urllib.error.HTTPError as refused:
        return refused.code

own = {"Authorization": "token " + os.environ["JUPYTERHUB_API_TOKEN"]}
for what, headers in (("without a token", {}), ("with the own token", own)):
    for page in ("api/contents", "api/kernels", "lab/tree/"):
        url = f"http://127.0.0.1:{SERVER}/user/{OTHER}/{page}"
        tried(f"{page} of another's server, {what}", lambda: answer(url, **headers))
def opened(port):
    with contextlib.suppress(OSError), socket.create_connection((HOST, port), LIMIT):
        return True
tried("ports of the hub's machine", lambda: [port for port in PORTS if opened(port)])

def report(port):
    import json
    url, body = os.environ["JUPYTERHUB_API_URL"] + "/batchspawner", json.dumps({"port": port}).encode()
    try:
        return urllib.request.urlopen(urllib.request.Request(url, body, own)).status
    except urllib.error.HTTPError as refused:
        return refused.code
tried("another port for the own server", lambda: report(22222))
"""
"""Each attempt prints a line `what => seen`."""
