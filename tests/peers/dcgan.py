"""dcgan.py - recipes/dcgan.lua beside PyTorch: python tests/peers/dcgan.py. The noise is the recipe's; the losses of
both networks are compared. Roundings grow as they play against each other: --double says who is nearer to float64.
With --full the recipe scores the digits of PyTorch's generator, by score.lua."""
import os
import re
import subprocess
import tempfile

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

import clock
import vision


def generator(noise, width):
    return nn.Sequential(
        nn.ConvTranspose2d(noise, 2 * width, 7, bias=False), vision.NormRelu(2 * width),
        nn.ConvTranspose2d(2 * width, width, 4, 2, 1, bias=False), vision.NormRelu(width),
        nn.ConvTranspose2d(width, 1, 4, 2, 1, bias=False), nn.Tanh())


def discriminator(width):
    return nn.Sequential(
        nn.Conv2d(1, width, 4, 2, 1, bias=False), nn.LeakyReLU(0.2),
        nn.Conv2d(width, 2 * width, 4, 2, 1, bias=False), nn.BatchNorm2d(2 * width), nn.LeakyReLU(0.2),
        nn.Conv2d(2 * width, 1, 7, bias=False), nn.Flatten())


args = vision.options("dcgan", "mnist")
width, noise = vision.option(args, "width", 32), vision.option(args, "noise", 64)
if args.full:
    args.steps = 0  # to the recipe's end
epochs = args.steps // 62 + 1 if args.steps else vision.option(args, "epochs", 25)
run = vision.watch("dcgan", args, epochs=epochs)
images, _ = vision.digits(args.data)
images = images * 2 - 1


def judged(logits, truth):
    return F.binary_cross_entropy_with_logits(logits, torch.full_like(logits, truth))


def train(dtype):
    """The losses of the discriminator and of the generator, step by step, and the generator."""
    writer = vision.load(generator(noise, width), run.weights("generator")).to(dtype)
    critic = vision.load(discriminator(width), run.weights("discriminator")).to(dtype)
    lr = vision.option(args, "lr", 2e-4)
    of_writer = torch.optim.Adam(writer.parameters(), lr=lr, betas=(0.5, 0.999))
    of_critic = torch.optim.Adam(critic.parameters(), lr=lr, betas=(0.5, 0.999))
    if args.cost and args.cost.endswith("-last"):
        writer, critic = (model.to(memory_format=torch.channels_last) for model in (writer, critic))
    found = [vision.in_format(args, images[positions].to(dtype), drawn.to(dtype))
             for positions, drawn in zip(run.batches()[:args.steps or None], run.draws)]
    losses = []
    for real, drawn in clock.batches(found):
        of_critic.zero_grad()
        with vision.scope(args):
            written = writer(drawn)
            loss = judged(critic(real), 1.0) + judged(critic(written.detach()), 0.0)
        loss.backward()
        of_critic.step()
        of_writer.zero_grad()
        with vision.scope(args):
            fooled = judged(critic(written), 1.0)
        fooled.backward()
        of_writer.step()
        losses.append((loss.item(), fooled.item()))
    return losses, writer


def score(writer):
    """The Frechet distance of what a generator draws, by the recipe."""
    with tempfile.TemporaryDirectory() as folder:
        weights = os.path.join(folder, "generator.safetensors")
        save_file({name: t for name, t in writer.state_dict().items() if not name.endswith("tracked")}, weights)
        command = [args.gibbous, "--threads", str(args.threads), "tests/peers/score.lua", weights, "recipes/dcgan.lua",
                   "--data", args.data, "--precision", "32-true", "--device", "cpu", "--seed", str(args.seed), *args.rest]
        done = subprocess.run(command, cwd=vision.ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return float(re.search(r"frechet distance ([\d.]+)", done.stdout).group(1))


if args.full:
    print(f"dcgan: PyTorch {score(train(torch.float32)[1]):.1f}")
    raise SystemExit
if args.cost:
    train(torch.float32)
    clock.report()
    raise SystemExit
theirs, exact = train(torch.float32)[0], train(torch.float64)[0] if args.double else None
for i, name in enumerate(["discriminator", "generator"]):
    vision.compare(f"dcgan, the {name}'s loss", args, [row[name] for row in run.rows], [row[i] for row in theirs],
                   exact and [row[i] for row in exact])
