-- test_tf32.lua - gb.set_float32_matmul_precision("high"): products, forward and backward, as if their float32 operands
-- had been rounded by hand.

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
local amp, F = gb.amp, gb.nn.functional

-- One number with 10 bits of mantissa, by arithmetic on its bits: to nearest, ties to even.
local function round_number(x)
  local bits = string.unpack("<I4", string.pack("<f", x))
  bits = (bits + 0xfff + ((bits >> 13) & 1)) & 0xffffe000
  return (string.unpack("<f", string.pack("<I4", bits)))
end

local function round(t)
  local list = t:detach():reshape(-1):tolist()
  for i = 1, #list do list[i] = round_number(list[i]) end
  return gb.tensor(list, { dtype = "float32" }):reshape(table.unpack(t.shape))
end

local function at(precision, fn, ...)
  gb.set_float32_matmul_precision(precision)
  local results = table.pack(pcall(fn, ...))
  gb.set_float32_matmul_precision("highest")
  if not results[1] then error(results[2], 0) end
  return table.unpack(results, 2, results.n)
end

-- What fn gives for leaves of these values, and the leaves' gradients for the upstream gradient.
local function run(fn, values, upstream)
  local leaves = {}
  for i, t in ipairs(values) do leaves[i] = t:clone():requires_grad_() end
  local y = fn(table.unpack(leaves))
  y:backward(upstream)
  local grads = {}
  for i, leaf in ipairs(leaves) do grads[i] = leaf.grad end
  return y:detach(), grads
end

-- fn at "high" against fn of rounded operands at "highest". compare(expectation, other).
local function check(fn, values, shape, compare)
  local upstream, rounded = gb.randn(table.unpack(shape)), {}
  for i, t in ipairs(values) do rounded[i] = round(t) end
  local y, grads = at("high", run, fn, values, upstream)
  local by_hand, expected = at("highest", run, fn, rounded, round(upstream))
  local exact = at("highest", run, fn, values, upstream)
  compare(y, by_hand)
  for i = 1, #grads do compare(grads[i], expected[i]) end
  expect((y - exact):abs():max():item() > 1e-5):to_be(true)
end

local function bits(a, b) expect(a):to_equal_bits(b) end
local function near(a, b) expect(a):to_be_close(b, 2e-5) end

describe("precision high", function()
  it("rounds the operands of matmul, of every shape and layout", function()
    for _, s in ipairs { { 5, 7, 9 }, { 64, 300, 33 }, { 1, 600, 40 }, { 40, 600, 1 }, { 300, 20, 600 } } do
      local x, y = gb.randn(s[1], s[2]), gb.randn(s[2], s[3])
      check(function(a, b) return a:matmul(b) end, { x, y }, { s[1], s[3] }, bits)
      check(function(a, b) return a:t():matmul(b:t()) end, { gb.randn(s[2], s[1]), gb.randn(s[3], s[2]) },
        { s[1], s[3] }, bits)
    end
    check(function(a, b) return a:matmul(b) end, { gb.randn(3, 4, 5), gb.randn(3, 5, 6) }, { 3, 4, 6 }, bits)
    check(function(a, b) return a:matmul(b) end, { gb.randn(9), gb.randn(9, 4) }, { 4 }, bits)
  end)
  it("rounds those of linear, not its bias", function()
    local bias = gb.randn(12)
    check(function(x, w) return F.linear(x, w, bias) end, { gb.randn(8, 20), gb.randn(12, 20) }, { 8, 12 }, bits)
  end)
  it("rounds those of mlp, the hidden layer's too", function()
    local x, w1, b1, w2, b2 = gb.randn(6, 10), gb.randn(16, 10), gb.randn(16), gb.randn(5, 16), gb.randn(5)
    local up = gb.randn(6, 5)
    local function both(a, b, c) return F.mlp(a, b, b1, c, b2) end
    local function one_by_one(a, b, c) return F.linear(F.linear(a, b, b1, { activation = "gelu_tanh" }), c, b2) end
    local y, grads = at("high", run, both, { x, w1, w2 }, up)
    local other, expected = at("high", run, one_by_one, { x, w1, w2 }, up)
    expect(y):to_equal_bits(other)
    for i = 1, 3 do near(grads[i], expected[i]) end
    local hidden = F.linear(round(x), round(w1), b1, { activation = "gelu_tanh" })
    expect(y):to_equal_bits(F.linear(round(hidden), round(w2), b2))
  end)
  it("rounds those of conv2d", function()
    local options = { padding = 1, stride = 2 }
    check(function(x, w) return F.conv2d(x, w, nil, options) end, { gb.randn(3, 4, 9, 9), gb.randn(8, 4, 3, 3) },
      { 3, 8, 5, 5 }, near)
    local grouped = { groups = 2 }
    check(function(x, w) return F.conv2d(x, w, nil, grouped) end, { gb.randn(2, 4, 6, 6), gb.randn(4, 2, 3, 3) },
      { 2, 4, 4, 4 }, near)
  end)
  it("rounds those of attention, the probabilities too", function()
    local q, k, v = gb.randn(1, 2, 6, 8), gb.randn(1, 2, 6, 8), gb.randn(1, 2, 6, 8)
    local y = at("high", F.scaled_dot_product_attention, q, k, v)
    local scores = round(q):matmul(round(k):transpose(-1, -2)) / math.sqrt(8)
    local p = (scores - scores:amax(-1, { keepdim = true })):exp()
    near(y, round(p):matmul(round(v)) / p:sum(-1, { keepdim = true }))
    local up = gb.randn(1, 2, 6, 8)
    local _, grads = at("high", run, F.scaled_dot_product_attention, { q, k, v }, up)
    local normal = p / p:sum(-1, { keepdim = true })
    local dp = round(up):matmul(round(v):transpose(-1, -2))
    local ds = normal * (dp - (up * y):sum(-1, { keepdim = true }))
    near(grads[1], round(ds):matmul(round(k)) / math.sqrt(8))
    near(grads[2], round(ds):transpose(-1, -2):matmul(round(q)) / math.sqrt(8))
    near(grads[3], round(normal):transpose(-1, -2):matmul(round(up)))
  end)
  it("keeps infinities, NaN and subnormals, and rounds ties to even", function()
    local tie = 1 + 2 ^ -11
    local x = gb.tensor { { tie, 1 + 3 * 2 ^ -11, 1 / 0, 0 / 0, 2 ^ -130, -tie } }:t()
    local one = gb.ones(1, 2)
    local y = at("high", x.matmul, x, one):t()[1]:tolist()
    expect(y[1]):to_be(1)
    expect(y[2]):to_be(1 + 2 ^ -9)
    expect(y[3]):to_be(1 / 0)
    expect(y[4] ~= y[4]):to_be(true)
    expect(y[5]):to_be(2 ^ -130)
    expect(y[6]):to_be(-1)
  end)
  it("changes nothing for other dtypes", function()
    for _, dtype in ipairs { "float64", "float16", "bfloat16" } do
      local x, y = gb.randn(20, 30):to(dtype), gb.randn(30, 10):to(dtype)
      expect(at("high", x.matmul, x, y)):to_equal_bits(x:matmul(y))
      local image, weight = gb.randn(2, 3, 6, 6):to(dtype), gb.randn(4, 3, 3, 3):to(dtype)
      expect(at("high", F.conv2d, image, weight)):to_equal_bits(F.conv2d(image, weight))
      local q = gb.randn(1, 1, 5, 4):to(dtype)
      expect(at("high", F.scaled_dot_product_attention, q, q, q)):to_equal_bits(F.scaled_dot_product_attention(q, q, q))
    end
    local a, b = gb.randn(4, 4), gb.randn(4, 4)
    local function product() return amp.autocast({ dtype = "bfloat16" }, function() return a:matmul(b) end) end
    expect(at("high", product)):to_equal_bits(product())
  end)
  it("gives the same bits for any number of threads", function()
    local x, y, threads = gb.randn(130, 257), gb.randn(257, 190), gb.get_num_threads()
    local first = at("high", x.matmul, x, y)
    gb.set_num_threads(1)
    expect(at("high", x.matmul, x, y)):to_equal_bits(first)
    gb.set_num_threads(threads)
  end)
  it("is kept by recompute", function()
    local x, w = gb.randn(4, 6):requires_grad_(), gb.randn(6, 6)
    local function part(v) return v:matmul(w):sin() end
    local function loss(call) return at("high", call, part, x):sum() end
    loss(function(fn, v) return fn(v) end):backward()
    local plain = x.grad:clone()
    x.grad = nil
    loss(gb.recompute):backward()
    expect(x.grad):to_equal_bits(plain)
    expect(gb.get_float32_matmul_precision()):to_be("highest")
  end)
end)

describe("set_float32_matmul_precision", function()
  it("is highest until it is set, and refuses other names", function()
    expect(gb.get_float32_matmul_precision()):to_be("highest")
    expect(at("high", gb.get_float32_matmul_precision)):to_be("high")
    expect(function() gb.set_float32_matmul_precision("medium") end):to_fail("'name' must be 'highest' or 'high', \z
      got 'medium'")
  end)
end)

gb.test.finish()
