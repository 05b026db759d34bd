"""cifar_efficientnet.py - recipes/cifar_efficientnet.lua beside PyTorch: python tests/peers/cifar_efficientnet.py
[--model tiny]. No dropout, no blocks left out; pictures are neither shifted nor mirrored."""
import torch
import torch.nn.functional as F
from torch import nn

import vision

STAGES = [(1, 3, 1, 16, 1), (6, 3, 2, 24, 2), (6, 5, 2, 40, 2), (6, 3, 2, 80, 3), (6, 5, 1, 112, 3), (6, 5, 2, 192, 4),
          (6, 3, 1, 320, 1)]
MODELS = {"b0": (1, None), "tiny": (4, 1)}


def conv(inputs, outputs, kernel, stride, groups=1):
    return nn.Sequential(nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
                         nn.BatchNorm2d(outputs))


class SqueezeExcite(nn.Module):
    def __init__(self, channels, squeezed):
        super().__init__()
        self.fc1, self.fc2 = nn.Conv2d(channels, squeezed, 1), nn.Conv2d(squeezed, channels, 1)

    def forward(self, x):
        return x * self.fc2(F.silu(self.fc1(x.mean((2, 3), keepdim=True)))).sigmoid()


class Block(nn.Module):
    def __init__(self, inputs, outputs, widen, kernel, stride):
        super().__init__()
        width = inputs * widen
        parts = [nn.Sequential(conv(inputs, width, 1, 1), nn.SiLU())] if widen > 1 else []
        self.body = nn.Sequential(*parts, nn.Sequential(conv(width, width, kernel, stride, width), nn.SiLU()),
                                  SqueezeExcite(width, max(inputs // 4, 1)), conv(width, outputs, 1, 1))
        self.keeps = stride == 1 and inputs == outputs

    def forward(self, x):
        y = self.body(x)
        return x + y if self.keeps else y


class EfficientNet(nn.Module):
    def __init__(self, classes, share, count):
        super().__init__()
        channels, last, blocks = 32 // share, 1280 // share, []
        self.stem = conv(3, channels, 3, 1)
        for widen, kernel, stride, outputs, blocks_here in STAGES:
            for i in range(count or blocks_here):
                blocks.append(Block(channels, outputs // share, widen, kernel, stride if i == 0 else 1))
                channels = outputs // share
        self.blocks = nn.ModuleList(blocks)
        self.top, self.head = conv(channels, last, 1, 1), nn.Linear(last, classes)

    def forward(self, x):
        x = F.silu(self.stem(x))
        for block in self.blocks:
            x = block(x)
        return self.head(F.silu(self.top(x)).mean((2, 3)))


args = vision.options("cifar_efficientnet", "cifar10")
batch, epochs = vision.option(args, "batch", 128), vision.option(args, "epochs", 5)
pictures = vision.Pictures(args.data + "/train")
per_epoch = len(pictures.files) // batch
run = vision.watch("cifar_efficientnet", args, "--no-augment", "--dropout", "0", "--drop_path", "0",
                   epochs=args.steps // per_epoch + 1)


def make(dtype=torch.float32):
    model = EfficientNet(pictures.classes, *MODELS[vision.option(args, "model", "b0")])
    model = vision.load(model, run.weights()).to(dtype)
    optimizer = torch.optim.AdamW(vision.groups(model, 0.05), lr=vision.option(args, "lr", 2e-3))
    return model, optimizer, vision.cosine(optimizer, epochs * per_epoch, 0.1)


def batches():
    return (pictures.batch(b) for b in run.batches()[:args.steps])


vision.peer("cifar_efficientnet", args, run, make, batches, decay=vision.option(args, "decay", 0.99))
