"""Episodes of different lengths are packed; the lengths stay where the loader left them."""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset


class Episodes(Dataset):
    def __init__(self, n=6):
        self.items = [torch.randn(2 + i % 3, 3) for i in range(n)]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i], self.items[i].sum()


def collate(rows):
    episodes, returns = zip(*rows)
    lengths = torch.tensor([len(episode) for episode in episodes])
    return pad_sequence(episodes, batch_first=True), lengths, torch.stack(returns)


class Summariser(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(3, 6, batch_first=True)
        self.head = nn.Linear(6, 1)

    def forward(self, x, lengths):
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        out, kept = pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
        last = out[torch.arange(len(kept)), kept - 1]
        return self.head(last).squeeze(-1)


def build():
    model = Summariser()
    loader = DataLoader(Episodes(), batch_size=3, shuffle=True, collate_fn=collate)
    return model, torch.optim.Adam(model.parameters()), loader


def step(model, optimizer, loader):
    for _ in range(2):
        for x, lengths, returns in loader:
            loss = (model(x.to("cuda"), lengths) - returns.to("cuda")).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
