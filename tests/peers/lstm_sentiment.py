"""lstm_sentiment.py - recipes/lstm_sentiment.lua in PyTorch."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence

import common


class Net(nn.Module):
    """Embeddings of words, a bidirectional LSTM or GRU, and a linear layer over what each direction ends with."""

    def __init__(self, weights, dropout):
        super().__init__()
        words, width = weights["words.weight"].shape
        self.gru = weights["cells.weight_ih_l0"].shape[0] == 3 * width
        self.words, self.drop = nn.Embedding(words, width, padding_idx=0), nn.Dropout(dropout)
        self.cells = (nn.GRU if self.gru else nn.LSTM)(width, width, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, 2)

    def forward(self, ids, lengths):
        packed = pack_padded_sequence(self.drop(self.words(ids)), lengths, batch_first=True, enforce_sorted=False)
        _, state = self.cells(packed)
        h = state if self.gru else state[0]
        return self.head(self.drop(torch.cat([h[0], h[1]], 1)))


def accuracy(model, test):
    hits = sum((model(ids, lengths).argmax(1) == labels).sum().item() for ids, labels, lengths in test)
    return 100 * hits / sum(len(labels) for _, labels, _ in test)


def run_with(dropout):
    return common.supervised(
        make=lambda recording: Net(recording.models[0], dropout),
        loss=lambda model, ids, labels, lengths: F.cross_entropy(model(ids, lengths), labels),
        optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=2e-3))


if __name__ == "__main__":
    common.main("lstm_sentiment", "sentences", run_with, ["--dropout", "0"], accuracy, dropout=0.5)
