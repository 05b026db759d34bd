"""cifar_resnet.py - recipes/cifar_resnet.lua beside PyTorch: python tests/peers/cifar_resnet.py [--model resnet18].
Pictures are neither shifted nor mirrored.

At the recipe's rate roundings grow threefold with each step, in PyTorch too: --double shows its float32 as far from its
float64 as the recipe is. At --lr 0.001 all losses agree."""
import torch
from torch import nn

import vision

MODELS = {"resnet20": ([3, 3, 3], 16, False), "resnet18": ([2, 2, 2, 2], 64, False),
          "resnet50": ([3, 4, 6, 3], 64, True)}


def conv(inputs, outputs, kernel, stride, *more):
    return nn.Sequential(nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(outputs),
                         *more)


class Block(nn.Module):
    def __init__(self, inputs, width, stride, bottleneck):
        super().__init__()
        self.outputs = 4 * width if bottleneck else width
        if bottleneck:
            self.body = nn.Sequential(conv(inputs, width, 1, 1, nn.ReLU()), conv(width, width, 3, stride, nn.ReLU()))
            self.last = conv(width, 4 * width, 1, 1)
        else:
            self.body = conv(inputs, width, 3, stride, nn.ReLU())
            self.last = conv(width, width, 3, 1)
        if stride > 1 or inputs != self.outputs:
            self.project = conv(inputs, self.outputs, 1, stride)

    def forward(self, x):
        return (self.last(self.body(x)) + (self.project(x) if hasattr(self, "project") else x)).relu()


class ResNet(nn.Module):
    def __init__(self, classes, counts, width, bottleneck):
        super().__init__()
        self.stem, channels, blocks = conv(3, width, 3, 1), width, []
        for stage, count in enumerate(counts):
            for i in range(count):
                blocks.append(Block(channels, width << stage, 2 if stage > 0 and i == 0 else 1, bottleneck))
                channels = blocks[-1].outputs
        self.blocks, self.head = nn.ModuleList(blocks), nn.Linear(channels, classes)

    def forward(self, x):
        x = self.stem(x).relu()
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


args = vision.options("cifar_resnet", "cifar10")
batch, epochs = vision.option(args, "batch", 128), vision.option(args, "epochs", 8)
pictures = vision.Pictures(args.data + "/train")
per_epoch = len(pictures.files) // batch
run = vision.watch("cifar_resnet", args, "--no-augment", epochs=args.steps // per_epoch + 1)


def make(dtype=torch.float32):
    model = ResNet(pictures.classes, *MODELS[vision.option(args, "model", "resnet20")])
    model = vision.load(model, run.weights()).to(dtype)
    optimizer = torch.optim.SGD(vision.groups(model, 5e-4), lr=vision.option(args, "lr", 0.1), momentum=0.9,
                                nesterov=True)
    return model, optimizer, vision.cosine(optimizer, epochs * per_epoch, 0.1)


def batches():
    return (pictures.batch(b) for b in run.batches()[:args.steps])


vision.peer("cifar_resnet", args, run, make, batches)
