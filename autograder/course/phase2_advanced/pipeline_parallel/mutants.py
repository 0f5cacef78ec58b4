"""Mutants of pipeline_parallel: what is wrong in each, what it earns, and the checks that it loses."""

from autograder.mutants import Mutant

VALUES = {
    "values", "uneven", "few", "chunks", "any_schedule", "frozen", "dtypes", "groups", "bad_arguments", "order",
    "recompute",
}  # fmt: skip
COSTS = {"released", "recompute_memory", "bubble", "traffic", "real_processes"}

MUTANTS = {
    "works_on_the_first_rank": Mutant(6, loses=VALUES | COSTS, base="tags").edited("""
        The first rank gets everybody's weights, does all the work, and sends the gradients back.

        + import copy
          import itertools

          if last and not isinstance(target, torch.Tensor):
              raise ValueError(f"target must be a tensor on the last rank, got {target!r}")
        + return self.on_the_first_rank(batch, target, criterion)

        + def on_the_first_rank(self, batch, target, criterion):
        +     own = {stage.index: stage.module for stage in self.stages}
        +     if self.rank:
        +         for module in own.values():
        +             for parameter in module.parameters():
        +                 dist.send(parameter.detach(), self.peers[0], self.group)
        +         loss = None
        +         if self.rank == self.size - 1:
        +             dist.send(target, self.peers[0], self.group)
        +             loss = torch.empty((), dtype=target.dtype)
        +             dist.recv(loss, self.peers[0], self.group)
        +         for module in own.values():
        +             for parameter in module.parameters():
        +                 parameter.grad = torch.empty_like(parameter)
        +                 dist.recv(parameter.grad, self.peers[0], self.group)
        +         return loss
        +     modules, copies = [], []
        +     for index in range(self.last + 1):
        +         module = own.get(index)
        +         if module is None:
        +             module = copy.deepcopy(self.stages[0].module)
        +             copies.append((index, module))
        +         modules.append(module)
        +     for rank in range(1, self.size):
        +         for index, module in copies:
        +             for parameter in module.parameters() if index % self.size == rank else ():
        +                 dist.recv(parameter.data, self.peers[rank], self.group)
        +     output = nn.Sequential(*modules)(batch)
        +     if self.size > 1:
        +         target = torch.empty_like(output)
        +         dist.recv(target, self.peers[-1], self.group)
        +     loss = criterion(output, target)
        +     loss.backward()
        +     if self.size == 1:
        +         return loss.detach()
        +     dist.send(loss.detach(), self.peers[-1], self.group)
        +     for rank in range(1, self.size):
        +         for index, module in copies:
        +             for parameter in module.parameters() if index % self.size == rank else ():
        +                 dist.send(parameter.grad, self.peers[rank], self.group)
        +     return None
        +
          def tag(self, op, index, k):
    """),
    # a broadcast is no message that is altered on its way; what is kept is right
    "broadcasts_results": Mutant(8, loses=VALUES | COSTS - {"released"}, base="tags").edited("""
        Every result is broadcast to all ranks.

        - self.mine = [a for a in sorted(schedule) if a.stage == self.rank]
        + self.plan = sorted(schedule)

          if last and not isinstance(target, torch.Tensor):
              raise ValueError(f"target must be a tensor on the last rank, got {target!r}")
        + return self.with_broadcasts(batch, target, criterion)

        + def with_broadcasts(self, batch, target, criterion):
        +     inputs = batch.tensor_split(self.parts) if self.rank == 0 else []
        +     targets = target.tensor_split(self.parts) if self.rank == self.size - 1 else []
        +     here, losses = {}, []
        +     for action in self.plan:
        +         index, k = action.chunk * self.size + action.stage, action.microbatch
        +         stage, result = self.stages[action.chunk], None
        +         if action.stage == self.rank and action.op == "forward":
        +             x = inputs[k] if index == 0 else here.pop(("forward", index, k))
        +             if index < self.last:
        +                 result = stage.forward(k, x)
        +             else:
        +                 n = len(targets[k])
        +
        +                 def loss_of(y, k=k, n=n):
        +                     return criterion(y, targets[k]) * n / len(target) if n else 0 * y.sum()
        +
        +                 losses.append(stage.forward(k, x, loss_of).detach())
        +         elif action.stage == self.rank:
        +             result = stage.backward(k, here.pop(("backward", index, k), None))
        +         to = index + (1 if action.op == "forward" else -1)
        +         if not 0 <= to <= self.last:
        +             continue
        +         owner = self.peers[action.stage]
        +         form = [None if result is None else (result.shape, result.dtype, result.requires_grad)]
        +         dist.broadcast_object_list(form, owner, self.group)
        +         if form[0] is None:
        +             continue
        +         shape, dtype, wants = form[0]
        +         tensor = torch.empty(shape, dtype=dtype) if result is None else result.detach().contiguous()
        +         dist.broadcast(tensor, owner, self.group)
        +         if to % self.size == self.rank:
        +             here[action.op, to, k] = tensor.requires_grad_(wants)
        +     return sum(losses) if losses else None
        +
          def tag(self, op, index, k):
    """),
    # with all forwards first, no two ranks have something for each other
    "finishes_sends_first": Mutant(7, loses=VALUES | COSTS - {"recompute_memory"}, base="tags").edited("""
        A send is over before anything else begins: two ranks that send to each other wait for ever.

        - work = dist.isend(tensor, self.peers[index % self.size], self.group, self.tag(op, index, k))
        - self.sent.append((work, tensor))
        + dist.send(tensor, self.peers[index % self.size], self.group, self.tag(op, index, k))
    """),
    "adds_up_means": Mutant(6, loses=VALUES | COSTS, base="tags").edited("""
        The losses of microbatches are added up, each the mean of its own samples.

        - return criterion(y, targets[k]) * n / len(target) if n else 0 * y.sum()
        + return criterion(y, targets[k]) if n else 0 * y.sum()
    """),
    # where all worlds are even
    "even_numbers_of_ranks_only": Mutant(
        10, loses=VALUES - {"few", "bad_arguments"} | COSTS - {"traffic", "recompute_memory"}, base="tags"
    ).edited("""
        Takes twice half the number of ranks, rounded down, for all of it: wrong at odd ones.

        - self.last = self.size * len(self.stages) - 1
        + self.last = max(2, self.size // 2 * 2) * len(self.stages) - 1 if self.size > 1 else len(stages) - 1
    """),
    "keeps_gpipe_s_warm_up": Mutant(21, loses={"one_f_one_b", "released"}, base="tags").edited("""
        1F1B begins with all forwards, as GPipe does.

        - forwards = [Action(s + k if k < p - s else s + 2 * k, s, "forward", k) for s in range(p) for k in range(m)]
        - return sorted(forwards + [Action(2 * p - 1 - s + 2 * k, s, "backward", k) for s in range(p) for k in range(m)])
        + forwards = [Action(s + k, s, "forward", k) for s in range(p) for k in range(m)]
        + return sorted(forwards + [Action(m + 2 * p - 2 - s + k, s, "backward", k) for s in range(p) for k in range(m)])
    """),
    "one_forward_too_many": Mutant(21, loses={"one_f_one_b", "released"}, base="tags").edited("""
        The warm-up of 1F1B is one forward longer than it must be.

        - counts(stages=stages, microbatches=microbatches)
        - m, p = microbatches, stages
        - forwards = [Action(s + k if k < p - s else s + 2 * k, s, "forward", k) for s in range(p) for k in range(m)]
        - return sorted(forwards + [Action(2 * p - 1 - s + 2 * k, s, "backward", k) for s in range(p) for k in range(m)])
        + return interleaved_schedule(stages, 1, microbatches)

        - if chunks == 1:
        -     return one_f_one_b_schedule(stages, microbatches)

          warm = 2 * (stages - rank - 1) + (chunks - 1) * sizes[0]
        + if chunks == 1:
        +     warm = stages - rank
    """),
    "needs_as_many_microbatches_as_ranks": Mutant(22, loses={"one_f_one_b", "few"}, base="tags").edited("""
        1F1B cannot be had with fewer microbatches than ranks.

          def one_f_one_b_schedule(stages, microbatches):
              counts(stages=stages, microbatches=microbatches)
        +     if microbatches < stages:
        +         raise ValueError(f"microbatches must be at least {stages}, got {microbatches}")
    """),
    "interleaved_keeps_everything": Mutant(23, loses={"interleaved"}, base="tags").edited("""
        With several chunks all forwards come first.

        - for rank in range(stages):
        -     warm = 2 * (stages - rank - 1) + (chunks - 1) * sizes[0]
        + for _ in range(stages):
        +     warm = len(forwards)
    """),
    "follows_its_own_order": Mutant(22, loses={"any_schedule", "released"}, base="tags").edited("""
        Whatever the schedule says, all forwards come first.

        - self.mine = [a for a in sorted(schedule) if a.stage == self.rank]
        + mine = [a for a in sorted(schedule) if a.stage == self.rank]
        + self.mine = sorted(mine, key=lambda a: a.op == "backward")
    """),
    "last_microbatch_first": Mutant(24, loses={"order"}, base="tags").edited("""
        GPipe's backwards begin with the last microbatch, as in its paper: the same sums, in another order.

        - return sorted(forwards + [Action(m + 2 * p - 2 - s + k, s, "backward", k) for s in range(p) for k in range(m)])
        + return sorted(
        +     forwards + [Action(m + 2 * p - 2 - s + k, s, "backward", m - 1 - k) for s in range(p) for k in range(m)]
        + )
    """),
    "recomputes_nothing": Mutant(23, loses={"recompute", "recompute_memory"}, base="tags").edited("""
        It takes `recompute`, and keeps all activations as without it.

        - self.recompute, self.first_runs = recompute, {}
        + self.recompute, self.first_runs = False, {}
    """),
    "keeps_the_graph_and_recomputes": Mutant(24, loses={"recompute_memory"}, base="tags").edited("""
        It runs again in the backward pass, but also holds the graph of the first run until then.

        - with torch.no_grad():
        -     output = self.run(inputs, loss_of)
        - self.kept[microbatch] = inputs, None
        + output = self.run(inputs, loss_of)
        + self.kept[microbatch] = inputs, None
        + self.first_graphs = {**getattr(self, "first_graphs", {}), microbatch: output}

          if output is None:
        +     held = self.first_graphs.pop(microbatch)
    """),
    "recomputes_all_at_once": Mutant(24, loses={"recompute_memory"}, base="tags").edited("""
        With the first backward all microbatches are computed again, so all activations are there at once.

        - output = self.run_again(inputs, *self.first_runs.pop(microbatch))
        + for k, first_run in self.first_runs.items():
        +     if k != microbatch:
        +         self.kept[k] = self.kept[k][0], self.run_again(self.kept[k][0], *first_run)
        + output = self.run_again(inputs, *self.first_runs[microbatch])
        + self.first_runs.clear()
    """),
    "draws_anew": Mutant(24, loses={"recompute"}, base="tags").edited("""
        The second run draws random numbers of its own: another mask than that of the output.

        - torch.set_rng_state(state)
    """),
    "leaves_its_random_numbers": Mutant(24, loses={"recompute"}, base="tags").edited("""
        After a second run, the random numbers go on from there, so later microbatches draw what earlier ones drew.

        - torch.set_rng_state(now)
    """),
    "forgets_autocast": Mutant(24, loses={"recompute"}, base="tags").edited("""
        The second run computes in float32 what the first computed in 16 bits.

        - with autocast:
        -     output = self.run(inputs, loss_of)
        + output = self.run(inputs, loss_of)
    """),
    "keeps_activations": Mutant(22, loses={"released", "recompute_memory"}, base="tags").edited("""
        What a microbatch has left behind is kept until the next one of its number comes.

          self.module, self.index, self.count, self.kept = module, index, count, {}
        + self.gone = set()

        - return len(self.kept)
        + return len(self.kept) - len(self.gone)

          self.kept[microbatch] = inputs, output
        + self.gone.discard(microbatch)

        - inputs, output = self.kept.pop(microbatch)
        + inputs, output = self.kept[microbatch]
        + self.gone.add(microbatch)
    """),
    "mean_of_means": Mutant(24, loses={"uneven"}, base="tags").edited("""
        Every microbatch counts alike, however many samples it has.

        - return criterion(y, targets[k]) * n / len(target) if n else 0 * y.sum()
        + return criterion(y, targets[k]) / self.parts if n else 0 * y.sum()
    """),
    "counts_layers": Mutant(23, loses={"balanced"}, base="tags").edited("""
        Stages have as many layers as each other, whatever these cost.

              raise ValueError(f"costs must be one for each layer, got {costs}")
        + costs = [1] * len(layers)
    """),
    "sends_unwanted_gradients": Mutant(24, loses={"frozen"}, base="tags").edited("""
        Every stage sends a gradient back, also where nobody wants one.

        - wanted[stage.index, k] = y.requires_grad, y.shape, y.dtype, y.device
        + wanted[stage.index, k] = True, y.shape, y.dtype, y.device

        - form = [DTYPES.index(y.dtype), y.requires_grad, y.dim(), *y.shape]
        + form = [DTYPES.index(y.dtype), True, y.dim(), *y.shape]
    """),
    "travels_as_float32": Mutant(24, loses={"dtypes"}, base="tags").edited("""
        What is sent is float32, whatever the dtype.

        - tensor = tensor.detach().contiguous()
        + tensor = tensor.detach().float().contiguous()

        - tensor = torch.empty(shape, dtype=dtype, device=device)
        + tensor = torch.empty(shape, device=device)

        - return tensor
        + return tensor.to(dtype)
    """),
    "ignores_group": Mutant(24, loses={"groups"}, base="tags").edited("""
        Peers are named by their place in the group.

        - self.peers = dist.get_process_group_ranks(group)
        + self.peers = range(self.size)
    """),
    "checks_nothing": Mutant(24, loses={"bad_arguments"}, base="tags").edited("""
        Arguments are taken as they come.

        - if not 1 <= num_stages <= len(layers):
        -     raise ValueError(f"num_stages must be 1 to {len(layers)}, got {num_stages}")

        - if len(costs) != len(layers) or min(costs) < 0:
        -     raise ValueError(f"costs must be one for each layer, got {costs}")

        - for name, value in given.items():
        -     if value < 1:
        -         raise ValueError(f"{name} must be at least 1, got {value}")
        + pass

        - if name not in ("gpipe", "1f1b"):
        -     raise ValueError(f"name must be gpipe, 1f1b or interleaved, got {name!r}")
        - if chunks != 1:
        -     raise ValueError(f"chunks must be 1 with {name}, got {chunks}")

        - if not 0 <= index < count:
        -     raise ValueError(f"index must be 0 to {count - 1}, got {index}")

        - if [(s.index, s.count) for s in stages] != [
        -     (i, self.last + 1) for i in range(self.rank, self.last + 1, self.size)
        - ]:
        -     raise ValueError(f"stages do not fit rank {self.rank}, got {[s.index for s in stages]}")
          self.parts = 1 + max((a.microbatch for a in schedule), default=-1)
        - when = {(a.op, a.chunk * self.size + a.stage, a.microbatch): a.time for a in schedule}
        - if len(when) != len(schedule) or len(when) != 2 * (self.last + 1) * self.parts or not when:
        -     raise ValueError("schedule must do everything once")
        - if len({(a.time, a.stage) for a in schedule}) < len(schedule):
        -     raise ValueError("schedule must have one action of a rank in a slot")
        - for (op, i, k), time in when.items():
        -     before = [("forward", i - 1, k)] if op == "forward" else [("forward", i, k), ("backward", i + 1, k)]
        -     if any(when.get(need, -1) >= time for need in before):
        -         raise ValueError(f"schedule must do what {op} {i} of {k} needs before slot {time}")

        - if first and not isinstance(batch, torch.Tensor):
        -     raise ValueError(f"batch must be a tensor on the first rank, got {batch!r}")
        - if last and not isinstance(target, torch.Tensor):
        -     raise ValueError(f"target must be a tensor on the last rank, got {target!r}")
        - if first and last and len(batch) != len(target):
        -     raise ValueError(f"target must have as many samples as batch, got {len(target)}")
        - if last and not callable(criterion):
        -     raise ValueError(f"criterion must be a function on the last rank, got {criterion!r}")
    """),
}
