"""The model works out its own loss and gives it back beside the logits, by key and by attribute."""

from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import nn


class ModelOutput(OrderedDict):
    def __getattr__(self, name):
        return self[name]


class BatchEncoding(dict):
    def to(self, device):
        for key in self:
            self[key] = self[key].to(device)
        return self


class TokenTagger(nn.Module):
    def __init__(self, vocab=18, width=8, tags=3, longest=10):
        super().__init__()
        self.tags = tags
        self.words, self.places = nn.Embedding(vocab, width), nn.Embedding(longest, width)
        self.register_buffer("position_ids", torch.arange(longest).unsqueeze(0), persistent=False)
        self.layer = nn.TransformerEncoderLayer(width, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(width, tags)

    def forward(self, input_ids, attention_mask=None, labels=None):
        x = self.words(input_ids) + self.places(self.position_ids[:, : input_ids.size(1)])
        hidden = self.layer(x, src_key_padding_mask=attention_mask == 0)
        output = ModelOutput(logits=self.head(hidden))
        if labels is not None:
            active = torch.where(attention_mask.bool(), labels, torch.full_like(labels, -100))
            output["loss"] = F.cross_entropy(output.logits.view(-1, self.tags), active.view(-1))
        return output


def build():
    batch = BatchEncoding(
        input_ids=torch.tensor([[5, 2, 9, 0], [4, 11, 17, 3]]),
        attention_mask=torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]]),
        labels=torch.tensor([[0, 1, 2, 0], [1, 1, 0, 2]]),
    )
    model = TokenTagger()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3), batch


def step(model, optimizer, batch):
    inputs = batch.to("cuda")
    outputs = model(**inputs)
    outputs.loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    predictions = outputs.logits.argmax(dim=-1)
    right = (predictions == inputs["labels"]) & inputs["attention_mask"].bool()
    print("accuracy", (right.sum() / inputs["attention_mask"].sum()).item())
