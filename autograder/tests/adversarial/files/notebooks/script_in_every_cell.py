# The right module, with script in headings, names, outputs, attachments, metadata, and the kernel to start.
# marks: 6
# feedback: 6 of 6 points
# never: taken over
from pathlib import Path

import nbformat
import pass_around
from nbformat import NotebookNode

SCRIPT = "<script>document.title = 'taken over'</script><img src=x onerror=\"document.title = 'taken over'\">"


def hand_in(folder: Path, released: NotebookNode) -> None:
    path = pass_around.write(folder, released, pass_around.SOLUTION + f"\n# </pre>{SCRIPT}\n")
    notebook = nbformat.read(path, as_version=4)
    notebook.metadata = {"title": SCRIPT, "kernelspec": {"name": f"$(reboot){SCRIPT}", "display_name": SCRIPT}}
    notebook.cells[0].source = SCRIPT
    notebook.cells[0].attachments = {SCRIPT: {"text/html": SCRIPT}}
    notebook.cells[3].outputs = [nbformat.v4.new_output("display_data", {"text/html": SCRIPT})]
    nbformat.write(notebook, path)
