"""Search over the learner's notebooks and all guides, for `%search` and for the search box in JupyterLab.

for hit in search("rendezvous"):
    print(hit.passage.title, hit.passage.section, hit.excerpt)
"""

from labkit.search.index import Hit, Index, search
from labkit.search.passages import Passage, heading_id, passages_of

__all__ = ["Hit", "Index", "Passage", "heading_id", "passages_of", "search"]
