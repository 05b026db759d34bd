"""Cases of the vision family."""
import torch
import torch.nn.functional as F

from . import case, distinct, ints, rand, x0, x1, x2, x3, x4

case("pad", [rand(2, 3, 4)], [x0, [1, 2]], lambda x: F.pad(x, (1, 2)))
case("pad", [rand(2, 3, 4)], [x0, [1, 0, -1, 2], "constant", 1.5],
     lambda x: F.pad(x, (1, 0, -1, 2), "constant", 1.5), tag="value, cut")
case("pad", [rand(2, 3, 4)], [x0, [-1, 2, 2, -1]], lambda x: F.pad(x, (-1, 2, 2, -1)), tag="zeros, cut")
for mode in ("reflect", "replicate", "circular"):
    case("pad", [rand(2, 2, 3, 4)], [x0, [2, 1, 1, 2], mode], lambda x, m=mode: F.pad(x, (2, 1, 1, 2), m), growth=16,
         tag=mode)
case("pad", [rand(1, 2, 2, 3, 3)], [x0, [1, 1, 2, 0, 1, 1], "replicate"],
     lambda x: F.pad(x, (1, 1, 2, 0, 1, 1), "replicate"), growth=32, tag="volume")
case("pixel_shuffle", [rand(2, 8, 2, 3)], [x0, 2], lambda x: F.pixel_shuffle(x, 2))
case("pixel_unshuffle", [rand(2, 2, 4, 6)], [x0, 2], lambda x: F.pixel_unshuffle(x, 2))
case("channel_shuffle", [rand(2, 6, 2, 2)], [x0, 3], lambda x: F.channel_shuffle(x, 3))
case("im2col", [rand(2, 2, 5, 6)], [x0, [2, 3]], lambda x: F.unfold(x, (2, 3)), growth=16)
case("im2col", [rand(2, 5, 6)], [x0, [3, 2], {"dilation": [1, 2], "padding": [1, 0], "stride": [2, 1]}],
     lambda x: F.unfold(x, (3, 2), (1, 2), (1, 0), (2, 1)), growth=16, tag="options")
case("col2im", [rand(2, 8, 12)], [x0, [4, 5], 2], lambda x: F.fold(x, (4, 5), 2), growth=16)
case("col2im", [rand(12, 6)], [x0, [5, 6], [3, 2], {"dilation": [1, 2], "padding": [1, 1], "stride": [2, 3]}],
     lambda x: F.fold(x, (5, 6), (3, 2), (1, 2), (1, 1), (2, 3)), growth=16, tag="options")


def resized(tag, shape, mode, growth=24, **options):
    """interpolate by PyTorch's names; lists for Lua."""
    named = {"mode": mode.replace("-", "_")} | {k: v for k, v in options.items() if k != "size"}
    args = [x0, list(options["size"]), named] if "size" in options else [x0, None, named]
    case("interpolate", [rand(*shape)], args, lambda x: F.interpolate(x, mode=mode, **options), growth=growth, tag=tag)


resized("nearest", (2, 2, 3, 4), "nearest", size=(5, 7))
resized("nearest, smaller", (2, 2, 7), "nearest", size=(3,))
resized("nearest, doubled", (1, 2, 3, 3), "nearest", scale_factor=2)
resized("nearest volume", (1, 2, 2, 3, 4), "nearest", size=(3, 2, 6))
resized("nearest exact", (2, 2, 3, 7), "nearest-exact", size=(5, 4))
resized("linear", (2, 3, 5), "linear", size=(8,))
resized("bilinear", (2, 2, 3, 5), "bilinear", size=(6, 4))
resized("bilinear, corners", (2, 2, 3, 5), "bilinear", size=(6, 4), align_corners=True)
resized("bilinear, factor", (1, 2, 4, 5), "bilinear", scale_factor=1.6)
resized("bilinear, recomputed", (1, 2, 4, 5), "bilinear", scale_factor=1.6, recompute_scale_factor=True)
resized("bilinear, smooth", (1, 2, 7, 9), "bilinear", size=(3, 4), antialias=True)
resized("bicubic", (1, 2, 4, 5), "bicubic", size=(7, 8), growth=48)
resized("bicubic, corners", (1, 2, 4, 5), "bicubic", size=(7, 3), align_corners=True, growth=48)
resized("bicubic, smooth", (1, 2, 9, 8), "bicubic", size=(4, 3), antialias=True, growth=48)
resized("trilinear", (1, 2, 2, 3, 4), "trilinear", size=(3, 5, 3))
resized("area", (1, 2, 5, 7), "area", size=(3, 4))


def sampled(tag, places, grid, growth=64, **options):
    """grid_sample of an image or a volume at a grid of random places, some of them outside."""
    x = rand(2, 2, *places)
    case("grid_sample", [x, rand(2, *grid, len(places), low=-1.25, high=1.25) + 1 / 32], [x0, x1, options],
         lambda x, g: F.grid_sample(x, g, **({"align_corners": False} | options)), growth=growth, tag=tag)


sampled("zeros", (3, 4), (2, 3))
sampled("corners", (3, 4), (2, 3), align_corners=True)
sampled("border", (3, 4), (2, 3), padding_mode="border")
sampled("reflection", (3, 4), (2, 3), padding_mode="reflection")
sampled("reflection, corners", (3, 4), (2, 3), padding_mode="reflection", align_corners=True)
sampled("nearest", (3, 4), (2, 3), mode="nearest")
sampled("bicubic", (4, 5), (2, 3), mode="bicubic", growth=256)
sampled("bicubic, border", (4, 5), (2, 3), mode="bicubic", padding_mode="border", growth=256)
sampled("bicubic, reflection", (4, 5), (2, 2), mode="bicubic", padding_mode="reflection", growth=256)
sampled("volume", (2, 3, 4), (2, 2, 2))
sampled("nearest volume", (2, 3, 4), (2, 2, 2), mode="nearest", padding_mode="border")
case("affine_grid", [rand(2, 2, 3)], [x0, [2, 3, 4, 5]], lambda t: F.affine_grid(t, (2, 3, 4, 5), align_corners=False),
     growth=48)
case("affine_grid", [rand(1, 3, 4)], [x0, [1, 1, 2, 3, 2], {"align_corners": True}],
     lambda t: F.affine_grid(t, (1, 1, 2, 3, 2), align_corners=True), growth=48, tag="volume, corners")
case("instance_norm", [rand(2, 3, 4, 2), rand(3, low=0.5), rand(3)], [x0, None, None, x1, x2],
     lambda x, w, b: F.instance_norm(x, weight=w, bias=b), growth=64)
case("instance_norm", [rand(2, 3, 8)], [x0], lambda x: F.instance_norm(x), growth=64, tag="plain")
case("instance_norm", [rand(2, 3, 4), rand(3), rand(3, low=0.5), rand(3), rand(3)],
     [x0, x1, x2, x3, x4, {"use_input_stats": False}],
     lambda x, rm, rv, w, b: F.instance_norm(x, rm, rv, w, b, False), grad=[0, 3, 4], growth=32, tag="evaluation")
case("local_response_norm", [rand(2, 5, 3)], [x0, 3, {"alpha": 0.5}], lambda x: F.local_response_norm(x, 3, 0.5), growth=32)
case("local_response_norm", [rand(1, 4, 2, 2)], [x0, 2, {"alpha": 1.0, "beta": 0.5, "k": 2.0}],
     lambda x: F.local_response_norm(x, 2, 1.0, 0.5, 2.0), growth=32, tag="even")
starts = torch.tensor([0, 2, 2, 5])


def bag(i, w, o=None, **named):
    """embedding_bag; PyTorch reads past its memory where something is empty, or an id or an offset is too large."""
    if not (i.numel() and w.numel()) or i.max() >= len(w) or o is not None and not (len(o) > 1 and o.max() <= len(i)):
        raise IndexError("out of range")
    return F.embedding_bag(i, w, o, **named)


case("embedding_bag", [ints(3, 4, high=5), rand(5, 3)], [x0, x1], lambda i, w: bag(i, w), growth=24)
case("embedding_bag", [ints(7, high=5), rand(5, 3), starts], [x0, x1, x2, {"mode": "sum"}],
     lambda i, w, o: bag(i, w, o, mode="sum"), growth=24, tag="offsets")
case("embedding_bag", [ints(7, high=5), rand(5, 3), starts], [x0, x1, x2],
     lambda i, w, o: bag(i, w, o), growth=24, tag="mean by offsets")
case("embedding_bag", [ints(7, high=5), distinct(5, 3), starts], [x0, x1, x2, {"mode": "max"}],
     lambda i, w, o: bag(i, w, o, mode="max"), growth=24, tag="max by offsets")
case("embedding_bag", [ints(5, high=5), rand(5, 3), starts, rand(5)],
     [x0, x1, x2, x3, {"mode": "sum", "include_last_offset": True}],
     lambda i, w, o, s: bag(i, w, o, mode="sum", per_sample_weights=s, include_last_offset=True), growth=24,
     tag="weights")
case("embedding_bag", [ints(3, 4, high=3), rand(3, 3)], [x0, x1, {"mode": "mean", "padding_idx": 1}],
     lambda i, w: bag(i, w, mode="mean", padding_idx=1), growth=24, tag="padding")
for name, shape in (("dropout1d", (2, 3, 4)), ("dropout2d", (2, 3, 2, 2)), ("dropout3d", (2, 3, 2, 2, 1))):
    case(name, [rand(*shape)], [x0, 0.5, False], lambda x: x, tag="evaluation")
for name in ("alpha_dropout", "feature_alpha_dropout"):
    case(name, [rand(2, 3, 4)], [x0, 0.5, False], lambda x: x, tag="evaluation")
