#!/usr/bin/env python3
"""Golden results of gb.data.transforms, made with torchvision and Pillow.

Usage: python tests/golden/transforms.py   (needs torch, torchvision, Pillow; writes tests/golden/data/transforms.jsonl)

The first line holds the images, bytes [height, width, channels] in hexadecimal. Every other line has a transform (name,
arguments, options), the seed, and the bytes that come out. What is random is made from the same words of Philox as the
engine takes (base/philox.h), so that torchvision can be given what was drawn.
"""
import json
import math
import pathlib

import numpy
import torch
from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as F
from torchvision.transforms.autoaugment import _apply_op

OUT = pathlib.Path(__file__).parent / "data" / "transforms.jsonl"
NEAREST, BILINEAR = InterpolationMode.NEAREST, InterpolationMode.BILINEAR
M = 0xFFFFFFFF


class Draws:
    """What a transform of one step draws for sample 0 of epoch 0."""

    def __init__(self, seed):
        self.seed, self.count = seed, 0

    def __call__(self):
        offset = 7 << 61
        c = [self.count & M, self.count >> 32, offset & M, offset >> 32]
        k = [self.seed & M, self.seed >> 32]
        for _ in range(10):
            p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
            c = [(p1 >> 32) ^ c[1] ^ k[0], p1 & M, (p0 >> 32) ^ c[3] ^ k[1], p0 & M]
            k = [(k[0] + 0x9E3779B9) & M, (k[1] + 0xBB67AE85) & M]
        self.count += 1
        return ((c[0] << 32 | c[1]) >> 11) * 2.0 ** -53

    def below(self, limit):
        return int(self() * limit)

    def between(self, low, high):
        return low + (high - low) * self()


def picture(height, width, channels, seed):
    rng = numpy.random.default_rng(seed)
    y, x = numpy.mgrid[0:height, 0:width]
    planes = [128 + 100 * numpy.sin(x / (2 + c) + y / (4 - c)) for c in range(channels)]
    noise = rng.integers(-20, 21, (height, width, channels))
    return numpy.clip(numpy.stack(planes, -1) + noise, 0, 255).astype(numpy.uint8)


IMAGES = {"colours": picture(11, 14, 3, 1), "gray": picture(12, 9, 1, 2), "large": picture(31, 27, 3, 3)}


def tensor(name):
    return torch.from_numpy(IMAGES[name].transpose(2, 0, 1).copy())


def pillow(name):
    image = IMAGES[name]
    return Image.fromarray(image[..., 0] if image.shape[2] == 1 else image)


def resized_crop(name, seed, size, scale, ratio):
    draws, image = Draws(seed), pillow(name)
    width, height = image.size
    for _ in range(10):
        area = height * width * draws.between(*scale)
        shape = math.exp(draws.between(math.log(ratio[0]), math.log(ratio[1])))
        w, h = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
        if 0 < w <= width and 0 < h <= height:
            top, left = draws.below(height - h + 1), draws.below(width - w + 1)
            return F.resized_crop(image, top, left, h, w, size, BILINEAR)
    raise ValueError("choose another seed")


def random_crop(name, seed, size, padding, mode, fill):
    draws, image = Draws(seed), F.pad(tensor(name), [padding] * 4, fill, mode)
    top = draws.below(image.shape[1] - size[0] + 1)
    return F.crop(image, top, draws.below(image.shape[2] - size[1] + 1), *size)


def elastic(name, seed, alpha, sigma, mode, fill):
    draws, image = Draws(seed), tensor(name)
    h, w = image.shape[1:]
    field = torch.tensor([2 * draws() - 1 for _ in range(2 * h * w)], dtype=torch.float32).reshape(1, 2, h, w)
    kernel = int(8 * sigma + 1) | 1
    moved = F.gaussian_blur(field, [kernel, kernel], [sigma, sigma])
    moved = torch.stack([moved[0, 0] * alpha / h, moved[0, 1] * alpha / w], -1)[None]
    return F.elastic_transform(image, moved, mode, fill)


def rand_augment(name, seed, magnitude):
    draws, image = Draws(seed), tensor(name)
    which, strength = draws.below(14), magnitude / 30
    sign = -1 if 1 <= which <= 9 and draws() < 0.5 else 1
    h, w = image.shape[1:]
    ops = [("Identity", 0), ("ShearX", 0.3), ("ShearY", 0.3), ("TranslateX", 150 / 331 * w),
           ("TranslateY", 150 / 331 * h), ("Rotate", 30), ("Brightness", 0.9), ("Color", 0.9), ("Contrast", 0.9),
           ("Sharpness", 0.9)]
    if which < len(ops):
        op, value = ops[which][0], ops[which][1] * strength * sign
    else:
        op = ("Posterize", "Solarize", "AutoContrast", "Equalize")[which - 10]
        value = {10: 8 - round(4 * strength), 11: 255 * (1 - strength)}.get(which, 0)
    return op, _apply_op(image, op, value, NEAREST, [0.0] * image.shape[0])


def cases():
    """name of the transform, image, positional arguments, options, seed, what comes out, levels it may be off."""
    for image in IMAGES:
        yield "flip", image, [], {"p": 1}, 0, F.hflip(tensor(image)), 0
        yield "flip", image, [], {"p": 1, "direction": "vertical"}, 0, F.vflip(tensor(image)), 0
        for size in ([7, 8], [20, 17], [11, 14], [1, 1]):
            yield "resize", image, [size], {}, 0, F.resize(pillow(image), size, BILINEAR), 1
            yield "center_crop", image, [size], {}, 0, F.center_crop(tensor(image), size), 0
        yield "resize", image, [10], {}, 0, F.resize(pillow(image), 10, BILINEAR), 1
        for seed in (1, 2):
            yield ("resized_crop", image, [[8, 7]], {"scale": [0.3, 0.9]}, seed,
                   resized_crop(image, seed, [8, 7], (0.3, 0.9), (3 / 4, 4 / 3)), 1)
            yield ("random_crop", image, [[10, 9]], {"padding": 3, "fill": 9}, seed,
                   random_crop(image, seed, (10, 9), 3, "constant", 9), 0)
            yield ("random_crop", image, [[10, 9]], {"padding": 5, "mode": "reflect"}, seed,
                   random_crop(image, seed, (10, 9), 5, "reflect", 0), 0)
        if image == "large":
            continue
        channels = IMAGES[image].shape[2]
        for word, mode in (("nearest", NEAREST), ("bilinear", BILINEAR)):
            for angle, fill in ((33, 0), (-90, 7), (180, 0), (12.5, 200)):
                yield ("rotate", image, [[angle, angle]], {"mode": word, "fill": fill}, 0,
                       F.rotate(tensor(image), angle, mode, fill=[float(fill)] * channels), 1)
            moved = [round(0.1 * IMAGES[image].shape[1]), round(-0.2 * IMAGES[image].shape[0])]
            yield ("affine", image, [[20, 20]], {"mode": word, "translate": [0.1, 0.1, -0.2, -0.2],
                                                 "scale": [1.3, 1.3], "shear": [5, 5, -8, -8], "fill": 50}, 0,
                   F.affine(tensor(image), 20, moved, 1.3, [5, -8], mode, fill=[50.0] * channels), 1)
        for factor in (0, 0.4, 1.7):
            both = [factor, factor]
            yield "color_jitter", image, [], {"brightness": both}, 0, F.adjust_brightness(tensor(image), factor), 1
            yield "color_jitter", image, [], {"contrast": both}, 0, F.adjust_contrast(tensor(image), factor), 1
            yield "color_jitter", image, [], {"saturation": both}, 0, F.adjust_saturation(tensor(image), factor), 1
            yield "sharpness", image, [factor], {"p": 1}, 0, F.adjust_sharpness(tensor(image), factor), 1
        for hue in (-0.5, -0.1, 0.3):
            yield "color_jitter", image, [], {"hue": [hue, hue]}, 0, F.adjust_hue(tensor(image), hue), 1
        gray = F.rgb_to_grayscale(tensor(image), 3) if channels == 3 else tensor(image)
        yield "grayscale", image, [], {"p": 1}, 0, gray, 1
        yield "posterize", image, [3], {"p": 1}, 0, F.posterize(tensor(image), 3), 0
        yield "solarize", image, [128], {"p": 1}, 0, F.solarize(tensor(image), 128), 0
        yield "autocontrast", image, [], {"p": 1}, 0, F.autocontrast(tensor(image)), 1
        yield "equalize", image, [], {"p": 1}, 0, F.equalize(tensor(image)), 0
    for alpha, sigma in ((50, 1), (8, 0.5)):
        yield ("elastic", "colours", [], {"alpha": alpha, "sigma": sigma, "fill": 30}, 4,
               elastic("colours", 4, alpha, sigma, BILINEAR, [30.0] * 3), 1)
    seen = set()
    for seed in range(200):
        op, result = rand_augment("colours", seed, 9)
        if op not in seen:
            seen.add(op)
            yield "rand_augment", "colours", [], {"n": 1, "magnitude": 9}, seed, result, 1
    assert len(seen) == 14


def bytes_of(result):
    if isinstance(result, Image.Image):
        array = numpy.array(result)
        return array.reshape(*array.shape[:2], -1)
    return result.numpy().transpose(1, 2, 0)


def main():
    with open(OUT, "w", encoding="utf-8") as out:
        images = {name: {"shape": image.shape, "bytes": image.tobytes().hex()} for name, image in IMAGES.items()}
        print(json.dumps({"images": images}), file=out)
        for name, image, arguments, options, seed, result, levels in cases():
            array = bytes_of(result)
            row = {"name": name, "image": image, "arguments": arguments, "options": options, "seed": seed,
                   "levels": levels, "shape": array.shape, "bytes": array.tobytes().hex()}
            print(json.dumps(row), file=out)


main()
