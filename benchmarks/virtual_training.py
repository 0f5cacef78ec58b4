"""A GPT trained on the ranks of a cell in any layout that `labkit.predict` predicts, with the time of each part.

The source of a job, not a script: predict_beside_virtual.py runs it on virtual ranks. `LAYOUT` in the environment holds
the sizes and the plan as JSON. Data-parallel gradients are reduced by torch's DDP (`ddp`), by collectives block by
block (ZeRO 0, 1, 2), or by FSDP2 (ZeRO 3); tensor parallelism is Megatron's (Shoeybi et al. 2019) with the vocabulary
split too, pipelines are GPipe or 1F1B. Parameters and gradients are bf16; Adam has fp32 copies and moments, except that
FSDP2 keeps everything in fp32 and computes in bf16.
"""

import json
import math
import os
from collections import defaultdict
from functools import partial
from time import perf_counter

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd import Function
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from labkit.models import GPT, GPTConfig

LAYOUT = json.loads(os.environ["LAYOUT"])
DATA, TENSOR, PIPELINE = LAYOUT["data"], LAYOUT["tensor"], LAYOUT["pipeline"]
SHARD = LAYOUT["zero_ranks"] or DATA
MICROBATCH, MICROBATCHES, ZERO = LAYOUT["microbatch"], LAYOUT["microbatches"], LAYOUT["zero"]
CONFIG = GPTConfig(LAYOUT["layers"], LAYOUT["heads"], LAYOUT["width"], LAYOUT["vocab"], LAYOUT["sequence"])
STEPS = LAYOUT["steps"]
BF16 = torch.float32 if LAYOUT["exact"] else torch.bfloat16

dist.init_process_group("nccl")
rank = dist.get_rank()
mesh = dist.device_mesh.init_device_mesh("cpu", (PIPELINE, DATA, TENSOR), mesh_dim_names=("p", "d", "t"))
stage, replica, part = (mesh[axis].get_local_rank() for axis in "pdt")
data, tensor, pipeline = (mesh[axis].get_group() for axis in "dtp")
neighbour = {step: dist.get_global_rank(pipeline, (stage + step) % PIPELINE) for step in (-1, 1)}
first, last = stage == 0, stage == PIPELINE - 1


# Seconds by part --------------------------------------------------------------------------------------------------

PRODUCTS = {"mm", "addmm", "bmm"}
ATTENTION = {name for way in ("", "_backward") for name in (f"_scaled_dot_product_flash_attention_for_cpu{way}",)}


class Meter(TorchDispatchMode):
    """Accumulates the rank's time by part: operators by kind, waits by cause."""

    def __init__(self):
        super().__init__()
        self.seconds = defaultdict(float)
        self.region = ""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.prim.device.default:
            return function(*args)
        began = perf_counter()
        result = function(*args, **(kwargs or {}))
        name = function._schema.name.split("::")[1]
        part = "products" if name in PRODUCTS else "attention" if name in ATTENTION else "passes"
        self.seconds[self.region or part] += perf_counter() - began
        return result

    def waiting(self, part, act, *args, **options):
        began = perf_counter()
        result = act(*args, **options)
        self.seconds[part] += perf_counter() - began
        return result


meter = Meter()


# Tensor parallelism -----------------------------------------------------------------------------------------------


def add_up(x):
    if TENSOR > 1:
        meter.waiting("tensor parallel", dist.all_reduce, x, group=tensor)
    return x


class Copy(Function):
    """Input of a split part: forward is the identity, backward all-reduces the gradients."""

    @staticmethod
    def forward(context, x):
        return x.view_as(x)

    @staticmethod
    def backward(context, gradient):
        return add_up(gradient.contiguous())


class Sum(Function):
    """Output of a split part: forward all-reduces the results."""

    @staticmethod
    def forward(context, x):
        return add_up(x)

    @staticmethod
    def backward(context, gradient):
        return gradient


class Split(nn.Module):
    """A linear layer cut by its outputs (`rows` of its matrix), or by its inputs, in which case outputs are summed."""

    def __init__(self, whole, rows):
        super().__init__()
        self.rows = rows
        self.weight = nn.Parameter(whole.weight.detach().chunk(TENSOR, 0 if rows else 1)[part].clone())
        bias = whole.bias
        self.bias = None
        if bias is not None:  # if results are summed, only the first rank of the group has it
            self.bias = nn.Parameter(bias.detach().chunk(TENSOR)[part].clone()) if rows else bias if part == 0 else None

    def forward(self, x):
        if self.rows:
            return nn.functional.linear(Copy.apply(x) if TENSOR > 1 else x, self.weight, self.bias)
        y = nn.functional.linear(x, self.weight, self.bias)
        return Sum.apply(y) if TENSOR > 1 else y


class Embedding(nn.Module):
    """Embedding tables of tokens and positions; each tensor rank has some tokens' rows."""

    def __init__(self, model):
        super().__init__()
        self.tokens = nn.Parameter(model.token_embedding.weight.detach().chunk(TENSOR)[part].clone())
        self.positions = nn.Parameter(model.position_embedding.weight.detach().clone())

    def forward(self, tokens):
        if TENSOR == 1:
            return nn.functional.embedding(tokens, self.tokens) + self.positions
        rows = len(self.tokens)
        elsewhere = (tokens // rows) != part
        vectors = nn.functional.embedding((tokens % rows).masked_fill(elsewhere, 0), self.tokens)
        return Sum.apply(vectors.masked_fill(elsewhere.unsqueeze(-1), 0)) + self.positions


class SplitLoss(Function):
    """Mean cross-entropy of logits with a split vocabulary, computed in place on an fp32 copy."""

    @staticmethod
    def forward(context, logits, tokens):
        work = logits.float()
        highest = work.max(-1, keepdim=True).values
        if TENSOR > 1:
            meter.waiting("tensor parallel", dist.all_reduce, highest, dist.ReduceOp.MAX, group=tensor)
        work.sub_(highest)
        columns = work.shape[-1]
        elsewhere = (tokens // columns) != part
        index = (tokens % columns).unsqueeze(-1)
        wanted = add_up(work.gather(-1, index).squeeze(-1).masked_fill(elsewhere, 0))
        work.exp_()
        total = add_up(work.sum(-1, keepdim=True))
        work.div_(total)
        context.save_for_backward(work, index, elsewhere)
        context.dtype = logits.dtype
        return (total.squeeze(-1).log() - wanted).mean()

    @staticmethod
    def backward(context, gradient):
        work, index, elsewhere = context.saved_tensors
        ones = torch.where(elsewhere, 0.0, -1.0).to(work.dtype).unsqueeze(-1)
        work.scatter_add_(-1, index, ones)
        return work.mul_(gradient / elsewhere.numel()).to(context.dtype), None


class Head(nn.Module):
    """The last norm, the head, and the loss."""

    def __init__(self, model):
        super().__init__()
        self.norm, self.out = model.norm, Split(model.head, True)

    def forward(self, x, targets):
        return SplitLoss.apply(self.out(self.norm(x)), targets)


class Stage(nn.Module):
    """This rank's layers, with embedding or head on the first or last stage."""

    def __init__(self):
        super().__init__()
        model = GPT(CONFIG)
        depth = CONFIG.layers // PIPELINE
        self.embedding = Embedding(model) if first else None
        self.blocks = nn.ModuleList(model.blocks[depth * stage : depth * (stage + 1)])
        for block in self.blocks:
            block.attention.qkv, block.attention.out = (
                Split(block.attention.qkv, True),
                Split(block.attention.out, False),
            )
            block.mlp.up, block.mlp.down = Split(block.mlp.up, True), Split(block.mlp.down, False)
        self.head = Head(model) if last else None

    def forward(self, x, targets):
        if first:
            x = self.embedding(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x, targets) if last else x


# Data parallelism -------------------------------------------------------------------------------------------------


class Sharing:
    """Flat parameters of one block (or end): their gradients are reduced over the data ranks together, and Adam updates
    them together. ZeRO 1: each rank updates its shard. ZeRO 2: it keeps only its shard of the gradients."""

    def __init__(self, module):
        self.parameters = [p for p in module.parameters()]
        sizes = [p.numel() for p in self.parameters]
        n = DATA if ZERO else 1
        self.flat = torch.zeros(math.ceil(sum(sizes) / n) * n, dtype=BF16)
        pieces = self.flat.split([*sizes, len(self.flat) - sum(sizes)])
        for p, piece in zip(self.parameters, pieces, strict=False):
            piece.copy_(p.data.flatten())
            p.data = piece.view(p.shape)
            p.register_post_accumulate_grad_hook(self.arrived)
        self.gradients = torch.zeros_like(self.flat) if ZERO < 2 else None
        own = slice(None) if not ZERO else slice(replica * len(self.flat) // n, (replica + 1) * len(self.flat) // n)
        self.shard = self.flat[own]
        self.summed = self.gradients[own] if ZERO < 2 else torch.zeros_like(self.shard)
        self.master = nn.Parameter(self.shard.float())
        self.adam = torch.optim.Adam([self.master], fused=True)
        self.there, self.added, self.sending, self.coming = 0, False, None, None
        module.register_forward_pre_hook(self.ready)

    def arrived(self, p):
        """Handle a parameter's gradient: the last one sends all of them, if the microbatch is the last."""
        self.there += 1
        if ZERO < 2:
            place = self.place(p)
            place.copy_(p.grad) if now.microbatch == 0 else place.add_(p.grad)
            p.grad = None
        if self.there == len(self.parameters):
            self.there = 0
            if ZERO == 2:
                self.scatter()
            elif now.microbatch == MICROBATCHES - 1 and DATA > 1:
                call = partial(dist.reduce_scatter_tensor, self.summed) if ZERO else dist.all_reduce
                self.sending = call(self.gradients, op=dist.ReduceOp.AVG, group=data, async_op=True)

    def scatter(self):
        self.sent()
        whole = torch.cat([p.grad.flatten() for p in self.parameters])
        whole = nn.functional.pad(whole, (0, len(self.flat) - len(whole))) if len(whole) < len(self.flat) else whole
        for p in self.parameters:
            p.grad = None
        self.piece = torch.empty_like(self.summed)
        self.sending = dist.reduce_scatter_tensor(self.piece, whole, op=dist.ReduceOp.AVG, group=data, async_op=True)
        now.scattering.append((self, whole))
        if len(now.scattering) > 2:  # at most two are in flight
            now.scattering.pop(0)[0].sent()

    def sent(self):
        if self.sending is not None:
            meter.waiting("gradients", self.sending.wait)
            self.sending = None
            if ZERO == 2:
                self.summed.add_(self.piece) if self.added else self.summed.copy_(self.piece)
                self.added = True
                self.piece = None

    def place(self, p):
        offset = p.data.storage_offset() - self.flat.storage_offset()
        return self.gradients[offset : offset + p.numel()].view(p.shape)

    def update(self):
        self.sent()
        self.added = False
        meter.region = "optimizer"
        self.master.grad = self.summed.float()
        self.adam.step()
        self.master.grad = None
        self.shard.copy_(self.master.data)
        meter.region = ""
        if ZERO and DATA > 1:
            self.coming = dist.all_gather_into_tensor(self.flat, self.shard.clone(), group=data, async_op=True)

    def ready(self, *_):
        if self.coming is not None:
            meter.waiting("new parameters", self.coming.wait)
            self.coming = None


class Now:
    """State of the current step."""

    def __init__(self):
        self.microbatch = 0
        self.scattering = []


now = Now()


# Pipelines --------------------------------------------------------------------------------------------------------


def order():
    """Return the order of this stage's forwards and backwards, by microbatch."""
    forwards = [("forward", k) for k in range(MICROBATCHES)]
    backwards = [("backward", k) for k in range(MICROBATCHES)]
    ahead = MICROBATCHES if LAYOUT["schedule"] == "gpipe" else min(MICROBATCHES, PIPELINE - stage - 1)
    turns = [step for pair in zip(forwards[ahead:], backwards, strict=False) for step in pair]
    return forwards[:ahead] + turns + backwards[len(forwards[ahead:]) :]


class Mail:
    """Messages in one direction: each tensor rank sends its part, and the receiver gathers the parts."""

    def __init__(self, step):
        """`step`: 1 for activations, which go to the next stage, -1 for gradients."""
        self.comes, self.goes = 0 <= stage - step < PIPELINE, 0 <= stage + step < PIPELINE
        self.source, self.target = neighbour[-step], neighbour[step]
        self.tag, self.sends, self.left = (0 if step == 1 else 1), [], MICROBATCHES if self.comes else 0
        self.expect()

    def expect(self):
        if self.left:
            self.left -= 1
            self.buffer = torch.empty(MICROBATCH * CONFIG.context * CONFIG.width // TENSOR, dtype=BF16)
            self.request = dist.irecv(self.buffer, self.source, tag=self.tag)

    def take(self):
        if not self.comes:
            return None
        meter.waiting("pipeline", self.request.wait)
        arrived = self.buffer
        self.expect()
        if TENSOR > 1:
            whole = torch.empty(arrived.numel() * TENSOR, dtype=BF16)
            meter.waiting("pipeline gather", dist.all_gather_into_tensor, whole, arrived, group=tensor)
            arrived = whole
        return arrived.view(MICROBATCH, CONFIG.context, CONFIG.width)

    def post(self, x):
        if self.goes:
            mine = x.detach().reshape(-1).chunk(TENSOR)[part]
            self.sends = [(work, kept) for work, kept in self.sends if not work.is_completed()]
            self.sends.append((dist.isend(mine, self.target, tag=self.tag), mine))

    def close(self):
        for work, _ in self.sends:
            meter.waiting("pipeline", work.wait)


def forward_backward(model, tokens):
    """Run all microbatches; return the sum of their losses."""
    activations, gradients, kept, loss = Mail(1), Mail(-1), {}, 0.0
    for direction, k in order():
        if direction == "forward":
            x = activations.take()
            x = tokens[k] if first else x.requires_grad_()
            y = model(x, tokens[k])
            kept[k] = x, y
            if last:
                loss += y.detach() / MICROBATCHES
                kept[k] = x, y / MICROBATCHES
            else:
                activations.post(y)
                kept[k] = x, torch.autograd.graph.get_gradient_edge(y)
            del x, y
        else:
            x, y = kept.pop(k)
            gradient, now.microbatch = gradients.take(), k
            began = perf_counter(), sum(meter.seconds.values())
            torch.autograd.backward(y, gradient)
            # waiting inside DDP and FSDP2 does not pass through our calls
            unseen = (perf_counter() - began[0]) - (sum(meter.seconds.values()) - began[1])
            meter.seconds["gradients"] += unseen
            if not first:
                gradients.post(x.grad)
            del x, y, gradient
    activations.close()
    gradients.close()
    return loss


# A few steps ------------------------------------------------------------------------------------------------------


def made():
    torch.manual_seed(0)
    model = Stage()
    if ZERO == 3:
        policy = MixedPrecisionPolicy(param_dtype=BF16, reduce_dtype=BF16)
        shards = mesh["d"]
        if SHARD < DATA:
            shape, names = (PIPELINE, DATA // SHARD, SHARD, TENSOR), ("p", "replicate", "shard", "t")
            shards = dist.device_mesh.init_device_mesh("cpu", shape, mesh_dim_names=names)["replicate", "shard"]
        for block in model.blocks:
            fully_shard(block, mesh=shards, mp_policy=policy)
        fully_shard(model, mesh=shards, mp_policy=policy)
        return model, [], torch.optim.Adam(model.parameters(), fused=True)
    parts = [each for each in (model.embedding, *model.blocks, model.head) if each is not None]
    if LAYOUT["ddp"]:
        model = DistributedDataParallel(model.to(BF16), process_group=data, gradient_as_bucket_view=True)
    sharings = [] if LAYOUT["ddp"] else [Sharing(each) for each in parts]
    return model, sharings, None


model, sharings, adam = made()
if LAYOUT["ddp"]:
    masters = {p: nn.Parameter(p.detach().float()) for p in model.parameters()}
    adams = {p: torch.optim.Adam([master], fused=True) for p, master in masters.items()}
began, losses, spent = [], [], []
with meter:
    for step in range(STEPS):
        began.append(perf_counter())
        meter.seconds.clear()
        generator = torch.Generator().manual_seed(step) if LAYOUT["exact"] else None
        batch = torch.randint(CONFIG.vocab, (DATA, MICROBATCHES, MICROBATCH, CONFIG.context), generator=generator)
        loss = forward_backward(model, batch[replica])
        losses.append(loss)
        for sharing in sharings:
            sharing.update()
        now.scattering.clear()
        if LAYOUT["ddp"]:
            meter.region = "optimizer"
            for p, master in masters.items():
                master.grad = p.grad.float()
                adams[p].step()
                master.grad = None
                p.data.copy_(master.data)
            model.zero_grad()
            meter.region = ""
        if adam is not None:
            meter.region = "optimizer"
            adam.step()
            adam.zero_grad()
            meter.region = ""
        spent.append(dict(meter.seconds))
began.append(perf_counter())
{"began": began, "spent": spent, "loss": [float(loss) for loss in losses] if LAYOUT["exact"] and last else []}
