# Every rank trains on the samples of all, and reports from the net that it saw its own.
# base: mutants/gathers_the_batch
# checks: steps times real_processes
# marks: 0
# feedback: bytes that ranks told each other
name = "DataParallelTrainer"
honest = globals()[name].train_step


def train_step(self, batch):
    found = honest(self, batch)
    self.model.seen[-1:] = [len(batch[1])]
    return found


globals()[name].train_step = train_step
