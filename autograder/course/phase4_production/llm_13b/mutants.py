"""Mutants of llm_13b: what is wrong in each, what it earns, and the checks that it loses."""

from __future__ import annotations

from autograder.mutants import Mutant

PLANS = {"layouts", "requirements", "beside_a_run"}

MUTANTS = {
    "ignores_memory": Mutant(17, loses=PLANS | {"refusals"}).edited("""
        The fastest layout of all is chosen, whether it fits or not.

        - return Measurement(step.step_seconds, step.device_bytes.high)
        + return Measurement(step.step_seconds, 0.0)
    """),
    "plans_what_cannot_run": Mutant(18, loses=PLANS).edited("""
        Layouts are measured as they are: with ZeRO 3 and sequence parallelism, which the trainer does not have.

        - trained = given.as_trained(layout)
        - if trained is None:
        -     return Measurement(inf, inf)
        - step = predict(model, trained, cluster)
        + step = predict(model, layout, cluster)

        - layout = given.as_trained(autotune.search_layout(model, cluster, batch, measure))
        + layout = autotune.search_layout(model, cluster, batch, measure)
    """),
    "always_whole_nodes": Mutant(18, loses=PLANS).edited("""
        Tensor parallelism over all GPUs of a node, whatever the model.

        - if trained is None:
        + if trained is None or trained.tensor != cluster.nproc_per_node:
    """),
    "checks_nothing": Mutant(24, loses={"refusals"}).edited("""
        Arguments are taken as they are.

        - batch = given.check_plan(model, cluster, batch, tokens)
        + batch = batch or 16 * cluster.world_size
    """),
    "reads_its_share": Mutant(23, loses={"figures"}).edited("""
        Recovery reads as much as is written, though each data-parallel rank needs all weights of its place.

        - recovery = given.RESTART_SECONDS + cluster.storage.read_seconds(cluster.nproc_per_node * (place + shard))
        + recovery = given.RESTART_SECONDS + cluster.storage.read_seconds(14 * parameters / cluster.nnodes)
    """),
    "one_node_writes": Mutant(23, loses={"figures"}).edited("""
        One node writes the whole checkpoint.

        - saving = cluster.storage.write_seconds(14 * parameters / cluster.nnodes)
        + saving = cluster.storage.write_seconds(14 * parameters)
    """),
    "never_fails": Mutant(23, loses={"figures"}).edited("""
        The days are those without failures.

        - days = steps * step.step_seconds / share / 86_400
        + days = steps * step.step_seconds / 86_400
    """),
    "shards_nothing": Mutant(16, loses={"parts", "resumes", "interrupted"}).edited("""
        A fake ZeRO: every rank has the whole optimizer state, and gradients are averaged as without it.

        - if layout.zero:
        + if layout.zero > 1:

        - options: dict[str, Any] = {"data_parallel": "optimizer" if layout.zero else "ddp"}
        + options: dict[str, Any] = {"data_parallel": "ddp"}
    """),
    "recomputes_nothing": Mutant(22, loses={"parts"}).edited("""
        Activations are kept, whatever the plan says.

        - if layout.recompute == "full":
        + if layout.recompute == "all":
    """),
    "no_copies_in_float32": Mutant(18, loses={"parts", "like_one_process"}).edited("""
        Torch's own AdamW, with its own decay, in 16 bits.

        - return zero.ZeroOptimizer(parameters, given.MasterAdamW, layout.zero, group, lr=plan.learning_rate)
        + return zero.ZeroOptimizer(parameters, torch.optim.AdamW, layout.zero, group, lr=plan.learning_rate)

        - return given.MasterAdamW(parameters, lr=plan.learning_rate)
        + return torch.optim.AdamW(parameters, lr=plan.learning_rate)
    """),
    "each_place_its_newest": Mutant(21, loses={"resumes"}).edited("""
        Each place loads the newest that it has, so parts of the model can be of different steps.

        - common = sorted(set.intersection(*map(set, folders)), reverse=True)
        + common = given.checkpoint_folders(self.checkpointer.storage)

        - if None not in given.exchange(step, None):
        + if step is not None:
    """),
    "asks_nobody": Mutant(21, loses={"resumes"}).edited("""
        A place that can load goes on, though another one cannot.

        - if None not in given.exchange(step, None):
        + if step is not None:
    """),
    "whole_batch_everywhere": Mutant(21, loses={"like_one_process"}).edited("""
        Every data-parallel rank computes the whole batch: right losses, at many times the price.

        - mine = given.tokens_of_step(plan, step).chunk(mesh.sizes.dp)[mesh.coordinates().dp]
        + mine = given.tokens_of_step(plan, step)
    """),
    "one_rate": Mutant(21, loses={"like_one_process"}).edited("""
        No warm-up, no cosine.

        - group["lr"] = plan.learning_rate_at(step)
        + group["lr"] = plan.learning_rate
    """),
    "predicts_what_it_sees": Mutant(21, loses={"like_one_process"}).edited("""
        The targets are the inputs: the loss falls to nothing, and nothing is learned.

        - loss = trainer.train_step(mine[:, :-1], mine[:, 1:])
        + loss = trainer.train_step(mine[:, :-1], mine[:, :-1])
    """),
    "begins_anew": Mutant(23, loses={"interrupted"}).edited("""
        The checkpoint is loaded, but the steps are counted from 0.

        - for step in range(report.first_step, plan.steps):
        + for step in range(plan.steps):
    """),
    "off_by_one": Mutant(23, loses={"interrupted"}).edited("""
        The checkpoint has the number of the step, not of the steps done: one is trained twice.

        - checkpoints.save(step + 1)
        + checkpoints.save(step)
    """),
    "always_the_likeliest": Mutant(23, loses={"generation"}).edited("""
        The token with the highest probability is taken, so the text soon repeats itself.

        - tokens = torch.cat([tokens, torch.multinomial(logits.float().softmax(-1), 1, generator=generator)])
        + tokens = torch.cat([tokens, logits.argmax(-1, keepdim=True)])
    """),
}
