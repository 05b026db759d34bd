"""char_gpt.py - recipes/char_gpt.lua in PyTorch."""

import torch
from torch import nn
from torch.nn import functional as F

import common
from transformer import Block


class GPT(nn.Module):
    """Tokens and positions, blocks, a norm; the head is the table of tokens."""

    def __init__(self, weights, heads, bias, approximate):
        super().__init__()
        self.tokens = nn.Embedding(*weights["tokens.weight"].shape)
        self.positions = nn.Embedding(*weights["positions.weight"].shape)
        width, layers = self.tokens.embedding_dim, len({n.split(".")[1] for n in weights if n.startswith("blocks.")})
        self.blocks = nn.ModuleList(Block(width, heads, bias, True, approximate) for _ in range(layers))
        self.norm = nn.LayerNorm(width, bias=bias)

    def forward(self, ids):
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.tokens.weight)


def loss(model, ids, targets):
    return F.cross_entropy(model(ids).flatten(0, 1), targets.flatten())


def mean_loss(model, test):
    return sum(loss(model, *batch).item() for batch in test) / len(test)


run = common.supervised(
    make=lambda recording: GPT(recording.models[0], heads=4, bias=False, approximate="none"), loss=loss,
    optimizer=lambda model: torch.optim.AdamW(common.groups(model, 0.1), lr=1e-3, betas=(0.9, 0.99)),
    schedule=lambda optimizer, _: common.cosine(optimizer, 1900, warmup=100, last=0.1))

if __name__ == "__main__":
    common.main("char_gpt", "tinyshakespeare/input.txt", run, ["--sample", "0", "--eval_batches", "1"], mean_loss)
