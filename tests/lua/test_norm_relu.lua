-- test_norm_relu.lua - batch_norm that adds a residual and takes a ReLU in its one pass. Without a residual it gives
-- the bits of the two ops apart, with their gradients; with one the sum is rounded once, so that float32 and float64
-- give the bits of three ops, and 16 bits those of the sum in float32. On a device the library may find statistics in
-- another order in one op than in several, so results are only close there.

local gb = require "gibbous"
local nn, F = gb.nn, gb.nn.functional
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect

-- By planes with rests of vectors, by rows of channels, planes too large and few, a row per image, and no images; on
-- the CPU rows that make lines of one to five pairs of vectors (16 to 160 channels), with rests of a line.
local sizes = { { 3, 6, 7, 5 }, { 2, 6, 40, 31 }, { 2, 5, 3, 3 }, { 1, 2, 300, 301 }, { 6, 7 }, { 0, 3, 4, 4 } }
if gb.get_default_device() == "cpu" then
  for _, size in ipairs { { 3, 16, 9, 7 }, { 1, 48, 5, 3 }, { 3, 64, 33, 35 }, { 1, 160, 7, 5 } } do
    sizes[#sizes + 1] = size
  end
end
local dtypes = { "float64", "float32", "float16", "bfloat16" }

-- x with the channels innermost in memory.
local function channels_last(x)
  if x.ndim ~= 4 then return x end
  return x:permute({ 1, 3, 4, 2 }):contiguous():permute({ 1, 4, 2, 3 })
end

local tolerance = { float64 = 1e-10, float32 = 1e-4, float16 = 2 ^ -7, bfloat16 = 2 ^ -4 }

local function expect_bits(a, b)
  expect(#a):to_be(#b)
  for i, t in ipairs(a) do
    local x, y = t:contiguous(), b[i]:contiguous()
    expect(x.dtype):to_be(y.dtype)
    if gb.get_default_device() == "cpu" or x:numel() == 0 then
      expect(x):to_equal_bits(y)
    else
      local scale = y:to("float64"):abs():max():item() + 1
      expect((x:to("float64") - y:to("float64")):abs():max():item() <= tolerance[x.dtype] * scale):to_be(true)
    end
  end
end

-- Leaves x, residual, weight and bias of a size, and the gradient of the result.
local function leaves(size, dtype, last)
  gb.manual_seed(7)
  local lies = last and channels_last or function(x) return x end
  local statistics = dtype == "float64" and dtype or "float32"
  local function images() return lies((gb.randn(size) * 2 + 0.5):to(dtype)):detach() end
  local function vector() return gb.randn(size[2]):to(statistics) end
  return { images(), images(), vector(), vector() }, images()
end

-- The result of f(leaves, running mean, running variance), gradients and statistics.
local function run(from, grad, f)
  local given, made = {}, {}
  for i, t in ipairs(from) do given[i] = t:detach():requires_grad_() end
  local mean, var = gb.zeros_like(from[3]), gb.ones_like(from[4])
  local y = f(given, mean, var)
  y:backward(grad:to(y.dtype))
  for i, t in ipairs(given) do made[i] = t.grad or gb.zeros(0) end
  return { y:detach(), mean, var, table.unpack(made) }
end

local function norm(t, mean, var, options, residual)
  return F.batch_norm(t[1], mean, var, t[3], t[4], residual, options)
end

local function cases(check)
  for _, dtype in ipairs(dtypes) do
    for _, size in ipairs(sizes) do
      for _, last in ipairs { false, true } do
        for _, training in ipairs { true, false } do
          if size[1] > 0 or not training then check(dtype, size, last, training) end
        end
      end
    end
  end
end

describe("batch_norm with a ReLU", function()
  it("gives the bits of both ops apart", function()
    cases(function(dtype, size, last, training)
      local from, grad = leaves(size, dtype, last)
      expect_bits(run(from, grad, function(t, m, v)
        return norm(t, m, v, { training = training, activation = "relu" })
      end), run(from, grad, function(t, m, v) return norm(t, m, v, { training = training }):relu() end))
    end)
  end)

  it("keeps the sign of what rounds to -0, and NaN", function()
    for _, dtype in ipairs(dtypes) do
      for _, side in ipairs { 2, 5 } do -- by rows and by planes
        local x = gb.zeros({ 2, 8, side, side }, { dtype = dtype })
        local bias = gb.tensor({ -2 ^ -26, -2 ^ -25, -1.5 * 2 ^ -25, -2 ^ -135, -2 ^ -134, 2 ^ -140, 0 / 0, -1 },
          { dtype = dtype == "float64" and dtype or "float32" })
        local mean, var = gb.zeros_like(bias), gb.ones_like(bias)
        expect(F.batch_norm(x, mean, var, nil, bias, { activation = "relu" }))
          :to_equal_bits(F.batch_norm(x, mean, var, nil, bias):relu())
      end
    end
  end)
end)

describe("batch_norm with a residual", function()
  it("gives the bits of the ops apart where these round as often", function()
    cases(function(dtype, size, last, training)
      if dtype == "float16" or dtype == "bfloat16" then return end
      for _, activation in ipairs { "relu", "none" } do
        local from, grad = leaves(size, dtype, last)
        expect_bits(run(from, grad, function(t, m, v)
          return norm(t, m, v, { training = training, activation = activation }, t[2])
        end), run(from, grad, function(t, m, v)
          local y = norm(t, m, v, { training = training }) + t[2]
          return activation == "relu" and y:relu() or y
        end))
      end
    end)
  end)

  it("rounds the sum once in 16 bits", function()
    for _, dtype in ipairs { "float16", "bfloat16" } do
      for _, size in ipairs(sizes) do
        for _, last in ipairs { false, true } do
          local from = leaves(size, dtype, last)
          local wide = { from[1]:to("float32"), from[2]:to("float32"), from[3], from[4] }
          local function evaluate(t)
            return norm(t, gb.zeros(size[2]), gb.ones(size[2]), { activation = "relu" }, t[2])
          end
          expect_bits({ evaluate(from) }, { evaluate(wide):to(dtype) })
        end
      end
    end
  end)

  it("gives the dtype that both promote to, and each its gradient", function()
    local from, grad = leaves({ 3, 4, 5, 5 }, "float32")
    for _, pair in ipairs { { "bfloat16", "float32" }, { "float32", "float16" }, { "float16", "bfloat16" },
      { "float32", "float64" } } do
      local t = { from[1]:to(pair[1]), from[2]:to(pair[2]), from[3], from[4] }
      local one = run(t, grad, function(l, m, v)
        return norm(l, m, v, { training = true, activation = "relu" }, l[2])
      end)
      local wanted = t[1]:narrow(1, 1, 0) + t[2]:narrow(1, 1, 0)
      expect(one[1].dtype):to_be(wanted.dtype)
      expect(one[4].dtype):to_be(pair[1])
      expect(one[5].dtype):to_be(pair[2])
      local apart = run({ t[1]:to(one[1].dtype), t[2]:to(one[1].dtype), t[3], t[4] }, grad, function(l, m, v)
        return (norm({ l[1], l[2], l[3]:to(l[1].dtype), l[4]:to(l[1].dtype) }, m, v, { training = true }) + l[2]):relu()
      end)
      expect(one[1]:to("float64")):to_be_close(apart[1]:to("float64"), 1e-5)
      expect_bits({ one[5] }, { apart[5]:to(pair[2]) })
    end
  end)

  it("may be x itself, spread out, or of another layout, and need no gradient", function()
    local from, grad = leaves({ 3, 4, 5, 5 }, "float32")
    local x = from[1]
    local function fused(r) return F.batch_norm(x, nil, nil, nil, nil, r, { training = true, activation = "relu" }) end
    for _, r in ipairs { x, gb.ones(1, 4, 1, 1):expand(3, 4, 5, 5), channels_last(from[2]), from[2]:transpose(3, 4) } do
      expect(fused(r)):to_be_close((F.batch_norm(x, nil, nil, nil, nil, { training = true }) + r):relu(), 1e-6)
    end
    local leaf, twin = x:detach():requires_grad_(), x:detach():requires_grad_()
    F.batch_norm(leaf, nil, nil, nil, nil, leaf, { training = true, activation = "relu" }):backward(grad)
    local y = F.batch_norm(twin, nil, nil, nil, nil, { training = true });
    (y + twin):relu():backward(grad)
    expect(leaf.grad):to_be_close(twin.grad, 1e-6) -- the sum of two has another order
    local only = from[2]:detach():requires_grad_()
    F.batch_norm(x, nil, nil, nil, nil, only, { training = true, activation = "relu" }):backward(grad)
    expect(only.grad):to_be_close(grad * (fused(from[2]):gt(0):to("float32")), 0)
  end)

  it("names what does not fit", function()
    local x = gb.randn(2, 3, 4, 4)
    local function with(r) return function() return F.batch_norm(x, nil, nil, nil, nil, r, { training = true }) end end
    expect(with(gb.randn(2, 3, 4, 1))):to_fail("'residual' has shape 2x3x4x1, expected 2x3x4x4")
    expect(with(gb.ones({ 2, 3, 4, 4 }, { dtype = "int64" }))):to_fail("residual")
    expect(with(gb.randn(3))):to_fail("expected 2x3x4x4 (x's shape)")
    expect(function() F.batch_norm(x, { training = true, activation = "gelu" }) end):to_fail("relu")
    expect(function() F.batch_norm(x, { training = true, residual = 3 }) end):to_fail("residual")
  end)
end)

describe("the gradient of batch_norm with a ReLU", function()
  local function hooked(f)
    return function(t, m, v)
      local y = f(t, m, v)
      y:register_hook(function(g) return g end)
      return y
    end
  end

  it("adds up what reached it on its way", function()
    cases(function(dtype, size, last, training)
      if size[1] == 0 then return end
      local from, grad = leaves(size, dtype, last)
      local function twice(f)
        return function(t, m, v)
          local y = f(t, m, v)
          return y * 0.5 + y:sigmoid() * t[2]
        end
      end
      local function fused(t, m, v) return norm(t, m, v, { training = training, activation = "relu" }, t[2]) end
      expect_bits(run(from, grad, twice(fused)), run(from, grad, twice(hooked(fused))))
    end)
  end)

  it("is seen by hooks and kept ones, behind the ReLU", function()
    local x = gb.randn(4, 3):requires_grad_()
    local y = F.batch_norm(x, nil, nil, nil, nil, { training = true, activation = "relu" })
    y:retain_grad()
    local seen
    y:register_hook(function(g) seen = g end);
    (y * 2 + y):sum():backward()
    expect(seen):to_equal_bits(gb.full({ 4, 3 }, 3.0, { dtype = "float32" }))
    expect(y.grad):to_equal_bits(seen)
  end)

  it("goes on through a ReLU behind it", function()
    local from, grad = leaves({ 3, 6, 7, 5 }, "float32")
    expect_bits(run(from, grad, function(t, m, v)
      return (norm(t, m, v, { training = true, activation = "relu" }) - t[2]):relu()
    end), run(from, grad, function(t, m, v) return (norm(t, m, v, { training = true }):relu() - t[2]):relu() end))
  end)

  it("comes again from a graph that is kept, and of inputs that are named", function()
    local x, r = gb.randn(4, 3, 5):requires_grad_(), gb.randn(4, 3, 5):requires_grad_()
    local y = F.batch_norm(x, nil, nil, nil, nil, r, { training = true, activation = "relu" }):square():sum()
    local a = { gb.grad(y, { x, r }, { retain_graph = true }) }
    local b = { gb.grad(y, { x, r }) }
    if #a == 1 then a, b = a[1], b[1] end
    expect_bits(a, b)
  end)

  it("refuses a result that was changed", function()
    local x = gb.randn(4, 3):requires_grad_()
    local y = F.batch_norm(x, nil, nil, nil, nil, { training = true, activation = "relu" })
    local z = y * 1
    gb.no_grad(function() y:add_(1) end)
    expect(function() z:sum():backward() end):to_fail("changed in place")
  end)

  it("is made again by recompute, with the statistics of once", function()
    local from, grad = leaves({ 3, 6, 7, 5 }, "float32")
    local function layer(t, m, v) return norm(t, m, v, { training = true, activation = "relu" }, t[2]) end
    expect_bits(run(from, grad, layer), run(from, grad, function(t, m, v)
      return gb.recompute(function() return layer(t, m, v) end)
    end))
  end)
end)

describe("batch_norm with a ReLU elsewhere", function()
  it("leaves the statistics of a batch that overflowed where they are", function()
    local x = gb.randn(2, 3, 4, 4)
    x[{ 1, 2, 1, 1 }] = math.huge
    local mean, var = gb.ones(3), gb.ones(3)
    F.batch_norm(x, mean, var, nil, nil, x, { training = true, activation = "relu" })
    expect(mean):to_equal_bits(gb.ones(3))
    expect(var):to_equal_bits(gb.ones(3))
  end)

  it("is one row of the audit, in the dtypes that it is given", function()
    local x = gb.randn(2, 3, 4, 4):to("bfloat16")
    gb.amp.autocast("bf16-mixed", function()
      expect(F.batch_norm(x, nil, nil, nil, nil, x, { training = true, activation = "relu" }).dtype):to_be("bfloat16")
      expect(F.batch_norm(x, nil, nil, nil, nil, x:to("float32"), { training = true }).dtype):to_be("float32")
    end)
  end)

  it("has the same bits for every number of threads", function()
    local from, grad = leaves({ 4, 6, 60, 60 }, "bfloat16", true)
    local before, first = gb.get_num_threads(), nil
    for _, threads in ipairs { 1, 2, 5 } do
      gb.set_num_threads(threads)
      local made = run(from, grad, function(t, m, v)
        return norm(t, m, v, { training = true, activation = "relu" }, t[2])
      end)
      expect_bits(made, first or made)
      first = first or made
    end
    gb.set_num_threads(before)
  end)
end)

describe("nn.BatchNorm with an activation", function()
  it("takes a residual where it is called", function()
    for d = 1, 3 do
      local shape = table.pack(4, 6, table.unpack({ 3, 5, 2 }, 1, d))
      shape.n = nil
      local x, r = gb.randn(shape), gb.randn(shape)
      local one, plain = nn["BatchNorm" .. d .. "d"](6, { activation = "relu" }), nn["BatchNorm" .. d .. "d"](6)
      for _ = 1, 2 do
        expect_bits({ one(x), one(x, r), plain(x, r) }, { plain(x):relu(), (plain(x) + r):relu(), plain(x) + r })
        one:load_state_dict(plain:state_dict())
        one:eval()
        plain:eval()
      end
      expect(one.activation):to_be("relu")
    end
    local sync = nn.SyncBatchNorm(6, { activation = "relu" })
    local x = gb.randn(5, 6)
    expect_bits({ sync(x, x) }, { nn.BatchNorm1d(6, { activation = "relu" })(x, x) })
  end)

  it("shows it, and has the parameters that it had", function()
    local one = nn.BatchNorm2d(6, { activation = "relu" })
    expect(tostring(one):find("6, relu", 1, true) ~= nil):to_be(true)
    expect(tostring(nn.BatchNorm2d(6)):find("relu", 1, true)):to_be(nil)
    nn.BatchNorm2d(6):load_state_dict(one:state_dict())
  end)

  it("says what it does not take", function()
    local one = nn.BatchNorm2d(3, { activation = "relu" })
    local x = gb.randn(2, 3, 4, 4)
    expect(function() nn.BatchNorm2d(3, { activation = "gelu" }) end):to_fail("activation")
    expect(function() one(x, 3) end):to_fail("BatchNorm2d expects a tensor, got number")
    expect(function() one(x, x, x) end):to_fail("x and residual")
    expect(function() nn.SyncBatchNorm(3)(x, gb.randn(2, 3)) end):to_fail("residual has shape [2, 3]")
    expect(function() nn.utils.fuse_conv_bn_eval(nn.Conv2d(2, 3, 1):eval(), nn.BatchNorm2d(3, { activation = "relu" })
      :eval()) end):to_fail("the norm's activation, relu, would be lost")
  end)
end)

gb.test.finish()
