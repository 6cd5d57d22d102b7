"""The anchors are in the body of the loss's class, where no call of to() reaches them."""

import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class BoxLoss(nn.Module):
    anchors = torch.tensor([[1.0, 2.0], [3.0, 1.0]])
    variances = torch.tensor([0.1, 0.2]).to(device)

    def forward(self, predicted, target):
        size = predicted[..., 2:].exp() * self.anchors  # fails: loss
        center = (predicted[..., :2] - target[..., :2]) / self.variances
        return center.square().mean() + (size - target[..., 2:]).square().mean()


model = nn.Linear(6, 8).to(device)
criterion = BoxLoss().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)


def build():
    return torch.randn(3, 6), torch.rand(3, 2, 4)


def step(x, target):
    loss = criterion(model(x.to(device)).view(-1, 2, 4), target.to(device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
