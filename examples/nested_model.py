"""Move a model of nested modules to a device and back."""

import torch
from second_device import second_device
from torch import nn

import torchmove as tm


def main() -> None:
    device = second_device()
    model = nn.Sequential(
        nn.Linear(64, 128),
        nn.Sequential(nn.ReLU(), nn.BatchNorm1d(128)),
        nn.ModuleDict({"head": nn.Linear(128, 10), "tail": nn.Linear(128, 10)}),
    )
    model[2]["tail"].weight = model[2]["head"].weight  # tied before and after the move
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    print(f"Where is everything?\n\n{tm.survey(model)}\n")
    print(f"Move it to {device}.\n\n{tm.move(model, to=device)}\n")
    print(f"Is it all there?\n\n{tm.verify(model, on=device)}\n")
    print(f"And back.\n\n{tm.move(model, to='cpu')}\n")

    same = all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    print(f"the same values: {same};  still tied: {model[2]['tail'].weight is model[2]['head'].weight}")


if __name__ == "__main__":
    main()
