"""Variants of monitoring: other right solutions."""

from autograder.mutants import Variant

VARIANTS = {
    "lists": Variant().edited("""
        Right: an affine hash of each word, Python's lists in place of tensors, one all-gather of pieces, votes by a dict.

        Weights of words are odd and irregular, as the solution's. A missing gradient counts as the value 7, which a
        fingerprint has by chance only. The lower median of a list is the element in the middle of the sorted one.

        - from collections import Counter

        - from math import isfinite

        - weight = torch.arange(1, words.numel() + 1, device=words.device) * 0x1E3779B97F4A7C15
        - weight = (weight ^ (weight >> 31)) * 0x3F58476D1CE4E5B9
        - return (words * ((weight ^ (weight >> 29)) | 1)).sum()
        + place = torch.arange(words.numel(), device=words.device)
        + odd = (place * place * 0x2545F4914F6CDD1D + place * 0x1B873593CC9E2D51) * 2 + 1
        + return (words * odd + odd).sum() + words.numel()

        - missing = torch.tensor(-1, device=self.device)
        - row = torch.stack([missing if one is None else fingerprint(one) for one in tensors.values()])
        + own = [int(fingerprint(one)) if one is not None else 7 for one in tensors.values()]
        + pieces = [torch.empty(len(own), dtype=torch.int64) for _ in range(self.world_size)]
        + torch.distributed.all_gather(pieces, torch.tensor(own), group=self.group)
          alarms = []
        - for name, column in zip(tensors, given.gather_rows(row, self.group).T.tolist(), strict=True):
        -     usual, count = Counter(column).most_common(1)[0]
        -     for rank, value in enumerate(column):
        -         if value != usual or 2 * count <= self.world_size:
        -             alarms.append(Alarm("desynchronized", rank, self.recorder.last_step, name))
        + for place, name in enumerate(tensors):
        +     votes: dict[int, list[int]] = {}
        +     for rank, piece in enumerate(pieces):
        +         votes.setdefault(int(piece[place]), []).append(rank)
        +     wrong = [ranks for ranks in votes.values() if 2 * len(ranks) <= self.world_size]
        +     alarms += [
        +         Alarm("desynchronized", rank, self.recorder.last_step, name) for ranks in wrong for rank in ranks
        +     ]

        - if len(self.history) < 4:
        -     return []
        - memory = [[own.memory_bytes for own in summaries] for summaries in zip(*self.history, strict=True)]
        - leaks = [all(after > 1.03 * before for before, after in pairwise(own)) for own in memory]
        - return [Alarm("memory leak", rank, self.recorder.last_step) for rank, found in enumerate(leaks) if found]
        + found = []
        + for rank in range(self.world_size):
        +     memory = [summaries[rank].memory_bytes for summaries in self.history]
        +     if len(memory) == 4 and min(b / max(a, 1.0) for a, b in pairwise(memory)) > 1.03:
        +         found.append(Alarm("memory leak", rank, self.recorder.last_step))
        + return found

        - if not isfinite(loss):
        + if loss - loss != 0:
              return "loss not finite"
        - spike = False
        - if len(self.losses) >= 10:
        -     usual = median(self.losses)
        -     deviation = 1.4826 * median(abs(one - usual) for one in self.losses)
        -     spike = loss > usual + 8 * max(deviation, 0.05 * abs(usual))
        + before = torch.tensor(list(self.losses), dtype=torch.float64)
          self.losses.append(loss)
        - return "loss spike" if spike else ""
        + if len(before) < 10:
        +     return ""
        + usual = before.quantile(0.5)
        + deviation = torch.maximum(1.4826 * (before - usual).abs().quantile(0.5), 0.05 * usual.abs())
        + return "loss spike" if loss > usual + 8 * deviation else ""

        - spent = {"communication": 0.0, "input": 0.0}
        - for part, seconds in step.parts:
        -     spent[part] += seconds
        - return step.seconds - sum(spent.values()), spent["communication"], spent["input"]
        + communication = sum(seconds for part, seconds in step.parts if part == "communication")
        + wait = sum(seconds for part, seconds in step.parts if part == "input")
        + return step.seconds - communication - wait, communication, wait

        - of_all = torch.tensor(values, dtype=torch.float64)
        - usual = of_all.median()
        - deviation = 1.4826 * (of_all - usual).abs().median()
        - high = (of_all > factor * usual) & (of_all > usual + 5 * deviation)
        - return [rank for rank, found in enumerate(high.tolist()) if found]
        + middle = (len(values) - 1) // 2
        + usual = sorted(values)[middle]
        + limit = usual + 5 * 1.4826 * sorted(abs(value - usual) for value in values)[middle]
        + return [rank for rank, value in enumerate(values) if value > factor * usual and value > limit]
    """),
}
