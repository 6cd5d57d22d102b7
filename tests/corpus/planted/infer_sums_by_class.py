"""After training, one pass over the data sums features per class, to make prototypes for new classes later."""

import torch
import torch.nn.functional as F
from torch import nn

OPTIONS = {"moved_by": "to"}


class Prototypes(nn.Module):
    def __init__(self, classes=3, width=6):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.ReLU())
        self.sums = torch.zeros(classes, width)
        self.seen = torch.zeros(classes, dtype=torch.long)

    @torch.inference_mode()
    def collect(self, x, y):
        features = self.backbone(x)
        for c in range(len(self.sums)):
            row = self.sums[c]
            row += (features * (y == c).unsqueeze(1)).sum(dim=0)  # fails: attribute
        self.seen += F.one_hot(y, len(self.seen)).sum(dim=0)  # fails: attribute

    def means(self):
        return self.sums / self.seen.clamp(min=1).unsqueeze(1)


def build():
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.randn(8, 4), torch.arange(8) % 3), batch_size=4
    )
    return Prototypes().eval(), loader


def step(model, loader):
    for x, y in loader:
        model.collect(x.to("cuda"), y.to("cuda"))
    return model.means()
