-- test_attention.lua - attention over heads of several widths, and its gradients, against float64 numbers made with
-- PyTorch.
--
-- Shares and their gradients are rounded to a 16-bit dtype before they are multiplied, and a gradient is a product of
-- such products: three roundings of the dtype, relative to the largest result. In float32 the sums, of up to 256
-- products in another order, decide.

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
local F = gb.nn.functional

local tensors, metadata = gb.load("tests/golden/attention.safetensors")
local cases = gb.io.json_decode(metadata.cases)
-- the numbers are kept in float32
local tolerance = { float64 = 1e-6, float32 = 4e-6, float16 = 2 ^ -9, bfloat16 = 2 ^ -6 }

local function stored(k, name)
  local t = tensors[("%d.%s"):format(k - 1, name)]
  return t and t:to(gb.get_default_device())
end

local function is_close(a, b, dtype)
  local scale = math.max(b:abs():max():item(), 1e-3)
  expect(a.dtype):to_be(dtype)
  expect(a:to("float64") / scale):to_be_close(b:to("float64") / scale, tolerance[dtype])
end

for _, dtype in ipairs { "float64", "float32", "float16", "bfloat16" } do
  describe("attention " .. dtype, function()
    for k, case in ipairs(cases) do
      local shape = table.concat(stored(k, "query").shape, "x") .. " by " .. table.concat(stored(k, "value").shape, "x")
      it(shape, function()
        local operands = {}
        for i, name in ipairs { "query", "key", "value" } do
          operands[i] = stored(k, name):to(dtype):clone():requires_grad_(true)
        end
        local query, key, value = table.unpack(operands)
        local y = F.scaled_dot_product_attention(query, key, value, stored(k, "mask"),
          { is_causal = case.causal, enable_gqa = key:size(2) < query:size(2) })
        is_close(y:detach(), stored(k, "y"), dtype)
        y:backward(stored(k, "up"):to(dtype))
        for i, name in ipairs { "dquery", "dkey", "dvalue" } do is_close(operands[i].grad, stored(k, name), dtype) end
      end)
    end
  end)
end

-- Keys that a query may look at: [tq, tk].
local function seen(tq, tk, causal, window)
  local i, j = gb.arange(tq):unsqueeze(2), gb.arange(tk)
  local mask = gb.ones(tq, tk, { dtype = "bool" })
  if causal then mask = mask:logical_and(i:ge(j)) end
  return window and mask:logical_and((i - j):abs():lt(window)) or mask
end

-- The op made of others, in float64. What no query sees gives 0.
local function plain(query, key, value, causal, window, added)
  local heads, tq, tk = query:size(2), query:size(3), key:size(3)
  local group = heads // key:size(2)
  local function repeated(x) return x:unsqueeze(3):expand(x:size(1), x:size(2), group, tk, x:size(4)):reshape(x:size(1),
    heads, tk, x:size(4)) end
  local scores = query:matmul(repeated(key):transpose(3, 4)) / math.sqrt(query:size(4))
  if added then scores = scores + added end
  scores = scores:masked_fill(seen(tq, tk, causal, window):logical_not(), -math.huge)
  local shares = (scores - scores:amax(-1, { keepdim = true }):detach():clamp(-1e300)):exp()
  return (shares / shares:sum(-1, { keepdim = true }):clamp(1e-300)):matmul(repeated(value))
end

-- Sums of several blocks of queries and of keys, in views of [batch, time, heads, width]; causal ones that some keys
-- have no part in; windows, and a mask that is added, with a gradient.
describe("attention in blocks", function()
  local function check(size, causal, window, biased)
    local shapes = { { 2, size[1], 4, 8 }, { 2, size[2], 2, 8 }, { 2, size[2], 2, 6 }, { 4, size[1], size[2] } }
    local up = gb.randn(2, 4, size[1], 6, { dtype = "float64" })
    local results = {}
    local whole = {}
    for i, shape in ipairs(shapes) do whole[i] = gb.randn(shape, { dtype = "float64" }) end
    for n, dtype in ipairs { "float64", "float32" } do
      local leaves, turned = {}, {}
      for i, x in ipairs(whole) do
        leaves[i] = x:to(dtype):clone():requires_grad_()
        turned[i] = i < 4 and leaves[i]:transpose(2, 3)
      end
      local q, k, v, added = turned[1], turned[2], turned[3], biased and leaves[4] or nil
      local y = n == 1 and plain(q, k, v, causal, window, added) or F.scaled_dot_product_attention(q, k, v, added,
        { is_causal = causal, window = window, enable_gqa = true })
      y:backward(up:to(dtype))
      results[n] = { y:detach(), leaves[1].grad, leaves[2].grad, leaves[3].grad, biased and leaves[4].grad or nil }
    end
    for i, exact in ipairs(results[1]) do -- sums of up to 600 products, relative to the largest result
      local most = exact:abs():max():clamp(1)
      expect(((results[2][i]:to("float64") - exact):abs():max() / most):item() < 1e-5):to_be(true)
    end
  end
  for _, size in ipairs { { 300, 130 }, { 130, 300 }, { 121, 121 }, { 2, 200 }, { 142, 256 }, { 250, 257 } } do
    for _, causal in ipairs { false, true } do
      local title = ("%d queries, %d keys%s"):format(size[1], size[2], causal and ", causal" or "")
      it(title, function() check(size, causal) end)
      it(title .. ", of a biased mask", function() check(size, causal, nil, true) end)
      for _, window in ipairs { 1, 33, 140, 1000 } do
        it(("%s, window of %d"):format(title, window), function() check(size, causal, window, window == 33) end)
      end
    end
  end
  it("gives a mask of 16 bits its gradient, summed to its shape", function()
    local q = gb.randn(2, 3, 5, 8)
    local mask = gb.randn(1, 3, 1, 5):to("bfloat16"):requires_grad_()
    local exact = mask:detach():to("float64"):requires_grad_()
    F.scaled_dot_product_attention(q:bfloat16(), q:bfloat16(), q:bfloat16(), mask):float():square():sum():backward()
    local wide = q:bfloat16():double()
    plain(wide, wide, wide, false, nil, exact):square():sum():backward()
    expect(mask.grad.dtype):to_be("bfloat16")
    expect(((mask.grad:double() - exact.grad):norm() / exact.grad:norm()):item() < 0.03):to_be(true)
  end)
  -- A maximum that leaves a NaN out must not take it for a query that sees nothing.
  it("keeps NaN where it is seen, and nowhere else", function()
    for _, keys in ipairs { 5, 40, 142, 300 } do
      local q, k, v = gb.randn(1, 2, 3, 8), gb.randn(1, 2, keys, 8), gb.randn(1, 2, keys, 8)
      k[1][1][keys]:fill_(0 / 0)
      local last = gb.arange(keys):eq(keys - 1)
      local function look(mask) return F.scaled_dot_product_attention(q, k, v, mask) end
      local padded = look(last:logical_not():view(1, 1, 1, keys))
      expect(padded:isfinite():all():item()):to_be(true)
      expect(padded):to_equal_bits(look(last:logical_not():view(1, 1, 1, keys):expand(1, 2, 3, keys):contiguous()))
      for _, mask in ipairs { last:view(1, 1, 1, keys), gb.ones(1, 1, 1, keys, { dtype = "bool" }) } do
        local y = look(mask)
        expect(y[1][1]:isnan():all():item()):to_be(true)
        expect(y[1][2]:isfinite():all():item()):to_be(true)
      end
      expect(look(gb.zeros(1, 1, 1, keys, { dtype = "bool" })):eq(0):all():item()):to_be(true)
    end
  end)
  it("wants enable_gqa said, and a window of at least 1", function()
    local q, k = gb.randn(1, 4, 3, 8), gb.randn(1, 2, 3, 8)
    expect(function() F.scaled_dot_product_attention(q, k, k) end):to_fail("say enable_gqa = true")
    expect(function() F.scaled_dot_product_attention(q, q, q, nil, { window = 0 }) end):to_fail("'window' is 0")
  end)
end)

gb.test.finish()
