#!/usr/bin/env python3
"""Golden numbers for gb.linalg, made with PyTorch in float64.

Usage: python tests/golden/linalg.py [--check]      (needs torch; writes tests/golden/linalg/linalg.jsonl)

A line keeps the call as Lua writes it (of L, gb.linalg, and inputs a and b), its inputs, outputs, the gradients that come
in, and those of the inputs. What LAPACK's versions may give another sign (vectors of svd and eigh) is compared by what
does not depend on it.
"""
import cases
import lines
import torch

L = torch.linalg
ROWS = []


def case(name, lua, inputs, fn, grad=True):
    words = [cases.Words(f"linalg {name}: in{i}") for i in range(len(inputs))]
    inputs = [x.draw(w) for x, w in zip(inputs, words)]
    leaves = [x.clone().requires_grad_(grad) for x in inputs]
    outs = fn(*leaves)
    outs = list(outs) if isinstance(outs, (tuple, list)) else [outs]
    tensors = {f"in{i}": x for i, x in enumerate(inputs)} | {f"out{i}": o for i, o in enumerate(outs)}
    if grad:
        ups = [cases.rand(*o.shape, away=0.25).draw(cases.Words(f"linalg {name}: up{i}")) for i, o in enumerate(outs)]
        grads = torch.autograd.grad(outs, leaves, ups, allow_unused=True)
        tensors |= {f"up{i}": u for i, u in enumerate(ups)}
        tensors |= {f"grad{i}": torch.zeros_like(x) if g is None else g for i, (g, x) in enumerate(zip(grads, inputs))}
    ROWS.append({"name": name, "lua": lua, "inputs": len(inputs), "outputs": len(outs), "grad": grad,
                 "tensors": {name: lines.tensor(t) for name, t in tensors.items()}})


rand = cases.rand


def positive(*shape):
    """Symmetric positive definite, eigenvalues from 1."""
    n = shape[-1]
    return rand(*shape).map(lambda x: x @ x.mT + torch.eye(n, dtype=x.dtype))


def singular(n):
    return rand(n, n).map(lambda x: torch.cat([x[:-1], x[:1]]))


inf = float("inf")
case("inv", "L.inv(a)", [positive(3, 3)], L.inv)
case("inv, batch", "L.inv(a)", [positive(2, 3, 4, 4)], L.inv)
case("inv, nothing", "L.inv(a)", [rand(2, 0, 0)], L.inv)
case("solve", "L.solve(a, b)", [positive(3, 3), rand(3, 2)], L.solve)
case("solve, vector", "L.solve(a, b)", [positive(3, 3), rand(3)], L.solve)
case("solve, vectors", "L.solve(a, b)", [positive(2, 3, 3), rand(2, 3)], L.solve)
case("solve, broadcast", "L.solve(a, b)", [positive(2, 1, 3, 3), rand(4, 3, 2)], L.solve)
case("solve, from the right", "L.solve(a, b, { left = false })", [positive(3, 3), rand(2, 3)],
     lambda a, b: L.solve(a, b, left=False))
for upper in (True, False):
    for unit in (True, False):
        words = f"upper = {str(upper).lower()}, unitriangular = {str(unit).lower()}"
        case(f"solve_triangular, {words}", f"L.solve_triangular(a, b, {{ {words} }})", [positive(2, 3, 3), rand(3, 2)],
             lambda a, b, u=upper, d=unit: L.solve_triangular(a, b, upper=u, unitriangular=d))
case("solve_triangular, from the right", "L.solve_triangular(a, b, { upper = true, left = false })",
     [positive(3, 3), rand(2, 3)], lambda a, b: L.solve_triangular(a, b, upper=True, left=False))


def symmetric(*shape):
    return rand(*shape).map(lambda x: x + x.mT)


hollow = symmetric(5, 5).map(lambda x: x - x.diag().diag())  # without 1 x 1 pivots at first
SOLVED = "(function() local LD, pivots = L.ldl_factor(a) return L.ldl_solve(LD, pivots, b) end)()"
for tag, matrix, right in (("", symmetric(4, 4), (4, 2)), (", batch", symmetric(2, 3, 5, 5), (2, 3, 5, 2)),
                           (", hollow", hollow, (5, 1)), (", lower", rand(4, 4), (4, 3)), (", nothing", rand(2, 0, 0), (2, 0, 1))):
    case(f"ldl_factor{tag}", "L.ldl_factor(a)", [matrix], lambda a: list(L.ldl_factor(a)), grad=False)
    case(f"ldl_solve{tag}", SOLVED, [matrix, rand(*right)],
         lambda a, b: L.ldl_solve(*L.ldl_factor(a), b), grad=False)
case("det", "L.det(a)", [rand(4, 4)], L.det)
case("det, batch", "L.det(a)", [rand(2, 3, 3)], L.det)
case("det, singular", "L.det(a)", [singular(3)], L.det)
case("det, nothing", "L.det(a)", [rand(2, 0, 0)], L.det)
case("slogdet", "L.slogdet(a)", [rand(2, 3, 3)], lambda a: list(L.slogdet(a)))
case("cholesky", "L.cholesky(a)", [positive(2, 3, 3)], L.cholesky)
case("cholesky, upper", "L.cholesky(a, { upper = true })", [positive(3, 3)], lambda a: L.cholesky(a, upper=True))
case("qr", "L.qr(a)", [rand(4, 3)], lambda a: list(L.qr(a)))
case("qr, square", "L.qr(a)", [rand(2, 3, 3)], lambda a: list(L.qr(a)))
case("qr, wide", "L.qr(a)", [rand(2, 3, 5)], lambda a: list(L.qr(a)))
case("qr, complete", "L.qr(a, { mode = 'complete' })", [rand(4, 3)], lambda a: list(L.qr(a, mode="complete")), grad=False)
case("qr, r", "select(2, L.qr(a, { mode = 'r' }))", [rand(4, 3)], lambda a: L.qr(a, mode="r")[1], grad=False)


def rebuilt(a, full):
    u, s, vh = L.svd(a, full_matrices=full)
    k = s.shape[-1]
    return [s, (u[..., :k] * s.square().unsqueeze(-2)) @ vh[..., :k, :]]


for shape in ((3, 3), (2, 4, 3), (2, 3, 5)):
    for full in (True, False):
        case(f"svd, {'x'.join(map(str, shape))}, full_matrices = {str(full).lower()}",
             f"rebuilt(a, {str(full).lower()})", [rand(*shape)], lambda a, f=full: rebuilt(a, f))
case("svdvals", "L.svdvals(a)", [rand(2, 3, 4)], L.svdvals)


def of_symmetric(a, uplo):
    w, v = L.eigh((a + a.mT) / 2, uplo)
    return [w, (v * w.pow(3).unsqueeze(-2)) @ v.mT]


case("eigh", "of_symmetric(a, 'L')", [rand(2, 4, 4)], lambda a: of_symmetric(a, "L"))
case("eigh, upper", "of_symmetric(a, 'U')", [rand(3, 3)], lambda a: of_symmetric(a, "U"))


def squares(a, uplo):
    """Squares of vectors do not depend on signs; of an a that is not symmetric."""
    w, v = L.eigh(a, uplo)
    return [w, v.square()]


case("eigh, vectors", "squares(a, 'L')", [rand(2, 4, 4)], lambda a: squares(a, "L"))
case("eigh, vectors, upper", "squares(a, 'U')", [rand(2, 4, 4)], lambda a: squares(a, "U"))
case("eigvalsh", "L.eigvalsh(a)", [rand(2, 3, 3)], L.eigvalsh)
case("eigvalsh, upper", "L.eigvalsh(a, 'U')", [rand(3, 3)], lambda a: L.eigvalsh(a, UPLO="U"))
case("pinv", "L.pinv(a)", [rand(2, 4, 3)], L.pinv)
case("pinv, wide", "L.pinv(a)", [rand(3, 5)], L.pinv)
case("pinv, of rank 2", "L.pinv(a)", [singular(3)], L.pinv)
case("pinv, rtol", "L.pinv(a, { rtol = 0.3 })", [rand(4, 3)], lambda a: L.pinv(a, rtol=0.3), grad=False)
case("pinv, atol", "L.pinv(a, { atol = 2.0 })", [rand(4, 3)], lambda a: L.pinv(a, atol=2.0), grad=False)
case("pinv, hermitian", "L.pinv(a, { hermitian = true })", [rand(3, 3)], lambda a: L.pinv(a, hermitian=True), grad=False)
case("matrix_exp", "L.matrix_exp(a)", [rand(2, 3, 3)], torch.matrix_exp)
case("matrix_exp, large", "a:matrix_exp()", [rand(4, 4).map(lambda x: 3 * x - 8 * torch.eye(4, dtype=x.dtype))], torch.matrix_exp)
factor = positive(2, 3, 3).map(torch.linalg.cholesky)
case("cholesky_solve", "b:cholesky_solve(a)", [factor, rand(2, 3, 2)], lambda a, b: torch.cholesky_solve(b, a), grad=False)
case("cholesky_solve, upper", "b:cholesky_solve(a, true)", [positive(3, 3).map(lambda x: torch.linalg.cholesky(x).mT), rand(3, 2)],
     lambda a, b: torch.cholesky_solve(b, a, upper=True), grad=False)
case("cholesky_inverse", "a:cholesky_inverse()", [factor], torch.cholesky_inverse, grad=False)
case("tensorinv", "L.tensorinv(a, 1)", [rand(6, 2, 3)], lambda a: L.tensorinv(a, ind=1))
case("tensorsolve", "L.tensorsolve(a, b)", [rand(2, 3, 6), rand(2, 3)], L.tensorsolve)
case("householder_product", "L.householder_product(a, b)", [rand(2, 4, 3), rand(2, 3)], L.householder_product)
case("mvlgamma", "a:mvlgamma(3)", [rand(2, 3, low=1.5, high=4)], lambda a: torch.mvlgamma(a, 3))
case("ldexp", "a:ldexp(b)", [rand(2, 3), rand(3)], torch.ldexp)
for name in ("matrix_rank",):
    case(name, "L.matrix_rank(a)", [rand(2, 4, 3)], L.matrix_rank, grad=False)
    case(f"{name}, singular", "L.matrix_rank(a)", [singular(4)], L.matrix_rank, grad=False)
    case(f"{name}, atol", "L.matrix_rank(a, { atol = 2.0 })", [rand(4, 4)], lambda a: L.matrix_rank(a, atol=2.0), grad=False)
    case(f"{name}, hermitian", "L.matrix_rank(a, { hermitian = true })", [singular(4)],
         lambda a: L.matrix_rank(a, hermitian=True), grad=False)


def cond(a, p):
    """PyTorch's own cannot be differentiated where it takes the inverse."""
    return L.cond(a, p) if p in (None, 2, -2) else L.matrix_norm(a, p) * L.matrix_norm(L.inv(a), p)


for p, lua in ((None, "nil"), (2, "2"), (-2, "-2"), (1, "1"), (inf, "math.huge"), ("fro", "'fro'"), ("nuc", "'nuc'")):
    case(f"cond, {p}", f"L.cond(a, {lua})", [rand(2, 3, 3)], lambda a, p=p: cond(a, p))
for n in (0, 1, 2, 5, -3):
    case(f"matrix_power, {n}", f"L.matrix_power(a, {n})", [positive(2, 3, 3)], lambda a, n=n: L.matrix_power(a, n),
         grad=n != 0)
case("multi_dot", "L.multi_dot({ a, b, c, d })", [rand(2, 5), rand(5, 3), rand(3, 6), rand(6, 4)],
     lambda *list: L.multi_dot(list))
case("multi_dot, vectors", "L.multi_dot({ a, b, c })", [rand(5), rand(5, 3), rand(3)], lambda *list: L.multi_dot(list))
case("lstsq", "(L.lstsq(a, b))", [rand(5, 3), rand(5, 2)], lambda a, b: L.lstsq(a, b, driver="gelsd").solution)
case("lstsq, wide", "(L.lstsq(a, b))", [rand(2, 3, 5), rand(2, 3, 2)], lambda a, b: L.lstsq(a, b, driver="gelsd").solution)
case("lstsq, all", "L.lstsq(a, b)", [rand(5, 3), rand(5, 2)], lambda a, b: list(L.lstsq(a, b, driver="gelsd")), grad=False)
for ord, lua in ((2, "2"), (1, "1"), (0, "0"), (inf, "math.huge"), (-inf, "-math.huge"), (3, "3")):
    case(f"vector_norm, {ord}", f"L.vector_norm(a, {lua})", [rand(2, 3, away=0.25)], lambda a, o=ord: L.vector_norm(a, o))
case("vector_norm, dims", "L.vector_norm(a, 2, { 1, 3 }, { keepdim = true })", [rand(2, 3, 4, away=0.25)],
     lambda a: L.vector_norm(a, 2, (0, 2), keepdim=True))
for ord, lua in (("fro", "'fro'"), ("nuc", "'nuc'"), (1, "1"), (-1, "-1"), (2, "2"), (-2, "-2"), (inf, "math.huge"),
                 (-inf, "-math.huge")):
    case(f"matrix_norm, {ord}", f"L.matrix_norm(a, {lua})", [rand(2, 3, 4, away=0.25)], lambda a, o=ord: L.matrix_norm(a, o))
    case(f"matrix_norm, {ord}, dims", f"L.matrix_norm(a, {lua}, {{ 3, 1 }}, {{ keepdim = true }})",
         [rand(3, 2, 4, away=0.25)], lambda a, o=ord: L.matrix_norm(a, o, (2, 0), keepdim=True))
case("norm", "L.norm(a)", [rand(2, 3, 4, away=0.25)], L.norm)
case("norm, dims", "L.norm(a, nil, { 1, 2 })", [rand(2, 3, 4, away=0.25)], lambda a: L.norm(a, dim=(0, 1)))
case("norm, one dim", "L.norm(a, 1, 2)", [rand(2, 3, 4, away=0.25)], lambda a: L.norm(a, 1, 1))
case("norm of a matrix", "L.norm(a, 'nuc')", [rand(3, 4)], lambda a: L.norm(a, "nuc"))
case("norm of a vector", "L.norm(a, 3)", [rand(4, away=0.25)], lambda a: L.norm(a, 3))

if __name__ == "__main__":
    lines.main("linalg", ["linalg"], lambda family: ROWS)
