-- test_layer_gradients.lua - the gradients of linear and mlp, made in one op: against the same layers out of single ops
-- in float64, and summed up in place by the product against sums that are handed over, as a weight with a hook has
-- them.

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
local F, nn, optim, amp = gb.nn.functional, gb.nn, gb.optim, gb.amp

local activations = {
  none = function(x) return x end, relu = F.relu, gelu = F.gelu,
    gelu_tanh = function(x) return F.gelu(x, { approximate = "tanh" }) end, silu = F.silu,
  tanh = gb.tanh, sigmoid = gb.sigmoid,
}
local names = { "none", "relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid" }

gb.manual_seed(3)

local function leaf(dtype, ...) return gb.randn(...):to(dtype):requires_grad_() end
local function twin(t) return t and t:detach():clone():requires_grad_(t.requires_grad) end

-- On a GPU a product adds its sum to what is there in one rounding, where a sum that is handed over is rounded before:
-- one unit in the last place of the largest element. On the CPU the bits are the same.
local function expect_same_sum(a, b)
  if a.device == "cpu" then return expect(a):to_equal_bits(b) end
  local scale = b:abs():max():item()
  expect(a / scale):to_be_close(b / scale, 2.4e-7)
end

-- A weight whose gradients are handed over, since a hook looks at them.
local function watched(t)
  t:register_hook(function() end)
  return t
end

describe("one op for the gradients of a layer", function()
  for _, name in ipairs(names) do
    for _, bias in ipairs { true, false } do
      it(("linear %s%s is what single ops give"):format(name, bias and "" or ", no bias"), function()
        -- float64: both round some thousand sums of 33 terms; 1e-12 is far above that and far below any wrong term
        local x, w, b = leaf("float64", 3, 7, 33), leaf("float64", 5, 33), bias and leaf("float64", 5) or nil
        local x2, w2, b2 = twin(x), twin(w), twin(b)
        local up = gb.randn(3, 7, 5):to("float64")
        F.linear(x, w, b, { activation = name }):backward(up)
        local y = x2:matmul(w2:t())
        activations[name](bias and y + b2 or y):backward(up)
        expect(x.grad):to_be_close(x2.grad, 1e-12)
        expect(w.grad):to_be_close(w2.grad, 1e-12)
        if bias then expect(b.grad):to_be_close(b2.grad, 1e-12) end
      end)
      it(("mlp %s%s is what single ops give"):format(name, bias and "" or ", no bias"), function()
        local t = { leaf("float64", 2, 5, 9), leaf("float64", 17, 9), bias and leaf("float64", 17),
          leaf("float64", 3, 17), bias and leaf("float64", 3) }
        local u = {}
        for i = 1, 5 do u[i] = twin(t[i]) end
        local up = gb.randn(2, 5, 3):to("float64")
        F.mlp(t[1], t[2], t[3] or nil, t[4], t[5] or nil, { activation = name }):backward(up)
        local h = u[1]:matmul(u[2]:t())
        local y = activations[name](bias and h + u[3] or h):matmul(u[4]:t())
        y = bias and y + u[5] or y
        y:backward(up)
        for i = 1, 5 do
          if t[i] then expect(t[i].grad):to_be_close(u[i].grad, 1e-12) end
        end
      end)
    end
  end
  for _, dtype in ipairs { "float16", "bfloat16" } do
    it("keeps a float32 weight's gradient unrounded under autocast to " .. dtype, function()
      -- operands are the same 16-bit numbers; float32 sums of at most 40 terms of the size of 1 differ by some units of
      -- 2^-24
      local x, w, b = leaf(dtype, 40, 19), leaf("float32", 11, 19), leaf("float32", 11)
      local y = amp.autocast({ dtype = dtype }, function() return F.linear(x, w, b) end)
      local up = gb.randn(40, 11):to(dtype)
      y:backward(up)
      expect(w.grad.dtype):to_be("float32")
      expect(w.grad):to_be_close(up:to("float64"):t():matmul(x:detach():to("float64")):to("float32"), 2e-5)
      expect(b.grad):to_be_close(up:to("float64"):sum(1):to("float32"), 1e-5)
    end)
  end
  it("makes only what is asked for, with the bits of all", function()
    for _, activation in ipairs { "none", "gelu_tanh", "relu" } do
      local x, w, b = gb.randn(6, 10), gb.randn(4, 10), gb.randn(4)
      local all = { twin(x:requires_grad_()), twin(w:requires_grad_()), twin(b:requires_grad_()) }
      local up = gb.randn(6, 4)
      F.linear(all[1], all[2], all[3], { activation = activation }):backward(up)
      for mask = 1, 7 do
        local some = {}
        for i, t in ipairs { x, w, b } do some[i] = t:detach():clone():requires_grad_((mask >> (i - 1)) & 1 == 1) end
        F.linear(some[1], some[2], some[3], { activation = activation }):backward(up)
        for i = 1, 3 do
          if some[i].requires_grad then expect(some[i].grad):to_equal_bits(all[i].grad)
          else expect(some[i].grad):to_be(nil) end
        end
      end
    end
  end)
  it("makes only what is asked for of mlp", function()
    for _, activation in ipairs { "gelu_tanh", "silu", "tanh" } do
      local from = { gb.randn(6, 10), gb.randn(12, 10), gb.randn(12), gb.randn(4, 12), gb.randn(4) }
      local up = gb.randn(6, 4)
      local function run(mask)
        local t = {}
        for i = 1, 5 do t[i] = from[i]:clone():requires_grad_((mask >> (i - 1)) & 1 == 1) end
        F.mlp(t[1], t[2], t[3], t[4], t[5], { activation = activation }):backward(up)
        return t
      end
      local all = run(31)
      for mask = 1, 30 do
        for i, t in ipairs(run(mask)) do
          if t.requires_grad then expect_same_sum(t.grad, all[i].grad)
          else expect(t.grad):to_be(nil) end
        end
      end
    end
  end)
  it("takes gradients that lie unevenly or in one place", function()
    local x, w, b = leaf("float32", 3, 4, 6), leaf("float32", 5, 6), leaf("float32", 5)
    local x2, w2, b2 = twin(x), twin(w), twin(b)
    local up = gb.randn(4, 3, 5):transpose(1, 2)
    F.linear(x, w, b):backward(up)
    F.linear(x2, w2, b2):backward(up:contiguous())
    expect_same_sum(x.grad, x2.grad)
    expect_same_sum(w.grad, w2.grad)
    expect_same_sum(b.grad, b2.grad)
    F.linear(x, w, b):sum():backward()
    F.linear(x2, w2, b2):backward(gb.ones(3, 4, 5))
    expect_same_sum(w.grad, w2.grad)
  end)
  it("takes no rows, no features and a vector", function()
    local w, b = leaf("float32", 5, 6), leaf("float32", 5)
    F.linear(leaf("float32", 0, 6), w, b):sum():backward()
    expect(w.grad):to_be_close(gb.zeros(5, 6))
    expect(b.grad):to_be_close(gb.zeros(5))
    F.linear(leaf("float32", 0, 6), w, b):sum():backward()
    expect(w.grad):to_be_close(gb.zeros(5, 6))
    local none = leaf("float32", 5, 0)
    F.linear(leaf("float32", 2, 0), none, b):sum():backward()
    expect(none.grad):to_have_shape(5, 0)
    expect(b.grad):to_be_close(gb.full({ 5 }, 2))
    local x = leaf("float32", 6)
    F.linear(x, w, b):sum():backward()
    expect(w.grad):to_be_close(x:detach():unsqueeze(1):expand(5, 6))
  end)
end)

describe("sums of a weight's gradients", function()
  -- 300 and 700 rows: more than one piece of k on the CPU
  for _, rows in ipairs { 1, 7, 300, 700 } do
    for _, dtype in ipairs { "float32", "float16", "bfloat16" } do
      it(("over backward calls, %d rows, %s"):format(rows, dtype), function()
        local w, b = leaf("float32", 13, 21), leaf("float32", 13)
        local w2, b2 = watched(twin(w)), watched(twin(b))
        for _ = 1, 3 do
          local x, up = gb.randn(rows, 21):to(dtype), gb.randn(rows, 13):to(dtype)
          local function run(u, v) return amp.autocast({ dtype = dtype == "float32" and "bfloat16" or dtype,
            enabled = dtype ~= "float32" }, function()
            return F.linear(x, u, v, { activation = "gelu_tanh" })
          end) end
          run(w, b):backward(up)
          run(w2, b2):backward(up)
          expect_same_sum(w.grad, w2.grad)
          expect_same_sum(b.grad, b2.grad)
        end
      end)
    end
  end
  it("over uses of one weight, in the order of the graph", function()
    local w, x = leaf("float32", 8, 8), gb.randn(5, 8)
    local w2 = watched(twin(w))
    for _ = 1, 2 do
      for _, u in ipairs { w, w2 } do
        F.linear(F.linear(F.linear(x, u), u, nil, { activation = "tanh" }), u):square():sum():backward()
      end
    end
    -- handed over, the uses of one call are added up before they meet the sum of the call before: a rounding of float32
    -- or two
    expect(w.grad / w2.grad:abs():max()):to_be_close(w2.grad / w2.grad:abs():max(), 5e-7)
  end)
  it("of parameters in an optimizer, through training steps", function()
    local function train(hooks)
      gb.manual_seed(5)
      local net = nn.Sequential(nn.Linear(12, 24, { activation = "relu" }), nn.MLP(24, 40), nn.Linear(24, 3))
      local opt = optim.AdamW(net:parameters(), { lr = 0.01 })
      if hooks then for _, p in ipairs(net:parameters()) do watched(p) end end
      for _ = 1, 3 do
        opt:zero_grad()
        for _ = 1, 2 do F.cross_entropy(net(gb.randn(9, 12)), gb.tensor({ 0, 1, 2, 0, 1, 2, 0, 1, 2 })):backward() end
        opt:step()
      end
      return net:parameters()
    end
    local plain, handed = train(false), train(true)
    for i = 1, #plain do
      if plain[i].device == "cpu" then expect(plain[i]:detach()):to_equal_bits(handed[i]:detach())
      -- AdamW divides by the size of a gradient, small ones too
      else expect(plain[i]:detach()):to_be_close(handed[i]:detach(), 1e-4) end
    end
  end)
  it("need no memory for the gradient that is added", function()
    local threads = gb.get_num_threads()
    gb.set_num_threads(2) -- each has some scratch
    local net = nn.Linear(1024, 1024, { bias = false })
    local opt = optim.SGD(net:parameters(), { lr = 0.1 })
    local x = gb.randn(4, 1024)
    local function peak()
      local loss = net(x):sum()
      collectgarbage()
      gb.reset_peak_memory_stats()
      local before = gb.memory_stats().current_total
      loss:backward()
      return gb.memory_stats().peak_total - before
    end
    peak()
    opt:zero_grad()
    local written, added, bytes = peak(), peak(), 1024 * 1024 * 4
    watched(net.weight)
    local handed = peak()
    gb.set_num_threads(threads)
    expect(handed >= bytes):to_be(true)
    expect(handed - written > bytes / 2):to_be(true)
    expect(handed - added > bytes / 2):to_be(true)
  end)
  it("show a hook the gradient of the call alone", function()
    local w, x = leaf("float32", 3, 4), gb.randn(2, 4)
    F.linear(x, w):sum():backward()
    local first, seen, calls = w.grad:clone(), nil, 0
    w:register_hook(function(g) seen, calls = g:clone(), calls + 1 end)
    local loss = F.linear(x, w):sum() + F.linear(x * 2, w):sum()
    loss:backward()
    expect(calls):to_be(1)
    expect(seen):to_be_close(first * 3, 1e-5)
    expect(w.grad):to_be_close(first * 4, 1e-5)
  end)
  it("go into the tensor that p.grad is, and into views of it", function()
    local w, x = leaf("float32", 3, 4), gb.randn(2, 4)
    F.linear(x, w):sum():backward()
    local grad, row, once = w.grad, w.grad[1], w.grad:clone()
    F.linear(x, w):sum():backward()
    expect(rawequal(w.grad, grad)):to_be(true)
    expect(grad):to_be_close(once * 2, 1e-6)
    expect(row):to_be_close(once[1] * 2, 1e-6)
  end)
  it("go into sums of another layout or dtype, and into one that the layer reads", function()
    local x, up = gb.randn(4, 4), gb.randn(4, 4)
    local want = up:t():matmul(x)
    local function sum_into(start, dtype)
      local w = leaf(dtype or "float32", 4, 4)
      w.grad = start
      F.linear(x:to(w.dtype), w):backward(up:to(w.dtype))
      return w.grad
    end
    local start = gb.randn(4, 4)
    expect(sum_into(start:t():contiguous():t())):to_be_close(start + want, 1e-5)
    local wide = sum_into(start:clone(), "bfloat16")
    expect(wide.dtype):to_be("float32")
    expect(wide):to_be_close(start + want, 0.1) -- x, up and their product rounded to 8 bits, of numbers up to 4
    local before = x:clone()
    expect(sum_into(x)):to_be_close(before + want, 1e-5)
    x:copy_(before)
    local kept = up:clone()
    expect(sum_into(up)):to_be_close(kept + want, 1e-5)
  end)
  it("of one tensor that is input and weight", function()
    local w, up = leaf("float32", 5, 5), gb.randn(5, 5)
    local w2 = watched(twin(w))
    for _ = 1, 2 do
      F.linear(w, w):backward(up)
      F.linear(w2, w2):backward(up)
    end
    expect(w.grad):to_be_close(w2.grad, 1e-5)
    local net = nn.Linear(5, 5, { bias = false })
    optim.SGD(net:parameters(), { lr = 0.1 })
    F.linear(net.weight, net.weight):backward(up)
    local v = net.weight:detach()
    expect(net.weight.grad):to_be_close(up:matmul(v) + up:t():matmul(v), 1e-5)
  end)
  it("are an in-place change to who kept the sum for backward", function()
    local w, x = leaf("float32", 3, 4), gb.randn(2, 4)
    F.linear(x, w):sum():backward()
    local v = leaf("float32", 3, 4)
    local kept = (v * w.grad):sum()
    F.linear(x, w):sum():backward()
    expect(function() kept:backward() end):to_fail("changed in place")
  end)
  it("do not mix scales", function()
    local w, x = leaf("float32", 3, 4), gb.randn(2, 4)
    F.linear(x, w):sum():backward()
    local once = w.grad:clone()
    local scaler = amp.GradScaler { init_scale = 4 }
    scaler:scale(F.linear(x, w):sum()):backward()
    expect(w.grad):to_equal_bits(once + 4 * once) -- as PyTorch adds them
    expect(function() gb.nn.utils.clip_grad_norm_({ w }, 1) end):to_fail("a scaled and an unscaled loss")
  end)
  it("are untouched by gb.grad, and by create_graph a tensor of their own", function()
    local w, x = leaf("float32", 3, 4), gb.randn(2, 4)
    F.linear(x, w):sum():backward()
    local grad, once = w.grad, w.grad:clone()
    local list = gb.grad(F.linear(x, w):sum(), { w })
    expect(list[1]):to_be_close(once, 1e-6)
    expect(w.grad):to_equal_bits(once)
    F.linear(x, w):square():sum():backward { create_graph = true }
    expect(grad):to_equal_bits(once)
    expect(w.grad.requires_grad):to_be(true)
    w.grad = nil -- a gradient with a graph holds its leaf
  end)
end)

describe("what mlp keeps for backward", function()
  it("is its inputs and one hidden layer, whatever the activation, where it may not keep both", function()
    local x, w1, w2 = gb.randn(64, 32):to("bfloat16"), leaf("bfloat16", 128, 32), leaf("bfloat16", 16, 128)
    for _, name in ipairs(names) do
      collectgarbage()
      local before = gb.memory_stats().current.saved
      local y = F.mlp(x, w1, nil, w2, nil, { activation = name, recompute = true })
      local saved = gb.memory_stats().current.saved - before
      y:sum():backward()
      expect(saved):to_be(2 * (64 * 128 + 64 * 32 + 128 * 32 + 16 * 128))
    end
  end)
end)

-- What mlp keeps of these activations is their argument: backward computes the hidden layer from it again, beside the
-- derivative and in pieces, of which there is more than one here. Against the layers one by one; float32 sums of up to
-- 300 products come in another order, 16 bits round each.
describe("mlp's hidden layer in backward", function()
  local tolerance = { float64 = 1e-12, float32 = 1e-5, bfloat16 = 2 ^ -6, float16 = 2 ^ -9 }
  for _, activation in ipairs { "gelu", "gelu_tanh", "silu" } do
    for dtype, limit in pairs(tolerance) do
      it(activation .. " " .. dtype, function()
        local whole = { gb.randn(300, 24), gb.randn(96, 24) * 0.2, gb.randn(16, 96) * 0.1 }
        local up, results = gb.randn(300, 16):to(dtype), {}
        for n = 1, 2 do
          local x = {}
          for i, t in ipairs(whole) do x[i] = t:to(dtype):clone():requires_grad_() end
          local y = n == 1 and F.mlp(x[1], x[2], nil, x[3], nil, { activation = activation, recompute = true })
            or F.linear(F.linear(x[1], x[2], nil, { activation = activation }), x[3])
          y:backward(up)
          results[n] = { y:detach(), x[1].grad, x[2].grad, x[3].grad }
        end
        for i, y in ipairs(results[1]) do
          local other = results[2][i]:to("float64")
          expect(((y:to("float64") - other):abs():max() / other:abs():max()):item() < limit):to_be(true)
        end
      end)
    end
  end
end)

gb.test.finish()
