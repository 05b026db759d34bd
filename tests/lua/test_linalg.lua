-- test_linalg.lua - gb.linalg against PyTorch (tests/golden/linalg.py): results and gradients in float64, results in
-- float32; first and second derivatives against differences; factors that make their matrix again; layouts, threads,
-- autocast, errors, and another device than the CPU beside it.

local gb = require "gibbous"
local goldens = dofile("tests/lua/goldens.lua")
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
local L = gb.linalg
-- Where tensors are made by default: on a GPU, cuSOLVER computes.
local here = { device = gb.get_default_device() }

-- Without LAPACK every function says so, and nothing else can be tested.
local works, why = pcall(L.inv, gb.eye(2, { device = "cpu" }))
if not works then
  describe("gb.linalg without LAPACK", function()
    it("says what to install", function()
      for _, name in ipairs { "inv", "det", "svdvals", "eigvalsh", "pinv", "cholesky", "qr" } do
        expect(function() L[name](gb.eye(2, { device = "cpu" })) end):to_fail("install liblapack-dev")
      end
    end)
  end)
  print("skipped: this build has no LAPACK: " .. tostring(why))
  gb.test.finish()
  return
end

-- {==== Goldens ====

-- A product of ours, in float32 whatever scope there is.
local function product(x, y) return gb.amp.disable(gb.matmul, x, y) end

-- What does not depend on the signs of vectors.
local function rebuilt(a, full)
  local u, s, vh = L.svd(a, { full_matrices = full })
  local k = s.shape[s.ndim]
  return s, product(u:narrow(-1, 1, k) * s:square():unsqueeze(-2), vh:narrow(-2, 1, k))
end

local function of_symmetric(a, uplo)
  local w, v = L.eigh((a + a:transpose(-2, -1)) / 2, uplo)
  return w, product(v * (w * w * w):unsqueeze(-2), v:transpose(-2, -1))
end

local function squares(a, uplo)
  local w, v = L.eigh(a, uplo)
  return w, v:square()
end

-- The call of a line on its inputs.
local function call_of(line)
  return assert(load("return function(L, rebuilt, of_symmetric, squares, a, b, c, d) return " .. line.lua .. " end"))()
end

-- Values, shape and dtype agree; the tolerance is that of the largest element, or 1.
local function same(what, got, text, tolerance)
  local want = goldens.tensor(text):to(here.device)
  expect(table.concat(got.shape, "x")):to_be(table.concat(want.shape, "x"))
  if want:numel() == 0 then return end
  local scale = math.max(1, want:double():abs():amax():item())
  local off = (got:detach():double() - want:double()):abs():amax():item()
  if not (off <= tolerance * scale) then error(("%s is off by %g of %g"):format(what, off, scale), 0) end
end

local lines = goldens.read("linalg", { "linalg" })

local function inputs_of(line, dtype)
  local inputs = {}
  for i = 1, line.inputs do inputs[i] = goldens.tensor(line.tensors["in" .. i - 1]):to(here.device):to(dtype) end
  return inputs
end

local function run(line, inputs) return { call_of(line)(L, rebuilt, of_symmetric, squares, table.unpack(inputs)) } end

describe("goldens in float64", function()
  for _, line in ipairs(lines) do
    it(line.name, function()
      local inputs, total = inputs_of(line, "float64"), nil
      for _, x in ipairs(inputs) do x:requires_grad_(line.grad) end
      local outs = run(line, inputs)
      expect(#outs):to_be(line.outputs)
      for i, y in ipairs(outs) do
        same("output " .. i, y, line.tensors["out" .. i - 1], 1e-10)
        if line.grad and y.requires_grad then
          local part = (y * goldens.tensor(line.tensors["up" .. i - 1]):to(here.device)):sum()
          total = total and total + part or part
        end
      end
      if not line.grad then return end
      local grads = gb.grad(total, inputs, { allow_unused = true })
      for i, x in ipairs(inputs) do
        same("gradient " .. i, grads[i] or gb.zeros_like(x), line.tensors["grad" .. i - 1], 1e-9)
      end
    end)
  end
end)

describe("goldens in float32", function()
  for _, line in ipairs(lines) do
    it(line.name, function()
      for i, y in ipairs(run(line, inputs_of(line, "float32"))) do
        if y:is_floating_point() then expect(y.dtype):to_be("float32") end
        same("output " .. i, y, line.tensors["out" .. i - 1], 2e-3)
      end
    end)
  end
end)

-- ====}

-- {==== Differences ====

-- Symmetric positive definite, all eigenvalues apart.
local function positive(n)
  local x = gb.randn({ 2, n, n }, { dtype = "float64", device = here.device })
  return x:matmul(x:transpose(-2, -1)) + gb.eye(n, { dtype = "float64", device = here.device })
end

local smooth = {
  inv = L.inv, det = L.det, cholesky = L.cholesky, pinv = L.pinv,
  slogdet = function(a) return select(2, L.slogdet(a)) end,
  solve = function(a) return L.solve(a, a:tril()) end,
  solve_triangular = function(a) return L.solve_triangular(a, a:triu(), { upper = false }) end,
  ["solve_triangular, unit"] = function(a) return L.solve_triangular(a, a, { upper = true, unitriangular = true }) end,
  ["qr, q"] = function(a) return (L.qr(a)) end, ["qr, r"] = function(a) return select(2, L.qr(a)) end,
  ["qr, wide"] = function(a)
    local q, r = L.qr(a:narrow(-2, 1, 2))
    return q:matmul(r:square())
  end,
  ["qr, tall"] = function(a)
    local q, r = L.qr(a:narrow(-1, 1, 2))
    return q:matmul(r:square())
  end,
  ["svd, tall"] = function(a) return select(2, rebuilt(a:narrow(-1, 1, 2), true)) end,
  ["svd, wide"] = function(a) return select(2, rebuilt(a:narrow(-2, 1, 2), false)) end,
  svdvals = L.svdvals,
  eigh = function(a) return select(2, of_symmetric(a, "L")) end,
  ["pinv, tall"] = function(a) return L.pinv(a:narrow(-1, 1, 2)) end,
  ["matrix_norm, nuc"] = function(a) return L.matrix_norm(a, "nuc") end,
  ["matrix_norm, 2"] = function(a) return L.matrix_norm(a, 2) end,
  cond = L.cond, ["cond, 1"] = function(a) return L.cond(a, 1) end,
  matrix_power = function(a) return L.matrix_power(a, -2) end,
  lstsq = function(a) return (L.lstsq(a:narrow(-1, 1, 2), a)) end,
  ldl_solve = function(a)
    local indefinite = gb.tensor({ { 0, 2, 1 }, { 2, 0, 3 }, { 1, 3, 0 } }, { dtype = "float64", device = here.device })
    local LD, pivots = L.ldl_factor(indefinite)
    return L.ldl_solve(LD:expand(2, 3, 3), pivots:expand(2, 3), a:square())
  end,
  matrix_sqrth = function(a) return L.matrix_sqrth(a):square() end,
}

local function weighed(y)
  local weights = gb.arange(y:numel(), { dtype = "float64", device = here.device }):mul(0.37):add(1):sin()
  return (y * weights:reshape(y.shape)):sum()
end

describe("gradients against differences", function()
  local h = 2 ^ -17
  for name, f in pairs(smooth) do
    it(name, function()
      gb.manual_seed(7)
      local a, d = positive(3):requires_grad_(), gb.randn({ 2, 3, 3 }, { dtype = "float64", device = here.device })
      d = d + d:transpose(-2, -1)
      local function value(x) return weighed(f(x)) end
      local function slope(x)
        x = x:detach():requires_grad_()
        return gb.grad(value(x), x, { create_graph = true })
      end
      local got = (gb.grad(value(a), a) * d):sum():item()
      local want = (value(a:detach() + d * h):item() - value(a:detach() - d * h):item()) / (2 * h)
      if math.abs(got - want) > 1e-5 * (1 + math.abs(want)) then
        error(("%.9g, differences say %.9g"):format(got, want))
      end
      local leaf = a:detach():requires_grad_()
      local second = gb.grad((gb.grad(value(leaf), leaf, { create_graph = true }) * d):sum(), leaf)
      got = (second * d):sum():item()
      want = ((slope(a + d * h) * d):sum():item() - (slope(a - d * h) * d):sum():item()) / (2 * h)
      if math.abs(got - want) > 1e-4 * (1 + math.abs(want)) then
        error(("second: %.9g, differences say %.9g"):format(got, want))
      end
    end)
  end
end)

-- ====}

-- {==== Factors, layouts, threads ====

describe("factors", function()
  local function close(x, y) expect((x - y):abs():amax():item() < 1e-10):to_be(true) end
  local function is_unit(x) close(x, gb.eye(x.shape[x.ndim], { dtype = "float64", device = here.device })) end

  it("of svd are orthonormal and make the matrix again, at every size", function()
    for _, shape in ipairs { { 1, 1 }, { 7, 3 }, { 3, 7 }, { 40, 40 }, { 130, 20 } } do
      local a = gb.randn(shape, { dtype = "float64", device = here.device })
      local u, s, vh = L.svd(a)
      local k = s.shape[1]
      is_unit(u:t():matmul(u))
      is_unit(vh:matmul(vh:t()))
      close((u:narrow(2, 1, k) * s):matmul(vh:narrow(1, 1, k)), a)
    end
  end)

  it("of qr and eigh too", function()
    for _, n in ipairs { 1, 5, 90 } do
      local a = gb.randn({ n + 3, n }, { dtype = "float64", device = here.device })
      for _, mode in ipairs { "reduced", "complete" } do
        local q, r = L.qr(a, { mode = mode })
        is_unit(q:t():matmul(q))
        close(q:matmul(r), a)
      end
      local square = a:t():matmul(a)
      local w, v = L.eigh(square)
      is_unit(v:t():matmul(v))
      close(((v * w):matmul(v:t()) - square) / square:abs():amax(), gb.zeros(1, here))
    end
  end)

  it("read any layout, and only the triangle that they are told", function()
    local a = positive(4)
    close(L.inv(a:transpose(-2, -1)), L.inv(a:contiguous():transpose(-2, -1):contiguous()))
    close(L.cholesky(a:tril()), L.cholesky(a))
    close(L.eigvalsh(a:triu(), "U"), L.eigvalsh(a))
  end)

  it("of nothing are units", function()
    local q = L.qr(gb.zeros(3, 0, here), { mode = "complete" })
    expect(q:sum():item()):to_be(3.0)
    local u, s, vh = L.svd(gb.zeros(2, 0, 3, here))
    expect(u:numel()):to_be(0)
    expect(s:numel()):to_be(0)
    expect(vh:sum():item()):to_be(6.0)
    expect(L.inv(gb.zeros(0, 3, 3, here)):numel()):to_be(0)
  end)
end)

describe("matrix_sqrth", function()
  it("has second and third derivatives where eigenvalues are equal", function()
    local float64, h = { dtype = "float64", device = here.device }, 1e-4
    local d = gb.randn({ 3, 3 }, float64)
    d = d + d:t()
    local function near(got, want, tolerance)
      expect(math.abs(got:item() - want) <= tolerance * (1 + math.abs(want))):to_be(true)
    end
    -- of (a + x d)^(1/2), weighed, in the direction d: at 4 I, and where two are equal
    for _, a in ipairs { gb.eye(3, float64) * 4, gb.diag(gb.tensor({ 2, 2, 5 }, float64)) } do
      local function value(x) return weighed(L.matrix_sqrth(a + d * x)) end
      local x = gb.zeros({}, float64):requires_grad_()
      local first = gb.grad(value(x), x, { create_graph = true })
      local second = gb.grad(first, x, { create_graph = true })
      local third = gb.grad(second, x)
      local function at(step) return value(gb.full({}, step * h, float64)):item() end
      near(first, (at(1) - at(-1)) / (2 * h), 1e-6)
      near(second, (at(1) - 2 * at(0) + at(-1)) / h ^ 2, 1e-5)
      h = 1e-2
      near(third, (at(2) - 2 * at(1) + 2 * at(-1) - at(-2)) / (2 * h ^ 3), 2e-3)
      h = 1e-4
    end
  end)
end)

describe("ldl", function()
  local float64 = { dtype = "float64", device = here.device }
  it("solves at every size, with batches that broadcast and pivots of any integers", function()
    for _, n in ipairs { 1, 2, 9, 64, 150 } do
      local a = gb.randn({ 2, 1, n, n }, float64)
      a = a + a:transpose(-2, -1)
      for i = 1, n // 2 do a:select(-1, i):select(-1, i):zero_() end
      local b = gb.randn({ 3, n, 2 }, float64)
      local LD, pivots = L.ldl_factor(a)
      expect(pivots.dtype):to_be("int32")
      local x = L.ldl_solve(LD, pivots, b)
      expect(a:matmul(x)):to_be_close(b:expand(2, 3, n, 2), 1e-8)
      expect(L.ldl_solve(LD, pivots:long(), b)):to_equal_bits(x)
    end
  end)
  it("has a gradient of B alone", function()
    local a = gb.eye(3, float64):requires_grad_()
    local LD, pivots = L.ldl_factor(a)
    expect(function() LD:sum():backward() end):to_fail("linalg.ldl_factor has no gradient; detach its matrix")
    local b = gb.ones({ 3, 1 }, float64):requires_grad_()
    expect(function() L.ldl_solve(LD, pivots, b):sum():backward() end):to_fail("no gradient of LD; detach it")
    L.ldl_solve(LD:detach() * 2, pivots, b):sum():backward()
    expect(b.grad):to_be_close(gb.full({ 3, 1 }, 0.5, float64), 0)
  end)
  it("refuses pivots that LAPACK would follow out of the matrix", function()
    local eye, b = gb.eye(3, here), gb.ones(3, 1, here)
    for _, pivots in ipairs { { 1, 2, 4 }, { 0, 2, 3 }, { 1, 2, -3 }, { -2, -3, 3 }, { -1, 2, 3 }, { -9, -9, 3 },
      { math.mininteger, 2, 3 }, { math.maxinteger, 2, 3 }, { -1, -1, -1 } } do
      local given = gb.tensor(pivots, here)
      expect(function() L.ldl_solve(eye, given, b) end):to_fail("pivots that ldl_factor does not make")
    end
    local pivots = gb.tensor({ 1, 2, 3 }, here)
    expect(function() L.ldl_solve(eye * 0, pivots, b) end):to_fail("is singular")
    expect(function() L.ldl_solve(eye, gb.tensor({ -2, -2, 3 }, here), b) end):to_fail("is singular")
    expect(function() L.ldl_solve(eye, pivots:narrow(1, 1, 2), b) end):to_fail("pivots are those of ldl_factor")
    expect(function() L.ldl_solve(eye, pivots:float(), b) end):to_fail("integer")
    expect(function() L.ldl_solve(eye, pivots, gb.ones(3, here)) end):to_fail("at least 2")
    expect(function() L.ldl_solve(eye, pivots, gb.ones(2, 1, here)) end):to_fail("b needs as many rows as ld")
    expect(function() L.ldl_solve(eye * (0 / 0), pivots, b) end):to_fail("NaN")
  end)
end)

describe("the number of threads", function()
  it("changes no bit", function()
    local a = positive(24):repeat_interleave(9, 1)
    local threads, results = gb.get_num_threads(), {}
    for _, n in ipairs { 1, 3 } do
      gb.set_num_threads(n)
      local u, s = L.svd(a)
      local w = L.eigh(a)
      results[n] = { L.inv(a):sum():item(), u:sum():item(), s:sum():item(), w:sum():item(), L.det(a):sum():item() }
    end
    gb.set_num_threads(threads)
    for i, v in ipairs(results[1]) do expect(results[3][i]):to_be(v) end
  end)
end)

-- ====}

-- {==== Autocast and errors ====

describe("16 bits", function()
  it("are refused outside of autocast", function()
    expect(function() L.inv(gb.eye(2, here):half()) end):to_fail("float32 or float64")
  end)
  it("become float32 inside, with gradients in 16 bits", function()
    gb.amp.autocast("bfloat16", function()
      local a = (gb.eye(2, here) * 4):bfloat16():requires_grad_()
      local y = L.inv(a)
      expect(y.dtype):to_be("float32")
      expect(y:sum():item()):to_be(0.5)
      y:sum():backward()
      expect(a.grad.dtype):to_be("bfloat16")
      local x = L.solve(a, gb.ones(2, here):bfloat16())
      expect(x.dtype):to_be("float32")
      x:sum():backward()
    end)
  end)
  it("become float32 in what has products between these ops, as in PyTorch", function()
    local functions = { matrix_exp = L.matrix_exp, pdist = gb.pdist,
      lstsq = function(a) return (L.lstsq(a, gb.ones({ 3 }, here))) end,
      householder_product = function(a) return L.householder_product(a, gb.full({ 2 }, 0.5, here)) end }
    for _, dtype in ipairs { "bfloat16", "float32" } do
      local a = (gb.rand(3, 3, here) * 2):to(dtype)
      for _, fn in pairs(functions) do
        local x, y = a:clone():requires_grad_(), a:clone():requires_grad_()
        local out = gb.amp.autocast("bfloat16", fn, x)
        local plain = fn(y:float())
        expect(out):to_equal_bits(plain)
        out:sum():backward()
        plain:sum():backward()
        expect(x.grad):to_equal_bits(y.grad)
      end
    end
  end)
end)

-- What PyTorch runs in the scope's dtype has its lines in test_calls.
local lower = { ["multi_dot"] = true, ["matrix_power"] = true }
describe("goldens under autocast are float32, to the bit", function()
  for _, line in ipairs(lines) do
    if not lower[line.name:match("^[%w_]+")] then
      it(line.name, function()
        local plain = run(line, inputs_of(line, "float32"))
        for i, y in ipairs(gb.amp.autocast("bfloat16", run, line, inputs_of(line, "float32"))) do
          expect(y):to_equal_bits(plain[i])
        end
      end)
    end
  end
end)

describe("matrix_power", function()
  it("takes every integer", function()
    local turn = gb.tensor({ { 0, -1 }, { 1, 0 } }, here):double() -- by a quarter
    for _, n in ipairs { math.mininteger, math.maxinteger + 1, 4, 0, -8 } do
      expect(L.matrix_power(turn, n)):to_be_close { 1, 0, 0, 1 }
    end
    for _, n in ipairs { math.maxinteger, -1, 3 } do
      expect(L.matrix_power(turn, n)):to_be_close { 0, 1, -1, 0 }
    end
  end)
end)

describe("errors", function()
  local eye = gb.eye(3, here)
  local bad = gb.stack { eye, eye * 0, eye * 0 }
  local nan = gb.stack { eye, eye * (0 / 0) }
  local wrong = {
    ["matrix 2 of the batch of 3 (from 1) is singular"] = function() L.inv(bad) end,
    ["ldl_factor: matrix 2 of the batch of 3 (from 1) is singular"] = function() L.ldl_factor(bad) end,
    ["batch of 3 (from 1) is singular; add"] = function() L.solve(bad, gb.ones(3, 3, here)) end,
    ["the matrix is singular"] = function() L.solve_triangular(eye * 0, eye, { upper = true }) end,
    ["matrix 2 of the batch of 3 (from 1) is not positive definite"] = function() L.cholesky(bad) end,
    ["last two sizes must be equal"] = function() L.det(gb.ones(2, 3, here)) end,
    ["at least 2"] = function() L.inv(gb.ones(3, here)) end,
    ["floating"] = function() L.inv(gb.ones(3, 3, { dtype = "int64", device = here.device })) end,
    ["do not fit: b needs as many rows"] = function() L.solve(eye, gb.ones(2, 2, here)) end,
    ["ord 3 is no norm of a matrix"] = function() L.matrix_norm(eye, 3) end,
    ["give dim = { rows, columns }"] = function() L.matrix_norm(eye, "fro", 1) end,
    ["no dimension 4"] = function() L.matrix_norm(eye, "fro", { 1, 4 }) end,
    ["'fro' is for matrices"] = function() L.norm(gb.ones(3, here), "fro") end,
    ["no vector and no matrix"] = function() L.norm(gb.ones(2, 2, 2, here), 1) end,
    ["use mode 'reduced'"] = function()
      local q = L.qr(gb.ones(3, 2, here):requires_grad_(), { mode = "complete" })
      q:sum():backward()
    end,
    ["at least two tensors"] = function() L.multi_dot({ eye }) end,
    ["tensor 2 has the shape 2x3x3"] = function() L.multi_dot({ eye, nan, eye }) end,
    ["'rtol' is -1"] = function() L.pinv(eye, { rtol = -1 }) end,
    ["LAPACK takes 16384"] = function() L.inv(gb.zeros(1, 1, here):expand({ 16385, 16385 })) end,
  }
  for text, call in pairs(wrong) do
    it(text, function() expect(call):to_fail(text) end)
  end
  it("elements that are not finite are refused by all", function()
    for _, name in ipairs { "inv", "det", "slogdet", "cholesky", "ldl_factor", "qr", "svd", "svdvals", "eigh",
      "eigvalsh", "pinv", "matrix_rank", "cond" } do
      expect(function() L[name](nan) end):to_fail("matrix 2 of the batch of 2 (from 1) has elements that are NaN")
    end
    expect(function() L.solve(eye, gb.full({ 3 }, math.huge, here)) end):to_fail("NaN or infinite")
  end)
end)

-- ====}

-- {==== Devices ====

-- Against the CPU, where that is another device.
describe("on any device", function()
  local a = positive(3)
  local calls = {
    inv = function(x) return L.inv(x) end, cholesky = function(x) return L.cholesky(x) end,
    det = function(x) return L.det(x) end, pinv = function(x) return L.pinv(x) end,
    slogdet = function(x) return select(2, L.slogdet(x)) end, qr = function(x) return select(2, L.qr(x)) end,
    solve = function(x) return L.solve(x, x) end, svd = function(x) return select(2, L.svd(x)) end,
    solve_triangular = function(x) return L.solve_triangular(x, x, { upper = false }) end,
    eigh = function(x) return (L.eigh(x)) end,
  }
  for name, call in pairs(calls) do
    it(name .. " gives the CPU's numbers, and gradients", function()
      local x, y = a:to("cpu"):detach():clone():requires_grad_(), a:to(here.device):detach():clone():requires_grad_()
      local there, result = call(x), call(y)
      expect(result.device):to_be(y.device)
      expect(result:detach():to("cpu")):to_be_close(there:detach(), 1e-12)
      there:sum():backward()
      result:sum():backward()
      expect(y.grad.device):to_be(y.device)
      expect(y.grad:to("cpu")):to_be_close(x.grad, 1e-12)
    end)
  end
  it("a fault is told as on the CPU", function()
    expect(function() L.inv(gb.zeros(2, 2, here)) end):to_fail("the matrix is singular")
  end)
  it("batches broadcast, in any layout", function()
    local b = gb.randn({ 4, 2, 3 }, { dtype = "float64", device = here.device }):transpose(-2, -1)
    local x = L.solve(a:unsqueeze(2), b)
    expect(table.concat(x.shape, "x")):to_be("2x4x3x2")
    expect(a:unsqueeze(2):matmul(x)):to_be_close(b:expand(2, 4, 3, 2), 1e-11)
    local one = L.solve_triangular(a[1], b[1], { upper = false, left = true })
    expect(a[1]:tril():matmul(one)):to_be_close(b[1], 1e-11)
    local det = L.det(a:narrow(1, 1, 1):expand(5, 3, 3))
    expect(det):to_be_close(det:narrow(1, 1, 1):expand(5), 1e-14)
  end)
  it("sizes of 0 give what they give on the CPU", function()
    expect(L.det(gb.zeros(2, 0, 0, here)):tolist()[2]):to_be(1.0)
    expect(L.solve(gb.eye(2, here), gb.ones(2, 0, here)):numel()):to_be(0)
    expect(L.pinv(gb.zeros(2, 0, 3, here)):numel()):to_be(0)
    expect(L.eigvalsh(gb.zeros(0, 3, 3, here)):numel()):to_be(0)
    expect(function() L.solve(gb.zeros(2, 2, here), gb.ones(2, 0, here)) end):to_fail("singular")
  end)
end)

-- ====}

gb.test.finish()
