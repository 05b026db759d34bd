#!/usr/bin/env python3
"""Golden numbers for calls that are made of ops: functions, layers and losses, made with PyTorch in float64.

Usage: python tests/golden/calls.py [--check] [FAMILY...]      (needs torch; writes tests/golden/calls/FAMILY.jsonl)

A line keeps the public names that it stands for, the call as Lua writes it (of inputs a, b, ..., and `m`, a module),
a module's state, its inputs, outputs, the gradients that come in, and those of inputs and parameters. `autocast` is
what PyTorch's CUDA lists make the outputs of float32 inputs in a scope of bfloat16; nothing is computed for it, so that
no GPU is needed. Layers stand in training.py where their weights are called otherwise here.
"""
import warnings

import cases
import lines
import torch
import torch.nn as nn
import torch.nn.functional as F
import torchvision
from torch._subclasses.fake_tensor import FakeTensorMode

made = dict(dtype=torch.float64)
ROWS = {"functions": [], "layers": [], "losses": []}
rand, distinct, ints, flags = cases.rand, cases.distinct, cases.ints, cases.flags
warnings.filterwarnings("ignore")


def listed(outs):
    return [o for o in (outs if isinstance(outs, (tuple, list)) else [outs]) if isinstance(o, torch.Tensor)]


def shortened(t):
    """Results with twelve digits, which all tolerances leave far behind them."""
    return torch.tensor([float(f"{v:.12g}") for v in t.reshape(-1).tolist()], dtype=t.dtype).reshape(t.shape) \
        if t.is_floating_point() else t


def autocast_of(make, fn, inputs):
    """The dtypes of the outputs under CUDA's autocast, or None where it refuses, or shapes depend on values."""
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", torch.bfloat16)
    try:
        with FakeTensorMode(), torch.device("cuda"):
            module = make() if make else None
            fakes = [torch.empty(x.shape, dtype=torch.float32 if x.is_floating_point() else x.dtype)
                     for x in inputs]
            return [str(o.dtype)[6:] for o in listed(fn(module, *fakes) if make else fn(*fakes))]
    except Exception:
        return None
    finally:
        torch.set_autocast_enabled("cuda", False)


def case(family, names, lua, inputs, fn, make=None, grad=True, tag="", lapack=False, autocast=True, wide=False):
    """names: the public names, separated by blanks; the first names the line, with the tag. grad: the places of inputs
    to differentiate, or all floating ones. wide: float64 alone."""
    name = f"{names.split()[0]}{', ' if tag else ''}{tag}"
    inputs = [x.draw(cases.Words(f"{name}: in{i}")) if isinstance(x, cases.Drawn) else x
              for i, x in enumerate(inputs)]
    module, state = make() if make else None, {}
    if isinstance(module, nn.Module):
        for key, value in module.state_dict().items():
            if value.is_floating_point():
                drawn = rand(*value.shape, low=0.25 if "var" in key else -1).draw(cases.Words(f"{name}: {key}"))
                value.copy_(drawn.to(value.dtype))
            state[key] = value.clone()
        module.double()
    wanted = range(len(inputs)) if grad is True else grad or ()
    leaves = [x.detach().clone().requires_grad_(i in wanted and x.is_floating_point()) for i, x in enumerate(inputs)]
    outs = listed(fn(module, *leaves) if make else fn(*leaves))
    tensors = {f"in{i}": x for i, x in enumerate(inputs)} | {f"state.{k}": v for k, v in state.items()}
    tensors |= {f"out{i}": shortened(o.detach().clone()) for i, o in enumerate(outs)}
    graded = {i: o for i, o in enumerate(outs) if o.requires_grad and o.is_floating_point()}
    if graded:
        ups = {i: rand(*o.shape, away=0.25).draw(cases.Words(f"{name}: up{i}")).to(o.dtype) for i, o in graded.items()}
        tensors |= {f"up{i}": u for i, u in ups.items()}
        wanted = {f"grad{i}": x for i, x in enumerate(leaves) if x.requires_grad}
        if isinstance(module, nn.Module):
            wanted |= {f"dstate.{k}": p for k, p in module.named_parameters()}
        grads = torch.autograd.grad(list(graded.values()), list(wanted.values()), list(ups.values()), allow_unused=True)
        tensors |= {k: shortened(torch.zeros_like(x) if g is None else g)
                    for (k, x), g in zip(wanted.items(), grads)}
    if isinstance(module, nn.Module):
        tensors |= {f"after.{k}": shortened(b.detach().clone()) for k, b in module.named_buffers()}
    ROWS[family].append({"name": name, "names": names.split(), "lua": lua, "inputs": len(inputs), "outputs": len(outs),
                         "graded": sorted(graded), "lapack": lapack, "wide": wide,
                         "autocast": autocast_of(make, fn, inputs) if autocast else None,
                         "tensors": {k: lines.tensor(t) for k, t in tensors.items()}})


# {==== functions ====
def function(names, lua, inputs, fn, **options):
    case("functions", names, lua, inputs, fn, **options)


function("gb.hsplit tensor:hsplit", "gb.hsplit(a, 2)", [rand(2, 4)], lambda a: torch.hsplit(a, 2))
function("gb.hsplit tensor:hsplit", "a:hsplit({ 1, 3 })", [rand(5)], lambda a: torch.hsplit(a, (1, 3)), tag="vector")
function("gb.vsplit tensor:vsplit", "gb.vsplit(a, 2)", [rand(4, 2)], lambda a: torch.vsplit(a, 2))
function("gb.dsplit tensor:dsplit", "gb.dsplit(a, 2)", [rand(2, 1, 4)], lambda a: torch.dsplit(a, 2))
function("gb.tensor_split tensor:tensor_split", "gb.tensor_split(a, 3)", [rand(7, 2)],
         lambda a: torch.tensor_split(a, 3))
function("gb.tensor_split tensor:tensor_split", "a:tensor_split({ 1, -2 }, 2)", [rand(2, 6)],
         lambda a: torch.tensor_split(a, (1, -2), 1), tag="cuts")
function("gb.split tensor:split", "gb.split(a, 2)", [rand(5, 2)], lambda a: torch.split(a, 2))
function("gb.split_with_sizes tensor:split_with_sizes", "gb.split_with_sizes(a, { 1, 3 }, 2)", [rand(2, 4)],
         lambda a: torch.split_with_sizes(a, (1, 3), 1))
function("gb.chunk tensor:chunk", "gb.chunk(a, 3)", [rand(7, 2)], lambda a: torch.chunk(a, 3))
function("gb.unbind tensor:unbind", "gb.unbind(a, 2)", [rand(3, 2)], lambda a: torch.unbind(a, 1))
function("gb.broadcast_tensors", "gb.broadcast_tensors(a, b)", [rand(3, 1), rand(1, 4)], torch.broadcast_tensors)
function("gb.meshgrid", "gb.meshgrid(a, b)", [rand(3), rand(2)], lambda a, b: torch.meshgrid(a, b, indexing="ij"))
function("gb.cartesian_prod", "gb.cartesian_prod(a, b)", [rand(3), rand(2)], torch.cartesian_prod)
function("gb.combinations", "gb.combinations(a, 3)", [rand(5)], lambda a: torch.combinations(a, 3))
function("gb.combinations", "gb.combinations(a, 2, { with_replacement = true })", [rand(3)],
         lambda a: torch.combinations(a, 2, with_replacement=True), tag="with replacement")
function("gb.vander", "gb.vander(a)", [rand(4)], lambda a: torch.linalg.vander(a).flip(1))  # torch.vander has no
function("gb.vander", "gb.vander(a, 3, { increasing = true })", [rand(4)],  # gradient
         lambda a: torch.linalg.vander(a, N=3), tag="increasing")
function("gb.float_power tensor:float_power", "gb.float_power(a, b)", [rand(2, 3, low=0.5), rand(3)],
         torch.float_power)
function("gb.rsub", "gb.rsub(a, b, { alpha = 2 })", [rand(2, 3), rand(3)], lambda a, b: torch.rsub(a, b, alpha=2))
function("gb.cumulative_trapezoid", "gb.cumulative_trapezoid(a, { dx = 0.5 })", [rand(2, 5)],
         lambda a: torch.cumulative_trapezoid(a, dx=0.5))
function("gb.cumulative_trapezoid", "gb.cumulative_trapezoid(a, b, { dim = 1 })", [rand(4, 2), rand(4)],
         lambda a, b: torch.cumulative_trapezoid(a, b, dim=0), tag="points")
function("gb.equal tensor:equal", "gb.equal(a, b), a:equal(a)", [rand(3), rand(3)],
         lambda a, b: [torch.tensor(torch.equal(a, b)), torch.tensor(a.equal(a))], autocast=False)
function("gb.allclose tensor:allclose", "gb.allclose(a, b, { atol = 1 }), a:allclose(a + 1e-9)",
         [rand(9, low=0, high=0.5), rand(9, low=0, high=0.5)],
         lambda a, b: [torch.tensor(torch.allclose(a, b, atol=1)), torch.tensor(a.allclose(a + 1e-9))], autocast=False)
for name in ("zeros", "ones"):
    for like in ("", "_like"):
        function(f"gb.{name}{like}", f"gb.{name}{like}({'a' if like else '2, 3'}, {{ dtype = 'float64' }})",
                 [rand(2, 3)] if like else [], lambda *a, n=name + like: getattr(torch, n)(*(a or (2, 3)), **made),
                 grad=False)
function("gb.full", "gb.full({ 2, 3 }, 1.5, { dtype = 'float64' })", [], lambda: torch.full((2, 3), 1.5, **made))
function("gb.full_like", "gb.full_like(a, 1.5)", [rand(2, 3)], lambda a: torch.full_like(a, 1.5), grad=False)
function("gb.trace tensor:trace", "gb.trace(a)", [rand(3, 4)], torch.trace)
function("gb.diagflat tensor:diagflat", "gb.diagflat(a, 1)", [rand(2, 2)], lambda a: torch.diagflat(a, 1))
function("gb.pdist gb.nn.functional.pdist", "gb.pdist(a)", [rand(4, 3)], torch.pdist)
function("gb.pdist gb.nn.functional.pdist", "F.pdist(a, 1)", [rand(4, 3)], lambda a: F.pdist(a, 1), tag="1")
function("gb.logdet tensor:logdet", "gb.logdet(a)", [rand(2, 3, 3).map(lambda x: x @ x.mT + torch.eye(3).double())],
         torch.logdet, lapack=True)
function("gb.mvlgamma tensor:mvlgamma", "gb.mvlgamma(a, 3)", [rand(2, 3, low=1.5, high=4)],
         lambda a: torch.mvlgamma(a, 3))
function("tensor:mvlgamma_", "(a * 1):mvlgamma_(2)", [rand(2, 3, low=1.5, high=4)], lambda a: (a * 1).mvlgamma_(2))
function("gb.ldexp tensor:ldexp", "gb.ldexp(a, b)", [rand(2, 3), rand(3)], torch.ldexp)
function("tensor:ldexp_", "(a * 1):ldexp_(b)", [rand(2, 3), rand(3)], lambda a, b: (a * 1).ldexp_(b))
function("tensor:float_power_", "(a * 1):float_power_(2.5)", [rand(2, 3, low=0.5)],
         lambda a: (a * 1).float_power_(2.5), autocast=False, wide=True)
function("tensor:sum_to_size", "a:sum_to_size({ 1, 4 })", [rand(2, 3, 4)], lambda a: a.sum_to_size(1, 4))
function("tensor:expand_as", "a:expand_as(b)", [rand(3, 1), rand(3, 4)], lambda a, b: a.expand_as(b))
function("tensor:view_as", "a:view_as(b)", [rand(3, 4), rand(2, 6)], lambda a, b: a.view_as(b))
function("tensor:reshape_as", "a:reshape_as(b)", [rand(3, 4), rand(2, 6)], lambda a, b: a.reshape_as(b))
function("tensor:type_as", "a:type_as(b)", [ints(3, high=5), rand(2)], lambda a, b: a.type_as(b))
function("tensor:fill_diagonal_", "(a * 1):fill_diagonal_(3)", [rand(3, 4)], lambda a: (a * 1).fill_diagonal_(3))
function("tensor:fill_diagonal_", "(a * 1):fill_diagonal_(3, { wrap = true })", [rand(7, 3)],
         lambda a: (a * 1).fill_diagonal_(3, wrap=True), tag="wrap")
function("tensor:tile", "a:tile(2, 3)", [rand(2, 3)], lambda a: a.tile(2, 3))
function("gb.histogram tensor:histogram", "gb.histogram(a, 4, { range = { -1, 2 } })", [rand(20)],
         lambda a: torch.histogram(a.detach(), 4, range=(-1.0, 2.0)), grad=False)
function("gb.histogram tensor:histogram", "gb.histogram(a, b, { weight = c, density = true })",
         [rand(20), torch.tensor([-2, -0.5, 0.25, 1, 2]).double(), rand(20, low=0.5)],
         lambda a, b, c: torch.histogram(a, b, weight=c, density=True), grad=False, tag="edges")
function("gb.nonzero_static tensor:nonzero_static", "gb.nonzero_static(a, { size = 9 })", [ints(2, 4, high=2)],
         lambda a: torch.nonzero_static(a, size=9))
function("gb.tril_indices", "gb.tril_indices(3, 4, 1)", [], lambda: torch.tril_indices(3, 4, 1))
function("gb.triu_indices", "gb.triu_indices(3, 4, -1)", [], lambda: torch.triu_indices(3, 4, -1))
function("gb.unravel_index", "gb.unravel_index(a, { 3, 4 })", [ints(5, high=12)],
         lambda a: torch.unravel_index(a, (3, 4)))
function("gb.fill", "gb.fill(a, 3)", [rand(2, 3)], lambda a: torch.fill(a, 3), grad=False)
for name in ("hann", "hamming", "blackman", "bartlett", "kaiser"):
    window = getattr(torch, f"{name}_window")
    for periodic in (True, False):
        function(f"gb.{name}_window", f"gb.{name}_window(7, {str(periodic).lower()}, {{ dtype = 'float64' }})", [],
                 lambda w=window, p=periodic: w(7, p, dtype=torch.float64), tag="" if periodic else "symmetric")
function("gb.linspace", "gb.linspace(-1, 2, 5, { dtype = 'float64' })", [], lambda: torch.linspace(-1, 2, 5, **made))
function("gb.logspace", "gb.logspace(-1, 2, 5, 2, { dtype = 'float64' })", [],
         lambda: torch.logspace(-1, 2, 5, 2, **made))
function("gb.arange", "gb.arange(1, 2.5, 0.25, { dtype = 'float64' })", [], lambda: torch.arange(1, 2.5, 0.25, **made))
function("gb.eye", "gb.eye(2, 3, { dtype = 'float64' })", [], lambda: torch.eye(2, 3, **made))
pairs = [rand(2, 3), rand(2, 3)]
function("gb.linalg.vecdot", "L.vecdot(a, b)", [rand(2, 3), rand(3)], torch.linalg.vecdot)
function("gb.linalg.vecdot", "L.vecdot(a, b, { dim = 1 })", pairs, lambda a, b: torch.linalg.vecdot(a, b, dim=0),
         tag="dim")
function("gb.linalg.cross", "L.cross(a, b)", [rand(2, 3), rand(1, 3)], torch.linalg.cross)
function("gb.linalg.matmul", "L.matmul(a, b)", [rand(2, 3), rand(3, 4)], torch.linalg.matmul)
function("gb.linalg.diagonal", "L.diagonal(a, { offset = 1 })", [rand(2, 3, 4)],
         lambda a: torch.linalg.diagonal(a, offset=1))
function("gb.linalg.vander", "L.vander(a, { N = 3 })", [rand(2, 4)], lambda a: torch.linalg.vander(a, N=3))
function("gb.linalg.multi_dot", "L.multi_dot({ a, b, c })", [rand(2, 5), rand(5, 3), rand(3, 4)],
         lambda *list: torch.linalg.multi_dot(list))
function("gb.linalg.matrix_power", "L.matrix_power(a, 3)", [rand(3, 3)], lambda a: torch.linalg.matrix_power(a, 3))
function("gb.linalg.matrix_norm", "L.matrix_norm(a, 1)", [rand(2, 3, 4, away=0.25)],
         lambda a: torch.linalg.matrix_norm(a, 1))
function("gb.linalg.norm", "L.norm(a, 3, 2)", [rand(2, 3, away=0.25)], lambda a: torch.linalg.norm(a, 3, 1))
function("gb.linalg.tensorinv", "L.tensorinv(a, 1)", [rand(6, 2, 3)], lambda a: torch.linalg.tensorinv(a, 1),
         lapack=True)
function("gb.linalg.tensorsolve", "L.tensorsolve(a, b)", [rand(2, 3, 6), rand(2, 3)], torch.linalg.tensorsolve,
         lapack=True)
function("gb.linalg.matrix_exp gb.matrix_exp tensor:matrix_exp", "a:matrix_exp()", [rand(2, 3, 3)], torch.matrix_exp)
function("gb.linalg.householder_product", "L.householder_product(a, b)", [rand(4, 3), rand(3)],
         torch.linalg.householder_product)
factor = rand(2, 3, 3).map(lambda x: torch.linalg.cholesky(x @ x.mT + torch.eye(3).double()))
function("gb.cholesky_solve tensor:cholesky_solve", "gb.cholesky_solve(a, b)", [rand(2, 3, 2), factor],
         torch.cholesky_solve, grad=(0,), lapack=True)
function("gb.cholesky_inverse tensor:cholesky_inverse", "gb.cholesky_inverse(a:tril())", [factor],
         lambda a: torch.cholesky_inverse(a.tril()), lapack=True)
function("gb.linalg.lstsq", "(L.lstsq(a, b))", [rand(5, 3), rand(5, 2)],
         lambda a, b: torch.linalg.lstsq(a, b, driver=None if a.is_cuda else "gelsd").solution, lapack=True)
function("gb.nn.functional.embedding_bag", "F.embedding_bag(a, b, nil, nil, { mode = 'max' })",
         [ints(3, 6, high=5), ints(5, 3, high=2).map(torch.Tensor.double)],
         lambda a, b: F.embedding_bag(a, b, mode="max"), tag="max of equal rows")
function("gb.nn.utils.rnn.pad_sequence",
         "nn.utils.rnn.pad_sequence({ a, b }, { batch_first = true, padding_value = 9 })",
         [rand(3, 2), rand(1, 2)], lambda a, b: nn.utils.rnn.pad_sequence([a, b], True, 9))
function("gb.nn.utils.parameters_to_vector", "nn.utils.parameters_to_vector({ a, b })", [rand(2, 3), rand(2)],
         lambda a, b: nn.utils.parameters_to_vector([a, b]))
function("gb.nn.utils.get_total_norm", "nn.utils.get_total_norm({ a, b }, 3)", [rand(2, 3), rand(2)],
         lambda a, b: nn.utils.get_total_norm([a.detach(), b.detach()], 3.0), grad=False, autocast=False)
# ====}


# {==== layers ====
def layer(name, lua, make, *inputs, call=None, tag="", **options):
    """A module of PyTorch's name; lua: the arguments of its constructor."""
    values = ", ".join("abcd"[:len(inputs)])
    case("layers", f"gb.nn.{name}", f"m({values})", list(inputs), call or (lambda m, *x: m(*x)),
         make=lambda: make(nn), tag=tag, **options)
    ROWS["layers"][-1]["module"] = f"nn.{name}({lua})"


activations = [("CELU", "1.5", (1.5,)), ("ELU", "0.7", (0.7,)), ("GELU", "", ()), ("GELU", "'tanh'", ("tanh",)),
               ("GLU", "2", (1,)), ("Hardshrink", "0.4", (0.4,)), ("Hardswish", "", ()),
               ("Hardtanh", "-0.9, 1.2", (-0.9, 1.2)), ("LeakyReLU", "0.2", (0.2,)), ("LogSigmoid", "", ()),
               ("Mish", "", ()), ("ReLU", "", ()), ("ReLU6", "", ()), ("SELU", "", ()), ("SiLU", "", ()),
               ("Sigmoid", "", ()), ("Softplus", "2, 3", (2, 3)), ("Softshrink", "0.4", (0.4,)), ("Softsign", "", ()),
               ("Tanh", "", ()), ("Tanhshrink", "", ()), ("Threshold", "0.3, -2", (0.3, -2)), ("Identity", "", ())]
for name, lua, args in activations:
    layer(name, lua, lambda nn, n=name, a=args: getattr(nn, n)(*a), rand(2, 6, away=0.25), tag=lua)
for name in ("LogSoftmax", "Softmax", "Softmin"):
    layer(name, "1", lambda nn, n=name: getattr(nn, n)(0), rand(3, 2))
layer("Hardsigmoid", "", lambda nn: nn.Hardsigmoid(), rand(2, 6, away=0.25),  # PyTorch's gradient is a float32 1 / 6
      call=lambda m, x: F.relu6(x + 3) / 6)
layer("PReLU", "3", lambda nn: nn.PReLU(3), rand(2, 3, 2, away=0.25))
layer("Linear", "3, 2, { bias = false }", lambda nn: nn.Linear(3, 2, bias=False), rand(2, 3), tag="no bias")
layer("Bilinear", "2, 3, 2", lambda nn: nn.Bilinear(2, 3, 2), rand(2, 2), rand(2, 3))
layer("Flatten", "2, 3", lambda nn: nn.Flatten(1, 2), rand(2, 2, 3, 2))
layer("Unflatten", "2, { 2, 3 }", lambda nn: nn.Unflatten(1, (2, 3)), rand(2, 6))
layer("Embedding", "5, 3, { padding_idx = 1 }", lambda nn: nn.Embedding(5, 3, padding_idx=1), ints(2, 4, high=5),
      tag="padding")
for mode in ("sum", "mean", "max"):
    layer("EmbeddingBag", f"5, 3, {{ mode = '{mode}' }}", lambda nn, m=mode: nn.EmbeddingBag(5, 3, mode=m),
          ints(6, high=5), torch.tensor([0, 2, 2, 5]), tag=mode)
spaces = {1: (7,), 2: (5, 6), 3: (4, 4, 5)}
for d, sizes in spaces.items():
    layer(f"Conv{d}d", "4, 6, 3, { stride = 2, padding = 1, groups = 2 }",
          lambda nn, d=d: getattr(nn, f"Conv{d}d")(4, 6, 3, stride=2, padding=1, groups=2), rand(1, 4, *sizes[:d]))
    layer(f"Conv{d}d", "2, 2, 2, { padding = 'same', dilation = 2, padding_mode = 'circular', bias = false }",
          lambda nn, d=d: getattr(nn, f"Conv{d}d")(2, 2, 2, padding="same", dilation=2, padding_mode="circular",
                                                  bias=False), rand(1, 2, *sizes), tag="circular")
    layer(f"ConvTranspose{d}d", "2, 4, 3, { stride = 2, padding = 1, output_padding = 1, groups = 2 }",
          lambda nn, d=d: getattr(nn, f"ConvTranspose{d}d")(2, 4, 3, stride=2, padding=1, output_padding=1, groups=2),
          rand(1, 2, *[2] * d))
    x = rand(2, 3, *[2] * d)
    layer(f"BatchNorm{d}d", "3", lambda nn, d=d: getattr(nn, f"BatchNorm{d}d")(3), x)
    layer(f"BatchNorm{d}d", "3", lambda nn, d=d: getattr(nn, f"BatchNorm{d}d")(3).eval(), x, tag="eval")
    layer(f"BatchNorm{d}d", "3, { affine = false, track_running_stats = false }",
          lambda nn, d=d: getattr(nn, f"BatchNorm{d}d")(3, affine=False, track_running_stats=False), x, tag="plain")
    layer(f"InstanceNorm{d}d", "3", lambda nn, d=d: getattr(nn, f"InstanceNorm{d}d")(3), x)
    layer(f"InstanceNorm{d}d", "3, { affine = true, track_running_stats = true }",
          lambda nn, d=d: getattr(nn, f"InstanceNorm{d}d")(3, affine=True, track_running_stats=True), x, tag="tracked")
    image = rand(1, 2, *sizes)
    layer(f"AvgPool{d}d", "3, { stride = 2, padding = 1, ceil_mode = true, count_include_pad = false }",
          lambda nn, d=d: getattr(nn, f"AvgPool{d}d")(3, 2, 1, True, False), image)
    layer(f"MaxPool{d}d", "3, { stride = 2, padding = 1, ceil_mode = true, return_indices = true }",
          lambda nn, d=d: getattr(nn, f"MaxPool{d}d")(3, 2, 1, ceil_mode=True, return_indices=True), image)
    layer(f"AdaptiveAvgPool{d}d", "3", lambda nn, d=d: getattr(nn, f"AdaptiveAvgPool{d}d")(3), image)
    layer(f"AdaptiveMaxPool{d}d", "2, { return_indices = true }",
          lambda nn, d=d: getattr(nn, f"AdaptiveMaxPool{d}d")(2, return_indices=True), image)
    places = (torch.arange(2 ** d) * 2 ** d).reshape(1, 1, *[2] * d).expand(1, 2, *[2] * d)
    layer(f"MaxUnpool{d}d", "2", lambda nn, d=d: getattr(nn, f"MaxUnpool{d}d")(2), rand(1, 2, *[2] * d), places)
    if d < 3:
        layer(f"LPPool{d}d", "3, 2, { stride = 1 }", lambda nn, d=d: getattr(nn, f"LPPool{d}d")(3, 2, 1),
              rand(1, 2, *[4] * d, low=0.25))
    two, four = [1, 2] * d, ", ".join(["1, 2"] * d)
    for kind in ("Reflection", "Replication", "Zero", "Circular"):
        layer(f"{kind}Pad{d}d", f"{{ {four} }}", lambda nn, d=d, k=kind, p=tuple(two): getattr(nn, f"{k}Pad{d}d")(p),
              rand(1, 1, *[3] * d))
    layer(f"ConstantPad{d}d", f"{{ {four} }}, 1.5",
          lambda nn, d=d, p=tuple(two): getattr(nn, f"ConstantPad{d}d")(p, 1.5), rand(1, 1, *[2] * d))
for name in ("Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout", "FeatureAlphaDropout"):
    shape = {"Dropout1d": (1, 2, 3), "Dropout3d": (1, 2, 1, 2, 2)}.get(name, (1, 2, 2, 2))
    layer(name, "0.5", lambda nn, n=name: getattr(nn, n)(0.5).eval(), rand(*shape), tag="eval")
layer("GroupNorm", "2, 4", lambda nn: nn.GroupNorm(2, 4), rand(2, 4, 3))
layer("LayerNorm", "{ 2, 3 }, { bias = false }", lambda nn: nn.LayerNorm((2, 3), bias=False), rand(2, 2, 3),
      tag="no bias")
layer("RMSNorm", "4, { eps = 1e-5 }", lambda nn: nn.RMSNorm(4, eps=1e-5), rand(2, 4))
layer("LocalResponseNorm", "3, { alpha = 1, k = 2 }", lambda nn: nn.LocalResponseNorm(3, 1.0, 0.75, 2.0),
      rand(1, 4, 3))
layer("CosineSimilarity", "{ dim = 1 }", lambda nn: nn.CosineSimilarity(0), rand(3, 2), rand(3, 2))
layer("PairwiseDistance", "{ p = 3, keepdim = true }", lambda nn: nn.PairwiseDistance(3, keepdim=True), rand(2, 3),
      rand(2, 3))
layer("PixelShuffle", "2", lambda nn: nn.PixelShuffle(2), rand(1, 4, 2, 3))
layer("PixelUnshuffle", "2", lambda nn: nn.PixelUnshuffle(2), rand(1, 1, 4, 6))
layer("ChannelShuffle", "2", lambda nn: nn.ChannelShuffle(2), rand(1, 4, 2, 2))
layer("Unfold", "2, { stride = 2, padding = 1 }", lambda nn: nn.Unfold(2, stride=2, padding=1), rand(1, 2, 4, 4))
layer("Fold", "4, 2, { stride = 2 }", lambda nn: nn.Fold(4, 2, stride=2), rand(1, 8, 4))
layer("Upsample", "nil, 2, 'bilinear', true", lambda nn: nn.Upsample(None, 2, "bilinear", True), rand(1, 2, 3, 2))
layer("Upsample", "{ 4, 5 }", lambda nn: nn.Upsample((4, 5)), rand(1, 2, 3, 2), tag="nearest")


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(3, 5), nn.Linear(5, 3)

    def forward(self, x):
        return self.fc2(F.gelu(self.fc1(x), approximate="tanh"))


class PatchEmbed(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Conv2d(2, 4, 2, 2)

    def forward(self, x):
        return self.proj(x).flatten(2).transpose(1, 2)


layer("MLP", "3, 5", lambda nn: MLP(), rand(2, 3))
layer("PatchEmbed", "2, 4, 2", lambda nn: PatchEmbed(), rand(1, 2, 4, 6))
layer("SyncBatchNorm", "3", lambda nn: nn.BatchNorm1d(3), rand(4, 3))  # of one process
layer("SqueezeExcite", "4, 2", lambda nn: torchvision.ops.SqueezeExcitation(4, 2), rand(2, 4, 2, 2))
layer("StochasticDepth", "0.3", lambda nn: torchvision.ops.StochasticDepth(0.3, "row").eval(), rand(2, 3), tag="eval")
encoder = dict(dim_feedforward=6, dropout=0.0)
layer("TransformerEncoderLayer", "4, 2, { dim_feedforward = 6, dropout = 0 }",
      lambda nn: nn.TransformerEncoderLayer(4, 2, **encoder), rand(3, 2, 4))
layer("TransformerDecoderLayer", "4, 2, { dim_feedforward = 6, dropout = 0 }",
      lambda nn: nn.TransformerDecoderLayer(4, 2, **encoder), rand(3, 2, 4), rand(2, 2, 4))
layer("TransformerEncoder", "nn.TransformerEncoderLayer(4, 2, { dim_feedforward = 6, dropout = 0 }), 2",
      lambda nn: nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, **encoder), 2), rand(3, 2, 4))
layer("TransformerDecoder", "nn.TransformerDecoderLayer(4, 2, { dim_feedforward = 6, dropout = 0 }), 1",
      lambda nn: nn.TransformerDecoder(nn.TransformerDecoderLayer(4, 2, **encoder), 1), rand(3, 2, 4), rand(2, 2, 4))
layer("Sequential", "nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)",
      lambda nn: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), rand(2, 3))
# ====}


# {==== losses ====
def loss(name, options, make, *inputs, tag="", **more):
    """A loss's module with these options, in each reduction that PyTorch has."""
    for reduction in ("mean", "none", "sum"):
        lua = f"nn.{name}({{ {options}{', ' if options else ''}reduction = '{reduction}' }})"
        values = ", ".join("abcd"[:len(inputs)])
        case("losses", f"gb.nn.{name}", f"m({values})", list(inputs), lambda m, *x: m(*x),
             make=lambda r=reduction: make(nn, r), tag=f"{tag}{', ' if tag else ''}{reduction}", **more)
        ROWS["losses"][-1]["module"] = lua


x, y = rand(3, 4), rand(3, 4)
labels, signs = ints(3, high=4), ints(3, 4, high=2).map(lambda t: t.double() * 2 - 1)
loss("MSELoss", "", lambda nn, r: nn.MSELoss(reduction=r), x, y)
loss("L1Loss", "", lambda nn, r: nn.L1Loss(reduction=r), x, y)
loss("SmoothL1Loss", "beta = 0.5", lambda nn, r: nn.SmoothL1Loss(reduction=r, beta=0.5), x, y)
loss("HuberLoss", "delta = 0.7", lambda nn, r: nn.HuberLoss(reduction=r, delta=0.7), x, y)
chance, ones = rand(3, 4, low=0.1, high=0.9), ints(3, 4, high=2).map(torch.Tensor.double)
loss("BCELoss", "", lambda nn, r: nn.BCELoss(reduction=r), chance, ones, grad=(0,))
loss("BCEWithLogitsLoss", "", lambda nn, r: nn.BCEWithLogitsLoss(reduction=r), x, ones,
     grad=(0,))
loss("CrossEntropyLoss", "label_smoothing = 0.1, ignore_index = 2",
     lambda nn, r: nn.CrossEntropyLoss(reduction=r, label_smoothing=0.1, ignore_index=2), x, labels)
loss("CrossEntropyLoss", "", lambda nn, r: nn.CrossEntropyLoss(reduction=r), x, rand(3, 4, low=0.1, high=1),
     tag="shares", grad=(0,))


def dice(reduction):
    """One less twice the overlap of shares through what both have, sample by sample."""
    def of(a, b):
        each = 1 - (2 * (a * b).sum(1) + 1) / (a.sum(1) + b.sum(1) + 1)
        return each if reduction == "none" else getattr(each, reduction)()
    return of


loss("DiceLoss", "", lambda nn, r: dice(r), chance, ones, grad=(0,))
loss("NLLLoss", "", lambda nn, r: nn.NLLLoss(reduction=r), x, labels)
loss("KLDivLoss", "log_target = true", lambda nn, r: nn.KLDivLoss(reduction=r, log_target=True), x, y)
loss("PoissonNLLLoss", "full = true", lambda nn, r: nn.PoissonNLLLoss(full=True, reduction=r), x, rand(3, 4, low=0),
     grad=(0,))
loss("GaussianNLLLoss", "full = true", lambda nn, r: nn.GaussianNLLLoss(full=True, reduction=r), x, y,
     rand(3, 4, low=0.25))
loss("HingeEmbeddingLoss", "margin = 1.5", lambda nn, r: nn.HingeEmbeddingLoss(1.5, reduction=r), x, signs, grad=(0,))
loss("MarginRankingLoss", "margin = 0.5", lambda nn, r: nn.MarginRankingLoss(0.5, reduction=r), x, y, signs,
     grad=(0, 1))
loss("SoftMarginLoss", "", lambda nn, r: nn.SoftMarginLoss(reduction=r), x, signs, grad=(0,))
loss("CosineEmbeddingLoss", "margin = 0.2", lambda nn, r: nn.CosineEmbeddingLoss(0.2, reduction=r), x, y,
     torch.tensor([1, -1, 1]))
loss("TripletMarginLoss", "margin = 0.5, swap = true", lambda nn, r: nn.TripletMarginLoss(0.5, swap=True, reduction=r),
     x, y, rand(3, 4))
loss("MultiMarginLoss", "p = 2, margin = 0.5", lambda nn, r: nn.MultiMarginLoss(2, 0.5, reduction=r), x, labels)
loss("MultiLabelMarginLoss", "", lambda nn, r: nn.MultiLabelMarginLoss(reduction=r), x,
     torch.tensor([[3, 0, -1, 1], [1, -1, 0, 2], [0, 1, 2, 3]]))
loss("MultiLabelSoftMarginLoss", "", lambda nn, r: nn.MultiLabelSoftMarginLoss(reduction=r), x, ones,
     grad=(0,))
for reduction in ("mean", "none", "sum"):  # PyTorch's gradient is that of what a softmax is taken of
    case("losses", "gb.nn.CTCLoss", "m(a:log_softmax(-1), b, c, d)",
         [rand(6, 2, 4), torch.tensor([[1, 2, 2], [3, 1, 0]]), torch.tensor([6, 5]), torch.tensor([3, 2])],
         lambda m, x, *rest: m(x.log_softmax(-1), *rest), make=lambda r=reduction: nn.CTCLoss(reduction=r),
         tag=reduction)
    ROWS["losses"][-1]["module"] = f"nn.CTCLoss({{ reduction = '{reduction}' }})"
loss("SigmoidFocalLoss", "alpha = 0.3, gamma = 1.5",
     lambda nn, r: lambda a, b: torchvision.ops.sigmoid_focal_loss(a, b, 0.3, 1.5, r), x, ones, grad=(0,))
# ====}

if __name__ == "__main__":
    lines.main("calls", list(ROWS), lambda family: ROWS[family])
