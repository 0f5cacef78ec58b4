"""Mutants of autotune: what is wrong in each, what it earns, and the checks that it loses."""

from __future__ import annotations

from autograder.mutants import Mutant

MUTANTS = {
    "one_more_each_time": Mutant(22, loses={"batches"}).edited("""
        The batch grows by one sample until it no longer fits.

        - low, high = high, max(high + 1, min(2 * high + 1, len(candidates) - 1))
        + low, high = high, high + 1
    """),
    "own_memory_alone": Mutant(22, loses={"batches"}).edited("""
        Each rank looks at its own memory only.

        - return not given.highest(failed, group)
        + return not failed
    """),
    "releases_too_early": Mutant(20, loses={"batches", "leftovers"}).edited("""
        Memory is released within `except`, where the error still refers to the step's tensors.

        - failed = True
        + failed = True
        + given.release_memory()

        - given.release_memory()
          return not given.highest(failed, group)
    """),
    "keeps_the_error": Mutant(20, loses={"batches", "leftovers"}).edited("""
        The errors are kept for a report, and with them the tensors of the steps that failed.

        - def fits(batch_size: int) -> bool:
        + errors = []
        + def fits(batch_size: int) -> bool:

        - failed = True
        + failed = True
        + errors.append(error)
    """),
    "every_error_is_memory": Mutant(24, loses={"other_errors"}).edited("""
        Any exception of the step counts as a lack of memory.

        - if not given.is_out_of_memory(error):
        -     raise
    """),
    "all_bucket_sizes": Mutant(22, loses={"buckets"}).edited("""
        All sizes are measured.

        - return sizes[low]
        + return min(range(len(sizes)), key=seconds) and sizes[min(range(len(sizes)), key=seconds)]
    """),
    "own_step_alone": Mutant(22, loses={"buckets"}).edited("""
        Each rank chooses by its own time.

        - seconds = cache(lambda place: given.highest(measure(sizes[place]), group))
        + seconds = cache(lambda place: measure(sizes[place]))
    """),
    "measures_twice": Mutant(22, loses={"buckets"}).edited("""
        What was measured is not kept.

        - seconds = cache(lambda place: given.highest(measure(sizes[place]), group))
        + seconds = lambda place: given.highest(measure(sizes[place]), group)
    """),
    "lost_on_the_plain": Mutant(22, loses={"buckets"}).edited("""
        Of equal neighbours it goes to the right, where one bucket holds everything.

        - low, high = (low, middle) if seconds(middle) <= seconds(middle + 1) else (middle + 1, high)
        + low, high = (low, middle) if seconds(middle) < seconds(middle + 1) else (middle + 1, high)
    """),
    "linear_for_adam": Mutant(23, loses={"recipes"}).edited("""
        Adam's learning rate grows with the batch as SGD's does.

        - rate = recipe.learning_rate * (factor if recipe.optimizer == "sgd" else sqrt(factor))
        + rate = recipe.learning_rate * factor
    """),
    "trains_longer": Mutant(23, loses={"recipes"}).edited("""
        As many steps as before, so the larger batch sees more samples.

        - steps, warmup = (ceil(count * recipe.batch_size / batch_size) for count in (recipe.steps, recipe.warmup_steps))
        + steps, warmup = recipe.steps, recipe.warmup_steps
    """),
    "nothing_stops_early": Mutant(19, loses={"halving", "failing", "seeded"}).edited("""
        All configurations train for as long as the budget allows, none is stopped.

        - for _ in range(rungs):
        + steps *= reduction ** (rungs - 1)
        + for _ in range(1):
    """),
    "counts_the_last_rung": Mutant(21, loses={"halving", "failing"}).edited("""
        The budget is divided among the trials of the first rung; later rungs are not counted.

        - steps = budget // (rungs * reduction ** (rungs - 1))
        + steps = budget // reduction ** (rungs - 1)
    """),
    "failures_go_on": Mutant(24, loses={"failing"}).edited("""
        A trial without a finite loss goes on if there is room.

        - ranked = [trial.configuration for trial in sorted(rung, key=lambda one: one.loss) if trial.loss < inf]
        + ranked = [trial.configuration for trial in sorted(rung, key=lambda one: one.loss)]
    """),
    "first_come": Mutant(22, loses={"halving"}).edited("""
        The first third goes on, not the best.

        - ranked = [trial.configuration for trial in sorted(rung, key=lambda one: one.loss) if trial.loss < inf]
        + ranked = [trial.configuration for trial in rung if trial.loss < inf]
    """),
    "seed_of_the_hour": Mutant(23, loses={"seeded"}).edited("""
        Configurations are drawn with global random numbers.

        - left = given.configurations(space, reduction ** (rungs - 1), seed)
        + import random
        + left = given.configurations(space, reduction ** (rungs - 1), random.getrandbits(30))
    """),
    "time_alone": Mutant(18, loses={"layouts", "out_of_memory", "strategies"}).edited("""
        The fastest layout, whether it fits or not.

        - return not fits, seconds if fits else nbytes
        + return False, seconds
    """),
    "believes_the_data_sheet": Mutant(20, loses={"layouts", "out_of_memory"}).edited("""
        Nothing is measured: the predictions of the data sheets decide.

        - space, log = given.search_of(model, cluster, batch, measure, trials)
        + space, log = given.search_of(model, cluster, batch, None, trials)
    """),
    "first_that_fits": Mutant(23, loses={"strategies"}).edited("""
        The first strategy that fits is taken, as if each were slower than the one before.

        - choices.append(given.StrategyChoice(name, plan, log.measure(plan).seconds))
        + choices.append(given.StrategyChoice(name, plan, log.measure(plan).seconds))
        + break
    """),
    "smallest_microbatch": Mutant(23, loses={"strategies"}).edited("""
        Strategies are compared with microbatches of 1, which fit most easily.

        - plans = space.strategy(name)[first:]
        + plans = space.strategy(name)[:1]

        - first += plans.index(plan)
        + first += 0
    """),
    "in_order": Mutant(20, loses={"layouts", "out_of_memory"}).edited("""
        The layouts are measured one after the other until the trials are used up.

        - for plan in sorted(space.splits(), key=cost)[:6]:
        -     for axis in ("recompute", "zero", "microbatch"):
        -         plan = min(space.along(plan, axis), key=cost)
        - best, before = min(log.found, key=cost), None
        - while best != before:
        -     before, best = best, min((plan for axis in space.axes for plan in space.along(best, axis)), key=cost)
        + for plan in space.all():
        +     cost(plan)
    """),
    "every_layout": Mutant(19, loses={"layouts", "out_of_memory", "bad_arguments"}).edited("""
        All layouts are measured, without the log that counts them.

        - space, log = given.search_of(model, cluster, batch, measure, trials)
        + space, log = given.search_of(model, cluster, batch, measure, 10**6)

        - for plan in sorted(space.splits(), key=cost)[:6]:
        + for plan in sorted(space.all(), key=cost)[:6]:
    """),
    "library_search": Mutant(20, loses={"layouts", "out_of_memory"}).edited("""
        `labkit.predict.search` is asked, which knows the data sheets only.

        - return min(given.some(fitting, model), key=lambda plan: log.found[plan].seconds)
        + from labkit.predict import search
        + return search(model, space.batch, cluster, chunks=1, context=1).best.plan
    """),
}
