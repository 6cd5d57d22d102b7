"""Park a training while a second model uses nearly all memory of the device, then continue it."""

import torch
from second_device import second_device
from torch import nn

import torchmove as tm


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> float:
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(64, model[0].in_features, generator=generator).to(device)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (model(inputs) - inputs.sin()).square().mean()
        loss.backward()
        optimizer.step()
    return loss.item()


def other_work(device: torch.device) -> str:
    """Run a model that takes nearly all free memory of the device."""
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 1 << 24
    rows = int(free * 0.9) // (4 * 256)
    with torch.no_grad():
        model = nn.Linear(256, rows, bias=False, device=device)
        answer = model(torch.ones(1, 256).to(device)).sum().item()
    del model
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return f"a model of {rows * 256 * 4 / 2**20:.0f} MiB has answered: {answer == answer}"


def main() -> None:
    device = second_device()
    torch.manual_seed(0)
    width = 64 if device.type == "lazy" else 2048
    model = nn.Sequential(nn.Linear(width, 4 * width), nn.Tanh(), nn.Linear(4 * width, width))
    optimizer = torch.optim.AdamW(model.parameters())
    tm.move(model, optimizer, to=device)
    print(f"20 steps on {device}: loss {train(model, optimizer, 20):.6f}\n")

    for name in ("first", "second"):
        with tm.parked(model, optimizer) as parked:
            print(f"the {name} time: {parked}")
            print(f"  meanwhile its weights are on {model[0].weight.device}; {other_work(device)}\n")

    print(f"back on {model[0].weight.device}, 20 steps more: loss {train(model, optimizer, 20):.6f}")


if __name__ == "__main__":
    main()
