"""Beam search over Python lists of words; only the scores of one hypothesis at a time are tensors."""

import torch
from torch import nn


class Decoder(nn.Module):
    def __init__(self, words=8, width=6):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.cell = nn.GRUCell(width, width)
        self.out = nn.Linear(width, words)

    def start(self, context):
        return context.mean(1)

    def forward(self, word, h):
        h = self.cell(self.embed(word), h)
        return self.out(h).log_softmax(-1), h


def build():
    torch.manual_seed(3)
    return Decoder().eval(), torch.randn(1, 5, 6)


@torch.no_grad()
def step(model, context, beam=3, bos=1, eos=2, limit=6):
    context = context.to("cuda", non_blocking=True)
    alive, finished = [([bos], 0.0, model.start(context))], []
    while alive and len(finished) < beam:
        grown = []
        for words, score, h in alive:
            last = torch.tensor([words[-1]], dtype=torch.long, device=context.device)
            log_probs, h = model(last, h)
            top, ids = log_probs.squeeze(0).topk(beam)
            for i in range(beam):
                grown.append(([*words, ids[i].item()], score + top[i].item(), h))
        grown.sort(key=lambda hypothesis: -hypothesis[1] / len(hypothesis[0]) ** 0.6)
        alive = []
        for hypothesis in grown[:beam]:
            done = hypothesis[0][-1] == eos or len(hypothesis[0]) >= limit
            (finished if done else alive).append(hypothesis)
    return max(finished, key=lambda hypothesis: hypothesis[1])[0]
