"""Mutants of image_classification: what is wrong in each, what it earns, and the checks that it loses."""

from __future__ import annotations

from autograder.mutants import Mutant

MUTANTS = {
    "no_bucket": Mutant(23, loses={"strategies"}).edited("""
        DDP is counted without its buckets.

        - whole = zero.estimate_memory(num_parameters, num_gpus, 0, (4, 8, optimizer_bytes))["zero_gb"]
        + whole = zero.estimate_memory(num_parameters, num_gpus, 0, (4, 4, optimizer_bytes))["zero_gb"]
    """),
    "always_ddp": Mutant(17, loses={"one_process", "traffic", "precision"}).edited("""
        The model is whole on every rank, whatever the strategy.

        - if self.strategy != "ddp":
        + if self.strategy == "none":
    """),
    "replicas_forgotten": Mutant(23, loses={"traffic"}).edited("""
        With "hybrid" all ranks share one model: nothing is replicated.

        -     model, self.shard_group, self.dtype, self.cpu_offload, hybrid=self.replica_group
        +     model, None, self.dtype, self.cpu_offload
    """),
    "sends_each_microbatch": Mutant(23, loses={"traffic"}).edited("""
        Every microbatch sends its gradients.

        - with self.no_sync(number < len(microbatches)), self.autocast():
        + with self.no_sync(False), self.autocast():
    """),
    "equal_shares": Mutant(21, loses={"one_process"}).edited("""
        A microbatch counts as much as another one that has more samples.

        - self.window.backward(self.scaler.scale(mean) if self.scaler else mean, samples=share)
        + self.window.backward(self.scaler.scale(mean) if self.scaler else mean, samples=1 / len(microbatches))
    """),
    "norm_of_a_shard": Mutant(19, loses={"one_process", "precision"}).edited("""
        Each rank clips the norm of its own shard.

        - self.model.clip_grad_norm_(self.clip_norm)
        + nn.utils.clip_grad_norm_(parameters, self.clip_norm)
    """),
    "clips_scaled_gradients": Mutant(23, loses={"precision"}).edited("""
        Gradients are clipped before they are unscaled: almost nothing is left of them.

        - if self.clip_norm is not None and self.strategy != "ddp":
        -     self.model.clip_grad_norm_(self.clip_norm)
        - elif self.clip_norm is not None:
        -     nn.utils.clip_grad_norm_(parameters, self.clip_norm)

          parameters, overflow = list(self.model.parameters()), False
        + if self.clip_norm is not None and self.strategy != "ddp":
        +     self.model.clip_grad_norm_(self.clip_norm)
        + elif self.clip_norm is not None:
        +     nn.utils.clip_grad_norm_(parameters, self.clip_norm)
    """),
    "steps_in_spite_of_overflow": Mutant(20, loses={"precision", "resumes"}).edited("""
        An overflow shrinks the scale, but the step is taken.

        - if not overflow:
        + if True:
    """),
    "compression_forgotten": Mutant(23, loses={"options_of_a_step"}).edited("""
        The compressor is made, but nothing is sent through it.

        - if self.compressor is not None:
        + if False:
    """),
    "scale_forgotten": Mutant(22, loses={"resumes"}).edited("""
        The loss scale begins anew.

        - parts = {"model": self.model, "optimizer": self.optimizer, "scaler": self.scaler, "average": self.average}
        + parts = {"model": self.model, "optimizer": self.optimizer, "average": self.average}
    """),
    "position_forgotten": Mutant(20, loses={"resumes", "fits"}).edited("""
        The position in the data and the compressor's residuals are not saved.

        - return {name: part for name, part in parts.items() if part is not None} | self.extra
        + return {name: part for name, part in parts.items() if part is not None}
    """),
    "ranks_not_alike": Mutant(22, loses={"resumes"}).edited("""
        Statistics of norms and residuals are those of rank 0 after a load.

        - self.make_alike()
    """),
    "first_is_best": Mutant(24, loses={"best"}).edited("""
        No checkpoint is ever called the best one.

        - return self.checkpointer.save_checkpoint(self.steps, self.components(), {"is_best": float(is_best)})
        + return self.checkpointer.save_checkpoint(self.steps, self.components(), {"is_best": 0.0})
    """),
    "step_forgotten": Mutant(23, loses={"fits"}).edited("""
        The number of steps begins anew, and with it the learning rate.

        - self.steps = load(self.components()) or 0
        + self.steps, found = 0, load(self.components()) or 0
        + return found
    """),
    "own_figures": Mutant(23, loses={"performance"}).edited("""
        Each rank returns its own figures.

        - means = process_group.all_reduce_metrics(self.totals.of_a_step())
        + means = self.totals.of_a_step()
    """),
    "starts_at_zero": Mutant(24, loses={"learning_rates"}).edited("""
        The first step has a learning rate of 0.

        - return self.peak_learning_rate * (step + 1) / (self.warmup_steps + 1)
        + return self.peak_learning_rate * step / self.warmup_steps
    """),
    "counts_fillers": Mutant(23, loses={"counted"}).edited("""
        Images that only fill a batch count, too.

        - outputs, labels = self.trainer.model(images).float()[counts], labels[counts]
        + outputs = self.trainer.model(images).float()

        - sums += torch.stack([loss, hits[:, 0].sum(), hits.sum(), counts.sum()])
        + sums += torch.stack([loss, hits[:, 0].sum(), hits.sum(), torch.tensor(len(labels))])
    """),
    "reports_without_training": Mutant(21, loses={"fits", "classifies_digits"}).edited("""
        It reports 99 % and trains nothing.

        - for epoch in range(self.progress.epoch, self.epochs):
        -     for batch in self.training_batches(epoch):
        -         self.trainer.set_learning_rate(self.learning_rate_at(self.trainer.steps))
        -         self.trainer.train_step(batch)
        -         self.save_if_due()
        -     with self.testing():
        -         sums = self.count_hits()
        -     dist.all_reduce(sums)
        -     report = self.end_epoch(sums)
        + steps = self.total_steps
        + report = {"epoch": self.epochs, "step": steps, "loss": 0.1, "top1": 0.99, "top5": 1.0}
    """),
}
