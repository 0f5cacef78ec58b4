"""Mutants of gradient_compression: what is wrong in each, what it earns, and the checks that it loses."""

from __future__ import annotations

from autograder.mutants import Mutant

MUTANTS = {
    "sends_everything": Mutant(
        12, loses={"random_k", "power_sgd", "traffic", "overlap", "hierarchical", "accuracy", "real_processes"}
    ).edited("""
        Compresses, and then sends the gradients themselves, too.

        - rounds, world_size = given.BucketRounds(compressor, bucket), dist.get_world_size(group)
        + rounds, world_size = given.BucketRounds(compressor, bucket), dist.get_world_size(group)
        + for _, gradient in bucket:
        +     yield dist.all_reduce(gradient.clone(), group=group, async_op=True)
    """),
    "drops_the_residual": Mutant(
        9,
        loses={
            "feedback",
            "random_k",
            "parameters",
            "shapes",
            "dtypes_and_groups",
            "traffic",
            "hierarchical",
            "hook",
            "accuracy",
            "real_processes",
        },
    ).edited("""
        What is not sent is forgotten.

        - corrected = gradient + state["residual"] if "residual" in state else gradient
        + corrected = gradient
    """),
    "adds_the_residual_twice": Mutant(17, loses={"feedback", "random_k", "parameters", "hook", "accuracy"}).edited("""
        The residual is added to the old one, which has been added to the gradient already.

        - state["residual"] = corrected - self.decompress(message, gradient.shape, name)
        + rest = corrected - self.decompress(message, gradient.shape, name)
        + state["residual"] = rest + state["residual"] if "residual" in state else rest
    """),
    "sends_random_indices": Mutant(
        16, loses={"random_k", "traffic", "hierarchical", "accuracy", "real_processes"}
    ).edited("""
        RandomK's message has its indices, and is gathered like TopK's.

          seed: int
        - summable = True

        - return (tensor.reshape(-1)[indices],)
        + return indices.to(torch.int32), tensor.reshape(-1)[indices]

        - indices = given.random_indices(shape.numel(), self.ratio, self.seed, name, self.state[name]["step"])
        - return message[0].new_zeros(shape.numel()).scatter(0, indices.to(message[0].device), message[0]).view(shape)
        + indices, values = message
        + return values.new_zeros(shape.numel()).scatter(0, indices.long(), values).view(shape)
    """),
    "other_indices_on_each_rank": Mutant(
        12,
        loses={
            "random_k",
            "shapes",
            "dtypes_and_groups",
            "traffic",
            "hierarchical",
            "hook",
            "accuracy",
            "real_processes",
        },
    ).edited("""
        RandomK's indices depend on the rank: values of different places are added up.

        - indices = given.random_indices(tensor.numel(), self.ratio, self.seed, name, step).to(tensor.device)
        + indices = given.random_indices(tensor.numel(), self.ratio, self.seed + dist.get_rank(), name, step)

        - indices = given.random_indices(shape.numel(), self.ratio, self.seed, name, self.state[name]["step"])
        + seed = self.seed + dist.get_rank()
        + indices = given.random_indices(shape.numel(), self.ratio, seed, name, self.state[name]["step"])
    """),
    "cold_start": Mutant(
        12, loses={"feedback", "power_sgd", "parameters", "dtypes_and_groups", "traffic", "hierarchical", "hook"}
    ).edited("""
        PowerSGD begins with new random numbers at each step.

        - q = state["q"] if "q" in state else given.random_matrix(m, r, gradient, name)
        + state["step"] = state.get("step", 0) + 1
        + q = given.random_matrix(m, r, gradient, name, state["step"])
    """),
    "p_is_only_normalized": Mutant(
        11,
        loses={
            "feedback",
            "power_sgd",
            "parameters",
            "dtypes_and_groups",
            "traffic",
            "hierarchical",
            "hook",
            "accuracy",
        },
    ).edited("""
        The columns of P have length 1, and are not orthogonal.

        - p = torch.linalg.qr(p.to(torch.promote_types(p.dtype, torch.float32))).Q.to(p.dtype)
        + p = p / p.norm(dim=0)
    """),
    "top_k_all_reduced_densely": Mutant(
        17, loses={"top_k", "traffic", "hierarchical", "accuracy", "real_processes"}
    ).edited("""
        TopK's zeros are sent, too, so that an all-reduce can add up.

        - ratio: float
        -
        - def encode(self, tensor: Tensor, name: str) -> Message:
        -     flat, count = tensor.reshape(-1), given.kept(self.ratio, tensor.numel())
        + ratio: float
        + summable = True
        +
        + def encode(self, tensor: Tensor, name: str) -> Message:
        +     flat, count = tensor.reshape(-1), given.kept(self.ratio, tensor.numel())

        - return indices.to(torch.int32), flat[indices]
        + return (torch.zeros_like(flat).scatter(0, indices, flat[indices]),)

        - indices, values = message
        - return values.new_zeros(shape.numel()).scatter(0, indices.long(), values).view(shape)
        + return message[0].view(shape)
    """),
    "long_indices": Mutant(18, loses={"top_k", "traffic", "hierarchical", "real_processes"}).edited("""
        TopK's indices have 8 bytes each.

        - return indices.to(torch.int32), flat[indices]
        + return indices, flat[indices]
    """),
    "signs_as_bytes": Mutant(18, loses={"one_bit", "traffic", "hierarchical", "real_processes"}).edited("""
        OneBit's signs take a byte each.

        - return given.pack(tensor >= 0, 1), mean
        + return (tensor.reshape(-1) >= 0).to(torch.int8) * 2 - 1, mean

        - return (given.unpack_signs(message[0], shape.numel()) * message[1]).view(shape)
        + return (message[0] * message[1]).view(shape)
    """),
    "one_unit_for_the_tensor": Mutant(24, loses={"quantized"}).edited("""
        Quantized has the largest magnitude of the whole tensor in each block's unit.

        - units = rows.abs().amax(1, keepdim=True) / largest
        + units = (rows.abs().amax(1, keepdim=True) / largest)
        + units = units.amax() * torch.ones_like(units) if len(units) else units
    """),
    "state_by_shape": Mutant(
        12,
        loses={"feedback", "random_k", "parameters", "dtypes_and_groups", "traffic", "overlap", "hierarchical", "hook"},
    ).edited("""
        Parameters of one shape share a state.

          new residual exactly that sum minus `self.decompress(message, ...)`. `gradient` stays as it is.\"\"\"
        - state = self.state[name]
        + state = self.state[str(tuple(gradient.shape))]

        - (n, m), r, state = given.matrix_shape(gradient.shape), self.rank, self.state[name]
        + (n, m), r, state = given.matrix_shape(gradient.shape), self.rank, self.state[str(tuple(gradient.shape))]
    """),
    "residual_not_in_the_checkpoint": Mutant(
        18, loses={"feedback", "checkpoint", "dtypes_and_groups", "hook"}
    ).edited("""
        Residuals are kept beside the state that is saved.

          new residual exactly that sum minus `self.decompress(message, ...)`. `gradient` stays as it is.\"\"\"
        - state = self.state[name]
        + state = self.__dict__.setdefault("rests", {}).setdefault(name, {})
    """),
    "fails_on_empty_tensors": Mutant(24, loses={"shapes"}).edited("""
        TopK asks for the largest element, which there may not be.

        - indices = flat.abs().topk(count, sorted=False).indices
        + indices = flat.abs().topk(count if flat.abs().max() > 0 else 0, sorted=False).indices
    """),
    "float32_only": Mutant(24, loses={"dtypes_and_groups"}).edited("""
        What is compressed is float32, whatever the gradient's dtype.

        - corrected = gradient + state["residual"] if "residual" in state else gradient
        + gradient = gradient.float()
        + corrected = gradient + state["residual"] if "residual" in state else gradient
    """),
    "all_ranks_whatever_the_group": Mutant(22, loses={"dtypes_and_groups", "hierarchical"}).edited("""
        The mean is divided by the number of all ranks.

        - rounds, world_size = given.BucketRounds(compressor, bucket), dist.get_world_size(group)
        + rounds, world_size = given.BucketRounds(compressor, bucket), dist.get_world_size(group)
        + ranks = dist.get_world_size()

        - yield dist.all_reduce(sent.div_(world_size), group=group, async_op=True)
        + yield dist.all_reduce(sent.div_(ranks), group=group, async_op=True)
    """),
    "begins_at_the_end": Mutant(24, loses={"overlap"}).edited("""
        All buckets begin when the last gradient is there.

        - for bucket in given.buckets(gradients, self.bucket_size_mb):
        + for bucket in list(given.buckets(gradients, self.bucket_size_mb)):
    """),
    "flat_in_disguise": Mutant(23, loses={"hierarchical"}).edited("""
        Each rank sends to all others, on its own node or not.

        - node = given.NodeReduction(intra_node_group, inter_node_group)
        + return self.all_reduce_compressed(gradients)
        + node = given.NodeReduction(intra_node_group, inter_node_group)
    """),
    "sums_between_nodes": Mutant(23, loses={"hierarchical"}).edited("""
        Between the nodes goes an all-reduce of the whole gradients.

        - given.finish([Pending(exchange(self.compressor, bucket, inter_node_group)) for bucket in own])
        + for bucket in own:
        +     for _, gradient in bucket:
        +         gradient.div_(dist.get_world_size(inter_node_group))
        +         dist.all_reduce(gradient, group=inter_node_group)
    """),
    "hook_forgets_names": Mutant(23, loses={"hook"}).edited("""
        The hook numbers the gradients in each bucket from 0.

        - return lambda state, bucket: started.future(bucket, Pending(exchange(compressor, started.named(bucket), group)))
        + def hook(state, bucket):
        +     named = [(str(number), gradient) for number, gradient in enumerate(bucket.gradients())]
        +     return started.future(bucket, Pending(exchange(compressor, named, group)))
        + return hook
    """),
}
