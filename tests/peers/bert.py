"""bert.py - recipes/bert.lua in PyTorch: the text with --text, else the sentences from scratch."""

import os
import sys

import torch
from torch import nn
from torch.nn import functional as F

import common
from transformer import Block

PAD, FILL, STEPS, EPOCHS, GRAMS = 0, -100, 300, 2, 6


class Encoder(nn.Module):
    """Bytes, what ends with them, and positions; blocks that do not look at padding; a norm."""

    def __init__(self, weights, dropout):
        super().__init__()
        self.bytes = nn.Embedding(*weights["encoder.bytes.weight"].shape, padding_idx=PAD)
        self.grams = nn.Embedding(*weights["encoder.grams.weight"].shape)
        self.positions = nn.Embedding(*weights["encoder.positions.weight"].shape)
        self.drop, width = nn.Dropout(dropout), self.bytes.embedding_dim
        layers = len({n.split(".")[2] for n in weights if n.startswith("encoder.blocks.")})
        self.blocks = nn.ModuleList(Block(width, 4, approximate="none", dropout=dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, ids):
        seen = (ids != PAD)[:, None, None]
        x = self.drop(self.bytes(ids) + self.positions(torch.arange(ids.shape[1])))
        code = ids
        for n in range(1, min(GRAMS, ids.shape[1])):
            code = (code * 31321 + F.pad(ids, (n, -n))) % self.grams.num_embeddings
            x = x + self.grams(code)
        for block in self.blocks:
            x = block(x, seen)
        return self.norm(x)


class Model(nn.Module):
    """An encoder and a head: over each byte of 256, or over the mean of a sentence."""

    def __init__(self, weights, dropout):
        super().__init__()
        self.encoder = Encoder(weights, dropout)
        outputs, width = weights["head.weight"].shape
        self.head, self.fills = nn.Linear(width, outputs), outputs == 256

    def forward(self, ids):
        x = self.encoder(ids)
        if self.fills:
            return self.head(x)
        seen = (ids != PAD)[:, :, None].to(x.dtype)
        return self.head((x * seen).sum(1) / seen.sum(1))


def loss(model, ids, truth, *_, reduction="mean"):
    return F.cross_entropy(model(ids).flatten(0, -2), truth.flatten(), ignore_index=FILL, reduction=reduction)


def metric(model, test):
    """The perplexity of hidden bytes, or the accuracy of sentences in percent."""
    if model.fills:
        total = sum(loss(model, *batch, reduction="sum").item() for batch in test)
        return torch.tensor(total / sum((truth != FILL).sum().item() for _, truth, *_ in test)).exp().item()
    hits = sum((model(ids).argmax(1) == truth).sum().item() for ids, truth, *_ in test)
    return 100 * hits / sum(len(truth) for _, truth, *_ in test)


def schedule(optimizer, recording):
    total = recording.epoch * (1 if recording.models[0]["head.weight"].shape[0] == 256 else EPOCHS)
    return common.cosine(optimizer, total - total // 10, warmup=total // 10)


def run_with(dropout):
    return common.supervised(
        make=lambda recording: Model(recording.models[0], dropout), loss=loss,
        optimizer=lambda model: torch.optim.AdamW(common.groups(model, 1e-2), lr=1e-3), schedule=schedule)


if __name__ == "__main__":
    always = ["--steps", "0"]
    if "--text" in sys.argv:
        sys.argv.remove("--text")
        text = os.path.join(os.environ["GIBBOUS_DATA"], "tinyshakespeare/input.txt")
        always = ["--steps", str(STEPS), "--text", text]
    common.main("bert", "sentences", run_with, ["--dropout", "0"], metric, always, dropout=0.1)
