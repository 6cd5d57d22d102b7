"""Which steps of a series matter: the gradient at the input of a recurrent model that is in eval mode."""

import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.dropout, self.head = nn.LSTM(4, 5, batch_first=True), nn.Dropout(0.3), nn.Linear(5, 3)

    def forward(self, x):
        _, (last, _) = self.rnn(x)
        return self.head(self.dropout(last[-1]))


model = Classifier().to(device)


def build():
    return torch.randn(2, 6, 4)


def step(x):
    model.eval()
    with torch.no_grad():
        chosen = model(x.to(device)).argmax(1, keepdim=True)
    x = x.to(device).requires_grad_()
    score = model(x).gather(1, chosen).sum()
    score.backward()  # fails: dtype
    return x.grad.abs().mean(-1)
