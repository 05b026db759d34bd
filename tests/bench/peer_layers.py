"""peer_layers.py - PyTorch's half of the groups layers, optimizers, sorting and rows: the cases of layers.lua by the same names."""
import torch
from torch.nn import functional as F


def groups(report, scope, spelled):
    """The groups by name, which measure with report(name, f); scope(): autocast or not."""

    def both(name, f, leaves):
        with scope():
            up = torch.randn_like(f())

        def forward():
            with torch.no_grad(), scope():
                f()

        def backward():
            for leaf in leaves:
                leaf.grad = None
            with scope():
                y = f()
            y.backward(up)

        report(f"{name} {spelled}", forward)
        for leaf in leaves:
            leaf.requires_grad_()
        report(f"{name} {spelled}, backward", backward)

    convolutions = [
        ("depthwise 3x3", (16, 128, 56, 56), (128, 1, 3, 3), dict(padding=1, groups=128), F.conv2d),
        ("depthwise 5x5 stride 2", (16, 96, 56, 56), (96, 1, 5, 5), dict(padding=2, stride=2, groups=96), F.conv2d),
        ("32 groups 3x3", (16, 128, 28, 28), (128, 4, 3, 3), dict(padding=1, groups=32), F.conv2d),
        ("conv 3x3", (32, 64, 16, 16), (64, 64, 3, 3), dict(padding=1), F.conv2d),
        ("conv 3x3 stride 2", (32, 64, 16, 16), (128, 64, 3, 3), dict(padding=1, stride=2), F.conv2d),
        ("conv 7x7 stride 2", (16, 3, 64, 64), (64, 3, 7, 7), dict(padding=3, stride=2), F.conv2d),
        ("conv 8x8 stride 4", (16, 32, 64, 64), (64, 32, 8, 8), dict(padding=2, stride=4), F.conv2d),
        ("patches 16x16", (8, 3, 224, 224), (192, 3, 16, 16), dict(stride=16), F.conv2d),
        ("transposed 2x2 stride 2", (8, 128, 32, 32), (128, 64, 2, 2), dict(stride=2), F.conv_transpose2d),
        ("transposed 4x4 stride 2", (16, 128, 16, 16), (128, 64, 4, 4), dict(stride=2, padding=1), F.conv_transpose2d),
        ("conv1d 80 channels", (2, 80, 3000), (384, 80, 3), dict(padding=1), F.conv1d),
        ("conv1d stride 2", (2, 384, 3000), (384, 384, 3), dict(padding=1, stride=2), F.conv1d),
    ]

    def layers():
        for name, x_size, w_size, options, kind in convolutions:
            x, w = torch.randn(x_size), torch.randn(w_size) * 0.1
            both(name, lambda: kind(x, w, **options), (x, w))
        x, scale, shift = torch.randn(16, 128, 56, 56), torch.ones(128), torch.zeros(128)
        both("group_norm", lambda: F.group_norm(x, 32, scale, shift), (x, scale, shift))
        maps = torch.randn(8, 64, 56, 56)
        for mode in ("nearest", "bilinear", "bicubic"):
            both(f"interpolate {mode}", lambda: F.interpolate(maps, scale_factor=2, mode=mode), (maps,))
        q, k, v = torch.randn(4, 16, 256, 64), torch.randn(4, 4, 256, 64), torch.randn(4, 4, 256, 64)
        both("attention, 4 of 16 heads", lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True),
             (q, k, v))
        rows, bags = torch.randn(50000, 128), torch.randint(50000, (2048, 32))
        both("embedding_bag", lambda: F.embedding_bag(bags, rows), (rows,))
        a, b = torch.randn(8, 256, 8, 64), torch.randn(8, 256, 8, 64)
        both("einsum bthd,bshd->bhts", lambda: torch.einsum("bthd,bshd->bhts", a, b), (a, b))
        c, d = torch.randn(64, 128, 96), torch.randn(96, 32, 64)
        both("einsum bij,jkb->bik", lambda: torch.einsum("bij,jkb->bik", c, d), (c, d))

    def optimizers():
        fused = {"fused": True}  # where PyTorch has it for the CPU
        kinds = [("SGD", fused, ""), ("SGD", dict(fused, momentum=0.9), " momentum"), ("Adam", fused, ""), ("AdamW", fused, ""),
                 ("AdamW", dict(fused, amsgrad=True), " amsgrad"), ("RMSprop", {}, ""), ("Adagrad", fused, ""), ("Adadelta", {}, ""),
                 ("Adamax", {}, ""), ("NAdam", {}, ""), ("RAdam", {}, ""), ("ASGD", {}, ""), ("Rprop", {}, ""), ("Muon", {}, "")]
        for kind, options, suffix in kinds:
            parameters = [torch.randn(1024, 1024, requires_grad=True) for _ in range(16)]
            for p in parameters:
                p.grad = torch.randn_like(p)
            opt = getattr(torch.optim, kind)(parameters, lr=1e-3, **options)
            report(kind + suffix, opt.step)

    def sorting():
        line, rows, whole = torch.randn(1 << 20), torch.randn(4096, 1024), torch.randint(1 << 40, (1 << 20,))
        few, large = torch.randint(10000, (1 << 20,)), torch.randn(4096, 4096)
        flat = large.view(-1)
        report("sort 1 Mi float32", lambda: line.sort(stable=True))
        report("sort 1 Mi int64", lambda: whole.sort(stable=True))
        report("sort 4096 rows of 1024", lambda: rows.sort(stable=True))
        report("sort 1024 columns of 4096", lambda: rows.sort(dim=0, stable=True))
        report("argsort 1 Mi float32", lambda: line.argsort(stable=True))
        report("topk 100 of 1 Mi", lambda: line.topk(100))
        report("topk 10 of 4096 rows of 1024", lambda: rows.topk(10))
        report("unique 1 Mi of 10000", few.unique)
        report("unique 1 Mi of 10000, inverse, counts", lambda: few.unique(return_inverse=True, return_counts=True))
        report("unique 1 Mi float32", line.unique)
        report("cumsum along rows", lambda: large.cumsum(-1))
        report("cumsum along columns", lambda: large.cumsum(0))
        report("cumsum of one row", lambda: flat.cumsum(0))

    def rows():
        for n in (2, 8, 64):
            for dim, x in enumerate((torch.randn(n, (1 << 20) // n), torch.randn((1 << 20) // n, n))):
                for op in ("sum", "amax", "argmax", "var", "softmax", "log_softmax", "logsumexp"):
                    report(f"{op} of {'rows' if dim else 'columns'} of {n}", lambda: getattr(x, op)(dim))

    return {"layers": layers, "optimizers": optimizers, "sorting": sorting, "rows": rows}
