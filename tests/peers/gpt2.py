"""gpt2.py - the tiny preset of recipes/gpt2.lua in PyTorch, over bytes."""

import torch

import common
from char_gpt import GPT, loss, mean_loss

run = common.supervised(
    make=lambda recording: GPT(recording.models[0], heads=2, bias=True, approximate="tanh"), loss=loss,
    optimizer=lambda model: torch.optim.AdamW(common.groups(model, 0.1), lr=1e-2, betas=(0.9, 0.95)),
    schedule=lambda optimizer, _: common.cosine(optimizer, 900, warmup=100, last=0.1))

if __name__ == "__main__":
    common.main("gpt2", "tinyshakespeare/input.txt", run, metric=mean_loss, always=[
        "--dtype", "uint8", "--model", "tiny", "--vocabulary", "256", "--lr", "1e-2", "--min_lr", "1e-3",
        "--steps", "1000", "--warmup", "100", "--valid_every", "1000"])
