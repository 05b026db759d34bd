"""peer_models.py - PyTorch's half of the group models: torchvision's and transformers' own, and two written here.

What these packages lack, or cannot do here, is left out, with a word on the standard error.
"""
import sys

import torch
from torch import nn
from torch.nn import functional as F

VOCABULARY, WIDTH, TIME = 1000, 256, 128


def double(c, d):
    return nn.Sequential(nn.Conv2d(c, d, 3, padding=1, bias=False), nn.BatchNorm2d(d), nn.ReLU(),
                         nn.Conv2d(d, d, 3, padding=1, bias=False), nn.BatchNorm2d(d), nn.ReLU())


class UNet(nn.Module):
    def __init__(self, width=16, levels=3):
        super().__init__()
        self.down = nn.ModuleList(double(width << (i - 1) if i else 3, width << i) for i in range(levels))
        self.up = nn.ModuleList(nn.ConvTranspose2d(width << (i + 1), width << i, 2, stride=2) for i in range(levels))
        self.merge = nn.ModuleList(double(width << (i + 1), width << i) for i in range(levels))
        self.middle, self.head = double(width << (levels - 1), width << levels), nn.Conv2d(width, 4, 1)

    def forward(self, x):
        kept = []
        for block in self.down:
            kept.append(block(x))
            x = F.max_pool2d(kept[-1], 2)
        x = self.middle(x)
        for i in reversed(range(len(kept))):
            x = self.merge[i](torch.cat([kept[i], self.up[i](x)], 1))
        return self.head(x).permute(0, 2, 3, 1)


class Lstm(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.words, self.head = nn.Embedding(VOCABULARY, width), nn.Linear(width, VOCABULARY)
        self.rnn = nn.LSTM(width, width, 2, batch_first=True)

    def forward(self, ids):
        return self.head(self.rnn(self.words(ids))[0])


def resnet18():
    from torchvision.models import resnet18 as make
    return make(num_classes=10)


def efficientnet():
    from torchvision.models import efficientnet_b0
    return efficientnet_b0(num_classes=10, dropout=0, stochastic_depth_prob=0)


class Logits(nn.Module):
    """A model of transformers', for its logits alone."""

    def __init__(self, model, **more):
        super().__init__()
        self.model, self.more = model, more

    def forward(self, x):
        return self.model(x, **self.more).logits


def vit():
    from transformers import ViTConfig, ViTForImageClassification
    config = ViTConfig(hidden_size=192, num_hidden_layers=6, num_attention_heads=3, intermediate_size=768, image_size=64, patch_size=8,
                       num_labels=10, hidden_dropout_prob=0, attention_probs_dropout_prob=0)
    return Logits(ViTForImageClassification(config))


def bert():
    from transformers import BertConfig, BertForMaskedLM
    config = BertConfig(vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=4, num_attention_heads=4, intermediate_size=4 * WIDTH,
                        max_position_embeddings=TIME, hidden_dropout_prob=0, attention_probs_dropout_prob=0)
    return Logits(BertForMaskedLM(config))


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM
    config = LlamaConfig(vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=688, num_hidden_layers=4, num_attention_heads=8,
                         num_key_value_heads=2, max_position_embeddings=TIME, rms_norm_eps=1e-6)
    return Logits(LlamaForCausalLM(config), use_cache=False)


def run(report, scope, spelled):
    """A step of each, with AdamW; report(name, f) measures, scope() is autocast or not."""

    def pictures(batch, pixels):
        return torch.randn(batch, 3, pixels, pixels), torch.randint(10, (batch,))

    def texts(batch, time):
        return torch.randint(VOCABULARY, (batch, time)), torch.randint(VOCABULARY, (batch * time,))

    cases = [("ResNet-18 32x32", resnet18, pictures(32, 32)), ("ResNet-18 64x64", resnet18, pictures(16, 64)),
             ("EfficientNet-B0 64x64", efficientnet, pictures(8, 64)), ("ViT", vit, pictures(8, 64)), ("BERT", bert, texts(4, TIME)),
             ("Llama", llama, texts(4, TIME)), ("LSTM", Lstm, texts(16, 64)),
             ("U-Net 64x64", UNet, (torch.randn(8, 3, 64, 64), torch.randint(4, (8 * 64 * 64,))))]
    for name, make, (x, y) in cases:
        try:
            net = make()
            with scope():  # oneDNN has no LSTM in 16 bits for every processor
                net(x[:2])
        except (ImportError, RuntimeError) as error:
            print(f"peer: no {name} {spelled}: {error}", file=sys.stderr)
            continue
        opt = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)

        def step():
            opt.zero_grad(set_to_none=True)
            with scope():
                logits = net(x)
                loss = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), y)
            loss.backward()
            opt.step()
            loss.item()

        report(f"{name} {spelled}", step)
