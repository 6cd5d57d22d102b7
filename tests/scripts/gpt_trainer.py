"""Trains the GPT of gpt_model.py: arguments, a loader with workers, a cosine schedule, checkpoints to resume from."""
import argparse
import json
import logging
import math
import random
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from gpt_model import GPT, GPTConfig
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset

logger = logging.getLogger("gpt")


class Tokens(Dataset):
    def __init__(self, file, block_size):
        self.tokens, self.block_size = np.load(file), block_size

    def __len__(self):
        return len(self.tokens) // self.block_size - 1

    def __getitem__(self, index):
        start = index * self.block_size
        chunk = torch.from_numpy(self.tokens[start : start + self.block_size + 1].astype(np.int64))
        return chunk[:-1], chunk[1:]


class Trainer:
    def __init__(self, args, model, loader, validation):
        self.args, self.loader, self.validation = args, loader, validation
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model = model.to(self.device)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95))
        total = args.epochs * len(loader)
        self.scheduler = LambdaLR(self.optimizer, lambda step: 0.5 * (1 + math.cos(math.pi * min(1, step / total))))
        self.running = torch.zeros(())  # right: self.running = torch.zeros((), device=self.device)
        self.best = float("inf")
        self.history = []

    def train_epoch(self, epoch):
        self.model.train()
        for step, (x, y) in enumerate(self.loader):
            x, y = x.to(self.device, non_blocking=True), y.to(self.device, non_blocking=True)
            with torch.autocast(device_type=self.device.type, dtype=torch.bfloat16):
                logits = self.model(x)
                loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.scheduler.step()
            self.optimizer.zero_grad(set_to_none=True)
            self.running.mul_(0.9).add_(loss.detach(), alpha=0.1)  # fails: factory
            if step % self.args.log_every == 0:
                logger.info("epoch %d step %d loss %.4f", epoch, step, loss.item())

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        total = count = 0
        for x, y in self.validation:
            x = x.to(self.device)  # right: x, y = x.to(self.device), y.to(self.device)
            logits = self.model(x)
            total += F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="sum").item()  # fails: input
            count += y.numel()
        return total / count

    def save(self, epoch):
        path = Path(self.args.out) / "last.pt"
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "epoch": epoch}
        temporary = path.with_suffix(".tmp")
        torch.save(state, temporary)
        temporary.replace(path)
        again = torch.load(path, map_location=self.device, weights_only=True)
        assert again["epoch"] == epoch

    def fit(self):
        for epoch in range(self.args.epochs):
            self.train_epoch(epoch)
            loss = self.evaluate()
            self.history.append({"epoch": epoch, "loss": loss})
            if loss < self.best:
                self.best = loss
            self.save(epoch)
            (Path(self.args.out) / "history.json").write_text(json.dumps(self.history))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--log-every", type=int, default=1)
    parser.add_argument("--out", default="runs/gpt")
    args = parser.parse_args()
    random.seed(0), np.random.seed(0), torch.manual_seed(0), torch.cuda.manual_seed_all(0)
    Path(args.out).mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(Path(args.out) / "train.log")
    logger.setLevel(logging.INFO), logger.addHandler(handler)

    config = GPTConfig()
    for name in ("train", "val"):
        np.save(Path(args.out) / f"{name}.npy", np.random.randint(0, config.vocab_size, 1000).astype(np.uint16))
    loaders = [
        DataLoader(
            Tokens(Path(args.out) / f"{name}.npy", config.block_size),
            batch_size=args.batch_size,
            shuffle=name == "train",
            num_workers=args.workers,
            pin_memory=torch.cuda.is_available(),
        )
        for name in ("train", "val")
    ]
    try:
        Trainer(args, GPT(config), *loaders).fit()
    finally:
        logger.removeHandler(handler)
        handler.close()


if __name__ == "__main__":
    main()
