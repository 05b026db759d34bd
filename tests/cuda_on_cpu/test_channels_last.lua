-- test_channels_last.lua - batch norm and pooling of channels-last tensors, which the library is asked for, on the CUDA
-- device against the CPU's.
--
-- Run twice: by our own kernels, and with GIBBOUS_CUDNN_ON_CPU=1 by a stand-in for the library, which proves what
-- stands before and behind it. Both sum in float32 in another order and round once; a variance comes back from its
-- root, good to some roundings of float32.

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
local F = gb.nn.functional
local tolerance = { float64 = 1e-12, float32 = 4e-6, float16 = 2 ^ -9, bfloat16 = 2 ^ -6 }

-- The elements of x [n, c, h, w] with the channels innermost in memory.
local function channels_last(x) return x:permute(1, 3, 4, 2):contiguous():permute(1, 4, 2, 3) end

local function close(a, b, dtype)
  local scale = math.max(a:to("float64"):abs():max():item(), 1e-3)
  expect(b.dtype):to_be(a.dtype)
  expect(b:to("cpu"):to("float64") / scale):to_be_close(a:to("float64") / scale, tolerance[dtype])
end

-- f(tensors): results; gradients of the first one by every tensor of `leaves`. The same on both devices.
local function expect_alike(dtype, leaves, others, f)
  local seen = {}
  for d, device in ipairs { "cpu", "cuda" } do
    local function on(t) return channels_last(t:detach():clone()):to(device) end
    local x = on(leaves[1]):requires_grad_(true)
    local given = { x }
    for i = 2, #leaves do given[i] = leaves[i]:clone():to(device):requires_grad_(true) end
    local rest = {}
    for i, t in ipairs(others) do rest[i] = t:clone():to(device) end
    local y = f(given, rest)
    gb.manual_seed(6)
    y:backward(on(gb.randn(y.shape):to(y.dtype)))
    seen[d] = { y:detach() }
    for _, t in ipairs(given) do table.insert(seen[d], t.grad) end
    for _, t in ipairs(rest) do table.insert(seen[d], t) end
  end
  for i, a in ipairs(seen[1]) do close(a, seen[2][i], dtype) end
end

for _, dtype in ipairs { "float64", "float32", "float16", "bfloat16" } do
  gb.manual_seed(8)
  local statistics = dtype == "float64" and "float64" or "float32"
  local function randn(...) return gb.randn(...):to(dtype) end
  local function vector(n) return gb.rand(n):to(statistics) + 0.5 end
  local function norm(training, eps)
    return function(leaves, running)
      return F.batch_norm(leaves[1], running[1], running[2], leaves[2], leaves[3],
        { training = training, momentum = 0.2, eps = eps })
    end
  end

  describe("batch norm " .. dtype, function()
    for _, c in ipairs { 8, 5 } do
      local x = randn(3, c, 4, 5) * 2 + 1
      it("trains " .. c .. " channels", function() expect_alike(dtype, { x, vector(c), vector(c) },
        { vector(c), vector(c) }, norm(true)) end)
      it("evaluates " .. c .. " channels", function() expect_alike(dtype, { x, vector(c), vector(c) },
        { vector(c), vector(c) }, norm(false)) end)
      it("has no parameters over " .. c .. " channels", function()
        expect_alike(dtype, { x }, { vector(c), vector(c) },
          function(leaves, running) return F.batch_norm(leaves[1], running[1], running[2], nil, nil,
          { training = true }) end)
        expect_alike(dtype, { x }, {}, function(leaves) return F.batch_norm(leaves[1], nil, nil, nil, nil,
          { training = true }) end)
      end)
    end
    for _, c in ipairs { 8, 5 } do
      for _, training in ipairs { true, false } do
        it(("adds a residual and takes a ReLU, %d channels, training %s"):format(c, training), function()
          -- where the sum is not near 0: there one rounding decides about a whole gradient
          local x, sign = randn(3, c, 4, 5) * 2 + 1, gb.randn(3, c, 4, 5):sign()
          local r = (gb.rand(3, c, 4, 5) * sign + sign * 20):to(dtype)
          for _, activation in ipairs { "relu", "none" } do
            for _, residual in ipairs { true, false } do
              if residual or activation == "relu" then
                local function f(leaves, running)
                  local bias = residual and leaves[3] or leaves[3] * 0 + 50
                  return F.batch_norm(leaves[1], running[1], running[2], leaves[2], bias,
                    residual and channels_last(leaves[4]) or nil, { training = training, activation = activation })
                end
                expect_alike(dtype, { x, vector(c), vector(c), residual and r or nil }, { vector(c), vector(c) }, f)
              end
            end
          end
        end)
      end
    end
    it("is what a ReLU behind it gives", function()
      for _, training in ipairs { true, false } do
        local x = channels_last(randn(3, 8, 4, 5)):to("cuda")
        local mean, var = vector(8):to("cuda"), vector(8):to("cuda")
        local y = F.batch_norm(x, mean:clone(), var:clone(), nil, nil, { training = training, activation = "relu" })
        local apart = F.batch_norm(x, mean, var, nil, nil, { training = training }):relu()
        close(apart, y, dtype)
      end
    end)
    it("passes NaN through the ReLU", function()
      for _, residual in ipairs { true, false } do
        for _, training in ipairs { true, false } do
          local x, bias = channels_last(randn(2, 8, 3, 3)):to("cuda"), vector(8)
          bias[3] = 0 / 0
          local ones = gb.ones({ 8 }, { dtype = statistics })
          local y = F.batch_norm(x, ones:to("cuda"), ones:to("cuda"), nil, bias:to("cuda"), residual and x or nil,
            { training = training, activation = "relu" })
          expect(y:ne(y):sum():item()):to_be(18)
        end
      end
    end)
    it("sees a channel that is the same everywhere", function()
      expect_alike(dtype, { gb.ones(2, 8, 3, 3):to(dtype), vector(8), vector(8) }, { vector(8), vector(8) },
        norm(true, 1e-3))
    end)
    it("leaves the running statistics where they are when a batch overflowed", function()
      local x = randn(2, 8, 3, 3)
      x[{ 1, 3, 1, 1 }] = math.huge
      local mean, var = vector(8), vector(8)
      local there = { mean:clone():to("cuda"), var:clone():to("cuda") }
      F.batch_norm(channels_last(x):to("cuda"), there[1], there[2], nil, nil, { training = true })
      expect(there[1]:to("cpu")):to_equal_bits(mean)
      expect(there[2]:to("cpu")):to_equal_bits(var)
    end)
  end)

  describe("pooling " .. dtype, function()
    local function pool(f, ...)
      local arguments = { ... }
      return function(leaves) return f(leaves[1], table.unpack(arguments)) end
    end
    for _, c in ipairs { 8, 3 } do
      local x = randn(2, c, 8, 6)
      it("mean of " .. c .. " channels", function()
        expect_alike(dtype, { x }, {}, pool(F.avg_pool2d, 2))
        expect_alike(dtype, { x }, {}, pool(F.avg_pool2d, { 3, 2 }, { stride = { 2, 1 }, padding = 1 }))
        expect_alike(dtype, { x }, {}, pool(F.avg_pool2d, 3, { stride = 2, padding = 1, ceil_mode = true }))
        expect_alike(dtype, { x }, {}, pool(F.avg_pool2d, 3, { stride = 2, padding = 1, count_include_pad = false }))
        expect_alike(dtype, { x }, {}, pool(F.avg_pool2d, 2, { divisor_override = 3 }))
      end)
      it("adaptive mean of " .. c .. " channels", function()
        expect_alike(dtype, { x }, {}, pool(F.adaptive_avg_pool2d, { 1, 1 }))
        expect_alike(dtype, { x }, {}, pool(F.adaptive_avg_pool2d, { 4, 3 }))
        expect_alike(dtype, { x }, {}, pool(F.adaptive_avg_pool2d, { 3, 4 })) -- windows of several sizes
      end)
      it("maximum of " .. c .. " channels, with a gradient and without", function()
        expect_alike(dtype, { x }, {}, pool(F.max_pool2d, 3, { stride = 2, padding = 1 }))
        expect_alike(dtype, { x }, {}, pool(F.max_pool2d, 3, { stride = 2, padding = 1, ceil_mode = true }))
        expect_alike(dtype, { x }, {}, pool(F.max_pool2d, 2, { dilation = 2 }))
        local given = channels_last(x)
        given[{ 1, 1, 2, 2 }] = 0 / 0
        local a, b = F.max_pool2d(given, 2), F.max_pool2d(given:to("cuda"), 2)
        expect(b:to("cpu")):to_equal_bits(a)
      end)
    end
  end)
end

gb.test.finish()
