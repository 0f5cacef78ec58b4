"""Pipeline parallelism: each rank has some consecutive layers, and microbatches pass through the ranks and back.

A schedule says which rank does what when, in slots of equal length: a forward or a backward of one microbatch through
one stage. GPipe (Huang et al. 2019) does all forwards first. 1F1B (PipeDream-Flush, Narayanan et al. 2021a) begins each
backward as soon as it can, so that fewer activations wait. Interleaved (Narayanan et al. 2021b, section 2.2) gives each
rank several stages, its chunks: with N ranks, chunk c of rank r is stage c * N + r, and what the last rank has done
with one chunk goes on to the first rank's next.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, chain, groupby
from typing import Any, Literal, NamedTuple, get_args

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.distributed import ProcessGroup

__all__ = [
    "Action",
    "PipelineParallel",
    "PipelineStage",
    "bubble_fraction",
    "get_pipeline_schedule",
    "gpipe_schedule",
    "interleaved_schedule",
    "most_in_flight",
    "one_f_one_b_schedule",
    "split_into_stages",
]

Op = Literal["forward", "backward"]


class Action(NamedTuple):
    """What one rank does in one slot."""

    time: int
    """Number of the slot, from 0."""
    stage: int
    """The rank that does it, counted within the group."""
    op: Op
    microbatch: int
    chunk: int = 0
    """Which of that rank's stages."""


Schedule = Sequence[Action]
"""Of all ranks, in order of time."""
Step = tuple[Op, int, int]
"""What a rank does next: op, microbatch, chunk."""


def split_into_stages(
    layers: Iterable[nn.Module], num_stages: int, costs: Sequence[float] | None = None
) -> list[nn.Sequential]:
    """Cut `layers` into `num_stages` parts of consecutive layers, so that the most expensive one costs least.

    costs: of each layer, 0 or more; without them its number of parameters. No stage is empty.
    Raises ValueError when there are more stages than layers, or costs do not fit.
    """
    layers = list(layers)
    if not 1 <= num_stages <= len(layers):
        raise ValueError(f"num_stages must be 1 to {len(layers)}, the number of layers, got {num_stages}")
    if costs is None:
        costs = [sum(parameter.numel() for parameter in layer.parameters()) for layer in layers]
    if len(costs) != len(layers) or not all(0 <= cost < float("inf") for cost in costs):
        raise ValueError(f"costs must be {len(layers)} numbers of 0 or more, one for each layer, got {costs}")
    before = [0, *accumulate(costs)]  # layers[i:j] cost before[j] - before[i]

    # TODO 1. `ends`, where each stage ends: the first is layers[: ends[0]]. To cut whenever a share is full is not
    # enough: try costs 1, 1, 6 in two stages. If the last of k stages begins at layer `cut`, what do you want to know
    # of the layers before it?
    # YOUR CODE HERE
    raise NotImplementedError()

    return [nn.Sequential(*layers[start:end]) for start, end in zip([0, *ends], ends, strict=False)]


def gpipe_schedule(stages: int, microbatches: int) -> list[Action]:
    """All forwards, then all backwards. In flight are up to `microbatches` activations, on every rank."""
    _check_counts(stages=stages, microbatches=microbatches)
    numbers = range(microbatches)
    order: list[Step] = [*(("forward", k, 0) for k in numbers), *(("backward", k, 0) for k in numbers)]
    return _timed([order] * stages)


def one_f_one_b_schedule(stages: int, microbatches: int) -> list[Action]:
    """A backward after each forward, once the pipeline is filled: as long as GPipe, at most `stages` in flight."""
    _check_counts(stages=stages, microbatches=microbatches)
    return _timed([_one_f_one_b(rank, stages, 1, microbatches) for rank in range(stages)])


def interleaved_schedule(stages: int, chunks: int, microbatches: int) -> list[Action]:
    """1F1B with `chunks` stages on each rank: as many idle slots, but each slot is a `chunks`-th as long."""
    _check_counts(stages=stages, chunks=chunks, microbatches=microbatches)
    return _timed([_one_f_one_b(rank, stages, chunks, microbatches) for rank in range(stages)])


def get_pipeline_schedule(name: str, stages: int, microbatches: int, chunks: int = 1) -> list[Action]:
    """The schedule of that name: gpipe, 1f1b or interleaved; only the last has more than one chunk."""
    if name == "interleaved":
        return interleaved_schedule(stages, chunks, microbatches)
    makers = {"gpipe": gpipe_schedule, "1f1b": one_f_one_b_schedule}
    if name not in makers:
        raise ValueError(f"name must be gpipe, 1f1b or interleaved, got {name!r}")
    if chunks != 1:
        raise ValueError(f"chunks must be 1 with {name}, got {chunks}")
    return makers[name](stages, microbatches)


def bubble_fraction(schedule: Schedule) -> float:
    """Share of the ranks' slots in which they have nothing to do, from the first action to the end of the last."""
    slots = max(action.time for action in schedule) + 1
    ranks = len({action.stage for action in schedule})
    return 1 - len(schedule) / (slots * ranks)


def most_in_flight(schedule: Schedule) -> list[int]:
    """For each rank: how many forwards' activations wait for their backward at most, of all its chunks together."""
    waiting, most = Counter[int](), Counter[int]()
    for action in schedule:
        waiting[action.stage] += 1 if action.op == "forward" else -1
        most[action.stage] = max(most[action.stage], waiting[action.stage])
    return [most[rank] for rank in sorted(most)]


def _one_f_one_b(rank: int, stages: int, chunks: int, microbatches: int) -> list[Step]:
    """What `rank` does, one after the other: warm-up forwards; forward, backward in turn; the backwards that are left.

    With chunks, microbatches go in groups of `stages` or a few more through all chunks, before the next group begins.
    """
    groups = torch.arange(microbatches).tensor_split(max(1, microbatches // stages))
    forwards: list[Step] = [("forward", int(k), c) for group in groups for c in range(chunks) for k in group]
    backwards: list[Step] = [("backward", k, chunks - c - 1) for _, k, c in forwards]

    # TODO 2. `order`: all of `forwards` and `backwards`. How many forwards come first? With one chunk, as many as there
    # are ranks after this one: then its own next forward is followed by the first backward. With several, twice as
    # many, which gives each message a slot's time to arrive, and before those the first group goes through all chunks
    # but the last. There may be fewer forwards than that.
    # YOUR CODE HERE
    raise NotImplementedError()

    return order


class PipelineStage:
    """Stage `index` of `count`, and what it remembers of each microbatch between its forward and its backward.

    module: from one tensor to one tensor, the samples along the first dimension of both.
    """

    def __init__(self, module: nn.Module, index: int, count: int) -> None:
        if not 0 <= index < count:
            raise ValueError(f"index must be 0 to {count - 1}, with count {count}, got {index}")
        self.module, self.index, self.count = module, index, count
        self.is_first, self.is_last = index == 0, index == count - 1
        self._kept: dict[int, tuple[Tensor, GradientEdge | None]] = {}

    @property
    def in_flight(self) -> int:
        """Of how many microbatches something is kept."""
        return len(self._kept)

    def forward(self, microbatch: int, inputs: Tensor, loss_of: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """The module's output, or `loss_of` it. Its `requires_grad` says whether it wants a gradient back.

        inputs: with `requires_grad` where `backward` is to return their gradient.
        """
        inputs = inputs.detach().requires_grad_(inputs.requires_grad)
        output = self.module(inputs)
        if loss_of is not None:
            output = loss_of(output)
        # the output's place in the graph is all that backward needs: its memory may go once it has been sent
        self._kept[microbatch] = inputs, get_gradient_edge(output) if output.requires_grad else None
        sent: Tensor = output.detach().requires_grad_(output.requires_grad)
        return sent

    def backward(self, microbatch: int, gradient: Tensor | None = None) -> Tensor | None:
        """Add to the gradients of the module's parameters; return that of the inputs, where they want one.

        gradient: of what `forward` returned; None for a loss. Nothing of the microbatch is kept any longer.
        """
        # TODO 3. Here the chain rule comes over from the next rank: `torch.autograd.backward(edge, gradient)` goes on
        # from a place in the graph. `inputs` and `edge` are what `forward` kept; `edge` is None where nothing so far
        # is trained. What is kept any longer, is memory.
        # YOUR CODE HERE
        raise NotImplementedError()
        unused = inputs.requires_grad and inputs.grad is None
        return torch.zeros_like(inputs) if unused else inputs.grad


class PipelineParallel:
    """Runs a schedule on the ranks of `group`. Messages go between stages that are next to each other, no others.

    stages: those of this rank, one for each chunk. schedule: the same on every rank, any in which each action comes
    after what it needs. A weight that stages of two ranks share is two weights here: add their gradients up over these
    ranks after `forward_backward`. With NCCL, all ranks of a group must take part in its first messages: call
    `dist.barrier(group)` once before. Raises ValueError, before any message, when arguments do not fit together.
    """

    def __init__(self, stages: Sequence[PipelineStage], schedule: Schedule, group: ProcessGroup | None = None) -> None:
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        if self.rank < 0:
            raise ValueError(f"group must contain this rank, {dist.get_rank()}, got {group!r}")
        self.stages, self.group = list(stages), group
        count = self.ranks * len(self.stages)
        wanted = [(index, count) for index in range(self.rank, count, self.ranks)]
        if (seen := [(stage.index, stage.count) for stage in self.stages]) != wanted:
            raise ValueError(f"stages of rank {self.rank} must have (index, count) {wanted}, got {seen}")
        self.microbatches = _check_schedule(schedule, self.ranks, len(self.stages))
        # of each slot: what this rank does, and what others do whose result comes to this rank
        self._slots: list[tuple[Action | None, list[Message]]] = []
        for _, actions in groupby(sorted(schedule), key=lambda action: action.time):
            mine, arriving = None, []
            for action in actions:
                message = _message(action, self.ranks, count)
                if action.stage == self.rank:
                    mine = action
                elif message is not None and message.to % self.ranks == self.rank:
                    arriving.append(message)
            self._slots.append((mine, arriving))

    def forward_backward(
        self,
        batch: Tensor | None,
        target: Tensor | None,
        criterion: Callable[[Tensor, Tensor], Tensor] | None,
    ) -> Tensor | None:
        """Add to the parameters' gradients those of the whole batch's mean loss, as one process would.

        batch: on the rank of the first stage; target and criterion on that of the last; others may pass None. Samples
        are along the first dimension. criterion(output, target): the mean over the samples that it is given.
        Microbatches are `batch.tensor_split`: sizes differ by one at most, and may be 0.
        Returns the loss, without a gradient, on the rank of the last stage, None on others.
        Raises ValueError, before any message, when something is missing on a rank that needs it.
        """
        inputs, targets, loss_fn = self._arguments(batch, target, criterion)
        samples, losses = sum(map(len, targets)), []
        mail = _Mail(self, sum(map(len, inputs)))

        for mine, arriving in self._slots:
            outgoing = None
            if mine is not None:
                stage, k = self.stages[mine.chunk], mine.microbatch
                # TODO 4. Do it: `stage.forward` or `stage.backward` of microbatch k. What came for it is
                # `mail.take(mine.op, stage.index, k)`: an activation, or a gradient, None where there is none to come.
                # The first stage takes its part of `inputs` instead. The last one makes a loss of its output
                # (`loss_of`), weighted with its part's share of all samples, so that `losses` add up to their mean; a
                # part may have no sample, and of none there is no mean. `outgoing` is what the next stage is to have.
                # YOUR CODE HERE
                raise NotImplementedError()
            # all messages of a slot are posted together, and slot by slot: whatever their sizes, none waits in a circle
            mail.exchange(mine, outgoing, arriving)
        mail.close()
        return torch.stack(losses).sum() if losses else None

    def _arguments(self, batch: Any, target: Any, criterion: Any) -> tuple[list[Tensor], list[Tensor], Any]:
        """Parts of the batch where the first stage is, parts of the target and the criterion where the last one is."""
        first, last = self.stages[0].is_first, self.stages[-1].is_last
        for name, value, needed in (("batch", batch, first), ("target", target, last)):
            if needed and not (isinstance(value, Tensor) and value.dim()):
                raise ValueError(f"{name} must be a tensor of samples on rank {self.rank}, got {value!r:.60}")
        if last and not callable(criterion):
            raise ValueError(f"criterion must be a function on rank {self.rank}, got {criterion!r}")
        if first and last and len(batch) != len(target):
            raise ValueError(f"target must have as many samples as batch, {len(batch)}, got {len(target)}")
        inputs = batch.detach().tensor_split(self.microbatches) if first else ()
        return list(inputs), list(target.tensor_split(self.microbatches)) if last else [], criterion


class Message(NamedTuple):
    """What is on its way to a stage: an activation for its forward, or a gradient for its backward."""

    op: Op
    to: int
    """The stage, counted over all ranks and chunks."""
    microbatch: int

    @property
    def sender(self) -> int:
        """The stage that it comes from."""
        return self.to - 1 if self.op == "forward" else self.to + 1


def _message(action: Action, ranks: int, count: int) -> Message | None:
    """What becomes of the result of `action`; None where no stage is to have it."""
    to = action.chunk * ranks + action.stage + (1 if action.op == "forward" else -1)
    return Message(action.op, to, action.microbatch) if 0 <= to < count else None


class _Form(NamedTuple):
    """What is known of all activations between two stages once the first of them has been announced."""

    samples: int
    """Of all microbatches together."""
    requires_grad: bool
    dtype: torch.dtype
    shape: tuple[int, ...]
    """Of one sample."""


_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32, torch.bool)
_LONGEST_FORM = 12
"""Numbers in an announcement: samples, requires_grad, dtype, how many dimensions a sample has, and these."""

_Post = tuple[Callable[..., Any], Tensor, int]
"""isend or irecv, a tensor, the stage at the other end."""


class _Mail:
    """Messages of one `forward_backward`. The first activation between two stages comes with an announcement."""

    def __init__(self, pipeline: PipelineParallel, samples: int) -> None:
        self.pipeline, self.samples = pipeline, samples
        self.peers = dist.get_process_group_ranks(pipeline.group)
        parameters = (parameter for stage in pipeline.stages for parameter in stage.module.parameters())
        self.device = next((parameter.device for parameter in parameters), torch.get_default_device())
        self.forms: dict[int, _Form] = {}  # by the stage that activations go to
        self.come: dict[Message, tuple[Tensor, list[dist.Work]]] = {}
        self.leaving: tuple[Tensor | None, list[dist.Work]] = None, []

    def take(self, op: Op, stage: int, microbatch: int) -> Any:
        """The tensor that came for this action, once it is there; None for a backward without a gradient."""
        tensor, works = self.come.pop(Message(op, stage, microbatch), (None, []))
        for work in works:
            work.wait()
        if tensor is not None and op == "forward" and stage in self.forms:
            tensor.requires_grad_(self.forms[stage].requires_grad)
        return tensor

    def exchange(self, mine: Action | None, outgoing: Tensor | None, arriving: Sequence[Message]) -> None:
        """Post the messages of one slot: the result of `mine`, and those that `arriving` lists."""
        count = self.pipeline.ranks * len(self.pipeline.stages)
        message = _message(mine, self.pipeline.ranks, count) if mine else None
        if message is not None and outgoing is not None and self.pipeline.ranks == 1:
            self.come[message] = outgoing, []
            return
        self._announce(message, outgoing, arriving)
        self._post_tensors(message, outgoing, arriving)

    def close(self) -> None:
        """Wait for what is leaving."""
        for work in self.leaving[1]:
            work.wait()
        self.leaving = None, []

    def _post_tensors(self, message: Message | None, outgoing: Tensor | None, arriving: Sequence[Message]) -> None:
        posts: list[_Post] = []
        if sending := message is not None and outgoing is not None and outgoing.numel() > 0:
            self.close()  # of a sent tensor nothing is kept for longer than until the next one is sent
            posts.append((dist.isend, outgoing.detach().contiguous(), message.to))
        # a stage that is not asked for a gradient sends none
        wanted = [each for each in arriving if each.op == "forward" or self.forms[each.sender].requires_grad]
        buffers = {each: self._buffer(each) for each in wanted}
        posts += [(dist.irecv, buffer, each.sender) for each, buffer in buffers.items() if buffer.numel()]
        works = self._post(posts)
        if sending:
            self.leaving = posts[0][1], works.pop(0)
        for each, buffer in buffers.items():
            self.come[each] = buffer, works.pop(0) if buffer.numel() else []

    def _announce(self, message: Message | None, outgoing: Tensor | None, arriving: Sequence[Message]) -> None:
        """Tell the next stage the form of its first activation, and learn that of one's own."""
        posts: list[_Post] = []
        if message is not None and outgoing is not None and message.op == "forward" and message.to not in self.forms:
            form = _Form(self.samples, outgoing.requires_grad, outgoing.dtype, tuple(outgoing.shape[1:]))
            self.forms[message.to] = form
            numbers = [form.samples, form.requires_grad, _DTYPES.index(form.dtype), len(form.shape), *form.shape]
            numbers += [0] * (_LONGEST_FORM - len(numbers))
            posts.append((dist.isend, torch.tensor(numbers, dtype=torch.int64, device=self.device), message.to))
        new = [each for each in arriving if each.op == "forward" and each.to not in self.forms]
        come = [torch.empty(_LONGEST_FORM, dtype=torch.int64, device=self.device) for _ in new]
        posts += [(dist.irecv, told, each.sender) for each, told in zip(new, come, strict=True)]
        for work in chain(*self._post(posts)):
            work.wait()
        for each, told in zip(new, come, strict=True):
            self.samples, requires_grad, dtype, dimensions, *shape = told.tolist()
            self.forms[each.to] = _Form(self.samples, bool(requires_grad), _DTYPES[dtype], tuple(shape[:dimensions]))

    def _buffer(self, message: Message) -> Tensor:
        """Room for a message; a gradient has the form of the activation that it belongs to."""
        form = self.forms[message.to if message.op == "forward" else message.sender]
        rows, more = divmod(form.samples, self.pipeline.microbatches)
        size = (rows + (message.microbatch < more), *form.shape)
        return torch.empty(size, dtype=form.dtype, device=self.device)

    def _post(self, posts: list[_Post]) -> list[list[dist.Work]]:
        """Post all at once; what there is to wait for, for each."""
        ranks, group = self.pipeline.ranks, self.pipeline.group
        batch = [dist.P2POp(post, tensor, self.peers[stage % ranks], group) for post, tensor, stage in posts]
        works = dist.batch_isend_irecv(batch) if batch else []
        # NCCL has one for all of them
        return [[work] for work in works] if len(works) == len(batch) else [list(works) for _ in batch]


def _timed(orders: Sequence[Sequence[Step]]) -> list[Action]:
    """Every rank does its steps in order, each as soon as all that it needs is done.

    Raises ValueError when ranks wait for each other for ever.
    """
    ranks, count = len(orders), len(orders) * (1 + max(chunk for order in orders for _, _, chunk in order))
    left = [deque(order) for order in orders]
    free, done = [0] * ranks, dict[Message, int]()
    schedule: list[Action] = []
    while any(left):
        before = len(schedule)
        for rank, steps in enumerate(left):
            while steps:
                op, microbatch, chunk = steps[0]
                needed = _needs(Message(op, chunk * ranks + rank, microbatch), count)
                if not all(need in done for need in needed):
                    break
                time = max([free[rank], *(done[need] for need in needed)])
                free[rank] = done[Message(op, chunk * ranks + rank, microbatch)] = time + 1
                schedule.append(Action(time, rank, op, microbatch, chunk))
                steps.popleft()
        if len(schedule) == before:
            raise ValueError(f"orders must let some rank go on, all wait for each other after {before} actions")
    return sorted(schedule)


def _needs(of: Message, count: int) -> list[Message]:
    """What must be done before, as (op, stage, microbatch)."""
    op, stage, microbatch = of
    if op == "forward":
        return [Message(op, stage - 1, microbatch)] if stage else []
    after = [Message(op, stage + 1, microbatch)] if stage < count - 1 else []
    return [Message("forward", stage, microbatch), *after]


def _check_schedule(schedule: Schedule, ranks: int, chunks: int) -> int:
    """How many microbatches it has. Raises ValueError unless it does everything once, and in a possible order."""
    done = {Message(a.op, a.chunk * ranks + a.stage, a.microbatch): a.time for a in schedule}
    count, microbatches = ranks * chunks, 1 + max((action.microbatch for action in schedule), default=-1)
    wanted = {Message(op, g, k) for op in get_args(Op) for g in range(count) for k in range(microbatches)}
    if not schedule or set(done) != wanted or len(schedule) != len(wanted):
        raise ValueError(
            f"schedule must do each forward and backward of {ranks} ranks with {chunks} stages each once, got "
            f"{len(schedule)} actions, of {microbatches} microbatches"
        )
    if len({(action.time, action.stage) for action in schedule}) < len(schedule):
        raise ValueError("schedule must have one action of a rank in a slot, got two")
    for action, time in done.items():
        if late := [need for need in _needs(action, count) if done[need] >= time]:
            raise ValueError(f"schedule must do {late[0].op} {late[0]} before slot {time}, got slot {done[late[0]]}")
    return microbatches


def _check_counts(**counts: int) -> None:
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"{name} must be at least 1, got {count}")
