"""dcgan.py - recipes/dcgan.lua beside PyTorch: python tests/peers/dcgan.py. The noise is the recipe's; the losses of
both networks are compared. Roundings grow as they play against each other: --double says who is nearer to float64."""
import torch
import torch.nn.functional as F
from torch import nn

import clock
import vision


def generator(noise, width):
    return nn.Sequential(
        nn.ConvTranspose2d(noise, 2 * width, 7, bias=False), nn.BatchNorm2d(2 * width), nn.ReLU(),
        nn.ConvTranspose2d(2 * width, width, 4, 2, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
        nn.ConvTranspose2d(width, 1, 4, 2, 1, bias=False), nn.Tanh())


def discriminator(width):
    return nn.Sequential(
        nn.Conv2d(1, width, 4, 2, 1, bias=False), nn.LeakyReLU(0.2),
        nn.Conv2d(width, 2 * width, 4, 2, 1, bias=False), nn.BatchNorm2d(2 * width), nn.LeakyReLU(0.2),
        nn.Conv2d(2 * width, 1, 7, bias=False), nn.Flatten())


args = vision.options("dcgan", "mnist")
width, noise = vision.option(args, "width", 32), vision.option(args, "noise", 64)
run = vision.watch("dcgan", args, epochs=args.steps // 62 + 1)
images, _ = vision.digits(args.data)
images = images * 2 - 1


def judged(logits, truth):
    return F.binary_cross_entropy_with_logits(logits, torch.full_like(logits, truth))


def train(dtype):
    """The losses of the discriminator and of the generator, step by step."""
    writer = vision.load(generator(noise, width), run.weights("generator")).to(dtype)
    critic = vision.load(discriminator(width), run.weights("discriminator")).to(dtype)
    lr = vision.option(args, "lr", 2e-4)
    of_writer = torch.optim.Adam(writer.parameters(), lr=lr, betas=(0.5, 0.999))
    of_critic = torch.optim.Adam(critic.parameters(), lr=lr, betas=(0.5, 0.999))
    if args.cost and args.cost.endswith("-last"):
        writer, critic = (model.to(memory_format=torch.channels_last) for model in (writer, critic))
    found = [vision.in_format(args, images[positions].to(dtype), drawn.to(dtype))
             for positions, drawn in zip(run.batches()[:args.steps], run.draws)]
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
    return losses


if args.cost:
    train(torch.float32)
    clock.report()
    raise SystemExit
theirs, exact = train(torch.float32), train(torch.float64) if args.double else None
for i, name in enumerate(["discriminator", "generator"]):
    vision.compare(f"dcgan, the {name}'s loss", args, [row[name] for row in run.rows], [row[i] for row in theirs],
                   exact and [row[i] for row in exact])
