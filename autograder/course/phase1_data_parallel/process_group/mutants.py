"""Mutants of process_group: what is wrong in each, what it earns, and the checks that it loses."""

from autograder.mutants import Mutant

READS = {"from_env", "missing", "no_number"}
GROUP = {"setup", "backend", "cleanup", "kept"}
TURNS = {"order", "failing", "groups"}
METRICS = {"groups", "means", "precision", "names_in_any_order", "weights"}

MUTANTS = {
    "says_what_python_says": Mutant(21, loses={"missing", "no_number"}).edited("""
        What is missing is a KeyError, what is no number is int()'s own message.

        - missing = [name for name in (*numbers.values(), *address) if name not in os.environ]
        - if missing:
        -     raise ValueError(f"not set in the environment: {', '.join(missing)}; torchrun sets them for each rank")

        - try:
        -     fields[field] = int(os.environ[name])
        - except ValueError:
        -     raise ValueError(f"{name} must be a whole number, got {os.environ[name]!r}") from None
        + fields[field] = int(os.environ[name])
    """),
    "names_every_variable": Mutant(22, loses={"missing"}).edited("""
        The error always names all that torchrun sets.

        - raise ValueError(f"not set in the environment: {', '.join(missing)}; torchrun sets them for each rank")
        + raise ValueError("one of RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT is not set")
    """),
    "local_rank_is_rank": Mutant(14, loses=READS | GROUP).edited("""
        The number on the machine is taken for the number in the world.

        - _TORCHRUN = {"rank": "RANK", "world_size": "WORLD_SIZE", "local_rank": "LOCAL_RANK"}
        + _TORCHRUN = {"rank": "LOCAL_RANK", "world_size": "WORLD_SIZE", "local_rank": "LOCAL_RANK"}
    """),
    "always_env": Mutant(23, loses={"backend", "real_processes"}).edited("""
        init_method and the backend are not passed on.

        - config.backend, init_method=config.init_method, rank=config.rank, world_size=config.world_size
        + "gloo", rank=config.rank, world_size=config.world_size
    """),
    "remembers_the_group": Mutant(23, loses={"cleanup"}).edited("""
        Its own memory of having set up outlives cleanup.

        + _done: list[DDPConfig] = []
        +
        +
          def setup_distributed(config: DDPConfig) -> torch.device:

        - if not dist.is_initialized() and config.backend == "mpi":
        + if not _done and config.backend == "mpi":

        - elif not dist.is_initialized():
        + elif not _done:
        +     _done.append(config)

        - elif (dist.get_rank(), dist.get_world_size()) != (config.rank, config.world_size):
        + elif (_done[0].rank, _done[0].world_size) != (config.rank, config.world_size):
    """),
    "keeps_any_group": Mutant(24, loses={"kept"}).edited("""
        An existing group is kept without a look at the config.

        - elif (dist.get_rank(), dist.get_world_size()) != (config.rank, config.world_size):
        -     existing = f"rank {dist.get_rank()} of {dist.get_world_size()}"
        -     raise ValueError(f"config must suit the existing group, {existing}, got {config!r}; call cleanup() first")
    """),
    "cleans_up_once": Mutant(21, loses={"cleanup", "alone", "real_processes"}).edited("""
        A second cleanup fails.

        - if dist.is_initialized():
        -     dist.destroy_process_group()
        + dist.destroy_process_group()
    """),
    "barrier_before_the_block": Mutant(20, loses=TURNS).edited("""
        All wait for each other, then all run the block at once.

        - first = is_main_process(group)
        - if not first:
        -     barrier(group)
        - try:
        -     yield
        - finally:
        -     if first:
        -         barrier(group)
        + barrier(group)
        + yield
    """),
    "leaves_them_waiting": Mutant(23, loses={"failing"}).edited("""
        When rank 0's block fails, it does not come to the barrier.

        - try:
        -     yield
        - finally:
        -     if first:
        -         barrier(group)
        + yield
        + if first:
        +     barrier(group)
    """),
    "sums": Mutant(16, loses=METRICS | {"one_collective", "bad_arguments", "real_processes"}).edited("""
        Adds up, and does not divide.

        - means = dict(zip(values, (sums[:-1] / sums[-1]).tolist(), strict=True))
        + means = dict(zip(values, sums[:-1].tolist(), strict=True))
    """),
    "one_collective_each": Mutant(23, loses={"one_collective"}).edited("""
        A collective for each metric.

        - weighted = [weight * value if weight else 0.0 for value in values.values()]
        - sums = torch.tensor([*weighted, weight], dtype=torch.float64, device=_device(group))
        - if dist.is_initialized():
        -     dist.all_reduce(sums, group=group)
        - means = dict(zip(values, (sums[:-1] / sums[-1]).tolist(), strict=True))
        + means = {}
        + for name, value in values.items():
        +     sums = torch.tensor([weight * value if weight else 0.0, weight], dtype=torch.float64, device=_device(group))
        +     if dist.is_initialized():
        +         dist.all_reduce(sums, group=group)
        +     means[name] = (sums[0] / sums[1]).item()
    """),
    "gathers_objects": Mutant(23, loses={"one_collective"}).edited("""
        The dictionaries themselves are gathered, pickled: their lengths first, then they.

        - weighted = [weight * value if weight else 0.0 for value in values.values()]
        - sums = torch.tensor([*weighted, weight], dtype=torch.float64, device=_device(group))
        + gathered: list[Any] = [(values, weight)]
          if dist.is_initialized():
        -     dist.all_reduce(sums, group=group)
        - means = dict(zip(values, (sums[:-1] / sums[-1]).tolist(), strict=True))
        +     gathered = [None] * dist.get_world_size(group)
        +     dist.all_gather_object(gathered, (values, weight), group=group)
        + total = sum(w for _, w in gathered)
        + means = {name: sum(w * v[name] for v, w in gathered if w) / total for name in values}
    """),
    "keeps_its_order": Mutant(24, loses={"names_in_any_order"}).edited("""
        Each rank sends its metrics in the order in which it has them.

        - values = {name: metric_value(name, metrics[name]) for name in sorted(metrics)}  # sorted: one order on all ranks
        + values = {name: metric_value(name, metrics[name]) for name in metrics}
    """),
    "even_world_sizes_only": Mutant(20, loses=METRICS).edited("""
        Takes half the number of ranks, rounded down, for half of it: wrong at odd world sizes.

        - means = dict(zip(values, (sums[:-1] / sums[-1]).tolist(), strict=True))
        + size = dist.get_world_size(group) if dist.is_initialized() else 1
        + pairs = max(size // 2, 0.5)
        + means = dict(zip(values, (sums[:-1] / sums[-1] * size / pairs / 2).tolist(), strict=True))
    """),
    "ignores_group": Mutant(24, loses={"groups"}).edited("""
        Metrics are those of the world, whatever the group.

        - dist.all_reduce(sums, group=group)
        + dist.all_reduce(sums)
    """),
    "multiplies_nan": Mutant(24, loses={"weights"}).edited("""
        A rank without a batch sends 0 * nan.

        - weighted = [weight * value if weight else 0.0 for value in values.values()]
        + weighted = [weight * value for value in values.values()]
    """),
    # what needs no other rank it may keep
    "does_nothing": Mutant(
        6, loses=GROUP | TURNS | METRICS | {"one_collective", "bad_arguments", "real_processes"}
    ).edited("""
        No group, no barrier, no messages: right for one process.

        - if not dist.is_initialized() and config.backend == "mpi":
        -     dist.init_process_group("mpi")
        - elif not dist.is_initialized():
        -     dist.init_process_group(
        -         config.backend, init_method=config.init_method, rank=config.rank, world_size=config.world_size
        -     )
        - elif (dist.get_rank(), dist.get_world_size()) != (config.rank, config.world_size):
        -     existing = f"rank {dist.get_rank()} of {dist.get_world_size()}"
        -     raise ValueError(f"config must suit the existing group, {existing}, got {config!r}; call cleanup() first")

        - first = is_main_process(group)
        - if not first:
        -     barrier(group)
        - try:
        -     yield
        - finally:
        -     if first:
        -         barrier(group)
        + yield

        - if dist.is_initialized():
        -     dist.all_reduce(sums, group=group)
    """),
}
