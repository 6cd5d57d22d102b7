"""Weights into an archive of the program's own, and a checkpoint that is renamed when it is whole."""

import io
import os
import tempfile
import zipfile

import torch
from torch import nn


def build():
    return nn.Linear(4, 4), torch.randn(2, 4)


def step(model, x):
    store = io.BytesIO()
    with zipfile.ZipFile(store, "w") as archive, archive.open("policy.pth", "w", force_zip64=True) as file:
        torch.save(model.state_dict(), file)
    with zipfile.ZipFile(store) as archive:
        weights = torch.load(io.BytesIO(archive.read("policy.pth")), map_location="cuda")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "last.pt")
        torch.save(weights, path + ".part")
        os.replace(path + ".part", path)
        model.load_state_dict(torch.load(path, map_location="cuda"))
    model(x.to("cuda")).sum().backward()
