"""mnist_cnn.py - recipes/mnist_cnn.lua beside PyTorch: python tests/peers/mnist_cnn.py"""
import torch
import torch.nn.functional as F
from torch import nn

import vision


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        first, second = width
        self.conv1 = nn.Conv2d(1, first, 3, padding=1)
        self.conv2 = nn.Conv2d(first, second, 3, padding=1)
        self.head = nn.Linear(second * 7 * 7, 10)

    def forward(self, x):
        x = F.max_pool2d(self.conv1(x).relu(), 2)
        x = F.max_pool2d(self.conv2(x).relu(), 2)
        return self.head(x.flatten(1))


args = vision.options("mnist_cnn", "mnist")
run = vision.watch("mnist_cnn", args, epochs=args.steps // 125 + 1)
images, labels = vision.digits(args.data)


def make(dtype=torch.float32):
    weights = run.weights()
    model = vision.load(Net([weights["conv1.weight"].shape[0], weights["conv2.weight"].shape[0]]), weights).to(dtype)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3), None


def batches():
    return ((images[b], labels[b]) for b in run.batches()[:args.steps])


vision.peer("mnist_cnn", args, run, make, batches, clip=1.0)
