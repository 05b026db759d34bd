-- test_conv_groups.lua - conv2d of groups of few channels, which the CPU has a way of its own for, against a
-- convolution for each group in float64: strides, dilation, padding wider than the map, both layouts, every dtype.

local gb = require "gibbous"
local F = gb.nn.functional
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect

describe("conv2d with narrow groups", function()
  -- channels, channels of a group, size, kernel, options
  local cases = {
    { 16, 2, { 9, 7 }, { 3, 3 }, { padding = 1 } }, { 16, 4, { 9, 7 }, { 3, 3 }, { padding = 1 } },
    { 32, 4, { 5, 23 }, { 1, 5 }, { padding = { 0, 2 } } },
    { 32, 4, { 11, 12 }, { 3, 3 }, { stride = 2, padding = 1 } },
    { 48, 2, { 12, 11 }, { 3, 2 }, { dilation = 2, padding = 2 } }, { 16, 4, { 3, 3 }, { 3, 3 }, { padding = 5 } },
    { 12, 4, { 6, 6 }, { 3, 3 }, {} }, { 64, 4, { 8, 40 }, { 3, 3 }, { stride = { 1, 3 } } },
  }
  local room = { float64 = 1e-13, float32 = 1e-5, bfloat16 = 0.05, float16 = 0.01 }

  -- Group by group, each a convolution of its own, in float64.
  local function by_group(x, w, b, of, options)
    local parts = {}
    for at = 1, x:size(2), of do
      parts[#parts + 1] = F.conv2d(x:narrow(2, at, of):to("float64"), w:narrow(1, at, of):to("float64"),
        b:narrow(1, at, of):to("float64"), options)
    end
    return gb.cat(parts, 2)
  end

  for dtype, most in pairs(room) do
    it("is a convolution for each group, in " .. dtype, function()
      gb.manual_seed(11)
      for _, case in ipairs(cases) do
        local c, of, size, kernel, options = table.unpack(case)
        local x, b = gb.randn(3, c, size[1], size[2]):to(dtype), gb.randn(c):to(dtype)
        local w = gb.randn(c, of, kernel[1], kernel[2]):to(dtype)
        local want = by_group(x, w, b, of, options)
        local last = x:permute({ 1, 3, 4, 2 }):contiguous():permute({ 1, 4, 2, 3 })
        local grouped = { groups = c // of }
        for name, value in pairs(options) do grouped[name] = value end
        for _, given in ipairs { x, last } do
          local y = F.conv2d(given, w, b, grouped)
          expect((y:to("float64") - want):abs():max():item() <= most * (1 + want:abs():max():item())):to_be(true)
          grouped.activation = "relu"
          expect(F.conv2d(given, w, b, grouped)):to_equal_bits(y:relu())
          grouped.activation = nil
        end
      end
    end)
  end
end)

gb.test.finish()
