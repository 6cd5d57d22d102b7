"""The best weights of an epoch are saved and loaded again, as early stopping does."""

import io
import os
import tempfile

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
BEST = os.path.join(tempfile.gettempdir(), "best_weights_of_a_corpus_program.pt")


def build():
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 1)).to(device)
    return model, torch.optim.AdamW(model.parameters()), [torch.randn(5, 4) for _ in range(3)]


def step(model, optimizer, batches):
    best = float("inf")
    for x in batches:
        loss = model(x.to(device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loss.item() < best:
            best = loss.item()
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loss": best}, BEST)
    saved = torch.load(BEST, map_location=device)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    memory = io.BytesIO()
    torch.save(model.state_dict(), memory)
    memory.seek(0)
    model.load_state_dict(torch.load(memory))
    model(batches[0].to(device)).sum().backward()
    if os.path.exists(BEST):
        os.remove(BEST)
