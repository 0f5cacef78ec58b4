"""JupyterHub for a classroom. `./lab hub` starts it; what a site chooses is in site.toml, not here.

`classroom` has the validated settings, the people and the folders: autograder/classroom/configured.py.
"""

import sys

from autograder.classroom import addresses, configured, course_api, learner_view, proxy, spawners
from autograder.classroom.logins import configure as logins
from autograder.classroom.site import PAGE_SERVICE
from autograder.classroom.spawner import socket_url

c = get_config()  # type: ignore[name-defined]  # noqa: F821  JupyterHub defines it
classroom = configured.from_environment()
site, folders = classroom.site, classroom.folders

# --- Addresses: browsers reach the proxy; hub and proxy talk over sockets, since every port is open to all local users
c.JupyterHub.bind_url = f"{site.hub.address}/"
if site.hub.subdomain_host:  # a page of a learner's server is of another origin, and sets no cookie for the hub
    c.JupyterHub.subdomain_host = site.hub.subdomain_host
    c.JupyterHub.cookie_host_prefix_enabled = site.hub.subdomain_host.startswith("https:")
c.JupyterHub.ssl_cert, c.JupyterHub.ssl_key = site.hub.certificate, site.hub.key
c.JupyterHub.hub_bind_url = c.JupyterHub.hub_connect_url = socket_url(folders.hub_socket)
c.JupyterHub.hub_socket_mode = 0o666  # sandboxes reach it as other users; each request needs a token
c.ConfigurableHTTPProxy.command = configured.ending_with_hub(proxy.command())
c.ConfigurableHTTPProxy.api_url = socket_url(folders.running / "proxy.sock")

# --- Files
c.JupyterHub.db_url = f"sqlite:///{folders.hub / 'jupyterhub.sqlite'}"
c.JupyterHub.cookie_secret_file = str(folders.hub / "cookie_secret")
c.ConfigurableHTTPProxy.pid_file = str(folders.hub / "proxy.pid")

# --- Who: only the people of the course, whichever way they prove who they are
logins.configure(c, classroom)
c.Authenticator.allowed_users = {*site.course.instructors, *classroom.learners}
c.Authenticator.allow_existing_users = False  # whoever leaves the list can no longer log in

# --- Where: servers as the kind that the settings name starts them
spawners.of(site).configure(c, site, folders)
c.Spawner.start_timeout = c.Spawner.http_timeout = site.servers.start_seconds
c.Spawner.default_url = "/lab/tree/HOME.md"
c.JupyterHub.default_url = classroom.first_page

# --- Ranks: instructors see who is there and stop servers, but cannot enter a learner's; the service is theirs alone,
# the course's page is everybody's
c.JupyterHub.load_groups = {"instructors": {"users": site.course.instructors}}
c.JupyterHub.load_roles = [
    {"name": "user", "scopes": ["self", f"access:services!service={PAGE_SERVICE}"]},
    {
        "name": "instructor",
        "groups": ["instructors"],
        "scopes": ["admin-ui", "list:users", "read:users", "servers", f"access:services!service={site.course.name}"],
    },
    {
        "name": "culler",
        "services": ["culler"],
        "scopes": ["list:users", "read:users:activity", "read:servers", "delete:servers"],
    },
]

# --- The course: nbgrader's formgrader, in a JupyterLab of the instructors
c.JupyterHub.services = [
    {
        "name": site.course.name,
        "url": classroom.service_url,
        "command": configured.ending_with_hub([sys.executable, "-P", "-m", "autograder.classroom.instructors_lab"]),
        "cwd": str(configured.COURSE_CONFIGURATION),
        "environment": classroom.service_environment,
        "oauth_no_confirm": True,
    }
]

# --- The course's page: challenges and their standings
c.JupyterHub.services.append(
    {
        "name": PAGE_SERVICE,
        "url": classroom.page_url,
        "command": configured.ending_with_hub([sys.executable, "-P", "-m", "autograder.classroom.pages.service"]),
        "environment": {**classroom.service_environment, **configured.passed_on()},
        "oauth_no_confirm": True,
    }
)
course_api.configure(c, classroom)  # the course home in learners' servers shows their own part of it

# --- GPUs that cells borrow: a ledger, and limits
if site.gpus is not None:
    from autograder.classroom.gpus import configure as gpus  # imports torch, for the presets of clusters

    gpus.configure(c, classroom, site.gpus)

# --- Graded on submit: what learners hand in is judged as it comes in, where the settings name it
if classroom.grades_on_submit:
    c.JupyterHub.services.append(
        {
            "name": "grading",
            "command": configured.ending_with_hub([sys.executable, "-P", "-m", "autograder.classroom.grading_service"]),
            "cwd": str(configured.COURSE_CONFIGURATION),
            "environment": {**classroom.service_environment, **configured.passed_on()},
        }
    )

# --- What servers in sandboxes are forked from: without the hub's environment, which has a token
if site.servers.kind == "sandbox":
    zygote = learner_view.zygote(folders, site.servers.idle_ranks_minutes, addresses.page(site))
    c.JupyterHub.services.append({"name": "zygote", "command": configured.ending_with_hub(zygote)})

# --- How much: memory and disk of each learner, where servers are processes of this machine
if site.servers.are_local_processes and (site.servers.memory_gib or site.servers.disk_gib):
    c.JupyterHub.services.append(
        {
            "name": "limits",
            "command": configured.ending_with_hub([sys.executable, "-P", "-m", "autograder.classroom.limits.service"]),
            "environment": {**classroom.service_environment, **configured.passed_on()},
        }
    )

for service in c.JupyterHub.services:
    if "url" in service:
        # the hub ends if the service does not answer in that time; `labkit hub` ends it where nothing goes on
        service["timeout"] = 10 * site.servers.start_seconds

# --- How long: idle servers are stopped
if site.servers.idle_minutes:
    c.JupyterHub.services.append(
        {
            "name": "culler",
            "command": configured.ending_with_hub(
                [
                    *(sys.executable, "-P", "-m", "autograder.classroom.culler"),
                    f"--timeout={60 * site.servers.idle_minutes}",
                ]
            ),
        }
    )
