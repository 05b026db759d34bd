-- test_gates.lua - the gradient of a ReLU behind a batch norm, or behind the sum of one and a residual, which the
-- norm's own gradient makes on its way together with the sum of two that reached the ReLU: gradients are those of ops
-- that run one by one, to the bit. A hook on what goes into the ReLU keeps them apart.
--
-- Run by our own kernels, and with GIBBOUS_CUDNN_ON_CPU=1 by a stand-in for the library's one operation.

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
local F = gb.nn.functional
gb.set_default_device("cuda")

local function pass(grad) return grad end

-- The elements of x [n, c, h, w] with the channels innermost in memory.
local function channels_last(x) return x:permute(1, 3, 4, 2):contiguous():permute(1, 4, 2, 3) end

-- Are they the same, with NaN in the same places?
local function expect_same(a, b)
  expect(#b):to_be(#a)
  for i, t in ipairs(a) do
    expect(b[i].dtype):to_be(t.dtype)
    expect((b[i]:eq(t):logical_or(b[i]:ne(b[i]):logical_and(t:ne(t)))):all():item()):to_be(true)
  end
end

-- Gradients of all leaves after backward of f(leaves, apart): apart(x) gives x, in one of two runs with a hook. They
-- are the same.
local function expect_alike(make, f)
  local seen = {}
  for run = 1, 2 do
    gb.manual_seed(3)
    local leaves, grads = make(), {}
    for _, t in ipairs(leaves) do t:requires_grad_(true) end
    local y = f(leaves, function(x)
      if run == 2 then x:register_hook(pass) end
      return x
    end)
    gb.manual_seed(4)
    y:backward(channels_last(gb.randn(y.shape):to(y.dtype)))
    for i, t in ipairs(leaves) do grads[i] = t.grad end
    seen[run] = grads
  end
  expect_same(seen[2], seen[1])
end

local function norm(x, weight, bias, training)
  local c = x.shape[2]
  local measured = training == false
  return F.batch_norm(x, measured and gb.zeros(c) or nil, measured and gb.ones(c) or nil, weight, bias,
    { training = not measured })
end

for _, dtype in ipairs { "bfloat16", "float16", "float32", "float64" } do
  local statistics = dtype == "float64" and "float64" or "float32"
  local function images(c) return channels_last(gb.randn(3, c, 4, 5):to(dtype)):detach() end
  local function vector(c) return gb.rand(c):to(statistics) + 0.5 end
  local function leaves(c) return function()
    return { images(c), images(c), vector(c), vector(c) - 1, vector(c), vector(c) - 1 }
  end end

  describe("behind a batch norm in " .. dtype, function()
    for _, c in ipairs { 8, 5 } do
      it("a ReLU, " .. c .. " channels", function()
        expect_alike(leaves(c), function(t, apart) return F.relu(apart(norm(t[1], t[3], t[4]))) * t[2] end)
      end)
      it("a ReLU in place, and one behind running statistics, " .. c .. " channels", function()
        expect_alike(leaves(c), function(t, apart) return apart(norm(t[1], t[3], t[4])):relu_() * t[2] end)
        expect_alike(leaves(c), function(t, apart) return F.relu(apart(norm(t[1], t[3], t[4], false))) * t[2] end)
      end)
      it("a residual, " .. c .. " channels", function()
        expect_alike(leaves(c), function(t, apart) return F.relu(apart(norm(t[1], t[3], t[4]) + t[2])) * t[2] end)
        expect_alike(leaves(c), function(t, apart) return F.relu(apart(t[2] + norm(t[1], t[3], t[4]))) end)
      end)
      it("the sum of two, " .. c .. " channels", function()
        expect_alike(leaves(c), function(t, apart)
          return F.relu(apart(norm(t[1], t[3], t[4]) + norm(t[2], t[5], t[6])))
        end)
      end)
      it("a result that is used two and three times, " .. c .. " channels", function()
        expect_alike(leaves(c), function(t, apart)
          local y = F.relu(apart(norm(t[1], t[3], t[4])))
          return F.relu(apart(norm(y * 0.5, t[5], t[6]) + y))
        end)
        expect_alike(leaves(c), function(t, apart)
          local y = F.relu(apart(norm(t[1], t[3], t[4])))
          return y * t[2] + F.relu(apart(norm(y, t[5], t[6]) + y))
        end)
      end)
    end
    it("a ReLU and a residual in the norm itself, of results that are used twice", function()
      local function relu(x, r, w, b)
        return F.batch_norm(x, nil, nil, w, b, r, { training = true, activation = "relu" })
      end
      for _, c in ipairs { 8, 5 } do
        expect_alike(leaves(c), function(t, apart) return relu(t[1], nil, t[3], t[4]) * t[2] end)
        expect_alike(leaves(c), function(t, apart)
          local y = apart(relu(t[1], t[2], t[3], t[4]))
          return apart(relu(y * 0.5, y, t[5], t[6])) + y * t[2]
        end)
        expect_alike(leaves(c), function(t, apart)
          return F.relu(apart(relu(t[1], nil, t[3], t[4]) + norm(t[2], t[5], t[6])))
        end)
        expect_alike(leaves(c), function(t, apart)
          return F.relu(apart(F.batch_norm(t[1], nil, nil, t[3], t[4], t[2], { training = true })))
        end)
      end
    end)
    it("what is also used before the ReLU", function()
      expect_alike(leaves(8), function(t, apart)
        local y = apart(norm(t[1], t[3], t[4]))
        return F.relu(y) + y:sigmoid()
      end)
      expect_alike(leaves(8), function(t, apart)
        local y = apart(norm(t[1], t[3], t[4]) + t[2])
        return F.relu(y) + y:sigmoid()
      end)
    end)
    it("no weight, and rows", function()
      expect_alike(function() return { gb.randn(6, 8):to(dtype) } end, function(t, apart)
        return F.relu(apart(norm(t[1]))):reshape(6, 8, 1, 1)
      end)
    end)
  end)
end

describe("a gradient on its way", function()
  local function net(x) return F.relu(norm(x)) end

  it("is made twice from a graph that is kept", function()
    local x = channels_last(gb.randn(2, 8, 3, 3):to("bfloat16")):detach():requires_grad_(true)
    local y = (net(x):to("float32") * gb.randn(2, 8, 3, 3)):sum()
    y:backward({ retain_graph = true })
    local once = x.grad:clone()
    x.grad = nil
    y:backward()
    expect_same({ once }, { x.grad })
  end)

  it("is what gb.grad gives, and a retained gradient", function()
    local x = channels_last(gb.randn(2, 8, 3, 3)):detach():requires_grad_(true)
    local by = gb.randn(2, 8, 3, 3)
    local inner = norm(x)
    inner:retain_grad()
    local wanted = gb.grad((net(x) * by):sum(), x)
    local y = (F.relu(inner) * by):sum()
    y:backward()
    expect_same({ wanted }, { x.grad })
    expect_same({ by * (inner:gt(0):to("float32")) }, { inner.grad })
  end)

  it("is made in a captured step too, with the norm's own ReLU and residual", function()
    local weight, bias = gb.ones(8):requires_grad_(true), gb.zeros(8):requires_grad_(true)
    local x, r = channels_last(gb.randn(2, 8, 3, 3):to("bfloat16")), channels_last(gb.randn(2, 8, 3, 3):to("bfloat16"))
    local function step(a, b)
      weight.grad, bias.grad = nil, nil
      local mean, var = gb.zeros(8), gb.ones(8)
      local y = F.batch_norm(a, mean, var, weight, bias, b, { training = true, activation = "relu" })
      local z = F.batch_norm(y, nil, nil, weight, bias, y, { training = true, activation = "relu" });
      (z + y):to("float32"):sum():backward()
      return { z:detach(), weight.grad:clone(), bias.grad:clone(), mean, var }
    end
    local apart = step(x, r)
    local made = gb.cuda.graph(function(a, b) return table.unpack(step(a, b)) end, { x, r })
    for _ = 1, 2 do expect_same(apart, { made(x, r) }) end
  end)

  it("refuses a result that a hook changes meanwhile", function()
    local x = gb.randn(2, 8, 3, 3):requires_grad_(true)
    local y, beside = norm(x), x * 3
    local r = F.relu(y)
    beside:register_hook(function() gb.no_grad(function() r:add_(1) end) end)
    expect(function() (r + beside):sum():backward() end):to_fail("changed in place while its gradient was on its way")
  end)
end)

gb.test.finish()
