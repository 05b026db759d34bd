"""unet.py - recipes/unet.lua beside PyTorch: python tests/peers/unet.py. The middles of the pictures, as they are."""
import pathlib

import torch
import torch.nn.functional as F
from torch import nn

import vision


def convs(inputs, outputs):
    parts = []
    for channels in (inputs, outputs):
        parts += [nn.Conv2d(channels, outputs, 3, padding=1, bias=False), vision.NormRelu(outputs)]
    return nn.Sequential(*parts)


class UNet(nn.Module):
    def __init__(self, width, levels):
        super().__init__()
        sizes = [width << level for level in range(levels + 1)]
        self.down = nn.ModuleList(convs(1 if i == 0 else sizes[i - 1], sizes[i]) for i in range(levels))
        self.up = nn.ModuleList(nn.ConvTranspose2d(sizes[i + 1], sizes[i], 2, stride=2) for i in range(levels))
        self.merge = nn.ModuleList(convs(sizes[i + 1], sizes[i]) for i in range(levels))
        self.middle, self.head = convs(sizes[-2], sizes[-1]), nn.Conv2d(width, 1, 1)

    def forward(self, x):
        kept = []
        for block in self.down:
            kept.append(block(x))
            x = F.max_pool2d(kept[-1], 2)
        x = self.middle(x)
        for block, up, skip in list(zip(self.merge, self.up, kept))[::-1]:
            x = block(torch.cat([skip, up(x)], 1))
        return self.head(x).squeeze(1)


args = vision.options("unet", "membrane")
batch, epochs = vision.option(args, "batch", 4), vision.option(args, "epochs", 167)
folder, crop = pathlib.Path(args.data), vision.option(args, "crop", 128)
names = [p.name for p in sorted((folder / "image").iterdir()) if p.suffix == ".png" and int(p.stem) < 24]
per_epoch = -(-len(names) // batch)


def middle(path):
    x = vision.pixels(path, "L")[0]
    top, left = (x.shape[0] - crop) // 2, (x.shape[1] - crop) // 2
    return x[top:top + crop, left:left + crop]


images = torch.stack([(middle(folder / "image" / n) - 0.5) / 0.25 for n in names])[:, None]
truth = torch.stack([(middle(folder / "label" / n) == 0).float() for n in names])
run = vision.watch("unet", args, "--no-augment", epochs=args.steps // per_epoch + 1)


def make(dtype=torch.float32):
    model = UNet(vision.option(args, "width", 16), vision.option(args, "levels", 4))
    model = vision.load(model, run.weights()).to(dtype)
    optimizer = torch.optim.AdamW(vision.groups(model, 1e-2), lr=vision.option(args, "lr", 1e-3))
    return model, optimizer, vision.cosine(optimizer, epochs * per_epoch, 20)


def batches():
    return [(images[b], truth[b]) for b in run.batches()[:args.steps]]


def loss_of(model, x, y):
    return F.binary_cross_entropy_with_logits(model(x), y)


def of_class_0(model, x, label):
    """The loss of a batch of the recipe, whose labels are classes."""
    return loss_of(model, x, (label == 0).float())


def dice(model, test):
    """Of the membranes of all test pictures together."""
    both = drawn = true = 0
    for x, label in test:
        found, truth = model(x) > 0, label == 0
        both, drawn, true = both + (found & truth).sum(), drawn + found.sum(), true + truth.sum()
    return (2 * both / (drawn + true)).item()


vision.peer("unet", args, run, make, batches, of_class_0 if args.full else loss_of, metric=dice)
