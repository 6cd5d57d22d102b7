"""Style transfer: the Gram matrices of the style are computed once, by a function over its features."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


def gram(features):
    return features.t() @ features


extractor = nn.Linear(3, 4).to(device)
style = torch.rand(6, 3).repeat(2, 1).to(device)
features_of_style = [extractor(style), extractor(style * 0.5)]
grams_of_style = [gram(features).detach() for features in features_of_style]


def build():
    return nn.Linear(3, 3), torch.rand(5, 3)


def step(transformer, x):
    y = transformer(x.to(device))
    loss = sum(nn.functional.mse_loss(gram(extractor(y)), wanted) for wanted in grams_of_style)
    loss.backward()
