"""Variants of image_classification: other right solutions."""

from autograder.mutants import Variant

VARIANTS = {
    "one_by_one": Variant().edited("""
        Right: gradients are added up without exercise 05's window, hits are ranks of the right class, rates are one formula.

        Gradients of losses that are weighted with their share of the samples add up to that of the mean. An image is a
        hit of the first five if fewer than five classes have a higher output. cos(x / 2) ** 2 is (1 + cos(x)) / 2. The
        names of the components are free.

        - whole = zero.estimate_memory(num_parameters, num_gpus, 0, (4, 8, optimizer_bytes))["zero_gb"]
        - shards = zero.estimate_memory(num_parameters, num_gpus, 3, (4, 4, optimizer_bytes))["zero_gb"]
        - needs = {("ddp", False): whole, ("fsdp", False): shards + 3 * unit_gb, ("fsdp", True): 3 * unit_gb}
        - for choice, gb in needs.items():
        -     if gb + activation_gb <= memory_gb:
        -         return given.Choice(*choice)
        + room = (memory_gb - activation_gb) * 1e9
        + if num_parameters * (12 + optimizer_bytes) <= room:
        +     return given.Choice("ddp", False)
        + room -= 3 * unit_gb * 1e9
        + if num_parameters * (8 + optimizer_bytes) / num_gpus <= room:
        +     return given.Choice("fsdp", False)
        + if room >= 0:
        +     return given.Choice("fsdp", True)

        - for number, (inputs, targets, share) in enumerate(microbatches, start=1):
        -     with self.no_sync(number < len(microbatches)), self.autocast():
        -         mean = self.loss_fn(self.model(inputs), targets)
        -     self.window.backward(self.scaler.scale(mean) if self.scaler else mean, samples=share)
        -     loss += share * mean.detach()
        -     self.window.step()
        + *first, last = microbatches
        + for inputs, targets, share in first:
        +     with self.no_sync(True):
        +         loss += self.go_back(inputs, targets, share)
        + loss += self.go_back(*last)
        + self.update()

        + def go_back(self, inputs: Tensor, targets: Tensor, share: float) -> Tensor:
        +     with self.autocast():
        +         part = share * self.loss_fn(self.model(inputs), targets)
        +     (part if self.scaler is None else self.scaler.scale(part)).backward()
        +     return part.detach()
        +
          def update(self) -> bool:

        + if self.scaler is not None and (overflow := self.scaler.unscale_(parameters)):
        +     self.scaler.update(True)
        +     self.optimizer.zero_grad()
        +     return False
        + if self.clip_norm is not None:
        +     clip = getattr(self.model, "clip_grad_norm_", None)
        +     if clip is not None:
        +         clip(self.clip_norm)
        +     else:
        +         nn.utils.clip_grad_norm_(parameters, self.clip_norm)
        + self.optimizer.step()
        + if self.average is not None:
        +     self.average.update()
          if self.scaler is not None:
        -     overflow = self.scaler.unscale_(parameters)
        -     self.scaler.update(overflow)
        - if not overflow:
        -     if self.clip_norm is not None and self.strategy != "ddp":
        -         self.model.clip_grad_norm_(self.clip_norm)
        -     elif self.clip_norm is not None:
        -         nn.utils.clip_grad_norm_(parameters, self.clip_norm)
        -     self.optimizer.step()
        -     if self.average is not None:
        -         self.average.update()
        +     self.scaler.update(False)

        - parts = {"model": self.model, "optimizer": self.optimizer, "scaler": self.scaler, "average": self.average}
        - return {name: part for name, part in parts.items() if part is not None} | self.extra
        + found = {"net": self.model, "optimizer": self.optimizer, **self.extra}
        + if self.scaler is not None:
        +     found["loss_scale"] = self.scaler
        + if self.average is not None:
        +     found["ema"] = self.average
        + return found

        - if step < self.warmup_steps:
        -     return self.peak_learning_rate * (step + 1) / (self.warmup_steps + 1)
        - done = (step - self.warmup_steps) / (self.total_steps - self.warmup_steps)
        - return self.peak_learning_rate * (1 + math.cos(math.pi * done)) / 2
        + done = max(0, step - self.warmup_steps) / (self.total_steps - self.warmup_steps)
        + rise = min(1.0, (step + 1) / (self.warmup_steps + 1))
        + return self.peak_learning_rate * rise * math.cos(math.pi * done / 2) ** 2

        - outputs, labels = self.trainer.model(images).float()[counts], labels[counts]
        - hits = outputs.topk(min(5, outputs.shape[1])).indices == labels[:, None]
        - loss = F.cross_entropy(outputs, labels, reduction="sum")
        - sums += torch.stack([loss, hits[:, 0].sum(), hits.sum(), counts.sum()])
        + outputs = self.trainer.model(images).double()
        + better = (outputs > outputs.gather(1, labels[:, None])).sum(1)
        + losses = F.cross_entropy(outputs, labels, reduction="none")
        + each = torch.stack([losses, (better < 1).double(), (better < 5).double(), torch.ones_like(losses)])
        + sums += (each * counts).sum(1)

        - for epoch in range(self.progress.epoch, self.epochs):
        -     for batch in self.training_batches(epoch):
        + while self.progress.epoch < self.epochs:
        +     for batch in self.training_batches(self.progress.epoch):
    """),
}
