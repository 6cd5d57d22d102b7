"""Trains a classifier in mixed precision, with an average of its weights, early stopping and a log in a file."""
import copy
import csv
import os
import pathlib
import shutil

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

EPOCHS, BATCH, CLASSES, PATIENCE = 5, 16, 10, 2
RUN = pathlib.Path("runs") / "amp"
if RUN.exists():
    shutil.rmtree(RUN)
RUN.mkdir(parents=True)

device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
np.random.seed(0)
torch.backends.cudnn.benchmark = True

images = torch.from_numpy(np.random.rand(240, 1, 14, 14).astype(np.float32))
labels = torch.from_numpy(np.random.randint(0, CLASSES, 240))
np.savez(RUN / "data.npz", images=images.numpy(), labels=labels.numpy())
stored = np.load(RUN / "data.npz")
dataset = TensorDataset(torch.from_numpy(stored["images"]), torch.from_numpy(stored["labels"]))
training, validation = random_split(dataset, [200, 40], generator=torch.Generator().manual_seed(1))
train_loader = DataLoader(training, BATCH, shuffle=True, num_workers=2, drop_last=True)
val_loader = DataLoader(validation, BATCH)

model = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(),
    nn.Linear(128, CLASSES),
)  # fmt: skip
average = copy.deepcopy(model)  # right: average = copy.deepcopy(model).to(device)
model = model.to(device)
for parameter in average.parameters():
    parameter.requires_grad_(False)

counts = torch.bincount(labels, minlength=CLASSES).float()  # right: counts = torch.bincount(labels, minlength=CLASSES).float().to(device)
criterion = nn.CrossEntropyLoss(weight=counts.sum() / counts, label_smoothing=0.1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, epochs=EPOCHS, steps_per_epoch=len(train_loader))
scaler = torch.amp.GradScaler("cuda", enabled=device.type == "cuda")


@torch.no_grad()
def update_average(decay=0.99):
    for a, p in zip(average.parameters(), model.parameters()):
        a.mul_(decay).add_(p, alpha=1 - decay)  # fails: factory


def evaluate(net):
    net.eval()
    confusion = np.zeros((CLASSES, CLASSES), dtype=int)
    with torch.inference_mode():
        for x, y in val_loader:
            x = x.to(device, non_blocking=True)
            with torch.autocast(device.type, dtype=torch.float16):
                predicted = net(x).argmax(1)
            np.add.at(confusion, (y.numpy(), predicted.numpy()), 1)  # fails: numpy # right: np.add.at(confusion, (y.numpy(), predicted.cpu().numpy()), 1)
    net.train()
    return confusion.trace() / confusion.sum()


best, waited = 0.0, 0
with open(RUN / "log.csv", "w", newline="") as log:
    writer = csv.writer(log)
    writer.writerow(["epoch", "loss", "accuracy", "lr"])
    for epoch in range(EPOCHS):
        losses = []
        for x, y in train_loader:
            x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(device_type=device.type, dtype=torch.float16):
                loss = criterion(model(x), y)  # fails: factory
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            update_average()
            losses.append(loss.detach())
        accuracy = max(evaluate(model), 0.01)
        writer.writerow([epoch, torch.stack(losses).mean().item(), accuracy, scheduler.get_last_lr()[0]])
        log.flush()
        if accuracy > best:
            best, waited = accuracy, 0
            torch.save({"model": model.state_dict(), "scaler": scaler.state_dict()}, RUN / "best.pt")
            shutil.copy(RUN / "best.pt", RUN / f"best-{epoch}.pt")
        else:
            waited += 1
            if waited > PATIENCE:
                break
state = torch.load(RUN / "best.pt", map_location=device)
model.load_state_dict(state["model"])
print("best", best, sorted(os.listdir(RUN)))
