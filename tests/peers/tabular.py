"""tabular.py - recipes/tabular.lua in PyTorch."""

import functools
import os

import pandas
import torch
from torch import nn
from torch.nn import functional as F

import common

DATA, EPOCHS = "housing/housing.csv", 60


class Net(nn.Module):
    """Embeddings of the categories beside the numbers, and four linear layers."""

    def __init__(self, weights):
        super().__init__()
        tables = [w for name, w in weights.items() if name.startswith("embeddings.")]
        self.embeddings = nn.ModuleList(nn.Embedding(*w.shape) for w in tables)
        width, features = weights["layers.0.weight"].shape
        self.layers = nn.Sequential(nn.Linear(features, width), nn.Identity(), nn.Linear(width, width), nn.Identity(),
                                    nn.Linear(width, width), nn.Linear(width, 1))

    def forward(self, x, ids):
        x = torch.cat([x] + [table(ids[:, i]) for i, table in enumerate(self.embeddings)], 1)
        for i in 0, 2, 4:
            x = F.relu(self.layers[i](x))
        return self.layers[5](x).squeeze(1)


@functools.cache
def scale():
    """Mean and deviation of the logarithm of the prices that train: all rows but the first of every five."""
    prices = pandas.read_csv(os.path.join(os.environ["GIBBOUS_DATA"], DATA))["median_house_value"]
    logs = torch.tensor(prices[prices.index % 5 != 0].values).log()
    return logs.mean().item(), logs.std().item()


def truth(price):
    mean, std = scale()
    return (price.log() - mean) / std


def r2(model, test):
    """1 less the share of the variance that is left."""
    output = torch.cat([model(x, ids) for x, ids, _ in test]).double()
    target = truth(torch.cat([price for _, _, price in test])).double()
    return (1 - (output - target).square().sum() / (target - target.mean()).square().sum()).item()


def schedule(optimizer, recording):
    total = EPOCHS * recording.epoch
    return common.cosine(optimizer, total - total * 5 // 100, warmup=total * 5 // 100)


run = common.supervised(
    make=lambda recording: Net(recording.models[0]),
    loss=lambda model, x, ids, price: F.mse_loss(model(x, ids), truth(price)),
    optimizer=lambda model: torch.optim.AdamW(common.groups(model, 1e-4), lr=2e-3), schedule=schedule)

if __name__ == "__main__":
    common.main("tabular", DATA, run, metric=r2)
