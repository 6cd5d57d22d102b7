"""Sentences of different lengths, padded into a dict by the collate function; every value is moved."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader


def collate(rows):
    longest = max(len(row["words"]) for row in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    for i, row in enumerate(rows):
        ids[i, : len(row["words"])] = torch.tensor(row["words"])
    return {"ids": ids, "mask": ids.ne(0), "label": torch.tensor([row["label"] for row in rows])}


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(12, 8, padding_idx=0)
        self.attend = nn.Linear(8, 1)
        self.out = nn.Linear(8, 3)

    def forward(self, ids, mask):
        x = self.embed(ids)
        score = self.attend(x).squeeze(-1).masked_fill(~mask, float("-inf"))
        return self.out((score.softmax(-1).unsqueeze(-1) * x).sum(1))


def build():
    rows = [{"words": list(range(1, 3 + i % 5)), "label": i % 3} for i in range(9)]
    model = Tagger()
    return model, torch.optim.AdamW(model.parameters()), DataLoader(rows, 4, shuffle=True, collate_fn=collate)


def step(model, optimizer, loader):
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1 / (1 + epoch))
    for epoch in range(3):
        right = count = 0
        for batch in loader:
            batch = {key: value.to("cuda") for key, value in batch.items()}
            label = batch.pop("label")
            logits = model(**batch)
            loss = F.cross_entropy(logits, label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            right += (logits.argmax(-1) == label).sum().item()
            count += label.numel()
        schedule.step()
        print(f"epoch {epoch}: {right / count:.2f}")
