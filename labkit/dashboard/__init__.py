"""The live dashboard of a monitor's log: a folder of JSON lines, read while a job writes them.

    labkit dashboard LOGDIR        # at the shell: serves one page
    %monitor LOGDIR                # in a notebook: the same view, labkit/notebook/monitoring.py
    labkit dashboard --grafana     # prints a dashboard for Grafana, of what Prometheus scrapes

`view.py` summarizes the log in a bounded number of figures, however long it is; `static/dashboard.js` draws them.
"""

from labkit.dashboard.view import DashboardView

__all__ = ["DashboardView"]
