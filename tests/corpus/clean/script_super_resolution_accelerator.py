"""Super resolution with an --accel switch, which is on by default where there is one."""

import argparse
from math import log10

import torch
from torch import nn, optim

parser = argparse.ArgumentParser()
parser.add_argument("--upscale-factor", type=int, default=3)
parser.add_argument("--lr", type=float, default=0.01)
parser.add_argument("--accel", action=argparse.BooleanOptionalAction, default=torch.accelerator.is_available())
opt = parser.parse_args([])
device = torch.accelerator.current_accelerator() if opt.accel else torch.device("cpu")
print("running on", device)


class Net(nn.Module):
    def __init__(self, upscale_factor):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 5, (3, 3), (1, 1), (1, 1))
        self.conv2 = nn.Conv2d(5, upscale_factor**2, (3, 3), (1, 1), (1, 1))
        self.pixel_shuffle = nn.PixelShuffle(upscale_factor)
        nn.init.orthogonal_(self.conv1.weight, nn.init.calculate_gain("relu"))

    def forward(self, x):
        return self.pixel_shuffle(self.conv2(torch.relu(self.conv1(x))))


model = Net(upscale_factor=opt.upscale_factor).to(device)
criterion = nn.MSELoss().to(device)
optimizer = optim.Adam(model.parameters(), lr=opt.lr)


def build():
    pairs = [(torch.rand(2, 1, 4, 4), torch.rand(2, 1, 12, 12)) for _ in range(2)]
    return pairs, pairs[:1]


def step(training_data_loader, testing_data_loader):
    for batch in training_data_loader:
        low, target = batch[0].to(device), batch[1].to(device)
        optimizer.zero_grad()
        loss = criterion(model(low), target)
        loss.backward()
        optimizer.step()
    avg_psnr = 0.0
    with torch.no_grad():
        for batch in testing_data_loader:
            low, target = batch[0].to(device), batch[1].to(device)
            avg_psnr += 10 * log10(1 / criterion(model(low), target).item())
    print(f"Avg. PSNR: {avg_psnr / len(testing_data_loader):.4f} dB")
