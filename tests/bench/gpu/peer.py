"""peer.py - PyTorch's half of the GPU's table: `python peer.py GROUP [DEVICE [DIVISOR]]` prints "name <tab> value" as cases.lua does.

gpt2 takes MODE BATCH STEPS instead: eager, default or reduce-overhead, with fused AdamW and flash attention.
"""

import statistics
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

group = sys.argv[1]
arguments = sys.argv[2:]
device, divisor = "cuda", 1
if group not in ("gpt2", "char_gpt"):
    device = arguments[0] if arguments else "cuda"
    divisor = int(arguments[1]) if len(arguments) > 1 else 1
torch.manual_seed(1)


def wait():
    if device != "cpu":
        torch.cuda.synchronize()


def small(n):
    return max(n // divisor, 8)


def report(name, f, calls=20):
    """The median seconds of one call of f over seven rounds of many calls between two synchronisations."""
    calls, times = (2 if divisor > 1 else calls), []
    for _ in range(8):
        wait()
        start = time.perf_counter()
        for _ in range(calls):
            f()
        wait()
        times.append((time.perf_counter() - start) / calls)
    print(f"{name}\t{statistics.median(times[1:]):.9g}", flush=True)


def randn(dtype, *shape):
    return torch.randn(*shape, device=device).to(dtype)


def kernels():
    rows, columns = small(65536), 1024
    x, y = randn(torch.float32, rows, columns), randn(torch.float32, rows, columns)
    half, other = x.bfloat16(), y.bfloat16()
    weight, bias = torch.ones(columns, device=device), torch.zeros(columns, device=device)
    classes = torch.randint(columns, (rows,), device=device)
    report("copy", lambda: y.copy_(x))
    report("copy bfloat16", lambda: other.copy_(half))
    report("add bfloat16", lambda: half + other)
    report("gelu bfloat16", lambda: F.gelu(half, approximate="tanh"))
    report("cast to bfloat16", lambda: x.bfloat16())
    report("cast to float32", lambda: half.float())
    for suffix, given in (("", x), (" bfloat16", half)):
        w, b = weight.to(given.dtype), bias.to(given.dtype)
        report("layer_norm" + suffix, lambda: F.layer_norm(given, (columns,), w, b))
        report("softmax" + suffix, lambda: given.softmax(-1))
        report("cross_entropy" + suffix, lambda: F.cross_entropy(given, classes))
        leaf, grad = given.clone().requires_grad_(), given.clone()
        lw, lb = w.clone().requires_grad_(), b.clone().requires_grad_()

        def both():
            leaf.grad = lw.grad = lb.grad = None
            F.layer_norm(leaf, (columns,), lw, lb).backward(grad)

        report("layer_norm and backward" + suffix, both)
    p = randn(torch.float32, rows, columns).requires_grad_()
    p.grad = randn(torch.float32, rows, columns)
    opt = torch.optim.AdamW([p], lr=1e-3, fused=True)
    report("AdamW", opt.step)


def gemm():
    for n in (8192, 4096, 2048):
        for dtype in (torch.bfloat16, torch.float16):
            a, b = randn(dtype, small(n), small(n)), randn(dtype, small(n), small(n))
            report(f"matmul {n} {str(dtype)[6:]}", lambda: a @ b)


def attention():
    """The best of PyTorch's own backends, each alone."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    backends = [SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]
    for head in (64, 128):
        for steps in (2048, 4096, 8192):
            t, heads, batch = small(steps), 2048 // head, max(16384 // steps, 1)
            q, k, v = (randn(torch.bfloat16, batch, heads, t, head) for _ in range(3))
            grad = randn(torch.bfloat16, batch, heads, t, head)
            name = f"attention head_dim {head} time {steps}"
            for backend in backends:
                def forward():
                    with sdpa_kernel(backend):
                        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

                def both():
                    q.grad = k.grad = v.grad = None
                    forward().backward(grad)

                try:
                    with torch.no_grad():
                        report(f"{name} by {backend.name}", forward)
                    for p in (q, k, v):
                        p.requires_grad_()
                    report(f"{name} and backward by {backend.name}", both)
                except RuntimeError as why:
                    print(f"# {name}: {backend.name} does not run: {str(why).splitlines()[0]}", flush=True)
                for p in (q, k, v):
                    p.requires_grad_(False)


def host():
    x, y, a, b = randn(torch.bfloat16, 1024), randn(torch.bfloat16, 1024), randn(torch.bfloat16, 64, 64), randn(torch.bfloat16, 64, 64)
    with torch.no_grad():
        for name, f in (("host time of x + y", lambda: x + y), ("host time of a small matmul", lambda: a @ b)):
            times = []
            for _ in range(8):
                wait()
                start = time.perf_counter()
                for _ in range(200):
                    f()
                times.append((time.perf_counter() - start) / 200)
            print(f"{name}\t{statistics.median(times[1:]):.9g}")


class Block(nn.Module):
    def __init__(self, width, heads, bias, approximate):
        super().__init__()
        self.heads, self.approximate = heads, approximate
        self.norm1, self.norm2 = nn.LayerNorm(width, bias=bias), nn.LayerNorm(width, bias=bias)
        self.qkv, self.proj = nn.Linear(width, 3 * width, bias=bias), nn.Linear(width, width, bias=bias)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width, bias=bias), nn.Linear(4 * width, width, bias=bias)

    def forward(self, x):
        b, t, w = x.shape
        q, k, v = (a.view(b, t, self.heads, -1).transpose(1, 2) for a in self.qkv(self.norm1(x)).split(w, 2))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, w)
        x = x + self.proj(a)
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x)), approximate=self.approximate))


class GPT(nn.Module):
    """The model of recipes/gpt2.lua, or of recipes/char_gpt.lua (no biases, exact GELU); the head is the token table."""

    def __init__(self, vocabulary, width, layers, heads, context, bias, approximate):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*[Block(width, heads, bias, approximate) for _ in range(layers)])
        self.norm = nn.LayerNorm(width, bias=bias)
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, 0, 0.02)

    def forward(self, ids, targets):
        x = self.norm(self.blocks(self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))))
        return F.cross_entropy(F.linear(x, self.tokens.weight).flatten(0, 1), targets.flatten())


def train(net, mode, batch, context, vocabulary):
    """A function that trains one step, compiled as asked."""
    torch.set_float32_matmul_precision("high")
    opt = torch.optim.AdamW(net.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    run = net if mode == "eager" else torch.compile(net, mode=None if mode == "default" else mode)
    ids = torch.randint(vocabulary, (batch, context + 1), device="cuda")
    x, y = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()

    def step():
        opt.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss = run(x, y)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()

    return step


def gpt2():
    mode, batch, steps = arguments[0], int(arguments[1]), int(arguments[2])
    net = GPT(50304, 768, 12, 12, 1024, True, "tanh").cuda()
    step = train(net, mode, batch, 1024, 50257)
    for _ in range(10):
        step()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    print(f"gpt2 batch {batch} tokens per second {mode}\t{steps * batch * 1024 / seconds:.9g}")
    print(f"gpt2 batch {batch} peak bytes {mode}\t{torch.cuda.max_memory_allocated()}")


def char_gpt():
    step = train(GPT(65, 128, 4, 4, 64, False, "none").cuda(), arguments[0], 12, 64, 65)
    for _ in range(10):
        step()
    report(f"char_gpt step {arguments[0]}", step, 200)


def version():
    print(f"PyTorch {torch.__version__}, CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}")


{"kernels": kernels, "gemm": gemm, "attention": attention, "host": host, "gpt2": gpt2, "char_gpt": char_gpt, "version": version}[group]()
