"""cifar_vit.py - recipes/cifar_vit.lua beside PyTorch: python tests/peers/cifar_vit.py. The tiny model; no mixup, no
blocks left out; pictures are neither shifted nor mirrored."""
import torch
import torch.nn.functional as F
from torch import nn

import vision

WIDTH, LAYERS, HEADS, PATCH, TOKENS = 128, 4, 4, 4, 64


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH, eps=1e-6), nn.LayerNorm(WIDTH, eps=1e-6)
        self.attention = Attention()
        self.mlp = nn.ModuleDict({"fc1": nn.Linear(WIDTH, 4 * WIDTH), "fc2": nn.Linear(4 * WIDTH, WIDTH)})

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp["fc2"](F.gelu(self.mlp["fc1"](self.norm2(x))))


class ViT(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.patches = nn.ModuleDict({"proj": nn.Conv2d(3, WIDTH, PATCH, PATCH)})
        self.register_parameter("class", nn.Parameter(torch.zeros(1, 1, WIDTH)))
        self.positions = nn.Parameter(torch.zeros(1, TOKENS + 1, WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH, eps=1e-6), nn.Linear(WIDTH, classes)

    def forward(self, x):
        x = self.patches["proj"](x).flatten(2).transpose(1, 2)
        x = torch.cat([getattr(self, "class").expand(len(x), -1, -1), x], 1) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x[:, 0]))


args = vision.options("cifar_vit", "cifar10")
batch, epochs = vision.option(args, "batch", 128), vision.option(args, "epochs", 4)
pictures = vision.Pictures(args.data + "/train")
per_epoch = len(pictures.files) // batch
run = vision.watch("cifar_vit", args, "--no-augment", "--mixup", "0", "--drop_path", "0",
                   epochs=args.steps // per_epoch + 1)


def make(dtype=torch.float32):
    model = vision.load(ViT(pictures.classes), run.weights()).to(dtype)
    optimizer = torch.optim.AdamW(vision.groups(model, 0.05), lr=vision.option(args, "lr", 1e-3))
    return model, optimizer, vision.cosine(optimizer, epochs * per_epoch, 0.1)


def batches():
    return (pictures.batch(b) for b in run.batches()[:args.steps])


vision.peer("cifar_vit", args, run, make, batches, clip=1.0)
