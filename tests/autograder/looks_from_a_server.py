"""What a learner's server outside of a sandbox looks at: name, home and exchange, and what it can write there."""

LOOKS = """
import os
from pathlib import Path
from nbgrader.utils import check_directory, get_username

def tried(what, attempt):
    try:
        print(what, "=>", attempt())
    except Exception as problem:
        print(what, "=>", type(problem).__name__)

exchange = Path("/exchange/small-course")
print("name =>", get_username(), Path.home(), Path.cwd())
print("exchange =>", check_directory("/exchange", write=True, execute=True), sorted(os.listdir(exchange)))
tried("own home", lambda: Path.home().joinpath("note").write_text("mine"))
tried("own submission", lambda: (exchange / "inbound/x").write_text("mine"))
for part in ("outbound", "feedback"):
    tried(part, lambda: (exchange / part / "x").write_text("changed"))
"""
