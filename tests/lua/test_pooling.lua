-- test_pooling.lua - pooling where channels lie last in memory, which a vector of them takes at a time, gives the bits
-- of pooling where they lie first.

local gb = require "gibbous"
local F = gb.nn.functional
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect

-- The same values with the channels last in memory.
local function channels_last(x) return x:permute(1, 3, 4, 2):contiguous():permute(1, 4, 2, 3) end

-- Few different numbers, so that windows have several largest elements; and some that are no numbers, or only just.
local function images(dtype, channels, height, width)
  local x = (gb.randn(2, channels, height, width) * 2):round() / 2
  x[{ 1, 1, {}, {} }] = 0 / 0
  x[{ 2, channels, {}, {} }] = -math.huge
  x[{ 1, channels, 1, 1 }] = 0 / 0
  x[{ 2, 1, height, width }] = math.huge
  return x:to(dtype)
end

-- Result, gradient of x and gradient of the gradient. `grad_first`: the gradient comes with the channels first, as out
-- of a flattened image.
local function all_of(pool, x, ups, grad_first)
  x = x:detach():requires_grad_()
  local y = pool(x)
  local up = (grad_first and ups[1] or channels_last(ups[1])):detach():requires_grad_()
  local dx = gb.grad(y, x, { grad_outputs = up, create_graph = true })
  return y:detach(), dx:detach(), gb.grad(dx, up, { grad_outputs = ups[2] })
end

-- A multiple of every pair of vectors, none of any, and pairs with some left over, or a vector, or both.
local CHANNELS = { 64, 3, 45, 16, 116 }
local WINDOWS = {
  { 2, {} }, { 3, { stride = 2, padding = 1 } }, { { 3, 2 }, { stride = { 1, 3 } } }, { { 7, 9 }, {} },
    { 2, { stride = 3 } },
}

describe("max_pool2d", function()
  for _, dtype in ipairs { "float32", "float16", "bfloat16", "float64" } do
    it("with the channels last, in " .. dtype, function()
      gb.manual_seed(3)
      for _, channels in ipairs(CHANNELS) do
        local first = images(dtype, channels, 7, 9)
        local last = channels_last(first)
        for _, w in ipairs(WINDOWS) do
          local function pool(x) return F.max_pool2d(x, w[1], w[2]) end
          local ups = { gb.randn(pool(first).shape):to(dtype), gb.randn(first.shape):to(dtype) }
          local y, dx, ddy = all_of(pool, first, ups, true)
          for _, grad_first in ipairs { true, false } do
            local y2, dx2, ddy2 = all_of(pool, last, ups, grad_first)
            expect(y2):to_be_close(y, 0)
            expect(dx2):to_be_close(dx, 0)
            expect(ddy2):to_be_close(ddy, 0)
          end
        end
      end
    end)
  end

  it("takes the first of equal elements and the last NaN", function()
    for _, channels in ipairs(CHANNELS) do
      local x = channels_last(gb.tensor { { 1, 2 }, { 2, 0.5 } }:view(1, 1, 2, 2):expand(1, channels, 2,
        2)):requires_grad_()
      F.max_pool2d(x, 2):sum():backward()
      expect(x.grad[{ 1, channels }]):to_be_close({ 0, 1, 0, 0 }, 0)
      x = channels_last(gb.tensor { { 1, 0 / 0 }, { 0 / 0, 3 } }:view(1, 1, 2, 2):expand(1, channels, 2,
        2)):requires_grad_()
      F.max_pool2d(x, 2):sum():backward()
      expect(x.grad[{ 1, channels }]):to_be_close({ 0, 0, 1, 0 }, 0)
    end
  end)

  it("the gradient lies as x does, whatever comes back", function()
    local x = channels_last(gb.randn(2, 8, 4, 4))
    local leaf = x:detach():requires_grad_()
    local dx = gb.grad(F.max_pool2d(leaf, 2):flatten(2):sum(), leaf)
    expect(table.concat(dx:stride(), " ")):to_be(table.concat(x:stride(), " "))
  end)
end)

describe("means", function()
  it("with the channels last", function()
    gb.manual_seed(4)
    for _, pool in ipairs {
      function(x) return F.avg_pool2d(x, 3, { stride = 2, padding = 1 }) end,
        function(x) return F.adaptive_avg_pool2d(x, { 3, 4 }) end,
    } do
      local first = gb.randn(2, 45, 7, 9)
      local ups = { gb.randn(pool(first).shape), gb.randn(first.shape) }
      local y, dx, ddy = all_of(pool, first, ups, true)
      local y2, dx2, ddy2 = all_of(pool, channels_last(first), ups, false)
      expect(y2):to_be_close(y, 0)
      expect(dx2):to_be_close(dx, 0)
      expect(ddy2):to_be_close(ddy, 0)
    end
  end)
end)

-- Images whose channels lie apart are pooled some at a time, with their channels brought together.
describe("images with channels apart", function()
  local poolings = {
    max = function(x) return F.max_pool2d(x, 3, { stride = 2, padding = 1 }) end,
    indices = function(x) return (F.max_pool2d(x, 2, { return_indices = true })) end,
    avg = function(x) return F.avg_pool2d(x, 3, { stride = 2, padding = 1 }) end,
    adaptive = function(x) return F.adaptive_avg_pool2d(x, { 5, 7 }) end,
  }
  for name, pool in pairs(poolings) do
    it("are pooled as alone, and as fewer channels are: " .. name, function()
      for _, dtype in ipairs { "float32", "bfloat16", "float64" } do
        for _, shape in ipairs { { 30, 17, 25, 27 }, { 3, 33, 64, 70 }, { 2, 16, 9, 8 } } do
          local x = gb.randn(shape, { dtype = dtype }):requires_grad_()
          local y = pool(x)
          local up = gb.randn(y.shape, { dtype = dtype })
          y:backward(up)
          for i = 1, shape[1], 7 do
            for from = 1, shape[2], 8 do
              local some = math.min(8, shape[2] - from + 1)
              local part = x:detach():narrow(1, i, 1):narrow(2, from, some):clone():requires_grad_()
              local z = pool(part)
              z:backward(up:narrow(1, i, 1):narrow(2, from, some))
              expect(y:detach():narrow(1, i, 1):narrow(2, from, some):contiguous()):to_equal_bits(z:detach())
              expect(x.grad:narrow(1, i, 1):narrow(2, from, some):contiguous()):to_equal_bits(part.grad)
            end
          end
        end
      end
    end)
  end
end)

-- A convolution's result has its channels side by side: its slices are pooled as they lie.
describe("volumes with channels last", function()
  local function last(t) return t:permute({ 1, 3, 4, 5, 2 }):contiguous():permute({ 1, 5, 2, 3, 4 }) end
  local poolings = {
    max = function(x) return F.max_pool3d(x, { 3, 2, 2 }, { stride = { 2, 1, 2 }, padding = { 1, 0, 1 } }) end,
    avg = function(x) return F.avg_pool3d(x, { 2, 3, 2 }, { padding = { 0, 1, 1 }, count_include_pad = false }) end,
    sums = function(x) return F.avg_pool3d(x, 2, { divisor_override = 3 }) end,
    adaptive_avg = function(x) return F.adaptive_avg_pool3d(x, { 3, 2, 4 }) end,
    adaptive_max = function(x) return F.adaptive_max_pool3d(x, { 2, 3, 3 }) end,
    lp = function(x) return F.lp_pool3d(x:abs() + 1, 3, 2) end,
  }
  for name, pool in pairs(poolings) do
    it("give the bits of others: " .. name, function()
      for _, dtype in ipairs { "float32", "float64", "bfloat16" } do
        for _, shape in ipairs { { 2, 17, 5, 6, 7 }, { 1, 2, 4, 4, 4 }, { 3, 1, 6, 5, 4 } } do
          local x = gb.randn(shape, { dtype = dtype })
          local here, there = x:clone():requires_grad_(), last(x):requires_grad_()
          local y, z = pool(here), pool(there)
          expect(z:contiguous()):to_equal_bits(y:contiguous())
          local grad = gb.randn(y.shape, { dtype = dtype })
          y:backward(grad)
          z:backward(last(grad))
          expect(there.grad:contiguous()):to_equal_bits(here.grad:contiguous())
        end
      end
    end)
  end
  it("have the same indices", function()
    local x = gb.randint(0, 4, { 2, 5, 6, 6, 6 }):float() -- equal ones: the first counts
    local _, here = F.max_pool3d(x, 2, { return_indices = true })
    local _, there = F.max_pool3d(last(x), 2, { return_indices = true })
    expect(there:contiguous()):to_equal_bits(here:contiguous())
    _, here = F.adaptive_max_pool3d(x, { 4, 3, 2 }, { return_indices = true })
    _, there = F.adaptive_max_pool3d(last(x), { 4, 3, 2 }, { return_indices = true })
    expect(there:contiguous()):to_equal_bits(here:contiguous())
  end)
end)

gb.test.finish()
