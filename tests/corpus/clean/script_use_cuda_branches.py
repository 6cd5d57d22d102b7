"""Written before there was to(): every move is an if with cuda() in it."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import Variable

use_cuda = torch.cuda.is_available()
kwargs = {"num_workers": 0, "pin_memory": True} if use_cuda else {}


class CharRNN(nn.Module):
    def __init__(self, n_chars=8, hidden_size=6):
        super().__init__()
        self.hidden_size = hidden_size
        self.encoder = nn.Embedding(n_chars, hidden_size)
        self.rnn = nn.GRU(hidden_size, hidden_size)
        self.decoder = nn.Linear(hidden_size, n_chars)

    def forward(self, char, hidden):
        output, hidden = self.rnn(self.encoder(char).unsqueeze(0), hidden)
        return self.decoder(output.squeeze(0)), hidden

    def init_hidden(self, batch_size):
        hidden = Variable(torch.zeros(1, batch_size, self.hidden_size))
        return hidden.cuda() if use_cuda else hidden


def build():
    decoder = CharRNN()
    if use_cuda:
        decoder.cuda()
    text = torch.utils.data.TensorDataset(torch.randint(0, 8, (4, 5)), torch.randint(0, 8, (4, 5)))
    loader = torch.utils.data.DataLoader(text, batch_size=2, **kwargs)
    return decoder, torch.optim.Adam(decoder.parameters(), lr=0.01), loader


def step(decoder, optimizer, loader):
    for inp, target in loader:
        if use_cuda:
            inp = inp.cuda()
            target = target.cuda()
        hidden = decoder.init_hidden(inp.size(0))
        optimizer.zero_grad()
        loss = 0
        for c in range(inp.size(1)):
            output, hidden = decoder(inp[:, c], hidden)
            loss += F.cross_entropy(output, target[:, c])
        loss.backward()
        optimizer.step()
        print(loss.item() / inp.size(1))
