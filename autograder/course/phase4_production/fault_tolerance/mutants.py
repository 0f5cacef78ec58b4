"""Mutants of fault_tolerance: wrong solutions and their marks. All train well as long as nothing fails, except one."""

from __future__ import annotations

from autograder.mutants import Mutant

MUTANTS = {
    "believes_every_number": Mutant(24, loses={"arguments"}).edited("""
        Goodput of impossible numbers is a number, too.

        - given.check_goodput(interval_seconds, checkpoint_seconds, restart_seconds, gpu_mtbf_seconds, num_gpus)
    """),
    "resumes_at_epochs_start": Mutant(
        12,
        loses={
            "one_process",
            "killed",
            "while_writing",
            "dropout",
            "other_world_sizes",
            "recovery_time",
            "real_processes",
        },
    ).edited("""
        Samples of the epoch that were trained before the failure are trained once more.

        - step = saved = self.resume(components)
        + step = saved = self.resume(components)
        + sampler.position = 0
    """),
    "skips_lost_steps": Mutant(
        15, loses={"killed", "while_writing", "dropout", "other_world_sizes", "recovery_time"}
    ).edited("""
        The samples of the step that failed are left out, in case they were the reason.

        - step = saved = self.resume(components)
        + step = saved = self.resume(components)
        + if step:
        +     sampler.advance()
    """),
    "repeats_a_batch": Mutant(
        14, loses={"killed", "while_writing", "dropout", "other_world_sizes", "recovery_time", "real_processes"}
    ).edited("""
        The checkpoint has the sampler's position from before its last step.

        - sampler.advance()
          if dist.get_rank() == 0:
              self.journal.record(step, epoch, loss)
          if self.checkpointer.should_checkpoint(step):
              self.checkpointer.save_checkpoint(step, components)
              saved = step
        + sampler.advance()
    """),
    "forgets_the_epoch": Mutant(
        9,
        loses={
            "one_process",
            "killed",
            "while_writing",
            "dropout",
            "other_world_sizes",
            "hang",
            "repeated",
            "real_processes",
        },
    ).edited("""
        Every epoch has the order of the first one.

        - sampler.set_epoch(epoch)
        + sampler.position %= sampler.samples_per_epoch
    """),
    "forgets_the_optimizer": Mutant(
        14, loses={"killed", "while_writing", "dropout", "other_world_sizes", "recovery_time", "real_processes"}
    ).edited("""
        Momentum begins anew after each restart.

        - components = {"model": model, "optimizer": optimizer, "sampler": sampler}
        + components = {"model": model, "sampler": sampler}
    """),
    "swallows_errors": Mutant(24, loses={"errors"}).edited("""
        A rank whose batch has an error goes on with the next one.

        - step, loss = step + 1, self.train_step(model, optimizer, criterion, inputs, targets)
        + try:
        +     step, loss = step + 1, self.train_step(model, optimizer, criterion, inputs, targets)
        + except ArithmeticError:
        +     continue
    """),
    "mean_of_means": Mutant(
        9,
        loses={
            "one_process",
            "killed",
            "while_writing",
            "other_world_sizes",
            "hang",
            "repeated",
            "recovery_time",
            "real_processes",
        },
    ).edited("""
        Ranks count equally, whatever their numbers of samples.

        - message.flat *= len(targets)
        + pass
    """),
    "draws_a_seed": Mutant(24, loses={"dropout"}).edited("""
        A loader that is iterated draws a random number: after a restart once more than without.

        - for inputs, targets in given.batches(loader):
        + for inputs, targets in loader:
    """),
    "reads_to_the_place": Mutant(
        15, loses={"killed", "while_writing", "other_world_sizes", "recovery_time", "real_processes"}
    ).edited("""
        After a restart the epoch's first batches are read and thrown away.

        - step = saved = self.resume(components)
        + step = saved = self.resume(components)
        + done, sampler.position = sampler.position, 0

        - for inputs, targets in given.batches(loader):
        + for inputs, targets in given.batches(loader):
        +     if sampler.position < done:
        +         sampler.advance()
        +         continue
        +     done = 0
    """),
    "waits_for_ever": Mutant(23, loses={"hang"}).edited("""
        A rank that hangs is waited for as long as torch waits: half an hour.

        - self.group = dist.new_group(timeout=timedelta(seconds=self.hang_timeout))
        + self.group = dist.new_group()
    """),
    "tries_for_ever": Mutant(23, loses={"repeated"}).edited("""
        A step that always fails is tried again until no restart is left.

        - self.stop_repeated_crash()
          step = saved = self.resume(components)
    """),
    "gives_up_early": Mutant(20, loses={"other_world_sizes", "repeated"}).edited("""
        Any two failures in a row end the training, at whatever step.

        - crash = [ends[0][0] + 1] if len(ends) == 2 and ends[0] == ends[1] else [None]
        + crash = [ends[0][0] + 1] if len(ends) == 2 else [None]
    """),
    "silent_batch": Mutant(24, loses={"changed_batch"}).edited("""
        Another global batch is not mentioned.

        - if found is not None and before != now:
        + if found is not None and before is None and now is None:
    """),
    "saves_the_end_never": Mutant(23, loses={"one_process"}).edited("""
        The last steps are not saved: a restart after the end trains them again.

        - if saved < step:
        + if saved < 0:
    """),
    "young_of_one_gpu": Mutant(23, loses={"intervals"}).edited("""
        The interval is that of a job on a single GPU.

        - mtbf = gpu_mtbf_seconds / num_gpus
        + mtbf = gpu_mtbf_seconds
          young = math.sqrt(2 * checkpoint_seconds * mtbf)
    """),
    "restarts_for_free": Mutant(23, loses={"goodputs"}).edited("""
        A failure costs the work since the last checkpoint, but no time to start again.

        - return interval_seconds * math.exp(-(restart_seconds + period) / mtbf) / (mtbf * -math.expm1(-period / mtbf))
        + return interval_seconds * math.exp(-period / mtbf) / (mtbf * -math.expm1(-period / mtbf))
    """),
    "restarts_without_bound": Mutant(24, loses={"launch"}).edited("""
        The bound on restarts is one of its own, not the caller's.

        - max_restarts=config.max_restarts,
        + max_restarts=1_000_000,
    """),
}
