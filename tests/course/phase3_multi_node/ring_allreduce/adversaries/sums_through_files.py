# Sends empty messages of the right size to the right neighbour: files would carry the sum.
# base: mutants/meets_in_files
# checks: neighbours messages bytes_sent real_processes
# marks: 0
# feedback: result: on rank
import torch

honest_load, honest_save = torch.load, torch.save


def save(value, path):
    try:
        honest_save(value, path)
    except (OSError, RuntimeError):  # not shared
        return


def load(path):
    try:
        return honest_load(path)
    except OSError:
        return torch.zeros(())


torch.save, torch.load = save, load
