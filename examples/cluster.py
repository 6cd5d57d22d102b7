"""Move a sharded training to the CPU and back on every rank, park it, and wrap a DDP model again.

torchrun --nproc-per-node 2 examples/cluster.py
"""

import os

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import torchmove as tm


def train(model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device) -> float:
    batch = torch.randn(8, 16, generator=torch.Generator().manual_seed(distributed.get_rank())).to(device)
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


def say(words: object) -> None:
    if distributed.get_rank() == 0:
        print(words, flush=True)


def main() -> None:
    on_gpus = torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    distributed.init_process_group("nccl" if on_gpus else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpus else torch.device("cpu")
    if on_gpus:
        torch.cuda.set_device(device)
    mesh = init_device_mesh(device.type, (distributed.get_world_size(),))

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1)).to(device)
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    say(f"sharded, a step: loss {train(model, optimizer, device):.6f}")

    receipt = tm.move(model, optimizer, to="cpu")  # every rank, or none
    say(tm.by_rank(receipt))
    tm.move(model, optimizer, to=device)
    with tm.parked(model, optimizer):
        say(f"parked: the first rank's shards are on {model[0].weight.to_local().device}")
    say(f"back on {model[0].weight.device}, a step: loss {train(model, optimizer, device):.6f}")

    replica = DistributedDataParallel(nn.Linear(16, 1).to(device))
    optimizer = torch.optim.SGD(replica.parameters(), lr=0.1, momentum=0.9)
    train(replica, optimizer, device)
    replica = tm.rewrap(replica, optimizer, to=device)
    say(f"wrapped again, a step: loss {train(replica, optimizer, device):.6f}")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
