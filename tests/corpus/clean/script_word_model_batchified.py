"""Word language model: the whole corpus is cut into columns and sent to the device when the script starts."""

import math

import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ntokens, bptt, eval_batch_size = 13, 4, 3


def batchify(ids, bsz):
    nbatch = ids.size(0) // bsz
    return ids.narrow(0, 0, nbatch * bsz).view(bsz, -1).t().contiguous().to(device)


train_data = batchify(torch.arange(40) % ntokens, 4)
val_data = batchify(torch.arange(20) % ntokens, eval_batch_size)


class RNNModel(nn.Module):
    def __init__(self, ninp=6, nhid=6, nlayers=1):
        super().__init__()
        self.nhid, self.nlayers = nhid, nlayers
        self.encoder = nn.Embedding(ntokens, ninp)
        self.rnn = nn.LSTM(ninp, nhid, nlayers)
        self.decoder = nn.Linear(nhid, ntokens)
        self.decoder.weight = self.encoder.weight

    def forward(self, tokens, hidden):
        output, hidden = self.rnn(self.encoder(tokens), hidden)
        return self.decoder(output).view(-1, ntokens), hidden

    def init_hidden(self, bsz):
        weight = next(self.parameters())
        return weight.new_zeros(self.nlayers, bsz, self.nhid), weight.new_zeros(self.nlayers, bsz, self.nhid)


def get_batch(source, i):
    seq_len = min(bptt, len(source) - 1 - i)
    return source[i : i + seq_len], source[i + 1 : i + 1 + seq_len].view(-1)


def build():
    return RNNModel().to(device), nn.CrossEntropyLoss()


def step(model, criterion):
    hidden = model.init_hidden(train_data.size(1))
    for i in range(0, train_data.size(0) - 1, bptt):
        data, targets = get_batch(train_data, i)
        model.zero_grad()
        output, hidden = model(data, tuple(h.detach() for h in hidden))
        criterion(output, targets).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-0.5)
    with torch.no_grad():
        data, targets = get_batch(val_data, 0)
        print("ppl", math.exp(criterion(model(data, model.init_hidden(eval_batch_size))[0], targets).item()))
