"""CTC takes lengths and targets on the CPU."""

import torch
from torch import nn


class Speech(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.GRU(5, 8, bidirectional=True), nn.Linear(16, 7)

    def forward(self, x):
        return self.head(self.rnn(x)[0]).log_softmax(dim=2)


def build():
    model = Speech()
    lengths = torch.tensor([9, 7, 8]), torch.tensor([3, 2, 4])
    return model, torch.optim.Adam(model.parameters()), torch.randn(9, 3, 5), torch.randint(1, 7, (3, 4)), *lengths


def step(model, optimizer, x, targets, frames, letters):
    scores = model(x.to("cuda"))
    loss = nn.functional.ctc_loss(scores, targets, frames, letters, zero_infinity=True)
    loss = loss + nn.CTCLoss(reduction="sum")(
        scores, targets.to("cuda"), tuple(frames.tolist()), tuple(letters.tolist())
    )
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
