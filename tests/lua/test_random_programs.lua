-- test_random_programs.lua - random programs against an evaluator that knows nothing of the engine.
--
-- A program makes tensors and runs a few ops on them: views, broadcasting, in-place changes, casts, autocast, no_grad;
-- then it goes backward. Its shadow holds the same numbers in Lua tables: a view is a list of positions in its base's
-- numbers, and every number carries its derivative along a random direction of the leaves (forward mode), so aliasing
-- and gradients need no thought. After every op the shadow is compared within the rounding of the dtypes and takes over
-- the engine's numbers, so errors do not add up.
--
--   gibbous tests/lua/test_random_programs.lua [programs] [seed]      a seed that fails is printed; it alone runs with:
--   1 SEED

local gb = require "gibbous"
local PROGRAMS, FIRST_SEED = tonumber(arg and arg[1]) or 10000, math.tointeger(arg and arg[2]) or 1

-- Twice the distance between 1 and the next number of each dtype, roughly; integers are exact.
local EPS = { float64 = 2^-48, float32 = 2^-22, float16 = 2^-9, bfloat16 = 2^-6, int64 = 0, int32 = 0 }
local FLOATS = { "float64", "float32", "float32", "float16", "bfloat16" }
local random = math.random

local function pick(list) return list[random(#list)] end

local function is_float(r) return r.dtype ~= "int64" and r.dtype ~= "int32" end

-- {==== The shadow ====

-- value: numbers; slope: their derivatives; reach: a bound on the paths that lead to a derivative, for its tolerance.
local function new_base(n) return { value = {}, slope = {}, reach = {}, n = n } end

local function count(shape)
  local n = 1
  for _, size in ipairs(shape) do n = n * size end
  return n
end

-- A register: a tensor of the engine and where its elements lie in the numbers of its base, row-major.
local function register(t, base, at, shape, overlaps)
  return { t = t, base = base, at = at, shape = shape, dtype = t.dtype, overlaps = overlaps }
end

local function dense(t, base, shape)
  local at = {}
  for i = 1, base.n do at[i] = i end
  return register(t, base, at, shape, false)
end

local function numbers(t)
  local list = t:detach():reshape(-1):tolist()
  for i = 1, #list do
    if type(list[i]) == "boolean" then list[i] = list[i] and 1 or 0 end
  end
  return list
end

local function largest(r)
  local most = 0
  for _, i in ipairs(r.at) do most = math.max(most, math.abs(r.base.value[i])) end
  return most
end

-- Compare a register with its shadow, which takes over the numbers. bound[i]: what rounding is relative to.
local function compare(r, bound, eps)
  local got = numbers(r.t)
  assert(table.concat(r.t.shape, "x") == table.concat(r.shape, "x"), "the shape differs")
  assert(#got == #r.at, "the number of elements differs")
  local tiny = eps > 0 and 2^-23 or 0
  for i, p in ipairs(r.at) do
    local want = r.base.value[p]
    if not (math.abs(got[i] - want) <= eps * (bound and bound[i] or math.abs(want)) + tiny) then
      error(("element %d is %.17g, the shadow says %.17g"):format(i, got[i], want))
    end
    r.base.value[p] = got[i]
  end
end

-- Strides of a broadcast operand over the positions of a result: which element of r meets element i of shape.
local function meet(r, shape)
  local where, n, lead = {}, count(shape), #shape - #r.shape
  for i = 0, n - 1 do
    local rest, at, step = i, 0, 1
    for d = #shape, 1, -1 do
      local k = rest % shape[d]
      rest = rest // shape[d]
      local size = d > lead and r.shape[d - lead] or 1
      if size > 1 then at = at + k * step end
      step = step * size
    end
    where[i + 1] = r.at[at + 1]
  end
  return where
end

local function broadcast(a, b)
  local shape, n = {}, math.max(#a, #b)
  for d = 1, n do
    local x, y = a[d - n + #a] or 1, b[d - n + #b] or 1
    if x ~= y and x ~= 1 and y ~= 1 then return nil end
    shape[d] = x == 1 and y or x
  end
  return shape
end

-- ====}

-- {==== The ops: f(x) gives a value and its slope; f(x, y) a value and both ====

local function sigmoid(x) return 1 / (1 + math.exp(-x)) end
local function tanh(x) return 2 * sigmoid(2 * x) - 1 end

local unary = {
  neg = function(x) return -x, -1 end,
  abs = function(x) return math.abs(x), x > 0 and 1 or x < 0 and -1 or 0 end,
  relu = function(x) return math.max(x, 0), x > 0 and 1 or 0 end,
  square = function(x) return x * x, 2 * x end,
  tanh = function(x) return tanh(x), 1 - tanh(x) ^ 2 end,
  sigmoid = function(x) return sigmoid(x), sigmoid(x) * (1 - sigmoid(x)) end,
  sin = function(x) return math.sin(x), math.cos(x) end,
  cos = function(x) return math.cos(x), -math.sin(x) end,
  exp = function(x) return math.exp(x), math.exp(x) end,
}
local exact = { "neg", "abs", "relu" } -- those that integers have
local tame = { "neg", "abs", "relu", "tanh", "sigmoid", "sin", "cos" }
local wild = { "neg", "abs", "relu", "square", "tanh", "sigmoid", "sin", "cos", "exp" } -- for numbers below 3

local binary = {
  add = function(x, y) return x + y, 1, 1 end,
  sub = function(x, y) return x - y, 1, -1 end,
  mul = function(x, y) return x * y, y, x end,
  maximum = function(x, y) return math.max(x, y), x > y and 1 or x == y and 0.5 or 0, y > x and 1 or x == y and 0.5 or
    0 end,
}

-- Put f of the operands into base at the positions `to`. Returns the bound of each element.
local function fill(base, to, live, f, x, xs, y, ys)
  local bounds, values, slopes, reaches = {}, {}, {}, {}
  for i = 1, #to do
    local p, q = xs[i], ys and ys[i]
    local a, b = x.value[p], q and y.value[q]
    local value, dx, dy = f(a, b)
    values[i], bounds[i] = value, math.abs(value) + math.abs(a) + math.abs(b or 0)
    slopes[i] = live and dx * x.slope[p] + (q and dy * y.slope[q] or 0) or 0
    reaches[i] = live and math.max(math.abs(dx), 1) * x.reach[p] + (q and math.max(math.abs(dy), 1) * y.reach[q] or
      0) or 0
  end
  for i = 1, #to do base.value[to[i]], base.slope[to[i]], base.reach[to[i]] = values[i], slopes[i], reaches[i] end
  return bounds
end

-- ====}

-- {==== Steps: each picks registers, runs the engine and the shadow, and returns the new register or nothing ====

local steps = {}

-- live: gradients are on. The result is a register of its own.
local function result(p, t, shape, f, live, x, xs, y, ys)
  local base = new_base(count(shape))
  local r = dense(t, base, shape)
  local bounds = fill(base, r.at, live and is_float(r), f, x.base, xs, y and y.base, ys)
  compare(r, bounds, EPS[r.dtype] * 4)
  p[#p + 1] = r
end

-- Run the engine's part in one of the modes; the second result says whether gradients are on.
local function in_mode(fn)
  local mode = random(6)
  if mode == 1 then return gb.no_grad(fn), false end
  if mode == 2 then return gb.amp.autocast({ dtype = pick { "float16", "bfloat16" } }, fn), true end
  return fn(), true
end

local function unary_name(x)
  if not is_float(x) then return pick(exact) end
  return pick(largest(x) < 3 and wild or tame)
end

function steps.unary(p)
  local x = pick(p)
  local name = unary_name(x)
  local t, live = in_mode(function() return x.t[name](x.t) end)
  result(p, t, x.shape, unary[name], live, x, x.at)
end

function steps.binary(p)
  local x, y = pick(p), pick(p)
  local shape = broadcast(x.shape, y.shape)
  if not shape then return end
  local name = pick { "add", "sub", "mul", "maximum" }
  if name == "mul" and largest(x) * largest(y) > 100 then name = "sub" end
  local t, live = in_mode(function() return gb[name](x.t, y.t) end)
  result(p, t, shape, binary[name], live, x, meet(x, shape), y, meet(y, shape))
end

function steps.scale(p)
  local x = pick(p)
  local factor = is_float(x) and pick { 0.5, -0.25, 2.0 } or pick { -1, 2 }
  if largest(x) > 50 then factor = is_float(x) and 0.125 or 0 end
  local t, live = in_mode(function() return x.t * factor end)
  result(p, t, x.shape, function(a) return a * factor, factor end, live, x, x.at)
end

function steps.cast(p)
  local x, dtype = pick(p), pick(FLOATS)
  local t, live = in_mode(function() return x.t:to(dtype) end)
  if dtype == x.dtype then return end -- the tensor itself
  result(p, t, x.shape, function(a) return a, 1 end, live, x, x.at)
end

-- A copy outside the graph.
function steps.detach(p)
  local x = pick(p)
  result(p, x.t:detach():clone(), x.shape, function(a) return a, 1 end, false, x, x.at)
end

-- Sum or mean over one dim, kept or not.
function steps.reduce(p)
  local x = pick(p)
  if #x.shape == 0 then return end
  local name, dim, keep = is_float(x) and pick { "sum", "mean" } or "sum", random(#x.shape), random(2) == 1
  local n = x.shape[dim]
  if n == 0 or largest(x) * n > 1000 then return end
  local t, live = in_mode(function() return x.t[name](x.t, dim, { keepdim = keep }) end)
  local shape, inner = { table.unpack(x.shape) }, 1
  for d = dim + 1, #shape do inner = inner * shape[d] end
  if keep then shape[dim] = 1 else table.remove(shape, dim) end
  local base, bounds, over = new_base(#x.at // n), {}, name == "mean" and 1 / n or 1
  local r = dense(t, base, shape)
  live = live and is_float(r)
  for i = 0, base.n - 1 do
    local value, slope, reach, bound = 0, 0, 0, 0
    for k = 0, n - 1 do
      local q = x.at[(i // inner * n + k) * inner + i % inner + 1]
      value, slope, reach = value + x.base.value[q], slope + x.base.slope[q], reach + x.base.reach[q]
      bound = bound + math.abs(x.base.value[q])
    end
    base.value[i + 1], base.slope[i + 1], base.reach[i + 1] = value * over, live and slope * over or 0, live and
      reach or 0
    bounds[i + 1] = bound
  end
  if not is_float(r) then for i = 1, base.n do base.value[i] = math.tointeger(base.value[i]) or base.value[i] end end
  compare(r, bounds, EPS[r.dtype] * 4)
  p[#p + 1] = r
end

function steps.matmul(p)
  local x, y = pick(p), pick(p)
  if #x.shape ~= 2 or #y.shape ~= 2 or x.shape[2] ~= y.shape[1] or x.dtype ~= y.dtype or not is_float(x) then return end
  local n, k, m = x.shape[1], x.shape[2], y.shape[2]
  if largest(x) * largest(y) * k > 200 then return end
  local t, live = in_mode(function() return x.t:matmul(y.t) end)
  local base, bounds = new_base(n * m), {}
  local r = dense(t, base, { n, m })
  for i = 0, n - 1 do
    for j = 0, m - 1 do
      local value, slope, reach, bound = 0.0, 0.0, 0.0, 0.0
      for l = 0, k - 1 do
        local a, b = x.at[i * k + l + 1], y.at[l * m + j + 1]
        local u, v = x.base.value[a], y.base.value[b]
        value, bound = value + u * v, bound + math.abs(u * v)
        slope = slope + u * y.base.slope[b] + v * x.base.slope[a]
        reach = reach + math.max(math.abs(u), 1) * y.base.reach[b] + math.max(math.abs(v), 1) * x.base.reach[a]
      end
      local q = i * m + j + 1
      base.value[q], base.slope[q], base.reach[q], bounds[q] = value, live and slope or 0, live and reach or 0, bound
    end
  end
  compare(r, bounds, EPS[r.dtype] * 4)
  p[#p + 1] = r
end

-- A view of x, whose element i is the element order(i) of x, both from 0.
local function view(p, x, t, shape, order, overlaps)
  local at = {}
  for i = 0, count(shape) - 1 do at[i + 1] = x.at[order(i) + 1] end
  local r = register(t, x.base, at, shape, x.overlaps or overlaps)
  compare(r, nil, 0)
  p[#p + 1] = r
end

function steps.transpose(p)
  local x = pick(p)
  if #x.shape ~= 2 then return end
  local n, m = x.shape[1], x.shape[2]
  view(p, x, x.t:transpose(1, 2), { m, n }, function(i) return i % n * m + i // n end)
end

function steps.narrow(p)
  local x = pick(p)
  if #x.shape == 0 then return end
  local dim = random(#x.shape)
  local size, shape, inner = x.shape[dim], { table.unpack(x.shape) }, 1
  if size == 0 then return end
  for d = dim + 1, #shape do inner = inner * shape[d] end
  local start, single = random(size), random(2) == 1
  local length = single and 1 or random(size - start + 1)
  local function order(i)
    return (i // (inner * length) * size + start - 1 + i // inner % length) * inner + i % inner
  end
  if single then table.remove(shape, dim) else shape[dim] = length end
  view(p, x, single and x.t:select(dim, start) or x.t:narrow(dim, start, length), shape, order)
end

function steps.unsqueeze(p)
  local x = pick(p)
  if #x.shape > 3 then return end
  local dim, shape = random(#x.shape + 1), { table.unpack(x.shape) }
  table.insert(shape, dim, 1)
  view(p, x, x.t:unsqueeze(dim), shape, function(i) return i end)
end

function steps.expand(p)
  local x, n = pick(p), random(3)
  if #x.shape == 0 or x.shape[1] ~= 1 then return end
  local shape, inner = { table.unpack(x.shape) }, #x.at
  shape[1] = n
  view(p, x, x.t:expand(table.unpack(shape)), shape, function(i) return i % inner end, n > 1)
end

function steps.flatten(p)
  local x = pick(p)
  if #x.shape < 2 or not x.t:is_contiguous() then return end
  view(p, x, x.t:view(-1), { #x.at }, function(i) return i end)
end

-- In place: x = f(x, y); every register over the same numbers sees it.
function steps.in_place(p)
  local x, y = pick(p), pick(p)
  if x.overlaps or x.base == y.base then return end
  local eps = EPS[x.dtype] * 4
  if random(2) == 1 then
    local name = unary_name(x)
    x.t[name .. "_"](x.t)
    compare(x, fill(x.base, x.at, is_float(x), unary[name], x.base, x.at), eps)
  else
    local shape = broadcast(x.shape, y.shape)
    if not shape or table.concat(shape, "x") ~= table.concat(x.shape, "x") or is_float(y) and not is_float(x) then
      return
    end
    local name = pick { "add", "sub", "mul" }
    if name == "mul" and largest(x) * largest(y) > 100 then name = "sub" end
    x.t[name .. "_"](x.t, y.t)
    compare(x, fill(x.base, x.at, is_float(x), binary[name], x.base, x.at, y.base, meet(y, shape)), eps)
  end
  for _, r in ipairs(p) do
    if r.base == x.base then compare(r, nil, 0) end
  end
end

local step_names = {}
for name in pairs(steps) do step_names[#step_names + 1] = name end
table.sort(step_names)

-- ====}

-- {==== Programs ====

local shapes = { {}, { 1 }, { 3 }, { 2, 3 }, { 3, 2 }, { 3, 3 }, { 1, 3 }, { 2, 1, 3 }, { 0, 3 }, { 5 } }

-- A tensor of small numbers that its dtype holds exactly; some are leaves, entered by a copy since a leaf may not
-- change in place.
local function new_leaf(p, leaves)
  local shape, dtype = pick(shapes), random(5) == 1 and pick { "int64", "int32" } or pick(FLOATS)
  local base = new_base(count(shape))
  local float = dtype ~= "int64" and dtype ~= "int32"
  for i = 1, base.n do
    base.value[i], base.slope[i], base.reach[i] = float and random(-64, 64) / 32 or random(-4, 4), 0, 0
  end
  local t = gb.tensor(base.n > 0 and base.value or { 0 }, { dtype = dtype }):narrow(1, 1, base.n):reshape(shape)
  if float and random(3) > 1 then
    local leaf = t:clone():requires_grad_()
    for i = 1, base.n do
      base.slope[i] = random(-64, 64) / 64
      base.reach[i] = math.abs(base.slope[i])
    end
    leaves[#leaves + 1] = { t = leaf, slope = { table.unpack(base.slope) } }
    t = leaf:clone()
  else t = t:clone() end
  p[#p + 1] = dense(t, base, shape)
end

local went_backward, refused = 0, 0

-- From the last register that is in the graph: the derivative along the direction is the inner product of gradients and
-- direction.
local function backward(p, leaves)
  local r
  for i = #p, 1, -1 do
    if p[i].t.requires_grad and #p[i].at > 0 then r = p[i] break end
  end
  if not r then return end
  local ok, why = pcall(function() r.t:sum():backward() end)
  if not ok then -- what the graph needs was changed in place
    if not tostring(why):find("in place", 1, true) then error(why, 0) end
    refused = refused + 1
    return
  end
  went_backward = went_backward + 1
  local want, reach, got, eps = 0, 0, 0, EPS.float32
  for _, q in ipairs(r.at) do want, reach = want + r.base.slope[q], reach + r.base.reach[q] end
  for _, leaf in ipairs(leaves) do
    local grad = leaf.t.grad
    if grad then
      for i, g in ipairs(numbers(grad)) do got = got + g * leaf.slope[i] end
    end
  end
  for _, other in ipairs(p) do eps = math.max(eps, EPS[other.dtype]) end
  if not (math.abs(got - want) <= 8 * eps * reach + 1e-6) then
    error(("the gradient along the direction is %.9g, the shadow says %.9g (paths %.9g)"):format(got, want, reach))
  end
end

local function program(seed)
  local p, leaves, done = {}, {}, {}
  math.randomseed(seed)
  for _ = 1, random(2, 4) do new_leaf(p, leaves) end
  local ok, why = xpcall(function()
    for _ = 1, random(2, 10) do
      local name = pick(step_names)
      done[#done + 1] = name
      steps[name](p)
    end
    done[#done + 1] = "backward"
    backward(p, leaves)
  end, debug.traceback)
  if ok then return true end
  print(("seed %d, after %s: %s"):format(seed, table.concat(done, " "), why))
  return false
end

-- ====}

local passed, failed = 0, 0
local function check(ok) if ok then passed = passed + 1 else failed = failed + 1 end end

local _ = { gb.zeros(1) * 1.5, gb.zeros(1, { dtype = "int64" }) * 2 } -- kept for good: the last wrapped numbers
_ = nil
collectgarbage()
collectgarbage()
local before = gb.memory_stats().current_total
print(("programs with the seeds %d .. %d"):format(FIRST_SEED, FIRST_SEED + PROGRAMS - 1))
for seed = FIRST_SEED, FIRST_SEED + PROGRAMS - 1 do
  check(program(seed))
  if failed >= 10 then break end
end
collectgarbage()
collectgarbage()
check(gb.memory_stats().current_total <= before)
check(not gb.amp.is_enabled() and gb.is_grad_enabled())
print(("%d went backward, %d were refused since an in-place change came between"):format(went_backward, refused))
print(("%d passed, %d failed"):format(passed, failed))
if failed > 0 then error("tests failed", 0) end
