"""chorales.py - recipes/chorales.lua in PyTorch."""

import torch
from torch import nn
from torch.nn import functional as F

import common

VOICES, NOTES, FILL, EPOCHS = 4, 128, -100, 30


class Choir(nn.Module):
    """Two layers of LSTM over rows of four notes; each voice of the next row knows those above it."""

    def __init__(self, weights, dropout):
        super().__init__()
        width = weights["heads.0.weight"].shape[1]
        self.notes = nn.ModuleList(nn.Embedding(NOTES, 32) for _ in range(VOICES))
        self.hidden = nn.ModuleList(nn.Linear(width + 32 * v, width) for v in range(VOICES))
        self.heads = nn.ModuleList(nn.Linear(width, NOTES) for _ in range(VOICES))
        self.cells = nn.LSTM(32 * VOICES, width, num_layers=2, batch_first=True, dropout=dropout)
        self.drop = nn.Dropout(dropout)

    def forward(self, before, after):
        known, _ = self.cells(torch.cat([self.notes[v](before[:, :, v]) for v in range(VOICES)], 2))
        known, logits = self.drop(known), []
        for v in range(VOICES):
            above = [self.notes[a](after[:, :, a]) for a in range(v)]
            logits.append(self.heads[v](F.relu(self.hidden[v](torch.cat([known] + above, 2)))))
        return torch.stack(logits, 2)


def loss(model, rows, *_, reduction="mean"):
    notes = rows.clamp(min=0)
    logits = model(notes[:, :-1], notes[:, 1:]).flatten(0, 2)
    return F.cross_entropy(logits, rows[:, 1:].flatten(), ignore_index=FILL, reduction=reduction)


def nats(model, test):
    total = sum(loss(model, batch[0], reduction="sum").item() for batch in test)
    return total / sum((batch[0][:, 1:] != FILL).sum().item() for batch in test)


def schedule(optimizer, recording):
    total = EPOCHS * recording.epoch
    return common.cosine(optimizer, total - total * 5 // 100, warmup=total * 5 // 100)


def run_with(dropout):
    return common.supervised(
        make=lambda recording: Choir(recording.models[0], dropout), loss=loss,
        optimizer=lambda model: torch.optim.AdamW(common.groups(model, 1e-2), lr=2e-3), schedule=schedule)


if __name__ == "__main__":
    common.main("chorales", "chorales", run_with, ["--dropout", "0"], nats, dropout=0.3)
