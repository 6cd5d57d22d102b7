"""Rehearse a training step with three device bugs; the machine does not need the device."""

import torch
from torch import nn

import torchmove as tm


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))
        self.table = torch.linspace(0, 1, 4)  # never registered: Module.to leaves it behind

    def forward(self, x):
        return x @ self.weight * self.table


def train_step(model, optimizer, batch):
    out = model(batch["x"].to("cuda"))
    noise = torch.randn(3, 4)  # created on the CPU
    loss = (out + noise - batch["y"]).square().mean()  # the targets are on the CPU too
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def main():
    model = Scaled()
    optimizer = torch.optim.AdamW(model.parameters())
    batch = {"x": torch.randn(3, 4), "y": torch.randn(3, 4)}

    print("with model.to('cuda'):")
    print(tm.rehearse(train_step, model, optimizer, batch, to="cuda", moved_by="to"))

    print("\nwith tm.move(model, optimizer, to='cuda'):")
    print(tm.rehearse(train_step, model, optimizer, batch, to="cuda"))


if __name__ == "__main__":
    main()
