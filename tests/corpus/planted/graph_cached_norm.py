"""With one graph for all epochs the edge weights are worked out at the first call and then kept."""

import torch
import torch.nn.functional as F
from torch import nn

OPTIONS = {"moved_by": "to"}


class CachedConv(nn.Module):
    def __init__(self, fan_in, fan_out):
        super().__init__()
        self.lin = nn.Linear(fan_in, fan_out)
        self._cached_norm = None

    def reset_cache(self):
        self._cached_norm = None

    def forward(self, x, edge_index):
        src, dst = edge_index
        if self._cached_norm is None:
            degree = torch.bincount(dst, minlength=x.size(0)).clamp(min=1).to(x.dtype)
            self._cached_norm = (degree[src] * degree[dst]).rsqrt().unsqueeze(1)
        messages = self.lin(x)[src] * self._cached_norm  # fails: cache
        out = torch.zeros(x.size(0), messages.size(1), device=messages.device)
        return out.index_add(0, dst, messages)


def build():
    torch.manual_seed(3)
    model = CachedConv(4, 3)
    x, edge_index = torch.randn(5, 4), torch.tensor([[0, 1, 2, 3, 4, 0], [1, 2, 3, 4, 0, 2]])
    with torch.no_grad():
        print("before training:", model(x, edge_index).std().item())
    return model, torch.optim.SGD(model.parameters(), lr=0.1), x, edge_index, torch.tensor([0, 1, 2, 1, 0])


def step(model, optimizer, x, edge_index, y):
    device = torch.device("cuda")
    x, edge_index, y = x.to(device), edge_index.to(device), y.to(device)
    optimizer.zero_grad()
    F.cross_entropy(model(x, edge_index), y).backward()
    optimizer.step()
