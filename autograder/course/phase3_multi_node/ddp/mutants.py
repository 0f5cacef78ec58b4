"""Mutants of ddp: what is wrong in each, what it earns, and the checks that it loses."""

from __future__ import annotations

from autograder.mutants import Mutant

VALUES = {
    "one_process", "exact", "dtypes", "groups", "no_sync", "unused", "buckets", "overlap", "one_order", "views", "training",
}  # fmt: skip
"""Checks that compare gradients: all but those of the start, buffers, hooks and checkpoints."""

MUTANTS = {
    "only_at_the_end": Mutant(19, loses={"one_order", "overlap"}).edited("""
        Buckets are launched when the backward pass has ended: nothing overlaps.

        - while self.launched < len(self.buckets) and not self.buckets[self.launched].missing:
        + if any(one.missing for one in self.buckets):
        +     return
        + while self.launched < len(self.buckets):
    """),
    "waits_for_each": Mutant(21, loses={"overlap"}).edited("""
        Each bucket is waited for as soon as it is launched, so computing stands still.

          full.pending = dist.all_reduce(full.buffer(), group=self.group, async_op=True)
        + full.pending.wait()
    """),
    "one_for_each_parameter": Mutant(17, loses={"buckets", "no_sync", "overlap"}).edited("""
        Each gradient travels by itself.

        - return [*full, *filling.values()]
        + return [[parameter] for parameter in parameters]
    """),
    "one_bucket": Mutant(15, loses={"buckets", "comm_hook", "one_order", "overlap"}).edited("""
        All gradients of a dtype are in one bucket, whatever its size.

        - if room[kind] <= 0:
        + if False:
    """),
    "forward_order": Mutant(16, loses={"buckets", "one_order", "overlap"}).edited("""
        Buckets are cut from the first layer on, whose gradients come last.

          full: list[list[nn.Parameter]] = []
        + parameters = parameters[::-1]
    """),
    "overfull": Mutant(18, loses={"buckets", "overlap"}).edited("""
        A bucket is closed before the parameter that would make it full.

        - filling.setdefault(kind, []).append(parameter)
        - room[kind] = room.get(kind, first_cap) - parameter.numel() * parameter.element_size()
        - if room[kind] <= 0:
        -     full.append(filling.pop(kind))
        -     room[kind] = cap
        + room.setdefault(kind, first_cap)
        + room[kind] -= parameter.numel() * parameter.element_size()
        + if room[kind] <= 0 and kind in filling:
        +     full.append(filling.pop(kind))
        +     room[kind] = cap - parameter.numel() * parameter.element_size()
        + filling.setdefault(kind, []).append(parameter)
    """),
    "mixes_dtypes": Mutant(21, loses={"buckets", "dtypes"}).edited("""
        A bucket holds all dtypes, as its first parameter's.

        - kind = parameter.dtype, parameter.device
        + kind = parameter.device
    """),
    "no_first_bucket": Mutant(22, loses={"buckets"}).edited("""
        The first bucket is as large as the others.

        - room[kind] = room.get(kind, first_cap) - parameter.numel() * parameter.element_size()
        + room[kind] = room.get(kind, cap) - parameter.numel() * parameter.element_size()
    """),
    "no_broadcast": Mutant(20, loses={"groups", "one_process", "start", "training"}).edited("""
        Every rank keeps the weights that it has.

        - broadcast_together([*module.parameters(), *module.buffers()], group)
    """),
    "broadcasts_each": Mutant(24, loses={"start"}).edited("""
        A broadcast for each tensor.

        - broadcast_together([*module.parameters(), *module.buffers()], group)
        + for tensor in (*module.parameters(), *module.buffers()):
        +     broadcast_together([tensor], group)
    """),
    "buffers_stay": Mutant(23, loses={"buffers", "start"}).edited("""
        Buffers are never sent.

        - broadcast_together([*module.parameters(), *module.buffers()], group)
        + broadcast_together(module.parameters(), group)
        + self.broadcast_buffers = False
    """),
    "sums": Mutant(4, loses=VALUES).edited("""
        Nobody divides.

        - divisor = dist.get_world_size(self.group) if self.synchronizing and not self.comm_hook else 1
        + divisor = 1
    """),
    "averages_twice": Mutant(3, loses=VALUES | {"comm_hook"}).edited("""
        Before the all-reduce and after it.

          bucket.wait()
        + bucket.buffer().div_(dist.get_world_size(self.group))
    """),
    "views_that_copy": Mutant(23, loses={"views"}).edited("""
        With gradient_as_bucket_view, every gradient is a copy all the same.

          torch.div(parameter.grad, divisor, out=view)
        - if self.as_view:
        -     parameter.grad = view

        - if self.as_view:
        -     parameter.grad = view
        - elif parameter.grad is None:
        + if parameter.grad is None:
    """),
    "views_at_the_end": Mutant(23, loses={"views"}).edited("""
        Gradients become parts of their buckets when all have arrived: until then there are two of each.

          torch.div(parameter.grad, divisor, out=view)
        - if self.as_view:
        -     parameter.grad = view
    """),
    "ignores_no_sync": Mutant(24, loses={"no_sync"}).edited("""
        Gradients are averaged in no_sync, too.

        - if not self.synchronizing:
        -     return
        + self.synchronizing = self.expecting = True
    """),
    "ignores_the_group": Mutant(24, loses={"groups"}).edited("""
        All-reduces are of the whole world.

        - full.pending = dist.all_reduce(full.buffer(), group=self.group, async_op=True)
        + full.pending = dist.all_reduce(full.buffer(), async_op=True)
    """),
    "arrival_order": Mutant(18, loses={"buckets", "one_order", "unused"}).edited("""
        A full bucket leaves at once, even before others: on another rank another one may be first.

        - while self.launched < len(self.buckets) and not self.buckets[self.launched].missing:
        -     full = self.buckets[self.launched]
        + if not bucket.missing:
        +     full = bucket
    """),
    "old_values_for_none": Mutant(23, loses={"unused"}).edited("""
        A parameter without a gradient sends what the bucket had.

        - view.zero_()
        + pass
    """),
    "unused_wait": Mutant(23, loses={"one_order"}).edited("""
        Unused parameters are collected at the end, and the buckets behind theirs wait.

          bucket = self.bucket_of[parameter]
        + if self.find_unused and parameter.grad is None and len(self.arrived) == 0 and not self.launched and not getattr(self, "ending", False):
        +     return

          late = self.late()
        + self.ending = True

        - self.start_over()
        + self.start_over()
        + self.ending = False
    """),
    "unused_get_zeros": Mutant(23, loses={"unused"}).edited("""
        A parameter that no rank has used gets a gradient of zeros.

        - present = self.present()
        + self.present()
        + present = set(self.trained)
    """),
    "unused_elsewhere": Mutant(23, loses={"unused"}).edited("""
        A rank without a gradient of its own does not get the others'.

        - elif parameter.grad is None:
        -     parameter.grad = view.clone()
        - else:
        + elif parameter.grad is not None:
    """),
    "ignores_the_hook": Mutant(24, loses={"comm_hook"}).edited("""
        A communication hook is never called.

        - if self.comm_hook:
        + if False:
    """),
    "divides_for_the_hook": Mutant(24, loses={"comm_hook"}).edited("""
        The hook gets gradients that are divided already.

        - divisor = dist.get_world_size(self.group) if self.synchronizing and not self.comm_hook else 1
        + divisor = dist.get_world_size(self.group) if self.synchronizing else 1
    """),
    "torn_file": Mutant(24, loses={"checkpoints"}).edited("""
        The old file is overwritten.

        - temporary = f"{self.path}.{os.getpid()}"
        + temporary = self.path
    """),
    "not_on_the_disk": Mutant(24, loses={"checkpoints"}).edited("""
        The new name may be on the disk before the content.

        - file.flush()
        - os.fsync(file.fileno())
    """),
    "leaves_files": Mutant(24, loses={"checkpoints"}).edited("""
        What could not be written completely is left in the folder.

        - os.remove(temporary)
        - raise
        + raise
    """),
    "wraps_torch_s_ddp": Mutant(12, loses={"buckets", "comm_hook", "one_order", "overlap", "start", "unused"}),
    "does_nothing": Mutant(4, loses=VALUES).edited("""
        Every rank keeps its own gradients.

        - full.pending = dist.all_reduce(full.buffer(), group=self.group, async_op=True)
        + from labkit.course.phase3_multi_node.ddp.given.bucket import Bucket
        + Bucket.wait = lambda bucket: None
    """),
}
