"""The exercises' modules, solved. Run as `python -m solutions.PHASE.NAME`, they import each other, not a learner's."""

import os
from pathlib import Path

os.environ.setdefault("LABKIT_WORKSPACE", str(Path(__file__).parent))
