"""peer.py - PyTorch's half of the table: `python peer.py GROUP THREADS VOCABULARY [PRECISION]` prints "name <tab> seconds" as cases.lua does.

A case that takes more than GIBBOUS_PEER_SECONDS (20) is given up, and prints "name <tab> over"; so do those named in GIBBOUS_PEER_SKIP, parted by
semicolons, without being run. Python cannot stop a kernel that runs, but an alarm ends its process: the cases run in a second process, which is
started again behind a case that was given up. GIBBOUS_CLOCK=cpu counts processor time, for one thread.
"""

import os
import signal
import statistics
import subprocess
import sys
import time

limit = float(os.environ.get("GIBBOUS_PEER_SECONDS", "20"))
skipped = os.environ.get("GIBBOUS_PEER_SKIP", "").split(";")


def supervise():
    """Run the cases in a process of their own, and go on behind each that was given up."""
    begun = 0
    while True:
        name, environment = None, dict(os.environ, GIBBOUS_PEER_DONE=str(begun))
        worker = subprocess.Popen([sys.executable] + sys.argv, stdout=subprocess.PIPE, text=True, env=environment)
        for line in worker.stdout:
            if line.startswith("begin\t"):
                name, begun = line[6:-1], begun + 1
            else:
                print(line, end="", flush=True)
        if worker.wait() != -signal.SIGALRM:
            sys.exit(worker.returncode)
        print(f"{name}\tover", flush=True)


if "GIBBOUS_PEER_DONE" not in os.environ:
    supervise()

import peer_layers
import torch
from torch import nn
from torch.nn import functional as F

group, threads, vocabulary = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
spelled = sys.argv[4] if len(sys.argv) > 4 else "32-true"
budget = 0.4
clock = time.process_time if os.environ.get("GIBBOUS_CLOCK") == "cpu" else time.perf_counter
torch.set_num_threads(threads)
torch.manual_seed(1)


left = int(os.environ["GIBBOUS_PEER_DONE"])  # cases that an earlier process has begun


def report(name, f, inner=1):
    """The median time of one call of f, which does its thing `inner` times: of three calls at least, unless they take too long."""
    global left
    left -= 1
    if left >= 0:
        return
    print(f"begin\t{name}", flush=True)
    if name in skipped:
        print(f"{name}\tover", flush=True)
        return
    signal.setitimer(signal.ITIMER_REAL, limit)
    f()
    times, start = [], time.perf_counter()
    while not times or (len(times) < 3 and time.perf_counter() - start < limit / 4) or time.perf_counter() - start < budget:
        before = clock()
        f()
        times.append(clock() - before)
    signal.setitimer(signal.ITIMER_REAL, 0)
    print(f"{name}\t{statistics.median(times) / inner:.9f}", flush=True)


def scope():
    return torch.autocast("cpu", torch.bfloat16, enabled=spelled == "bf16-mixed")


class Block(nn.Module):
    """nanoGPT's block, without biases and dropout."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
        self.qkv, self.proj = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        b, t, w = x.shape
        q, k, v = (a.view(b, t, self.heads, -1).transpose(1, 2) for a in self.qkv(self.norm1(x)).split(w, 2))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, w)
        x = x + self.proj(a)
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class GPT(nn.Module):
    """recipes/char_gpt.lua: 4 layers, 4 heads, 128 wide, 64 characters, the head tied to the tokens."""

    def __init__(self, width=128, layers=4, heads=4, block=64):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(block, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width, bias=False)
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, 0, 0.02)

    def forward(self, ids, targets):
        x = self.norm(self.blocks(self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))))
        if hasattr(F, "linear_cross_entropy"):
            return F.linear_cross_entropy(x.flatten(0, 1), self.tokens.weight, targets.flatten())
        return F.cross_entropy(F.linear(x, self.tokens.weight).flatten(0, 1), targets.flatten())


def step(name, net, opt, loss_of):
    def one():
        opt.zero_grad(set_to_none=True)
        with scope():
            loss = loss_of()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        loss.item()

    report(f"{name} {spelled}", one)


def gpt():
    net = GPT()
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1, fused=True)
    ids = torch.randint(vocabulary, (12, 65))
    step("char_gpt", net, opt, lambda: net(ids[:, :-1].contiguous(), ids[:, 1:].contiguous()))


def mnist():
    net = nn.Sequential(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
                        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64 * 7 * 7, 10))
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)
    x, y = torch.rand(64, 1, 28, 28), torch.randint(10, (64,))
    step("mnist_cnn", net, opt, lambda: F.cross_entropy(net(x), y))


def matmul():
    shapes = [(256,) * 3, (512,) * 3, (1024,) * 3, (2048,) * 3, (333, 777, 555), (1000, 17, 1000), (1, 1024, 1024)]
    for m, k, n in shapes:
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            x, y = torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype)
            report(f"matmul {m}x{k}x{n} {str(dtype)[6:]}", lambda: x @ y)


def memory():
    rows, columns = 16384, 1024
    x, y, square = torch.randn(rows, columns), torch.randn(rows, columns), torch.randn(4096, 4096)
    half = x.bfloat16()
    weight, bias, classes = torch.ones(columns), torch.zeros(columns), torch.randint(columns, (rows,))
    report("copy", lambda: y.copy_(x))
    report("add", lambda: x + y)
    report("add bfloat16", lambda: half + half)
    report("add transposed", lambda: square + square.t())
    report("cast to bfloat16", lambda: x.bfloat16())
    report("cast to float32", lambda: half.float())
    small, image = torch.randn(rows // 2, columns), torch.randn(16, 64, 64, 64)
    report("repeat_interleave", lambda: small.repeat_interleave(2, 1))
    report("nearest upsampling", lambda: image.view(16, 64, 64, 1, 64, 1).expand(16, 64, 64, 2, 64, 2).reshape(16, 64, 128, 128))
    report("amax", x.amax)
    report("amax bfloat16", half.amax)
    for suffix, given in (("", x), (" bfloat16", half)):
        w, b = weight.to(given.dtype), bias.to(given.dtype)
        report("layer_norm" + suffix, lambda: F.layer_norm(given, (columns,), w, b))
        report("softmax" + suffix, lambda: given.softmax(-1))
        report("cross_entropy" + suffix, lambda: F.cross_entropy(given, classes))
        leaf, grad = given.clone().requires_grad_(), given.clone()
        lw, lb = w.clone().requires_grad_(), b.clone().requires_grad_()

        def twice(name, forward, with_=None):
            def both():
                leaf.grad = lw.grad = lb.grad = None
                forward().backward(with_)

            report(f"{name} and backward{suffix}", both)

        twice("layer_norm", lambda: F.layer_norm(leaf, (columns,), lw, lb), grad)
        twice("softmax", lambda: leaf.softmax(-1), grad)
        twice("cross_entropy", lambda: F.cross_entropy(leaf, classes))
    p = torch.randn(rows, columns, requires_grad=True)
    p.grad = torch.randn(rows, columns)
    opt = torch.optim.AdamW([p], lr=1e-3, fused=True)
    report("AdamW", lambda: opt.step())


def small():
    x, y = torch.randn(1, requires_grad=True), torch.randn(1)

    def add():
        for _ in range(1000):
            x + y

    def enter():
        for _ in range(1000):
            with torch.autocast("cpu", torch.bfloat16):
                pass

    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    given, target = torch.randn(8, 8), torch.randn(8, 8)

    def mlp():
        for _ in range(100):
            opt.zero_grad(set_to_none=True)
            F.mse_loss(net(given), target).backward()
            opt.step()

    report("x + y", add, 1000)
    report("autocast scope", enter, 1000)
    report("step of an MLP of width 8", mlp, 100)


def recurrent():
    for name in ("LSTM", "GRU"):
        net, x, up = getattr(nn, name)(512, 512, num_layers=2), torch.randn(64, 32, 512, requires_grad=True), torch.randn(64, 32, 512)

        def both():
            net.zero_grad(set_to_none=True)
            x.grad = None
            with scope():
                y = net(x)[0]
            y.backward(up.to(y.dtype))

        try:
            both()
        except RuntimeError:  # oneDNN has no LSTM in 16 bits for every processor
            continue
        report(f"{name} {spelled}", both)


def version():
    library = "MKL" if torch.backends.mkl.is_available() else "no MKL"
    print(f"PyTorch {torch.__version__}, BLAS {library}, kernels for {torch.backends.cpu.get_cpu_capability()}")


def models():
    import peer_models
    peer_models.run(report, scope, spelled)


groups = {"gpt": gpt, "mnist": mnist, "matmul": matmul, "memory": memory, "small": small, "recurrent": recurrent, "models": models,
          "version": version, **peer_layers.groups(report, scope, spelled)}
groups[group]()
