"""A layer with a tensor that was never registered as a buffer: tm.verify finds it, tm.move moves it."""

import torch
from second_device import second_device
from torch import nn

import torchmove as tm


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))
        self.table = torch.linspace(0, 1, 4)  # never registered: .to() leaves it behind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ self.weight) * self.table


def main() -> None:
    device = second_device()
    layer = Scaled()

    layer.to(device)
    print(f"After layer.to({str(device)!r}):\n\n{tm.verify(layer, on=device)}\n")
    try:
        layer(torch.ones(1, 4, device=device))
    except RuntimeError as error:
        print(f"and a forward pass says: {str(error).splitlines()[0]}\n")

    print(f"tm.move simply moves it:\n\n{tm.move(layer, to=device)}\n")
    print(tm.verify(layer, on=device))
    print(f"forward works: {layer(torch.ones(1, 4, device=device)).cpu().tolist()}")


if __name__ == "__main__":
    main()
