"""A detection loss asks the head where it is, as the usual YOLO loss does, and makes its targets there."""

import torch
from torch import nn

device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")


class Head(nn.Module):
    def __init__(self, anchors=((1.0, 2.0), (2.0, 1.0))):
        super().__init__()
        self.register_buffer("anchors", torch.tensor(anchors))
        self.outputs = nn.Conv2d(4, 2 * 5, 1)

    def forward(self, features):
        b, _, h, w = features.shape
        return self.outputs(features).view(b, 2, 5, h, w).permute(0, 1, 3, 4, 2)


class ComputeLoss:
    def __init__(self, head):
        device = next(head.parameters()).device
        self.objectness = nn.BCEWithLogitsLoss(pos_weight=torch.tensor([1.5], device=device))
        self.anchors, self.device = head.anchors, device

    def __call__(self, predicted, targets):
        wanted = torch.zeros(predicted.shape[:4], device=self.device)
        image, row, column = targets[:, :3].long().T
        anchor = (targets[:, None, 3:] / self.anchors).log().abs().sum(-1).argmin(1)
        wanted[image, anchor, row, column] = 1.0
        size = predicted[image, anchor, row, column, :2].exp() * self.anchors[anchor]
        return self.objectness(predicted[..., 4], wanted) + (size - targets[:, 3:]).abs().mean()


head = Head().to(device)
compute_loss = ComputeLoss(head)
optimizer = torch.optim.SGD(head.parameters(), lr=0.01, momentum=0.9, nesterov=True)


def build():
    return torch.randn(2, 4, 3, 3), torch.tensor([[0, 1, 2, 1.5, 2.5], [1, 0, 0, 2.0, 0.7]])


def step(features, targets):
    loss = compute_loss(head(features.to(device)), targets.to(device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
