"""Visible checks and hints of data_loader: ten or twelve samples, so that every index can be traced by hand.

Programs of `scenarios`, and some before the checks, run on the ranks: they create the module's samplers and loaders and
return the results.
"""

from __future__ import annotations

from typing import Any

from labkit.checks import Args, Draw, Ranks, Submission, check, expect
from labkit.course.phase1_data_parallel.data_loader.scenarios import disturbed, held, in_turn, leg


def dealt(size: int, num_replicas: int, rank: int, epochs: list[int], **options: Any) -> list[list[int]]:
    """Return this rank's samples in each of these epochs."""
    from labkit.exercises import data_loader

    sampler = data_loader.ShardedSampler(size, num_replicas, rank, **options)
    samples = []
    for epoch in epochs:
        sampler.set_epoch(epoch)
        samples.append([int(index) for index in sampler])
    return samples


def first_epoch(submission: Submission, ranks: Ranks, size: int, count: int, **options: Any) -> list[list[int]]:
    """Return the samples of each rank in epoch 0."""
    run = ranks(count).call(submission.used_by(dealt), lambda rank: Args(size, count, rank, [0], **options))
    return [epochs[0] for epochs in run.values]


@check(
    points=4,
    todo=2,
    title="every sample exactly once in an epoch",
    look_at="which places of the order are this rank's, also when the size does not divide",
)
def once(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for size, count in ((8, 4), (10, 4), (draw.choice([5, 7]), draw.choice([1, 3]))):
        shares = first_epoch(submission, ranks, size, count)
        seen = sorted(index for share in shares for index in share)
        expect(seen, f"what {count} ranks have of {size} samples, sorted").equals(list(range(size)))
        wanted = [len(range(rank, size, count)) for rank in range(count)]
        expect([len(share) for share in shares], f"samples on each of {count} ranks").equals(wanted)


@check(
    points=3,
    todo=2,
    title="one order, on all ranks and for any number of them",
    look_at="the generator: whose is it, and what is it seeded with?",
)
def one_order(submission: Submission, ranks: Ranks) -> None:
    wanted = in_turn(first_epoch(submission, ranks, 12, 1))
    expect(wanted == sorted(wanted), "the order is 0, 1, 2, ... (12 samples, shuffle=True)").equals(False)
    for count in (2, 4):
        run = ranks(count).call(submission.used_by(disturbed), [Args(12, count, rank) for rank in range(count)])
        order = in_turn([samples for samples, _ in run.values])
        expect(order, f"samples of {count} ranks, one from each in turn, beside the order of one rank").equals(wanted)
        undisturbed = [same for _, same in run.values]
        expect(undisturbed, "what each rank draws for itself stays what it was").equals([True] * count)


@check(
    points=3,
    todo=2,
    title="set_epoch mixes anew, the same way each time",
    look_at="what the order depends on: seed, epoch, shuffle",
)
def epochs(submission: Submission, ranks: Ranks) -> None:
    single_rank = ranks(1)
    zero, first, again = single_rank.call(submission.used_by(dealt), [Args(12, 1, 0, [0, 1, 0])]).values[0]
    expect(zero == first, "epoch 1 has the order of epoch 0").equals(False)
    expect(again, "epoch 0, a second time").equals(zero)
    seeded = single_rank.call(submission.used_by(dealt), [Args(12, 1, 0, [0], seed=7)]).values[0][0]
    expect(seeded == zero, "seed=7 has the order of seed=0").equals(False)
    shares = first_epoch(submission, ranks, 7, 3, shuffle=False)
    expect(shares, "7 samples on 3 ranks, shuffle=False").equals([[0, 3, 6], [1, 4], [2, 5]])


@check(
    points=2,
    todo=2,
    title="drop_last: all ranks have as many",
    look_at="how many samples are left out, and of which end",
)
def drop_last(submission: Submission, ranks: Ranks) -> None:
    shares = first_epoch(submission, ranks, 11, 4, drop_last=True)
    expect([len(share) for share in shares], "samples on each of 4 ranks, of 11").equals([2, 2, 2, 2])
    expect(len({index for share in shares for index in share}), "different samples on all ranks").equals(8)
    whole = in_turn(first_epoch(submission, ranks, 11, 1))
    expect(in_turn(shares), "the samples that are kept: the first eight of the order").equals(whole[:8])


def resumed(size: int, num_replicas: int, rank: int, state: str, epoch: int) -> list[Any]:
    """Return the rest of that epoch, by `len` and in fact, and the number of samples in the next one."""
    import json

    from labkit.exercises import data_loader

    sampler = data_loader.ShardedSampler(size, num_replicas, rank)
    sampler.load_state_dict(json.loads(state))
    sampler.set_epoch(epoch)
    said, left = len(sampler), [int(index) for index in sampler]
    sampler.set_epoch(epoch + 1)
    return [left, said, len(list(sampler))]


@check(
    points=3,
    todo=3,
    title="a run that stopped goes on where it was",
    look_at="`_begin` in the slice, `_given` at each yield, and `position` when the epoch is over",
)
def resume(submission: Submission, ranks: Ranks) -> None:
    before = ranks(2).call(submission.used_by(leg), lambda rank: Args(10, 2, rank, 3, 2)).values
    state = before[0][1]
    expect(before[1][1], "rank 1's state, beside rank 0's").equals(state)
    after = ranks(2).call(submission.used_by(resumed), lambda rank: Args(10, 2, rank, state, 3)).values
    whole = ranks(2).call(submission.used_by(dealt), lambda rank: Args(10, 2, rank, [3])).values
    for rank in range(2):
        joined = before[rank][0] + after[rank][0]
        expect(joined, f"rank {rank}: 2 samples of epoch 3, and then the others").equals(whole[rank][0])
        expect(after[rank][1], f"rank {rank}: len(sampler) when 3 are left").equals(3)
        expect(after[rank][2], f"rank {rank}: samples of epoch 4, the next one").equals(5)
    # with 10 samples on 4 ranks the third round has two samples and ends the epoch
    over = ranks(4).call(submission.used_by(leg), lambda rank: Args(10, 4, rank, 3, 3)).values
    given = [Args(10, 4, rank, over[rank][1], 3) for rank in range(4)]
    for rank, (remaining, _, following) in enumerate(ranks(4).call(submission.used_by(resumed), given).values):
        expect(remaining, f"rank {rank} of 4: what is left of 10 samples after 3 rounds").equals([])
        expect(following, f"rank {rank} of 4: samples of epoch 4").equals(3 if rank < 2 else 2)


@check(
    points=4,
    todo=3,
    title="and on another number of ranks, too",
    look_at="position: how many samples of the order have all ranks had together?",
)
def resume_elsewhere(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for steps, ahead, counts in ((draw.choice([1, 2]), 0, (3, 1)), (0, draw.choice([1, 2]), (2,))):
        taken = steps if ahead else None
        given = [Args(11, 4, rank, 1, steps + ahead, taken=taken) for rank in range(4)]
        before = ranks(4).call(submission.used_by(leg), given).values
        had = [index for samples, *_ in before for index in samples[:steps]]
        read = f" (read {ahead}, then state_dict(taken={steps}))" if ahead else ""
        for count in counts:
            given = [Args(11, count, rank, before[0][1], 1) for rank in range(count)]
            run = ranks(count).call(submission.used_by(resumed), given)
            both = sorted(had + [index for remaining, _, _ in run.values for index in remaining])
            expect(both, f"had by 4 ranks{read}, then by {count}, sorted").equals(list(range(11)))


def prefetched(count: int, breaks: bool) -> list[Any]:
    """Return the batches of a PrefetchLoader in two epochs, and the exception it raises when the loader fails."""
    import torch

    from labkit.exercises import data_loader

    class Loader:
        def __len__(self) -> int:
            return count

        def __iter__(self) -> Any:
            for number in range(count):
                yield {"x": torch.full((2,), float(number)), "names": ["a", "b"]}
            if breaks:
                raise KeyError("no such file")

    loader = data_loader.PrefetchLoader(Loader(), "cpu")
    seen: list[Any] = [len(loader)]
    for _ in range(2):
        try:
            for batch in loader:
                seen.append([batch["x"].tolist(), batch["names"]])
        except KeyError:
            seen.append("KeyError")
    return seen


@check(
    points=2,
    todo=4,
    title="prefetch: every batch, in order, in each epoch; an error in its place",
    look_at="what the thread puts into the queue when the loader ends, and when it raises",
)
def batches(submission: Submission, ranks: Ranks) -> None:
    wanted = [[[float(number)] * 2, ["a", "b"]] for number in range(4)]
    for breaks, last in ((False, []), (True, ["KeyError"])):
        seen = ranks(1).call(submission.used_by(prefetched), [Args(4, breaks)]).values[0]
        expect(seen[0], "len(loader)").equals(4)
        end = " and then the loader's KeyError" if breaks else ""
        expect(seen[1:], f"4 batches{end}, twice").equals([*wanted, *last] * 2)


@check(
    points=3,
    todo=4,
    title="prefetch: reads ahead while you work, not too far, and leaves no thread",
    look_at="when the thread begins, what it waits for, and what ends it when you leave early",
)
def reads_ahead(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    factor = draw.choice([1, 2, 3])
    counts = ranks(1).call(submission.used_by(held), [Args(factor, 100)]).values[0]
    expect(counts["unasked"], "batches read before anybody iterates").equals(0)
    ahead = f"batches read ahead while the first is held, prefetch_factor={factor}"
    expect(counts["ahead"], ahead).at_least(factor)
    expect(counts["ahead"], ahead).at_most(factor)
    expect(counts["threads"], "threads that go on after `break`").equals(0)


HINTS = {
    1: [
        "`torch.rand` and `torch.randperm` draw from one generator that the whole process shares. Anything else "
        "that draws moves it on, by a different amount on each rank. What would make the permutation depend on seed "
        "and epoch alone?",
        "`torch.Generator().manual_seed(...)` is a generator of your own: the same on every rank, and nobody else "
        "notices what you draw from it. Seed it with `self.seed + self.epoch`.",
        "Without `self.shuffle`: `torch.arange(self.dataset_size)`. With it: `torch.randperm(self.dataset_size, "
        "generator=torch.Generator().manual_seed(self.seed + self.epoch))`.",
    ],
    2: [
        "Take 10 samples and 4 ranks, and write the order of an epoch in rows of four: each row is a round, each "
        "column a rank. Which elements of the order are those of rank 1? What changes when the first 4 are gone "
        "already?",
        "A rank's part is a slice with a step: `order[first : end : num_replicas]`. It begins `rank` places after "
        "the samples that are gone, `self._begin`, and ends where the `self._left()` samples after these end. The "
        "slice is a tensor; turn it into Python numbers last.",
        "`mine = order[self._begin + self.rank : self._begin + self._left() : self.num_replicas]`. For each `index` "
        "in `mine.tolist()`: `self._given += 1`, then `yield index`. After the loop `self._given = -(-self._left() "
        "// self.num_replicas)`, the number of rounds, rounded up.",
    ],
    3: [
        "The state is about all ranks: one sample given here means that `num_replicas` samples are gone from the "
        "order. What does this count when the last round has fewer samples than ranks?",
        "The position is `self._begin` plus rounds times `self.num_replicas`. When that reaches `self._left()` "
        "samples, nothing is left for anybody, and the position is `self.dataset_size`. `taken` may be 0, which is "
        "a number like any other.",
        "`rounds = self._given if taken is None else taken`, `dealt = rounds * self.num_replicas`, and `position = "
        "self._begin + dealt if dealt < self._left() else self.dataset_size`.",
    ],
    4: [
        "Two threads share `ready`. The reading one waits for `room` before each batch; the yielding one makes room "
        "when it has taken a batch. Go through the ways in which the loop can end: the loader is exhausted, the "
        "loader raises, the caller breaks. Which thread waits for what, in each?",
        "The thread's last item is always an error, StopIteration included, so the other side never waits in vain. "
        "When the caller breaks, `finally` runs in the generator: set `leaving`, and release `room` once, since the "
        "thread may be waiting there; then join it.",
        "Thread: `while room.acquire() and not leaving.is_set(): ready.put((copies.make(next(batches)), None))`, in "
        "a `try` whose `except BaseException as error` puts `(None, error)`. Outside, in `try: while True:`, get an "
        "item; return for StopIteration, raise any other error; `room.release()`; `yield copies.hand_over(batch)`. "
        "In `finally`: `leaving.set()`, `room.release()`, `thread.join()`.",
    ],
}
