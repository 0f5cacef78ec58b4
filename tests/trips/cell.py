"""`python cell.py CLUSTER`: run a cell of two ranks as a notebook's kernel does."""

from __future__ import annotations

import sys

from IPython.core.interactiveshell import InteractiveShell

CELL = """%%torchrun -n 2
import torch, torch.distributed as dist
dist.init_process_group()
x = torch.ones(2)
dist.all_reduce(x)
x.sum().item()"""

if __name__ == "__main__":
    shell = InteractiveShell.instance()
    shell.run_line_magic("load_ext", "labkit")
    shell.run_line_magic("cluster", sys.argv[1])
    shell.run_cell(CELL)
