"""A module whose gradients travel in buckets: everything that is not in exercise 11's cell.

The cell's class derives from it. Its methods decide what starts equal, how parameters are cut into buckets, what
happens to a gradient that is complete, and what happens when all are. Here are the wrapped module's interface, the
state of a pass, and the calls of these methods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.futures import Future

from labkit.course.phase3_multi_node.ddp.given import agreement, arguments, backward_pass
from labkit.course.phase3_multi_node.ddp.given.bucket import Bucket

MB = 1 << 20


class BucketedModule(nn.Module):
    """Base of `DistributedDataParallel`. See there for the arguments."""

    def __init__(
        self,
        module: nn.Module,
        group: ProcessGroup | None,
        bucket_cap_mb: float,
        gradient_as_bucket_view: bool,
        find_unused_parameters: bool,
        broadcast_buffers: bool,
    ) -> None:
        arguments.require_ddp(module, bucket_cap_mb, group)
        super().__init__()
        self.module = module
        """The wrapped module."""
        self.group, self.cap = group, bucket_cap_mb * MB
        self.as_view, self.find_unused = gradient_as_bucket_view, find_unused_parameters
        self.broadcast_buffers = broadcast_buffers
        self.trained = [parameter for parameter in module.parameters() if parameter.requires_grad][::-1]
        """Parameters that are not frozen, tied ones once. The last come first, as their gradients do."""
        self.comm_hook: Callable[[Bucket], Future[Tensor]] | None = None
        """Called with a full bucket in place of the all-reduce; see `register_comm_hook`."""
        self.synchronizing = False
        """Whether the last forward pass was outside of `no_sync()`: the mean over the ranks is wanted."""
        self.expecting = False
        """Whether a forward or backward pass has begun whose gradients are not averaged yet."""
        self._sync_enabled, self._first_order = True, list[nn.Parameter]()
        self._end = backward_pass.EndOfBackward(backward_pass.weak(self._backward_has_ended))
        self._make_buckets(self.trained)

    def assign(self, parameters: Sequence[nn.Parameter], cap: float, first_cap: float) -> list[list[nn.Parameter]]:
        """Cut the parameters into lists, one for each bucket."""
        raise NotImplementedError

    def collect(self, parameter: nn.Parameter) -> None:
        """Put the gradient into its bucket and launch what can be launched."""
        raise NotImplementedError

    def finish_gradient_synchronization(self) -> None:
        """Return when every gradient is the mean over the ranks."""
        raise NotImplementedError

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Return the module's outputs. Raises RuntimeError, with their names, if the last backward pass has not
        reached some parameters; see `find_unused_parameters`.
        """
        if self.arrived:
            self.finish_gradient_synchronization()
        if not torch.is_grad_enabled():
            return self.module(*inputs, **kwargs)
        self.synchronizing = self._sync_enabled
        if self.synchronizing:
            self._rebuild_once()
            if self.broadcast_buffers:
                agreement.broadcast_together(self.module.buffers(), self.group)
            self.expecting = True
        outputs = self.module(*inputs, **kwargs)
        if self.synchronizing and self.find_unused:
            self._reachable |= backward_pass.parameters_in_graph(outputs)
        return outputs

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Within `with ddp.no_sync():` each rank adds up its own gradients, and nothing is sent.

        The forward pass must be inside; it decides. The next one outside averages all that has been added up.
        """
        before, self._sync_enabled = self._sync_enabled, False
        try:
            yield
        finally:
            self._sync_enabled = before

    def synchronize_next_backward(self) -> None:
        """Average in the next backward pass all that has been added up, though its forward pass was in `no_sync()`.

        For pipelines, where a forward pass and its backward pass are not neighbours. That pass does not wait: call
        `finish_gradient_synchronization` afterwards.
        """
        self._rebuild_once()
        self.synchronizing = self.expecting = self._finished_by_caller = True

    def register_comm_hook(self, state: Any, hook: Callable[[Any, Bucket], Future[Tensor]]) -> None:
        """Have `hook(state, bucket)` average each full bucket, like torch's `register_comm_hook`.

        `bucket.buffer()` has this rank's gradients, not divided by anything. The hook returns a future of a tensor with
        as many elements: the mean over the ranks. Raises RuntimeError at a second call, TypeError for another object.
        """
        if not callable(hook):
            raise TypeError(f"hook must be callable, got {hook!r}")
        if self.comm_hook is not None:
            raise RuntimeError("register_comm_hook can be called only once")
        self.comm_hook = lambda bucket: hook(state, bucket)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the state of the wrapped module, under its own keys, so an unwrapped one can load it."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Load a state of the module, saved wrapped or unwrapped. Call it on every rank, with the same state."""
        return self.module.load_state_dict(state_dict, *args, **kwargs)

    def gradient_arrived(self, parameter: nn.Parameter) -> None:
        """Collect the gradient; called by autograd, as a hook, when `parameter.grad` is complete.

        At the first gradient of a pass, parameters that the outputs do not depend on are collected, too.
        """
        if not self.synchronizing:
            if self.as_view:
                self.collect(parameter)
            return
        if parameter not in self.bucket_of[parameter].missing:
            raise RuntimeError(
                f"{self.names_of([parameter])} has another gradient, after it was collected in this pass: either it "
                "was used in two backward passes, or the loss depends on something that forward() did not return"
            )
        if not self.arrived and self.find_unused:
            for unused in self.trained:
                if unused not in self._reachable:
                    self.collect(unused)
        self.arrived.append(parameter)
        self.expecting = True
        self._end.ask()
        self.collect(parameter)

    def late(self) -> list[nn.Parameter]:
        """Return the parameters whose gradients have not arrived in this pass.

        Raises RuntimeError with their names, and forgets the pass, unless `find_unused_parameters`.
        """
        late = [parameter for parameter in self.trained if parameter in self.bucket_of[parameter].missing]
        if late and not self.find_unused:
            self.start_over()
            raise RuntimeError(
                f"the backward pass gave no gradient to {self.names_of(late)}, so other ranks may wait for it: pass "
                "find_unused_parameters=True if the loss does not depend on every parameter"
            )
        return late

    def present(self) -> set[nn.Parameter]:
        """Return the parameters that have a gradient on some rank: all of them, unless `find_unused_parameters`."""
        if not self.find_unused:
            return set(self.trained)
        flags = [parameter.grad is not None for parameter in self.trained]
        known = agreement.true_on_some_rank(flags, self.trained[0].device, self.group)
        return {parameter for parameter, present in zip(self.trained, known, strict=True) if present}

    def start_over(self) -> None:
        """Expect all gradients again, for the next pass."""
        for bucket in self.buckets:
            bucket.start_over()
        self.launched = 0
        """Number of launched buckets: `buckets[:launched]`."""
        self.arrived: list[nn.Parameter] = []
        """Parameters in the order in which their gradients arrived in this pass."""
        self._reachable: set[nn.Parameter] = set()
        self.expecting = self._finished_by_caller = False

    def names_of(self, parameters: Sequence[nn.Parameter]) -> str:
        """Return the parameters' names in the wrapped module."""
        wanted = set(parameters)
        return ", ".join(name for name, parameter in self.module.named_parameters() if parameter in wanted)

    def _backward_has_ended(self) -> None:
        """Finish if all gradients have arrived: where a loss is spread over two passes, the second one finishes."""
        if len(self.arrived) == len(self.trained) and not self._first_order and not self.find_unused:
            self._first_order = self.arrived
        if self._finished_by_caller:
            return
        if self.find_unused or self.launched == len(self.buckets):
            self.finish_gradient_synchronization()

    def _rebuild_once(self) -> None:
        """Make the buckets again, in the order in which the first pass's gradients arrived on the first rank."""
        if self._first_order and not self._rebuilt:
            self._rebuilt = True
            self._make_buckets(agreement.as_on_first_rank(self._first_order, self.trained, self.group))

    _rebuilt = False

    def _make_buckets(self, order: Sequence[nn.Parameter]) -> None:
        cut = self.assign(order, self.cap, min(MB, self.cap))
        self.buckets = [Bucket(index, parameters, index == len(cut) - 1) for index, parameters in enumerate(cut)]
        """Buckets in the order in which they are launched, on every rank."""
        self.bucket_of = {parameter: bucket for bucket in self.buckets for parameter in bucket.parameters()}
        """The bucket of each parameter."""
        self.start_over()
