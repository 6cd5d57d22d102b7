"""Word language model: the helper for the hidden state can put it anywhere, and by default it puts it on the CPU."""

import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BPTT = 3


class RNNModel(nn.Module):
    def __init__(self, ntoken, ninp=6, nhid=8, nlayers=2):
        super().__init__()
        self.nhid, self.nlayers = nhid, nlayers
        self.encoder = nn.Embedding(ntoken, ninp)
        self.rnn = nn.GRU(ninp, nhid, nlayers)
        self.decoder = nn.Linear(nhid, ntoken)

    def forward(self, tokens, hidden):
        output, hidden = self.rnn(self.encoder(tokens), hidden)  # fails: stale-device
        return self.decoder(output).flatten(0, 1), hidden


def init_hidden(model, bsz, device=torch.device("cpu")):
    return torch.zeros(model.nlayers, bsz, model.nhid, device=device)


def get_batch(source, i):
    return source[i : i + BPTT], source[i + 1 : i + 1 + BPTT].reshape(-1)


def build():
    model = RNNModel(ntoken=10).to(device)
    corpus = torch.randint(0, 10, (7, 4))
    return model, nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=1.0), corpus


def step(model, criterion, optimizer, corpus):
    train_data = corpus.to(device)
    hidden = init_hidden(model, train_data.size(1))
    for i in range(0, train_data.size(0) - 1, BPTT):
        data, targets = get_batch(train_data, i)
        hidden = hidden.detach()
        optimizer.zero_grad()
        output, hidden = model(data, hidden)
        criterion(output, targets).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
