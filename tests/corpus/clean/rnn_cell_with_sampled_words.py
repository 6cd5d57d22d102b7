"""A character model over an LSTMCell which is sometimes fed with characters that it drew itself."""

import torch
import torch.nn.functional as F
from torch import nn


class CharModel(nn.Module):
    def __init__(self, characters=8, hidden=6):
        super().__init__()
        self.characters = characters
        self.cell = nn.LSTMCell(characters, hidden)
        self.norm = nn.LayerNorm(hidden)
        self.out = nn.Linear(hidden, characters)

    def forward(self, text, own=0.25):
        letter = F.one_hot(text[:, 0], self.characters).float()
        h = letter.new_zeros(letter.size(0), self.cell.hidden_size)
        c = torch.zeros_like(h)
        scores = []
        for t in range(1, text.size(1)):
            h, c = self.cell(letter, (h, c))
            scores.append(self.out(self.norm(h)))
            drawn = torch.multinomial(scores[-1].detach().softmax(-1), 1).squeeze(1)
            coin = torch.rand(text.size(0), device=text.device) < own
            letter = F.one_hot(torch.where(coin, drawn, text[:, t]), self.characters).to(h.dtype)
        return torch.stack(scores, dim=2)


def build():
    model = CharModel()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10)
    return model, optimizer, schedule, {"text": torch.randint(0, 8, (3, 6))}


def step(model, optimizer, schedule, batch):
    text = batch.pop("text").cuda()
    loss = F.cross_entropy(model(text), text[:, 1:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    print(f"bits per character {loss.item() / 0.6931:.3f}")
