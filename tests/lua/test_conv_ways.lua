-- test_conv_ways.lua - conv2d and its gradients in shapes that the CPU has ways of their own for, against float64: few
-- channels of x, whose gradient adds up short runs of columns; a single channel of the result; and operands that are
-- some of the channels of a larger tensor, as the parts of a concatenation are.

local gb = require "gibbous"
local F = gb.nn.functional
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect

local function last(x) return x:permute({ 1, 3, 4, 2 }):contiguous():permute({ 1, 4, 2, 3 }) end

-- x as channels 4 .. of a tensor that has 7 more, channels last
local function slice(x)
  local n, c, h, w = table.unpack(x.shape)
  local whole = last(gb.full({ n, c + 7, h, w }, 3):to(x.dtype))
  whole:narrow(2, 4, c):copy_(x)
  return whole:narrow(2, 4, c)
end

-- images, channels in, height, width, channels out, kernel, options
local cases = {
  { 16, 1, 28, 27, 32, { 4, 4 }, { stride = 2, padding = 1 } }, { 9, 1, 31, 29, 64, { 3, 3 }, { padding = 1 } },
  { 8, 3, 33, 32, 16, { 3, 3 }, { padding = 2 } }, { 7, 2, 30, 30, 32, { 5, 4 }, { stride = { 1, 3 }, padding = 4 } },
  { 6, 1, 40, 37, 33, { 3, 2 }, { stride = { 2, 1 }, dilation = { 3, 1 }, padding = { 3, 1 } } },
  { 5, 5, 23, 29, 48, { 2, 6 }, { padding = { 0, 5 } } }, { 30, 1, 16, 16, 8, { 7, 7 }, { padding = 9 } },
  { 4, 4, 26, 25, 32, { 3, 3 }, { dilation = 2 } },
  { 3, 16, 25, 27, 1, { 1, 1 }, {} }, { 2, 48, 31, 9, 1, { 1, 1 }, {} }, { 2, 20, 31, 9, 1, { 1, 1 }, {} },
  { 1, 160, 33, 17, 1, { 1, 1 }, {} }, { 2, 32, 24, 24, 1, { 3, 3 }, { padding = 1 } },
  { 3, 16, 32, 34, 32, { 2, 2 }, { stride = 2 } }, { 2, 48, 17, 16, 64, { 2, 2 }, { stride = 2 } },
  { 3, 20, 15, 18, 32, { 3, 3 }, { padding = 1 } }, { 2, 64, 12, 12, 48, { 1, 1 }, {} },
}
local room = { float32 = 2e-6, bfloat16 = 0x1p-8, float16 = 0x1p-11 }

local function far(got, want) return ((got:double() - want):abs():max() / want:abs():max()):item() end

describe("conv2d in its ways", function()
  for dtype, most in pairs(room) do
    it("agrees with float64 in " .. dtype, function()
      gb.manual_seed(5)
      for _, case in ipairs(cases) do
        local n, c, h, w, o, kernel, options = table.unpack(case)
        local x, b = gb.randn(n, c, h, w):to(dtype), gb.randn(o):to(dtype)
        local weight = gb.randn(o, c, kernel[1], kernel[2]):to(dtype)
        local up = gb.randn(F.conv2d(x, weight, b, options).shape):to(dtype)
        local function run(kind, lay)
          local leaves = { lay(x:to(kind)), weight:to(kind), b:to(kind) }
          for i, leaf in ipairs(leaves) do leaves[i] = leaf:detach():requires_grad_() end
          local y = F.conv2d(leaves[1], leaves[2], leaves[3], options)
          return { y, table.unpack(gb.grad(y, leaves, { grad_outputs = lay(up:to(kind)) })) }
        end
        local want = run("float64", function(t) return t end)
        for _, lay in ipairs { last, slice, function(t) return t:contiguous() end } do
          local got = run(dtype, lay)
          for i = 1, 4 do expect(far(got[i], want[i]) <= most):to_be(true) end
        end
      end
    end)
  end

  -- The unit for bfloat16 would take products below 2^-126 for zero: who looks for such has to look between the gaps.
  it("keeps small products of a slice of channels", function()
    for _, channels in ipairs { 32, 40 } do
      local x = gb.zeros(6, channels, 16, 16) -- so many that it is not one product; only the last pixels are small
      x:narrow(1, 6, 1):narrow(3, 15, 2):narrow(4, 15, 2):fill_(2 ^ -100)
      local weight = gb.full({ 32, channels, 2, 2 }, 2 ^ -30):to("bfloat16")
      local y = F.conv2d(slice(x:to("bfloat16")), weight, nil, { stride = 2 }):double()
      expect(y[{ 6, {}, 8, 8 }]:eq(4 * channels * 2 ^ -130):all():item()):to_be(true)
      expect(y:ne(0):sum():item()):to_be(32)
    end
  end)

  it("gives the same bits for any number of threads", function()
    for dtype in pairs(room) do
      local x, weight = last(gb.randn(16, 2, 28, 28):to(dtype)), gb.randn(32, 2, 4, 4):to(dtype)
      local head = gb.randn(1, 32, 1, 1):to(dtype)
      x:requires_grad_()
      local threads, first = gb.get_num_threads(), nil
      for _, count in ipairs { 1, 2, 3, 7 } do
        gb.set_num_threads(count)
        local y = F.conv2d(x, weight, nil, { stride = 2, padding = 1 })
        local seen = { y, F.conv2d(y, head), gb.grad(y:float():square():sum(), { x })[1] }
        first = first or seen
        for i = 1, 3 do expect(seen[i]):to_equal_bits(first[i]) end
      end
      gb.set_num_threads(threads)
    end
  end)
end)

gb.test.finish()
