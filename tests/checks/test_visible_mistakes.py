"""Mistakes that look right at first sight: a visible check catches each, not only a hidden one."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from labkit import catalogue
from labkit.catalogue import Exercise
from labkit.checks import CheckResult, Ranks, Submission, run_checks, visible_rubric

FILLS_FROM_THE_LEFT = """    ends, held = [], 0
    for n, cost in enumerate(costs):
        if held and held + cost > before[-1] / num_stages and len(ends) < num_stages - 1:
            ends.append(n)
            held = 0
        held += cost
    ends = [*ends, len(layers)]
"""

OWN_MADE_ORTHONORMAL = """((p,),) = yield (torch.linalg.qr((matrix @ q).float()).Q.to(q.dtype),)
"""

MEAN_Q_KEPT = """((state["q"],),) = yield (own,)
        return [(p, state["q"])]
"""

OWN_Q_KEPT = """((mean,),) = yield (own,)
        state["q"] = own
        return [(p, mean)]
"""

MISTAKES = {
    "checkpointing: each rank has its own clock": (
        "decision",
        "bool(given.exchange(due, self.decision_group)[0])",
        "due",
    ),
    "checkpointing: any rank's clock counts": (
        "decision",
        "bool(given.exchange(due, self.decision_group)[0])",
        "any(given.exchange(due, self.decision_group))",
    ),
    "checkpointing: an error stays on its rank": ("failure", "if any(problems):", "if problem:"),
    "checkpointing: results of this rank alone": ("failure", "return list(results)", "return [result]"),
    "checkpointing: torn ones count": ("cleaning", "if given.is_complete(self.storage, folder)]", "]"),
    "checkpointing: the best one goes": ("cleaning", " + self.best_first(self.storage)[:1]", ""),
    "checkpointing: the last one that loads goes": (
        "cleaning",
        "one == self.newest or given.is_loadable(self.storage, one)",
        "True",
    ),
    "checkpointing: unfinished ones stay": ("cleaning", "given.unfinished_folders(self.storage) + old", "old"),
    "checkpointing: contents are not synced": (
        "order",
        'self.storage.sync(f"{folder}.tmp/{snapshot.file}")',
        "pass",
    ),
    "checkpointing: the manifest is not synced": ("order", "self.storage.sync(manifest)", "pass"),
    "checkpointing: names are not synced": ("order", 'self.storage.sync(f"{folder}.tmp")', "pass"),
    "checkpointing: the rename is not synced": ("order", 'self.storage.sync("")', "pass"),
    "checkpointing: the first rank writes alone": (
        "order",
        "def write_own() -> dict[str, Any]:",
        "def write_own() -> dict[str, Any]:\n            if self.rank:\n                return snapshot.describe()",
    ),
    "checkpointing: save_async writes at once": (
        "behind",
        "given.start(self.write, ",
        "given.start(int, 0) and self.write(",
    ),
    "checkpointing: an error is swallowed": (
        "late_error",
        "None:\n            writing.result()",
        "None:\n            writing.exception()",
    ),
    "checkpointing: an error comes again": (
        "late_error",
        "writing, self.writing = self.writing, None",
        "writing = self.writing",
    ),
    "checkpointing: only the newest is tried": (
        "loading",
        "else None)[0]:",
        "else None)[0][:1]:",
    ),
    "checkpointing: nothing is said of those that are skipped": (
        "loading",
        'warnings.warn(f"skipped checkpoint {problems[-1]}", stacklevel=3)',
        "pass",
    ),
    "checkpointing: each rank loads what it can read": (
        "loading",
        "self.together(partial(self.read, folder, components))",
        "self.read(folder, components)",
    ),
    "checkpointing: what cannot be loaded is as if it were not there": (
        "loading",
        "        if problems:\n            raise",
        "        if False:\n            raise",
    ),
    "fault_tolerance: a method that does not exist": ("dropout", "loss.backward()", "loss.backwards()"),
    "fault_tolerance: Daly's interval is below 0 for long checkpoints": ("numbers", " if ratio < 1 else mtbf", ""),
    "fault_tolerance: a restart takes no time": ("numbers", "-(restart_seconds + period) / mtbf", "-period / mtbf"),
    "fault_tolerance: ranks count alike": ("one_process", "message.flat *= len(targets)", "pass"),
    "fault_tolerance: the end is not saved": ("one_process", "if saved < step:", "if not losses:"),
    "fault_tolerance: a restart begins with epoch 0": (
        "killed",
        "range(sampler.epoch, num_epochs)",
        "range(num_epochs)",
    ),
    "fault_tolerance: steps are counted anew": ("killed", "step = int(found)", "step = 0"),
    "fault_tolerance: momentum is not saved": ("killed", '"optimizer": optimizer, ', ""),
    "fault_tolerance: to iterate draws a random number": ("dropout", "in given.batches(loader):", "in loader:"),
    "fault_tolerance: the same global batch is said": ("changed_batch", "before != now", "before == now"),
    "fault_tolerance: a hang is waited for": ("hang", "timeout=timedelta(seconds=self.hang_timeout)", ""),
    "fault_tolerance: any two failures are one": ("repeated", " and ends[0] == ends[1] else", " else"),
    "fault_tolerance: rank 0 keeps it to itself": (
        "repeated",
        "dist.broadcast_object_list(crash, src=0, group=self.group)",
        "pass",
    ),
    "fault_tolerance: the lab stops a job that hangs": ("launch", "hang_timeout=None,", "hang_timeout=20.0,"),
    "fault_tolerance: a job that has failed returns": ("launch", ".run(job).raise_if_failed()", ".run(job)"),
    "zero: in stage 2 parameters are shards": ("estimate", "(3, 2, 1)", "(2, 2, 1)"),
    "zero: what is offloaded counts as a shard": ("estimate", "elif not offload:", "else:"),
    "zero: zeros where nothing is missing": (
        "padding",
        "-sum(map(len, tensors)) % ranks",
        "ranks - sum(map(len, tensors)) % ranks",
    ),
    "zero: gradients are summed, not averaged": ("optimizer_steps", "part.div_(self.replicas)", "part"),
    "zero: reductions are those of all ranks, whatever the group": (
        "optimizer_steps",
        "given.reduce_scatter_single(part, whole, group=self.group, async_op=True)",
        "given.reduce_scatter_single(part, whole, async_op=True)",
    ),
    "zero: stage 2 waits for the step": (
        "early",
        "while not self.buckets[self.launched].missing:",
        "while False:",
    ),
    "zero: the backward pass waits for each reduction": (
        "early",
        "self.pending.append((flat, part, whole, work))",
        "self.pending.append((flat, part, whole, work))\n                self.wait_for_gradients()",
    ),
    "zero: every whole gradient stays until the step": (
        "optimizer_memory",
        "SOLUTION\n        self.wait_for_gradients()\n        for flat in flats:",
        "SOLUTION\n        for flat in flats:",
    ),
    "zero: the norm is this rank's": ("clipping", "dist.all_reduce(norm, group=self.group)\n", "\n"),
    "zero: norms are added up": (
        "clipping",
        "self.flats[0]).square()\n        dist.all_reduce(norm, group=self.group)\n        norm.sqrt_()",
        "self.flats[0])\n        dist.all_reduce(norm, group=self.group)",
    ),
    "zero: replicas are not averaged": ("module_steps", "if self.hybrid is not None:", "if False:"),
    "zero: units stay whole from forward to backward": (
        "units",
        "        unit.free()\n        unit.gathering = None",
        "        if torch._C._current_graph_task_id() != -1:\n"
        "            unit.free()\n            unit.gathering = None",
    ),
    "zero: units are never freed": ("units", "        unit.free()\n        unit.gathering", "        unit.gathering"),
    "zero: the next unit is waited for": (
        "prefetch",
        "            self.start_gathering(following)",
        "            self.start_gathering(following)\n            [work.wait() for work in following.gathering]",
    ),
    "zero: nothing is prefetched": ("prefetch", "if following is not None and self.prefetch:", "if False:"),
    "local_sgd: ranks count alike": ("average", "message.flat.mul_(weight)", "pass"),
    "local_sgd: the sum is divided by the number of ranks": (
        "average",
        "div_(total)",
        "div_(dist.get_world_size(group))",
    ),
    "local_sgd: NaN times 0 is sent": ("average", "message.flat.zero_()", "message.flat.mul_(weight)"),
    "local_sgd: without weight the mean is NaN": (
        "average",
        "torch.where(total > 0, mean.to(tensor.dtype), tensor, out=tensor)",
        "tensor.copy_(mean)",
    ),
    "local_sgd: all ranks are averaged, whatever the group": (
        "average",
        "dist.all_reduce(message.flat, group=group)",
        "dist.all_reduce(message.flat)",
    ),
    "local_sgd: weights are summed by themselves": (
        "one_message",
        "    dist.all_reduce(message.flat, group=group)\n",
        "    dist.all_reduce(message.flat[:-1], group=group)\n    dist.all_reduce(message.flat[-1:], group=group)\n",
    ),
    "local_sgd: the rest goes to the fastest rank": (
        "split",
        "shares[ends.index(min(ends))] += 1",
        "shares[speeds.index(max(speeds))] += 1",
    ),
    "local_sgd: the rest is dropped": ("split", "shares[ends.index(min(ends))] += 1", "pass"),
    "local_sgd: speeds of all time": ("speeds", "self.samples, self.seconds = 0, 0.0\n        return", "return"),
    "local_sgd: without samples the speed is 1": ("speeds", "else self.speeds[self.rank]", "else 1.0"),
    "local_sgd: seconds per sample": (
        "together",
        "speed = self.samples / self.seconds if",
        "speed = self.seconds / self.samples if",
    ),
    "local_sgd: the mean comes before the period's last step": (
        "local_steps",
        "if self.local_steps == self.period:",
        "if self.local_steps == self.period - 1:",
    ),
    "local_sgd: periods are counted with the warm-up": (
        "local_steps",
        "if self.local_steps == self.period:",
        "if (self.steps + 1) % self.period == 0:",
    ),
    "local_sgd: synchronize always sends": ("rounds", "if self.local_steps:", "if True:"),
    "local_sgd: warm-up steps are followed by an average of weights": (
        "rounds",
        "            self.optimizer.step()\n        else:",
        "            self.optimizer.step()\n            self.average()\n        else:",
    ),
    "local_sgd: weights are averaged instead of gradients": (
        "one_process",
        "if self.steps < self.data_parallel_steps:",
        "if False:",
    ),
    "local_sgd: a rank without samples takes a step": (
        "unequal",
        "            if samples:\n    ",
        "            if True:\n    ",
    ),
    "local_sgd: samples of the last step alone": (
        "unequal",
        "self.samples + samples\n            if",
        "samples\n            if",
    ),
    "local_sgd: samples of all steps so far": (
        "unequal",
        "            self.local_steps, self.samples = 0, 0\n",
        "            self.local_steps = 0\n",
    ),
    "local_sgd: the outer optimizer goes the other way": (
        "outer_steps",
        "grad = anchor - parameter",
        "grad = parameter - anchor",
    ),
    "local_sgd: anchors stay where they began": (
        "outer_steps",
        "            parameter.copy_(anchor)\n",
        "            parameter.copy_(anchor)\n            anchor.copy_(anchor + anchor.grad)\n",
    ),
    "local_sgd: ranks of DiLoCo count alike": (
        "outer_rounds",
        "given.gradients(self.anchors), self.samples,",
        "given.gradients(self.anchors), 1,",
    ),
    "local_sgd: anchors have as few digits as parameters": (
        "outer_rounds",
        "nn.Parameter(given.widened(parameter))",
        "nn.Parameter(parameter.detach().clone())",
    ),
    "parallel_3d: ranks count along pp before dp": (
        "coordinates",
        "Coordinates(dp=rank // tp % dp, pp=rank // (tp * dp), tp=rank % tp)",
        "Coordinates(dp=rank // (tp * self.sizes.pp), pp=rank // tp % self.sizes.pp, tp=rank % tp)",
    ),
    "parallel_3d: data-parallel ranks are neighbours": ("lines", '"dp": tp, "pp": tp * dp', '"dp": 1, "pp": tp * dp'),
    "parallel_3d: the ends are a pipeline's first two ranks": ("groups", "(line[0], line[-1])", "line[:2]"),
    "parallel_3d: the head is not cut": (
        "part",
        "layer.head = tensor_parallel.ColumnParallelLinear.from_full(layer.head, group)",
        "pass",
    ),
    "parallel_3d: gradients are summed over data ranks": (
        "data",
        "replica.finish_gradient_synchronization()\n",
        "replica.finish_gradient_synchronization()\n"
        "            for parameter in replica.parameters():\n                parameter.grad *= self.mesh.sizes.dp\n",
    ),
    "parallel_3d: the shared weight is two": (
        "pipeline",
        'dist.all_reduce(weight.grad, group=self.mesh.groups["ends"])',
        "pass",
    ),
    "parallel_3d: a norm's gradients are summed over tp": (
        "tensor",
        "for weight in self.shared:\n",
        "for name, p in self.layers[0][1].named_parameters():\n            if 'norm' in name:\n"
        '                dist.all_reduce(p.grad, group=self.mesh.groups["tp"])\n        for weight in self.shared:\n',
    ),
    "parallel_3d: the loss is this rank's own": ("data", "loss /= self.mesh.sizes.dp", "loss *= 1"),
    "parallel_3d: stages wait for each other's gradients": (
        "bubble",
        "        return super().backward(microbatch, gradient)",
        "        result = super().backward(microbatch, gradient)\n        if self.backwards_left == 0:\n"
        "            self.module.finish_gradient_synchronization()\n        return result",
    ),
    "expert_parallel: weights add up to 1": (
        "choices",
        "weights, experts = probabilities.topk(self.top_k, dim=-1)",
        "weights, experts = probabilities.topk(self.top_k, dim=-1); weights = weights / weights.sum(-1, True)",
    ),
    "expert_parallel: the loss is a sum of shares times probabilities, not of means": (
        "balance",
        "probabilities.sum(0) / max(len(x), 1)",
        "probabilities.sum(0)",
    ),
    "expert_parallel: the loss is not a number without tokens": ("balance", "/ max(len(choices), 1)", "/ len(choices)"),
    "expert_parallel: second choices are taken before the first ones of later tokens": (
        "capacity",
        "(chosen.cumsum(0).gather(1, choices) <= capacity).view(self.top_k, len(x)).T",
        "(chosen.view(self.top_k, len(x), -1).transpose(0, 1).flatten(0, 1).cumsum(0)"
        ".gather(1, experts.view(-1, 1)) <= capacity).view(len(x), self.top_k)",
    ),
    "expert_parallel: room is rounded down": ("capacity", "math.ceil(", "math.floor("),
    "expert_parallel: choices are those of other tokens": (
        "batches",
        "tokens = x[order // routing.experts.shape[1]]",
        "tokens = x[order % max(len(x), 1)]",
    ),
    "expert_parallel: batches are cut from rows that are not sorted by expert": (
        "batches",
        "list(rows[arrival].split(",
        "list(rows.split(",
    ),
    "expert_parallel: dropped choices are sent, too": (
        "batches",
        "torch.where(routing.kept, routing.experts, routing.num_experts)",
        "routing.experts",
    ),
    "expert_parallel: rows are exchanged in equal parts": (
        "batches",
        "dist.all_to_all_single(result, x.contiguous(), receive, send, group=group)",
        "dist.all_to_all_single(result, x.contiguous(), group=group)",
    ),
    "expert_parallel: rows are sent back in the order of the experts": (
        "combined",
        "torch.cat(outputs)[journey.arrival.argsort()]",
        "torch.cat(outputs)",
    ),
    "expert_parallel: gradients take the way of the rows": (
        "combined",
        "grad, ctx.receive, ctx.send, ctx.group",
        "grad, ctx.send, ctx.receive, ctx.group",
    ),
    "expert_parallel: weights have no gradient": (
        "combined",
        "routing.weights.flatten()[order, None]",
        "routing.weights.detach().flatten()[order, None]",
    ),
    "expert_parallel: rows are exchanged among all ranks, whatever the group": (
        "layer",
        "receive, send, group=group)",
        "receive, send)",
    ),
    "expert_parallel: gradients of experts are not divided": (
        "averaged",
        "        parameter.grad /= dist.get_world_size(group)",
        "        parameter.grad /= 1 if parameter in experts else dist.get_world_size(group)",
    ),
    "expert_parallel: experts are averaged like all other parameters": (
        "averaged",
        "        if parameter not in experts:\n",
        "        if True:\n",
    ),
    "expert_parallel: copies of experts keep their own gradients": (
        "averaged",
        "            dist.all_reduce(parameter.grad, group=replicas)\n",
        "            pass\n",
    ),
    "context_parallel: zigzag has chunks that are neighbours": (
        "split",
        "second = whole.narrow(dim, (2 * ranks - 1 - rank) * size, size)",
        "second = whole.narrow(dim, (rank + 1) % (2 * ranks) * size, size)",
    ),
    "context_parallel: the second halves are in the order of the first": (
        "merge",
        "second_halves[::-1]",
        "second_halves",
    ),
    "context_parallel: zigzag blocks from behind are masked as a whole": (
        "pairs_seen",
        "(every, first, False) if source < rank else (second, every, False)",
        "(every, first, False) if source < rank else None",
    ),
    "context_parallel: the wrong half of a zigzag block from before": (
        "pairs_seen",
        "(every, first, False)",
        "(every, second, False)",
    ),
    "context_parallel: blocks weigh alike": ("shares", "torch.sigmoid(block_lse - lse)", "torch.full_like(lse, 0.5)"),
    "context_parallel: what the first blocks weigh is forgotten": (
        "shares",
        "torch.logaddexp(lse, block_lse)",
        "block_lse",
    ),
    "context_parallel: exponentials of scores are computed": (
        "shares",
        "torch.sigmoid(block_lse - lse)",
        "(block_lse.exp() / (lse.exp() + block_lse.exp()))",
    ),
    "context_parallel: blocks go around all ranks, whatever the group": (
        "whole",
        "SOLUTION\n        for step in range(ranks):\n            arriving = given.pass_on([k, v], group)",
        "SOLUTION\n        for step in range(ranks):\n            arriving = given.pass_on([k, v])",
    ),
    "context_parallel: rows are those of the other half": (
        "causal",
        "add_block(out[:, :, rows], lse[:, :, rows], *block)\n            if arriving",
        "add_block(out[:, :, : block[1].shape[2]], lse[:, :, : block[1].shape[2]], *block)\n            if arriving",
    ),
    "context_parallel: heads of keys and values are repeated before they are sent": (
        "grouped",
        "        own_k, own_v = k, v\n",
        "        own_k, own_v = k, v = [x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v)]\n",
    ),
    "context_parallel: the last block is passed on, too": (
        "messages",
        "SOLUTION\n        for step in range(ranks):\n            arriving = given.pass_on([k, v], group) if step",
        "SOLUTION\n        for step in range(ranks):\n            arriving = given.pass_on([k, v], group) if 0",
    ),
    "context_parallel: a block has arrived before the one at hand is computed": (
        "overlap",
        "                block = given.attend(",
        "                arriving and arriving.wait()\n                block = given.attend(",
    ),
    "context_parallel: all queries are computed, and masked ones thrown away": (
        "balance",
        "block = given.attend(q[:, :, rows], k[:, :, columns], v[:, :, columns], diagonal)",
        "block = [x[:, :, rows] for x in given.attend(q, k[:, :, columns], v[:, :, columns], diagonal)]",
    ),
    "context_parallel: all blocks are kept": (
        "memory",
        "                    add_block(out[:, :, rows], lse[:, :, rows], *block)\n",
        "                    add_block(out[:, :, rows], lse[:, :, rows], *block)\n"
        '            ctx.blocks = [*getattr(ctx, "blocks", []), k, v]\n',
    ),
    "context_parallel: gradients of a block are those of the last rank alone": (
        "gradients",
        "given.add_to([dk, dv], coming.wait())",
        "coming.wait()",
    ),
    "context_parallel: a block's weights are those of its rows alone": (
        "gradients",
        "keys, values, out[:, :, rows], lse[:, :, rows], diagonal",
        "keys, values, *given.attend(q[:, :, rows], keys, values, diagonal), diagonal",
    ),
    "context_parallel: gradients have arrived before the next block is computed": (
        "backward_messages",
        "                coming = given.pass_on([dk, dv], group)\n",
        "                coming = given.pass_on([dk, dv], group)\n                coming.wait()\n",
    ),
    "context_parallel: gradients of keys and values are added up in bfloat16": (
        "half",
        "own_dk = torch.zeros_like(k, dtype=lse.dtype)\n        own_dv = torch.zeros_like(v, dtype=lse.dtype)",
        "own_dk = torch.zeros_like(k)\n        own_dv = torch.zeros_like(v)",
    ),
    "context_parallel: keys and values are gathered one after the other": (
        "gathered",
        "keys, values = merge_sequence(torch.stack([k, v]), group, layout, dim=3)\n        for rows",
        "keys, values = (merge_sequence(x, group, layout, dim=2) for x in (k, v))\n        for rows",
    ),
    "context_parallel: pieces are rounded to bfloat16 before they are added up": (
        "scattered",
        "_part(both, other,",
        "_part(both.to(k.dtype), other,",
    ),
    "context_parallel: Ulysses attends to tokens in the order of the ranks": (
        "ulysses",
        "pieces, group).unbind(), layout, dim=2)",
        'pieces, group).unbind(), "contiguous", dim=2)',
    ),
    "context_parallel: copies of heads go to other ranks": (
        "few_heads",
        "k.repeat_interleave(copies, dim=1), v.repeat_interleave(copies, dim=1)",
        "k.repeat(1, copies, 1, 1), v.repeat(1, copies, 1, 1)",
    ),
    "context_parallel: q, k and v are exchanged one after the other": (
        "all_to_alls",
        """    pieces = torch.stack([torch.cat([cut_q[r], cut_k[r], cut_v[r]], dim=1) for r in range(ranks)])
    tokens = _whole(apply_in_group(_AllToAll, pieces, group).unbind(), layout, dim=2)
""",
        """    apart = [apply_in_group(_AllToAll, torch.stack(cut), group).unbind() for cut in (cut_q, cut_k, cut_v)]
    tokens = torch.cat([_whole(one, layout, dim=2) for one in apart], dim=1)
""",
    ),
    "parameter_server: a gradient keeps the dtype of the sum": (
        "step",
        "(total / self.samples).to(parameter.dtype)",
        "total / self.samples",
    ),
    "parameter_server: servers have the same number of elements, not of bytes": (
        "balanced",
        "start + room // parameter.element_size()",
        "start + room // 4",
    ),
    "parameter_server: pulls that have waited are answered in the order of ranks": (
        "sync",
        "for pull in ready:",
        "for pull in sorted(ready, key=lambda pull: pull.worker):",
    ),
    "parameter_server: a worker that has died is waited for": ("leaving", "Kind.FINISH | Kind.DIED", "Kind.FINISH"),
    "parameter_server: gradients of no samples are added": ("add", "if samples:", "if True:"),
    "parameter_server: the server waits for the gradients that are announced": (
        "serves",
        "= self.messages.receive(request)\n",
        "= self.messages.receive(request)\n                    arriving[request.worker].wait()\n",
    ),
    "parameter_server: values are copied before they have come": (
        "pulls",
        "            work.wait()\n            shard.copy_to(self.parameters)\n",
        "            shard.copy_to(self.parameters)\n            work.wait()\n",
    ),
    "parameter_server: gradients are copied after the message": (
        "pushes",
        "            shard.copy_from(gradients)\n            works.append(self.messages.push("
        "server, self.clock, samples, shard.buffers))\n",
        "            works.append(self.messages.push(server, self.clock, samples, shard.buffers))\n"
        "            shard.copy_from(gradients)\n",
    ),
    "ddp: gradients are divided for a communication hook, too": (
        "comm_hook",
        " if self.synchronizing and not self.comm_hook else 1",
        " if self.synchronizing else 1",
    ),
    "ddp: gradients in no_sync are divided": (
        "no_sync",
        " if self.synchronizing and not self.comm_hook else 1",
        " if not self.comm_hook else 1",
    ),
    "ddp: what is sent for None is what was in the bucket": ("unused", "view.zero_()", "pass"),
    "ddp: late parameters are not collected": ("unused", "            self.collect(parameter)\n", "            pass\n"),
    "ddp: a hook waits for the all-reduce that it launches": (
        "overlap",
        "            self.launched += 1\n",
        "            full.pending.wait()\n            self.launched += 1\n",
    ),
    "ddp: without gradient_as_bucket_view, too, grad is a view of the bucket": (
        "views",
        "                if self.as_view:\n                    parameter.grad = view\n                elif",
        "                if True:\n                    parameter.grad = view\n                elif",
    ),
    "ddp: with views, a gradient of other ranks only stays None": (
        "unused",
        "if self.as_view:\n                    parameter.grad = view\n                elif",
        "if self.as_view:\n                    pass\n                elif",
    ),
    "ddp: the first bucket is as large as the others": (
        "assignment",
        "room.get(kind, first_cap)",
        "room.get(kind, cap)",
    ),
    "ddp: the name is on the disk before the content": ("checkpoint", "                os.fsync(file.fileno())\n", ""),
    "gradient_compression: the residual is that of the gradient alone": (
        "feedback",
        "corrected - self.decompress",
        "gradient - self.decompress",
    ),
    "gradient_compression: largest values, not magnitudes": ("top_k", "flat.abs().topk", "flat.topk"),
    "gradient_compression: other places on each rank": (
        "random_k",
        "given.random_indices(tensor.numel(), self.ratio, self.seed, name, step)",
        "given.random_indices(tensor.numel(), self.ratio, self.seed + dist.get_rank(), name, step)",
    ),
    "gradient_compression: the mean of the signed elements": ("one_bit", "tensor.abs().sum()", "tensor.sum()"),
    "gradient_compression: integers are rounded down": ("quantized", ".round()", ".floor()"),
    "gradient_compression: a block of zeros is divided by 0": (
        "quantized",
        "torch.where(units > 0, units, 1)",
        "units",
    ),
    "gradient_compression: something small is added to each unit": (
        "quantized",
        "torch.where(units > 0, units, 1)",
        "(units + 1e-8)",
    ),
    "gradient_compression: each rank's own M Q is made orthonormal, not their mean": (
        "power_sgd",
        """((p,),) = yield (matrix @ q,)
        p = torch.linalg.qr(p.to(torch.promote_types(p.dtype, torch.float32))).Q.to(p.dtype)
""",
        OWN_MADE_ORTHONORMAL,
    ),
    "gradient_compression: the next step begins with this rank's own Q": (
        "power_sgd",
        MEAN_Q_KEPT,
        OWN_Q_KEPT,
    ),
    "gradient_compression: PowerSGD keeps no residual": (
        "power_sgd",
        'state["residual"] = (matrix - p @ own.T).view(gradient.shape)',
        "pass",
    ),
    "gradient_compression: QR in bfloat16": (
        "power_sgd",
        "p.to(torch.promote_types(p.dtype, torch.float32))",
        "p",
    ),
    "gradient_compression: divided by the number of all ranks, whatever the group": (
        "means",
        "dist.get_world_size(group)",
        "dist.get_world_size()",
    ),
    "gradient_compression: the mean magnitude is a float32, whatever the gradient": (
        "collectives",
        "given.pack(tensor >= 0, 1), mean",
        "given.pack(tensor >= 0, 1), mean.float()",
    ),
    "gradient_compression: messages of a node go to all ranks": (
        "hierarchical",
        "bucket, inter_node_group)) for bucket",
        "bucket, None)) for bucket",
    ),
    "gradient_compression: the hook ignores its group": (
        "hook",
        "started.named(bucket), group)",
        "started.named(bucket), None)",
    ),
    "trainer: buffers are not sent": (
        "start",
        "for tensor in (*self.model.parameters(), *self.model.buffers()):",
        "for tensor in self.model.parameters():",
    ),
    "trainer: what arrives in a contiguous copy is not copied back": (
        "start",
        "            tensor.detach().copy_(sent)\n",
        "",
    ),
    "tensor_parallel: a slice for scatter_to_group": (
        "apart",
        "scatter_to_group(x, self.group)",
        "x[..., part_of(self.whole_shape[1], self.group)]",
    ),
    "pipeline_parallel: stages are filled from the left": (
        "balanced",
        "    ends = best[len(layers)][1]\n",
        FILLS_FROM_THE_LEFT,
    ),
    "pipeline_parallel: a warm-up longer than there are microbatches": (
        "one_f_one_b",
        "    ahead = min(ahead, len(forwards))\n",
        "",
    ),
    "pipeline_parallel: the loss keeps its graph": ("values", "(result.detach())", "(result)"),
    "pipeline_parallel: a stage that runs again draws another mask": (
        "recompute",
        "        set_random_states(again.random_states)\n",
        "",
    ),
    "pipeline_parallel: later random numbers repeat those of a second run": (
        "recompute",
        "        set_random_states(now)\n",
        "",
    ),
    "pipeline_parallel: a stage runs again without autocast": (
        "recompute",
        "with again.autocast:\n",
        "if True:\n",
    ),
    "pipeline_parallel: an edge keeps what is recomputed": (
        "recompute",
        "self._to_repeat[microbatch], edge = again, None",
        "self._to_repeat[microbatch] = again",
    ),
    "pipeline_parallel: GPipe begins with the last microbatch's backward": (
        "one_f_one_b",
        '[("backward", k, 0) for k in range(microbatches)]',
        '[("backward", k, 0) for k in reversed(range(microbatches))]',
    ),
    "mixed_precision: a trained parameter without a gradient": (
        "masters",
        "None if parameter.grad is None else parameter.grad.float()",
        "parameter.grad.float()",
    ),
    "mixed_precision: an overflow concerns all ranks, whatever the group": (
        "skip",
        "scaler.unscale_(updated, group)",
        "scaler.unscale_(updated)",
    ),
    "activation_checkpointing: offloaded tensors stay on the host": ("offload", "to_device(*packed)", "packed[0]"),
    "process_group: an existing group is not compared with the config": (
        "setup",
        "elif (dist.get_rank(), dist.get_world_size()) != (config.rank, config.world_size):",
        "elif False:",
    ),
    "hierarchical_allreduce: the first ranks of a larger node own its shards": (
        "unequal_nodes",
        "[[node[k * len(node) // shards] for k in range(shards)] for node in nodes]",
        "[node[:shards] for node in nodes]",
    ),
    "hierarchical_allreduce: AVG divides by the ranks of equal nodes": (
        "operations",
        "div_(node.world_size)",
        "div_(dist.get_world_size(node.group) * dist.get_world_size(inter_node_group))",
    ),
    "hierarchical_allreduce: a ring enters and leaves a node by the same card": (
        "cards",
        "[rank for node in turned for card in node for rank in card]",
        "[rank for node in turned for rank in (*node[0][:1], *sum(node[1:], []), *node[0][1:])]",
    ),
    "data_loader: 0 samples taken count as no answer": (
        "resume_elsewhere",
        "self._given if taken is None else taken",
        "taken or self._given",
    ),
    "data_loader: one batch more than prefetch_factor": (
        "reads_ahead",
        "threading.Semaphore(self.prefetch_factor)",
        "threading.Semaphore(self.prefetch_factor + 1)",
    ),
    "monitoring: the fingerprint is a sum": (
        "hashes",
        "(words * ((weight ^ (weight >> 29)) | 1)).sum()",
        "words.sum()",
    ),
    "monitoring: weights are even": ("hashes", "(weight >> 29)) | 1)", "(weight >> 29)) & -2)"),
    "monitoring: weights count up": (
        "hashes",
        "((weight ^ (weight >> 29)) | 1)",
        "torch.arange(1, 2 * words.numel(), 2)",
    ),
    "monitoring: rank 0 is right": (
        "synchronized",
        "usual, count = Counter(column).most_common(1)[0]",
        "usual, count = column[0], len(column)",
    ),
    "monitoring: the first of two ranks is right": ("synchronized", " or 2 * count <= self.world_size", ""),
    "monitoring: a missing gradient is zeros": ("synchronized", "torch.tensor(-1, device", "torch.tensor(0, device"),
    "monitoring: the last timed part counts": ("parts_of_steps", "spent[part] += seconds", "spent[part] = seconds"),
    "monitoring: waiting is compute": (
        "parts_of_steps",
        "return step.seconds - sum(spent.values()),",
        'return step.seconds - spent["input"],',
    ),
    "monitoring: a typical step is the mean": (
        "parts_of_steps",
        "(median(column) for",
        "(sum(column) / len(column) for",
    ),
    "monitoring: the greatest memory": ("parts_of_steps", "memory = min(", "memory = max("),
    "monitoring: throughput is that of a typical step": (
        "parts_of_steps",
        "sum(step.samples for step in steps) / sum(step.seconds for step in steps)",
        "median(step.samples / step.seconds for step in steps)",
    ),
    "monitoring: probes go the other way round": (
        "probes",
        "(-self.stride, self.stride)",
        "(self.stride, -self.stride)",
    ),
    "monitoring: probes go to the next rank": ("probes", "(-self.stride, self.stride)", "(-1, 1)"),
    "monitoring: ranks are compared with the mean": ("deviations", "usual = of_all.median()", "usual = of_all.mean()"),
    "monitoring: the median lies between two ranks": ("deviations", "of_all.median()", "of_all.quantile(0.5)"),
    "monitoring: the deviation does not count": ("deviations", " & (of_all > usual + 5 * deviation)", ""),
    "monitoring: the factor does not count": ("deviations", "(of_all > factor * usual) & ", ""),
    "monitoring: a slow loader is slow compute": (
        "stragglers",
        '"slow compute" if excess[0] >= excess[1] else "slow input"',
        '"slow compute"',
    ),
    "monitoring: waiting for others is slow": (
        "stragglers",
        "for own in zip(compute, wait, strict=True)",
        'for own in zip(compute, wait, self.recent("communication_seconds"), strict=True)',
    ),
    "monitoring: who receives slowly has the slow link": (
        "stragglers",
        "links = [min(probe[rank], probe[(rank + self.stride) % self.world_size]) for rank in range(self.world_size)]",
        "links = probe",
    ),
    "monitoring: the other probe is that of the next rank": ("stragglers", "(rank + self.stride) %", "(rank + 1) %"),
    "monitoring: memory that rose once leaks": (
        "leaks",
        "all(after > 1.03 * before for before, after in pairwise(own))",
        "own[-1] > 1.09 * own[0]",
    ),
    "monitoring: three intervals are enough for a leak": ("leaks", "len(self.history) < 4", "len(self.history) < 3"),
    "monitoring: NaN is compared": ("losses", "if not isfinite(loss):", 'if loss in (float("inf"), -float("inf")):'),
    "monitoring: a spike is never usual": (
        "losses",
        "        self.losses.append(loss)\n",
        "        if not spike:\n            self.losses.append(loss)\n",
    ),
    "monitoring: losses that are alike make every other one a spike": (
        "losses",
        "max(deviation, 0.05 * abs(usual))",
        "deviation",
    ),
    "scaling_study: warm-up counts": ("times", "for _ in range(self.warmup):\n            step()", "pass"),
    "scaling_study: each rank has its own time": (
        "times",
        "dist.all_reduce(slowest, op=dist.ReduceOp.MAX, group=group)",
        "",
    ),
    "scaling_study: the mean of ranks counts": ("times", "op=dist.ReduceOp.MAX", "op=dist.ReduceOp.AVG"),
    "scaling_study: ranks begin when they come": ("times", "            dist.barrier(group)\n", ""),
    "scaling_study: a barrier in each step": (
        "times",
        "for _ in range(self.steps):\n                step()",
        "for _ in range(self.steps):\n                dist.barrier(group)\n                step()",
    ),
    "scaling_study: seconds of a repeat": ("times", " - began) / self.steps)", " - began))"),
    "scaling_study: weak by GPU seconds": (
        "weak",
        "measured[0].seconds / one.seconds for",
        "measured[0].seconds * measured[0].world_size / one.seconds / one.world_size for",
    ),
    "scaling_study: a batch is divided": (
        "weak",
        "self.measure(world_size, batch_size)",
        "self.measure(world_size, batch_size // world_size)",
    ),
    "scaling_study: strong by seconds": ("strong", "[one.world_size * one.seconds for", "[one.seconds for"),
    "scaling_study: the first is one GPU": ("strong", "gpu_seconds[0] / own", "measured[0].seconds / own"),
    "scaling_study: a batch for each": ("strong", "global_batch_size // world_size)", "global_batch_size)"),
    "scaling_study: samples of one rank": (
        "ratios",
        "return measurement.world_size * measurement.batch_size",
        "return measurement.batch_size",
    ),
    "scaling_study: share of the step": (
        "ratios",
        "measurement.seconds / measurement.computing - 1",
        "1 - measurement.computing / measurement.seconds",
    ),
    "scaling_study: negative communication": (
        "ratios",
        "max(0.0, measurement.seconds / measurement.computing - 1)",
        "measurement.seconds / measurement.computing - 1",
    ),
    "scaling_study: parts of steps": (
        "costs",
        "-(-num_samples // (measurement.world_size * measurement.batch_size))",
        "num_samples / (measurement.world_size * measurement.batch_size)",
    ),
    "scaling_study: one GPU is paid": ("costs", "gpu_hours * dollars_per_gpu_hour", "hours * dollars_per_gpu_hour"),
    "scaling_study: Gustafson is Amdahl": (
        "formulas",
        "return serial + (1 - serial) * gpus",
        "return 1 / (serial + (1 - serial) / gpus)",
    ),
    "scaling_study: no pairs": ("formulas", "coherency * gpus * (gpus - 1)", "coherency * (gpus - 1)"),
    "scaling_study: no end of a fall": (
        "formulas",
        "max(1.0, ((1 - contention) / coherency) ** 0.5)",
        "((1 - contention) / coherency) ** 0.5",
    ),
    "scaling_study: predictions are hidden": (
        "reports",
        "for point in self.points\n",
        'for point in self.points if point.measurement.origin != "predict"\n',
    ),
    "autotune: the batch grows by one": (
        "bisection",
        "low, high = high, max(high + 1, min(2 * high + 1, len(candidates) - 1))",
        "low, high = high, high + 1",
    ),
    "autotune: the first candidate fits": (
        "bisection",
        "candidates[low] if low >= 0 else None",
        "candidates[max(low, 0)]",
    ),
    "autotune: each rank looks at its own memory": ("batch_size", "not given.highest(failed, group)", "not failed"),
    "autotune: memory is not released": ("batch_size", "        given.release_memory()\n", ""),
    "autotune: the error is kept": (
        "batch_size",
        "            failed = True\n",
        "            failed = True\n            fits.error = error\n",
    ),
    "autotune: every error is a lack of memory": ("other_errors", "not given.is_out_of_memory(error)", "False"),
    "autotune: each rank looks at its own step": (
        "buckets",
        "given.highest(measure(sizes[place]), group)",
        "measure(sizes[place])",
    ),
    "autotune: equal sizes lead to the right": ("buckets", "seconds(middle) <= seconds", "seconds(middle) < seconds"),
    "autotune: sizes are measured twice": (
        "buckets",
        "cache(lambda place: given.highest(measure(sizes[place]), group))",
        "(lambda place: given.highest(measure(sizes[place]), group))",
    ),
    "autotune: Adam scales as SGD": ("recipes", ' if recipe.optimizer == "sgd" else sqrt(factor)', ""),
    "autotune: the warm-up keeps its steps": (
        "recipes",
        "given.Recipe(batch_size, rate, steps, warmup,",
        "given.Recipe(batch_size, rate, steps, recipe.warmup_steps,",
    ),
    "autotune: max_batch is forgotten": ("recipes", "min(batch_per_gpu, max_batch // num_gpus)", "batch_per_gpu"),
    "autotune: steps are rounded down": ("recipes", "(ceil(count", "(int(count"),
    "autotune: later rungs are not counted": ("halving", "budget // (rungs * reduction", "budget // (reduction"),
    "autotune: more rungs than it takes": ("halving", " and reduction ** (rungs - 1) < every", ""),
    "autotune: the worst go on": ("halving", "key=lambda one: one.loss)", "key=lambda one: -one.loss)"),
    "autotune: failed trials go on": ("halving", " if trial.loss < inf]", "]"),
    "autotune: the seed is forgotten": ("seeded", "(rungs - 1), seed)", "(rungs - 1), 0)"),
    "autotune: a GB is 2**30 bytes": ("fitting", "1e9 * cluster.gpu.memory_gb", "2**30 * cluster.gpu.memory_gb"),
    "autotune: seconds of what does not fit": ("fitting", "seconds if fits else nbytes", "seconds"),
    "autotune: the first strategy that fits": (
        "strategy",
        "            choices.append(given.StrategyChoice(name, plan, log.measure(plan).seconds))\n",
        "            choices.append(given.StrategyChoice(name, plan, log.measure(plan).seconds))\n            break\n",
    ),
    "autotune: only one split is improved": ("layout", "key=cost)[:6]:", "key=cost)[-1:]:"),
    "autotune: layouts that do not fit are found": (
        "layout",
        "[plan for plan in log.found if not cost(plan)[0]]",
        "list(log.found)",
    ),
    "image_classification: DDP without buckets": ("strategies", "(4, 8, optimizer_bytes)", "(4, 4, optimizer_bytes)"),
    "image_classification: activations do not count": ("strategies", "if gb + activation_gb <=", "if gb <="),
    "image_classification: microbatches count alike": (
        "one_process",
        "samples=share)",
        "samples=1 / len(microbatches))",
    ),
    "image_classification: each rank clips its shard": (
        "one_process",
        "self.model.clip_grad_norm_(self.clip_norm)",
        "nn.utils.clip_grad_norm_(parameters, self.clip_norm)",
    ),
    "image_classification: each microbatch is sent": ("traffic", "self.no_sync(number < len(", "self.no_sync(0 > len("),
    "image_classification: no autocast": ("options_of_a_step", ", self.autocast():", ":"),
    "image_classification: an overflow steps": ("options_of_a_step", "if not overflow:", "if True:"),
    "image_classification: no scale saved": ("resumes", '"scaler": self.scaler, ', ""),
    "image_classification: ranks differ": ("resumes", "        self.make_alike()\n", ""),
    "image_classification: none is best": ("resumes", "float(is_best)", "0.0"),
    "image_classification: throughput without waiting": (
        "performance",
        'means["samples"] / seconds',
        'means["samples"] / means["compute_time"]',
    ),
    "image_classification: the first rate is 0": (
        "learning_rates",
        "(step + 1) / (self.warmup_steps + 1)",
        "step / self.warmup_steps",
    ),
    "image_classification: fillers count": ("counted", ".float()[counts], labels[counts]", ".float(), labels"),
    "image_classification: the rate begins anew": ("fits", "self.steps = load(", "found = load("),
    "image_classification: saved after epochs alone": ("fits", "                self.save_if_due()\n", ""),
    "llm_13b: memory does not count": ("layouts", "step.device_bytes.high)", "0.0)"),
    "llm_13b: one node writes": (
        "figures",
        "write_seconds(14 * parameters / cluster.nnodes)",
        "write_seconds(14 * parameters)",
    ),
    "llm_13b: nothing in shards": ("parts", "if layout.zero:", "if layout.zero > 1:"),
    "llm_13b: the newest of each place": (
        "resumes",
        "if None not in given.exchange(step, None):",
        "if step is not None:",
    ),
    "llm_13b: one learning rate": ("sibling", "= plan.learning_rate_at(step)", "= plan.learning_rate"),
    "llm_13b: begins anew": ("sibling", "range(report.first_step, plan.steps)", "range(plan.steps)"),
    "llm_13b: targets are the inputs": ("learns", "mine[:, 1:])", "mine[:, :-1])"),
    "llm_13b: all tokens": ("generation", "tokens[None, -context:]", "tokens[None]"),
}


@cache
def judged(exercise: Exercise, check: str, source: str) -> CheckResult:
    """The result of one visible check; that of the solution is looked at beside each mistake."""
    rubric = visible_rubric(exercise)
    rubric = replace(rubric, checks=[one for one in rubric.checks if one.name == check])
    earlier = {one.name: one.source("solution")[0] for one in exercise.builds_on}
    (result,) = run_checks(rubric, Submission(exercise, source, earlier), Ranks()).results
    return result


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_visible_check_shows_it(mistake: str) -> None:
    check, right, wrong = MISTAKES[mistake]
    exercise = catalogue.find(mistake.partition(":")[0])
    solution = exercise.source("solution")[0]
    assert solution.count(right) == 1
    for source, passes in ((solution, True), (solution.replace(right, wrong), False)):
        result = judged(exercise, check, source)
        assert result.passed == passes and not result.fault, result.text()
    assert result.expected, result.text()
