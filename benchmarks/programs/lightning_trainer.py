import os

import lightning
import torch


class Regression(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(8, 4)
        self.losses = []

    def training_step(self, batch, index):
        loss = self.layer(batch).pow(2).mean()
        self.losses.append(self.trainer.strategy.reduce(loss.detach()).item())
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


examples = torch.randn(32, 8, generator=torch.Generator().manual_seed(0))
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=int(os.environ["WORLD_SIZE"]),
    strategy="ddp",
    max_epochs=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
model = Regression()
trainer.fit(model, torch.utils.data.DataLoader(examples, batch_size=4))
trainer.global_rank, model.losses
