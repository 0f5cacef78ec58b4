"""Mutants of activation_checkpointing: what is wrong in each, what it earns, and the checks that it loses."""

from autograder.mutants import Mutant

VALUES = {"arguments", "parameters", "precision", "randomness", "nested", "misuse", "collectives", "real_processes"}
COSTS = {"once", "memory", "released", "segments", "segment_memory"}

MUTANTS = {
    "calls_plainly": Mutant(0, loses=VALUES | COSTS | {"offload", "offload_memory"}),
    "cuts_off_its_arguments": Mutant(2, loses=VALUES | COSTS, base="computes_to_the_end").edited("""
        The function is called with arguments that are cut off: what made them gets no gradient.

          with saved_tensors_hooks(pack, unpack):
        -     return function(*args)
        +     return function(*(arg.detach() if isinstance(arg, torch.Tensor) else arg for arg in args))
    """),
    # what needs one tensor only, or is not counted
    "computes_for_each_tensor": Mutant(
        17, loses={"nested", "once", "segments", "collectives", "real_processes"}, base="computes_to_the_end"
    ).edited("""
        Each tensor that is wanted has the function called again.

        - count, there = 0, {}
        + count = 0

        - if number not in there:
        -     there.update(enumerate(again()))
        - return there.pop(number)
        + return again()[number]
    """),
    "parameters_without_gradients": Mutant(23, loses={"parameters"}, base="backward_within_backward").edited("""
        The usual operator with a backward pass within; where no argument needs a gradient, nothing does.

        - return Segment.apply(torch.empty(0, requires_grad=True), function, *args)
        + return Segment.apply(None, function, *args)
    """),
    "gradient_of_the_first_only": Mutant(
        19, loses={"arguments", "precision", "collectives", "real_processes"}, base="computes_to_the_end"
    ).edited("""
        Only the first argument gets a gradient.

          with saved_tensors_hooks(pack, unpack):
        -     return function(*args)
        +     first, *rest = args
        +     return function(first, *(arg.detach() if isinstance(arg, torch.Tensor) else arg for arg in rest))
    """),
    "draws_another_mask": Mutant(20, loses={"randomness", "nested"}, base="computes_to_the_end").edited("""
        Random numbers go on in the second call: dropout drops others.

        - torch.set_rng_state(state)
    """),
    "rewinds_random_numbers": Mutant(20, loses={"randomness", "nested"}, base="computes_to_the_end").edited("""
        The state of the first call is set, and stays.

        - with torch.random.fork_rng(devices=[]), torch.enable_grad(), autocast:
        + with torch.enable_grad(), autocast:
    """),
    "keeps_what_it_computed": Mutant(
        20, loses={"memory", "released", "segment_memory"}, base="computes_to_the_end"
    ).edited("""
        What was computed again hangs on the graph of the second call, in a circle that nobody frees.

        - return there.pop(number)
        + return there[number]

        - with saved_tensors_hooks(lambda tensor: found.append(tensor.detach()), lambda _: None):
        + with saved_tensors_hooks(lambda tensor: found.append(tensor), lambda _: there):
    """),
    "never_lets_go": Mutant(22, loses={"memory"}, base="computes_to_the_end").edited("""
        What was computed again stays there until the function's backward pass is over.

        - return there.pop(number)
        + return there[number]
    """),
    "forgets_autocast": Mutant(24, loses={"precision"}, base="computes_to_the_end").edited("""
        The second call computes in float32.

        - with torch.random.fork_rng(devices=[]), torch.enable_grad(), autocast:
        + with torch.random.fork_rng(devices=[]), torch.enable_grad():
    """),
    # what a checkpoint holds itself, the one around it does not compute again
    "holds_its_arguments": Mutant(22, loses={"misuse", "nested"}, base="computes_to_the_end").edited("""
        Arguments are kept as they are: a change in place goes unnoticed, and gradients are wrong.

        - places = [i for i, arg in enumerate(args) if isinstance(arg, torch.Tensor)]
        - node = Save.apply(torch.empty(0, requires_grad=True), *(args[i] for i in places)).grad_fn
        - others = [None if i in places else arg for i, arg in enumerate(args)]

        - found, given = [], list(others)
        - for place, tensor in zip(places, node.saved_tensors, strict=True):
        -     given[place] = tensor.detach().requires_grad_(tensor.requires_grad)
        + found = []
        + given = [a.detach().requires_grad_(a.requires_grad) if isinstance(a, torch.Tensor) else a for a in args]
    """),
    "last_segment_takes_the_rest": Mutant(
        22, loses={"segments", "segment_memory"}, base="computes_to_the_end"
    ).edited("""
        As in torch: what is left over makes the last segment longer.

        - parts = [part.tolist() for part in torch.arange(len(functions)).tensor_split(segments)]
        + length = len(functions) // segments
        + begins = [n * length for n in range(segments)]
        + parts = [list(range(i, i + length)) for i in begins[:-1]] + [list(range(begins[-1], len(functions)))]
    """),
    "leaves_functions_out": Mutant(22, loses={"segments", "segment_memory"}, base="computes_to_the_end").edited("""
        Segments have floor(n / k) functions: what is left over is never called.

        - parts = [part.tolist() for part in torch.arange(len(functions)).tensor_split(segments)]
        + length = len(functions) // segments
        + parts = [list(range(n * length, (n + 1) * length)) for n in range(segments)]
    """),
    "checkpoints_the_last_segment": Mutant(23, loses={"segments"}, base="computes_to_the_end").edited("""
        The last segment is called again, too.

        - for part in parts[:-1]:
        + for part in parts:
              input = checkpoint(lambda x, part=part: in_turn([functions[i] for i in part], x), input)
        - return in_turn([functions[i] for i in parts[-1]], input)
        + return input
    """),
    "offloads_a_copy": Mutant(24, loses={"offload_memory"}, base="computes_to_the_end").edited("""
        A copy goes to the host, and the tensor stays.

        -     return tensor, None
        - return to_host(tensor) if device.type == "cpu" else tensor.to(device), tensor.device
        +     return tensor, None, None
        + return to_host(tensor) if device.type == "cpu" else tensor.to(device), tensor.device, tensor

        - tensor, home = packed
        + tensor, home, _ = packed
    """),
    "leaves_them_on_the_host": Mutant(24, loses={"offload_memory"}, base="computes_to_the_end").edited("""
        The backward pass gets the host's copies as they are.

        - return tensor if home is None else to_device(tensor, home)
        + return tensor
    """),
    "offloads_parameters": Mutant(24, loses={"offload"}, base="computes_to_the_end").edited("""
        Weights, which are on the device anyway, come back a second time.

        - base = tensor if tensor._base is None else tensor._base
        - if isinstance(base, torch.nn.Parameter):
        -     return tensor, None

        - return tensor if home is None else to_device(tensor, home)
        + return to_device(tensor, home)
    """),
    "offloads_in_bfloat16": Mutant(23, loses={"offload", "offload_memory"}, base="computes_to_the_end").edited("""
        Half the bytes over the link, and not the same ones back.

        - return to_host(tensor) if device.type == "cpu" else tensor.to(device), tensor.device
        + return to_host(tensor.bfloat16()) if device.type == "cpu" else tensor.to(device), tensor.dtype

        - tensor, home = packed
        - return tensor if home is None else to_device(tensor, home)
        + tensor, dtype = packed
        + return tensor if dtype is None else to_device(tensor).to(dtype)
    """),
    "checks_nothing": Mutant(22, loses={"misuse", "segments"}, base="computes_to_the_end").edited("""
        Bad arguments fail somewhere on the way, or not at all.

        - if not callable(function):
        -     raise ValueError(f"function must be something to call, got {function!r}")

        - if not isinstance(segments, int) or not 1 <= segments <= len(functions):
        -     raise ValueError(f"segments must be from 1 to {len(functions)}, got {segments!r}")
        + segments = int(min(max(segments, 1), len(functions)))

        - try:
        -     device = torch.device(device)
        - except RuntimeError:
        -     raise ValueError(f"device must be one that torch knows, got {device!r}") from None
        + device = torch.device(device)
    """),
}
