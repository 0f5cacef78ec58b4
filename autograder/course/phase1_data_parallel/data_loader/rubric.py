"""Hidden rubric of data_loader: 24 points, 19 for the sampler and 5 for the loader.

No check knows the order of an epoch: any order is correct if it is the same on every rank. Checks compare ranks with
each other, different numbers of ranks, and before with after a stop. Programs of `scenarios`, and some before the
checks, run on the ranks, together with the learner's module.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

from labkit.checks import Args, Draw, Ranks, Submission, check, expect
from labkit.course.phase1_data_parallel.data_loader.scenarios import disturbed, held, in_turn, leg
from labkit.trace import Trace

FORBIDDEN = {"torch.utils.data.DistributedSampler", "torch.utils.data.distributed.DistributedSampler"}
"""Names that `labkit integrity` reports; using them costs no marks by itself."""


def all_replicas(size: int, plan: list[tuple[int, int]], options: dict[str, Any]) -> list[list[list[Any]]]:
    """Return whole epochs, `(num_replicas, epoch)` each, of all replicas one after the other."""
    return [[leg(size, count, rank, epoch, **options) for rank in range(count)] for count, epoch in plan]


class Leg(NamedTuple):
    """A part of an epoch, on all of its ranks."""

    samples: list[list[int]]
    states: list[str]
    lengths: list[int]
    trace: Trace

    @classmethod
    def of(cls, found: list[list[Any]], trace: Trace) -> Leg:
        samples, states, lengths = map(list, zip(*found, strict=True))
        return cls(samples, states, lengths, trace)


def here(submission: Submission, ranks: Ranks, size: int, *plan: tuple[int, int], **options: Any) -> list[Leg]:
    """Run whole epochs, `(num_replicas, epoch)` each: all replicas in one process, since none of them stops."""
    run = ranks(1).call(submission.used_by(all_replicas, leg), [Args(size, list(plan), options)])
    return [Leg.of(found, run.trace) for found in run.values[0]]


def trained(
    submission: Submission, ranks: Ranks, size: int, *plan: tuple[int, int, int | None], **options: Any
) -> list[Leg]:
    """Run legs of one training, `(num_replicas, epoch, samples that each rank takes)`, each on its own processes.

    Rank 0's state goes from one leg to the next through this process, which carries no more than a file would.
    """
    legs: list[Leg] = []
    for count, epoch, steps in plan:
        state = legs[-1].states[0] if legs else None
        ranks.renew()
        given = [Args(size, count, rank, epoch, steps, state, **options) for rank in range(count)]
        run = ranks(count).call(submission.used_by(leg), given)
        legs.append(Leg.of(run.values, run.trace))
    return legs


def flat(shares: list[list[int]]) -> list[int]:
    return [index for share in shares for index in share]


# Which samples --------------------------------------------------------------------------------------------------------


@check(
    points=2,
    todo=3,
    title="every sample exactly once in an epoch",
    look_at="sizes that do not divide, smaller than the number of ranks, and 0",
)
def once(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for size in (0, 1, draw.randrange(20, 60) * 6, draw.randrange(100, 300) * 12 + draw.choice([5, 7])):
        counts = (1, 6, draw.choice([3, 4]), draw.randrange(7, 12))
        epochs = here(submission, ranks, size, *((count, draw.randrange(9)) for count in counts))
        for count, found in zip(counts, epochs, strict=True):
            expect(sorted(flat(found.samples)), f"samples of {count} ranks, sorted").equals(list(range(size)))
            wanted = [len(range(rank, size, count)) for rank in range(count)]
            expect([len(share) for share in found.samples], "samples on each rank").equals(wanted)
            expect(found.lengths, "len of each rank's sampler").equals(wanted)


@check(
    points=2,
    todo=2,
    title="one order, on all ranks and for any number of them",
    look_at="what the order depends on, and how it is dealt out: one sample to each rank in turn",
)
def one_order(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    size, epoch, seed = draw.choice([41, 47, 53, 61, 71, 77]), draw.randrange(9), draw.randrange(100)
    alone = ranks(1).call(submission.used_by(disturbed), [Args(size, 1, 0, epoch, seed)]).values[0][0]
    for count in (2, draw.choice([3, 5])):
        given = [Args(size, count, rank, epoch, seed) for rank in range(count)]
        shares = [samples for samples, _ in ranks(count).call(submission.used_by(disturbed), given).values]
        expect(in_turn(shares), f"samples of {count} ranks, one from each in turn").equals(alone)


@check(
    points=1, todo=3, title="nothing is sent", look_at="how ranks come to know the order: each can make it by itself"
)
def no_messages(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    size, count = 3 * draw.randrange(10, 20) + 1, 3
    legs = trained(submission, ranks, size, (count, 1, 4), (count, 1, None))
    had = sorted(index for found in legs for index in flat(found.samples))
    expect(had, "samples before and after a stop").equals(list(range(size)))
    for found in legs:
        called = sorted({event.operation for event in found.trace.collectives()})
        expect(called, "collectives").equals([])
        expect(sum(found.trace.messages_sent(rank) for rank in range(count)), "messages").equals(0)


@check(
    points=1,
    todo=2,
    title="what a rank draws for itself stays what it was",
    look_at="whose generator the order is drawn from",
)
def undisturbed(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    given = [Args(draw.randrange(10, 90), 2, 1, draw.randrange(9), draw.randrange(100))]
    samples, same = ranks(1).call(submission.used_by(disturbed), given).values[0]
    expect(len(samples) > 0 and same, "random numbers after an epoch are those without it").equals(True)


@check(
    points=2,
    todo=3,
    title="each epoch and each seed has an order of its own",
    look_at="_order: what the generator is seeded with",
)
def epochs(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    size, count, seed = 3 * draw.randrange(20, 30) + 1, 3, draw.randrange(100)
    numbers = [0, *draw.sample(range(1, 50), 3)]
    found = here(submission, ranks, size, *((count, epoch) for epoch in (*numbers, *numbers)), seed=seed)
    orders = [tuple(in_turn(one.samples)) for one in found]
    expect(len(set(orders[:4])), "different orders of four epochs").equals(4)
    expect(orders[4:] == orders[:4], "the same epochs once more have the same orders").equals(True)
    expect([sorted(order) == list(range(size)) for order in orders], "complete").equals([True] * 8)
    # some add epoch and seed, as the library does
    other = here(submission, ranks, size, (count, numbers[0]), seed=seed + 1000)
    expect(tuple(in_turn(other[0].samples)) in orders, "another seed has one of these orders").equals(False)


@check(
    points=1,
    todo=3,
    title="samples are mixed over all ranks",
    look_at="what is permuted: all samples, before they are dealt out",
)
def mixed(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    size, count = 600, 4
    first, second = here(submission, ranks, size, (count, 0), (count, 1), seed=draw.randrange(99))
    for found in (first, second):
        order = in_turn(found.samples)
        expect(sorted(order), "samples, sorted").equals(list(range(size)))
        neighbours = sum(abs(a - b) <= 4 for a, b in itertools.pairwise(order))
        expect(neighbours, "of 599 pairs that follow each other, those at most 4 apart").at_most(60)
    again = [len({*one} & {*other}) for one, other in zip(first.samples, second.samples, strict=True)]
    expect(max(again), "of a rank's 150 samples, those that it has in the next epoch, too").at_most(90)


@check(points=1, todo=3, title="shuffle=False deals out in order", look_at="the order when nothing is to be mixed")
def unshuffled(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    count = draw.choice([3, 4, 7])
    size = draw.randrange(5, 9) * count + draw.randrange(1, count)
    [found] = here(submission, ranks, size, (count, draw.randrange(5)), shuffle=False)
    wanted = [list(range(rank, size, count)) for rank in range(count)]
    expect(found.samples, "samples of each rank").equals(wanted)


@check(
    points=1,
    todo=3,
    title="drop_last: as many on every rank, and each epoch leaves out others",
    look_at="how many are left out: fewer than there are ranks, and which",
)
def drop_last(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    count = draw.choice([5, 6, 7])
    size = draw.randrange(6, 12) * count + draw.randrange(2, count)
    missing = set()
    for found in here(submission, ranks, size, *((count, epoch) for epoch in range(4)), drop_last=True):
        expect([len(share) for share in found.samples], "samples on each rank").equals([size // count] * count)
        expect(found.lengths, "len of each rank's sampler").equals([size // count] * count)
        expect(len(set(flat(found.samples))), "different samples").equals(size // count * count)
        missing.add(tuple(sorted(set(range(size)) - set(flat(found.samples)))))
    expect(len(missing), "different sets of samples that four epochs left out").at_least(2)


# Stopping and resuming ------------------------------------------------------------------------------------------------


@check(
    points=2,
    todo=3,
    title="a run that stopped twice goes on where it was, and its next epoch is whole",
    look_at="where the iteration begins after load_state_dict, and in later epochs",
)
def resume(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    count, epoch = draw.choice([2, 3]), draw.randrange(1, 9)
    size = draw.randrange(12, 20) * count + 1
    legs = trained(
        submission, ranks, size, (count, epoch, 3), (count, epoch, 4), (count, epoch, None), (count, epoch + 1, None)
    )
    [whole] = here(submission, ranks, size, (count, epoch))
    for rank in range(count):
        parts = [found.samples[rank] for found in legs[:3]]
        expect(flat(parts), "samples of a rank in three legs, and without a stop").equals(whole.samples[rank])
        expect(legs[2].lengths[rank], "len of its sampler after the second stop").equals(len(parts[2]))
    states = [len(set(found.states)) for found in legs[:2]]
    expect(states, "different states of the ranks at each stop").equals([1, 1])
    skipped = trained(submission, ranks, size, (count, epoch, 5), (count, epoch + 1, None))[1]
    for following, after in ((legs[3], "one that was stopped twice"), (skipped, "one that was given up")):
        what = f"samples of the epoch after {after}"
        expect(sorted(flat(following.samples)), what).equals(list(range(size)))


@check(
    points=2,
    todo=3,
    title="on other numbers of ranks, nothing is lost and nothing repeated",
    look_at="what the state counts: samples of one rank, or of all together?",
)
def resume_elsewhere(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    few, more = draw.choice([2, 3]), draw.choice([4, 5])
    for counts, options in (([more, few, more + 1, 1], {}), ([few, more], {"shuffle": False})):
        size, epoch = draw.randrange(90, 130), draw.randrange(9)
        steps = [*(draw.randrange(1, 6) for _ in counts[1:]), None]
        plan = [(count, epoch, taken) for count, taken in zip(counts, steps, strict=True)]
        legs = trained(submission, ranks, size, *plan, **options)
        seen = sorted(index for found in legs for index in flat(found.samples))
        expect(seen, f"samples of one epoch on {counts} ranks, sorted").equals(list(range(size)))


def at_the_ends(size: int, num_replicas: int) -> list[Any]:
    """Return the number of samples after states from the start and the end of an epoch, and the next iterations."""
    import json

    from labkit.exercises import data_loader

    def made() -> Any:
        return data_loader.ShardedSampler(size, num_replicas, num_replicas - 1)

    sampler = made()
    sampler.set_epoch(2)
    at_first = json.loads(json.dumps(sampler.state_dict()))
    whole = len(list(sampler))
    at_last = json.loads(json.dumps(sampler.state_dict()))
    again = len(list(sampler))
    found = [whole, again]
    for state in (at_first, at_last):
        sampler = made()
        sampler.load_state_dict(state)
        found += [len(list(sampler)), len(list(sampler))]
        sampler.set_epoch(3)
        found.append(len(list(sampler)))
    return found


@check(
    points=1,
    todo=3,
    title="states from before the first sample and from after the last",
    look_at="the last round, in which only some ranks get a sample",
)
def ends(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    count = draw.choice([3, 4])
    share = draw.randrange(4, 9)
    found = ranks(1).call(submission.used_by(at_the_ends), [Args(share * count + 1, count)]).values[0]
    expect(found[:2], "samples of an epoch, and of the same one again").equals([share] * 2)
    what = "samples of the iteration after loading, of the next one, and of the next epoch; state from the"
    expect(found[2:5], f"{what} beginning").equals([share] * 3)
    expect(found[5:], f"{what} end").equals([0, share, share])


def read_too_far(size: int, num_replicas: int, cases: list[tuple[int, int]]) -> list[Any]:
    """Return whether the state after `taken` of `given` samples is as if no more had been read; then the samples left.

    Each case continues from the state of the previous one.
    """
    import itertools

    from labkit.exercises import data_loader

    found: list[Any] = []
    state = None
    for given, taken in cases:
        states = []
        for steps, used in ((given, taken), (taken, None)):
            sampler = data_loader.ShardedSampler(size, num_replicas, 0)
            if state is not None:
                sampler.load_state_dict(state)
            dealing = iter(sampler)
            list(itertools.islice(dealing, steps))
            states.append(sampler.state_dict() if used is None else sampler.state_dict(taken=used))
        found.append(states[0] == states[1])
        state = states[0]
    sampler.load_state_dict(state)
    return [*found, len(list(sampler))]


@check(
    points=1,
    todo=3,
    title="state_dict(taken=...) is the state after so many samples",
    look_at="what a loader that reads ahead has been given, and what was used of it",
)
def read_ahead(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    share, taken = draw.randrange(20, 40), draw.randrange(1, 6)
    cases = [
        (draw.randrange(1, 5), 0),
        (share, taken),  # the loader has read all of the epoch
        (draw.randrange(1, 5), 0),
        (taken + draw.randrange(1, 5), taken),
        (share - 2 * taken, share - 2 * taken),
    ]
    found = ranks(1).call(submission.used_by(read_too_far), [Args(3 * share, 3, cases)]).values[0]
    what = f"after {[used for _, used in cases]} samples of {[read for read, _ in cases]}"
    expect(found[:-1], f"{what}, the state is that of a sampler that gave no more").equals([True] * len(cases))
    expect(found[-1], f"samples that are left {what}").equals(0)


def refusals(device: str) -> list[list[str]]:
    """Return the error for each bad argument, after checking that good ones are accepted."""
    from labkit.exercises import data_loader

    make, prefetch = data_loader.ShardedSampler, data_loader.PrefetchLoader
    good = make(10, 2, 0)
    assert len(list(good)) == 5
    assert len(list(prefetch([1, 2, 3], device))) == 3
    state = good.state_dict()
    cases: dict[str, Any] = {
        "dataset_size": lambda: make(-1, 2, 0),
        "num_replicas": lambda: make(10, 0, 0),
        "rank": lambda: make(10, 2, 2),
        "epoch": lambda: good.set_epoch(-1),
        "dataset_size ": lambda: make(11, 2, 0).load_state_dict(state),
        "seed": lambda: make(10, 2, 0, seed=5).load_state_dict(state),
        "device": lambda: prefetch([1, 2, 3], "nowhere"),
        "prefetch_factor": lambda: prefetch([1, 2, 3], device, prefetch_factor=0),
    }
    found = []
    for name, case in cases.items():
        try:
            case()
            found.append([name.strip(), "no error", ""])
        except Exception as error:
            found.append([name.strip(), type(error).__name__, str(error)])
    return found


@check(
    points=1,
    todo=4,
    title="bad arguments raise ValueError with the argument's name",
    look_at="what is tested at the very beginning, and in load_state_dict",
)
def bad_arguments(submission: Submission, ranks: Ranks) -> None:
    for name, error, message in ranks(1).call(submission.used_by(refusals), [Args("cpu")]).values[0]:
        expect(error, f"a bad {name} raises").equals("ValueError")
        expect(message, "message").contains(name)


def python_memory(size: int, num_replicas: int) -> list[int]:
    """Return the peak bytes of Python objects at the start of an epoch, and its number of samples."""
    import itertools
    import tracemalloc

    from labkit.exercises import data_loader

    tracemalloc.start()
    sampler = data_loader.ShardedSampler(size, num_replicas, 1)
    dealing = iter(sampler)
    samples = list(itertools.islice(dealing, 3))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return [peak, len(samples)]


@check(
    points=1,
    todo=2,
    title="a rank makes Python numbers of its own samples, not of all",
    look_at="what becomes a list: the order, or this rank's part of it",
)
def share_in_memory(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    size = draw.randrange(150_000, 200_000)
    peak, samples = ranks(1).call(submission.used_by(python_memory), [Args(size, 10)]).values[0]
    expect(samples, "samples of the first three").equals(3)
    # a list of all samples takes 40 bytes for each; an array, 8
    expect(peak, "bytes at the start of an epoch", unit="bytes").at_most(20 * size)


# Prefetching ----------------------------------------------------------------------------------------------------------


def prefetched(numbers: list[int], fails_after: int | None, factor: int) -> dict[str, Any]:
    """Return a loader's batches in two epochs, or that they do not arrive."""
    import threading

    import torch

    from labkit.exercises import data_loader

    class Broken(Exception):
        pass

    class Loader:
        def __len__(self) -> int:
            return len(numbers)

        def __iter__(self) -> Any:
            for count, number in enumerate(numbers):
                if count == fails_after:
                    raise Broken(number)
                yield torch.full((2, 3), float(number)), {"label": [torch.tensor(number)], "name": str(number)}

    found: dict[str, Any] = {"batches": [], "length": 0, "devices": []}

    def use() -> None:
        loader = data_loader.PrefetchLoader(Loader(), "cpu", prefetch_factor=factor)
        found["length"] = len(loader)
        for _ in range(2):
            try:
                for images, rest in loader:
                    found["batches"].append([images[1, 2].item(), rest["label"][0].item(), rest["name"]])
            except Broken as error:
                found["batches"].append(["Broken", error.args[0], ""])
        for images, rest in data_loader.PrefetchLoader(Loader(), "meta"):
            found["devices"] += [images.device.type, rest["label"][0].device.type]
            break

    # for loaders that wait for something that never comes
    user = threading.Thread(target=use, daemon=True)
    user.start()
    user.join(5)
    return found


@check(
    points=1,
    todo=4,
    title="prefetch: every batch, in order, on the device, in each epoch",
    look_at="`copies.make` and `copies.hand_over` for each batch; the second epoch",
)
def batches(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    numbers = draw.sample(range(100), 9)
    found = ranks(1).call(submission.used_by(prefetched), [Args(numbers, None, draw.choice([1, 2, 20]))]).values[0]
    wanted = [[float(number), number, str(number)] for number in numbers]
    expect(found["batches"], "batches of two epochs").equals(wanted * 2)
    expect(found["length"], "len(loader)").equals(9)
    expect(found["devices"], "devices of the tensors in a batch for device='meta'").equals(["meta", "meta"])


@check(
    points=1,
    todo=4,
    title="prefetch: an error of the loader comes in its place",
    look_at="what happens to an exception in the thread",
)
def errors(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    numbers, good = draw.sample(range(100), 6), draw.randrange(1, 5)
    given = [Args(numbers, good, draw.choice([1, 2, 20]))]
    found = ranks(1).call(submission.used_by(prefetched), given).values[0]
    wanted = [[float(number), number, str(number)] for number in numbers[:good]] + [["Broken", numbers[good], ""]]
    expect(found["batches"], "batches and the loader's error, of two epochs").equals(wanted * 2)


@check(
    points=1,
    todo=4,
    title="prefetch: reads while you hold a batch",
    look_at="who reads the next batch, and when: the thread, before it is asked for",
)
def ahead(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    factor = draw.choice([1, 2, 3])
    found = ranks(1).call(submission.used_by(held), [Args(factor, 50, 3.0)]).values[0]
    expect(found["ahead"], "batches read ahead while the first one is held").at_least(factor)
    expect(found["while_held"], "the last of them was read while it was held").equals(True)


@check(
    points=1,
    todo=4,
    title="prefetch: no more than prefetch_factor, and nothing before it is iterated",
    look_at="what the thread waits for when enough batches are ready",
)
def bounded(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    factor = draw.choice([1, 2, 4])
    found = ranks(1).call(submission.used_by(held), [Args(factor, 50)]).values[0]
    expect(found["unasked"], "batches read before anybody iterates").equals(0)
    what = f"batches read ahead while the first one is held, prefetch_factor={factor}"
    expect(found["ahead"], what).at_most(factor)


@check(
    points=1,
    todo=4,
    title="prefetch: who leaves early leaves no thread behind",
    look_at="how the thread learns that nobody asks any more, while it waits",
)
def leaves(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    found = ranks(1).call(submission.used_by(held), [Args(draw.choice([1, 2]), 50)]).values[0]
    expect(found["threads"], "threads that go on after `break`").equals(0)
    expect(found["later"], "batches read after it").equals(0)
