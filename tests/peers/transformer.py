"""transformer.py - gb.nn.TransformerBlock in PyTorch, which three recipes are made of."""

from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    def __init__(self, width, heads, bias, causal, dropout):
        super().__init__()
        self.heads, self.causal, self.dropout = heads, causal, dropout
        self.qkv, self.proj = nn.Linear(width, 3 * width, bias=bias), nn.Linear(width, width, bias=bias)

    def forward(self, x, mask):
        batch, time, width = x.shape
        q, k, v = (part.view(batch, time, self.heads, -1).transpose(1, 2) for part in self.qkv(x).split(width, 2))
        y = F.scaled_dot_product_attention(q, k, v, mask, is_causal=self.causal,
                                           dropout_p=self.dropout if self.training else 0)
        return self.proj(y.transpose(1, 2).reshape(batch, time, width))


class MLP(nn.Module):
    def __init__(self, width, bias, approximate):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, 4 * width, bias=bias), nn.Linear(4 * width, width, bias=bias)
        self.approximate = approximate

    def forward(self, x):
        return self.fc2(F.gelu(self.fc1(x), approximate=self.approximate))


class Block(nn.Module):
    """Norms come first; x [batch, time, width], mask true where a position may look."""

    def __init__(self, width, heads, bias=True, causal=False, approximate="tanh", dropout=0.0):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width, bias=bias), nn.LayerNorm(width, bias=bias)
        self.attention, self.mlp = Attention(width, heads, bias, causal, dropout), MLP(width, bias, approximate)
        self.drop = nn.Dropout(dropout)

    def forward(self, x, mask=None):
        x = x + self.drop(self.attention(self.norm1(x), mask))
        return x + self.drop(self.mlp(self.norm2(x)))
