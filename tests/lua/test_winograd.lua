-- test_winograd.lua - conv2d by kernels of 3 x 3 and 1 x 3, and of 4 x 4 with a stride of 2, of enough channels, that
-- the CPU computes with fewer multiplications, against float64, which it sums directly: odd maps, wide padding, rows
-- of many tiles, both layouts, every dtype, gradients; and what is not finite stays where a direct sum has it. Operands
-- of 16 bits go by tiles of 6 x 6 where maps fill enough of these, as they do in the last rows of the cases.

local gb = require "gibbous"
local F = gb.nn.functional
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect

-- images, channels in, height, width, channels out, kernel, options; 7,202 results leave one tile for the last unit
local cases = {
  { 4, 32, 8, 8, 48, { 3, 3 }, { padding = 1 } }, { 3, 32, 9, 13, 16, { 3, 3 }, { padding = 1 } },
  { 2, 48, 17, 11, 32, { 3, 3 }, {} }, { 2, 32, 14, 15, 48, { 3, 3 }, { padding = 2 } },
  { 1, 16, 13, 19, 16, { 3, 3 }, { padding = 4 } }, { 1, 32, 5, 300, 32, { 3, 3 }, { padding = 1 } },
  { 9, 64, 5, 3, 32, { 3, 3 }, { padding = { 1, 2 } } }, { 1, 32, 130, 4, 32, { 3, 3 }, { padding = { 0, 1 } } },
  { 2, 32, 3, 121, 48, { 1, 3 }, { padding = { 0, 1 } } }, { 1, 32, 1, 700, 32, { 1, 3 }, {} },
  { 1, 32, 1, 7204, 32, { 1, 3 }, {} },
  { 2, 48, 4, 37, 32, { 1, 3 }, { padding = { 0, 2 } } }, { 4, 32, 28, 28, 32, { 4, 4 }, { stride = 2, padding = 1 } },
  { 3, 32, 25, 32, 48, { 4, 4 }, { stride = 2 } }, { 2, 48, 31, 24, 32, { 4, 4 }, { stride = 2, padding = 2 } },
  { 2, 32, 30, 31, 32, { 4, 4 }, { stride = 2, padding = 3 } },
  { 1, 16, 4, 400, 16, { 4, 4 }, { stride = 2, padding = 1 } },
  { 5, 32, 16, 31, 48, { 3, 3 }, { padding = 1 } }, { 3, 48, 20, 24, 32, { 3, 3 }, { padding = 2 } },
  { 2, 32, 32, 30, 48, { 3, 3 }, {} }, { 17, 64, 8, 8, 32, { 3, 3 }, { padding = 1 } },
  { 1, 32, 7, 331, 32, { 3, 3 }, { padding = 1 } }, { 2, 32, 23, 20, 32, { 3, 3 }, { padding = { 3, 4 } } },
}
-- In units of the largest result: 2^-24 times some 10 for sums of 432 products and 4 transformations; a rounding of the
-- result to 16 bits, and of dx and of dw. Another device may add up the 7,202 products of a tap one after the other.
local room = { float32 = gb.zeros(1).device == "cpu" and 2e-6 or 5e-5, bfloat16 = 0x1p-8, float16 = 0x1p-11 }

local function far(got, want) return ((got:to("float64") - want):abs():max() / want:abs():max()):item() end

local function last(x) return x:permute({ 1, 3, 4, 2 }):contiguous():permute({ 1, 4, 2, 3 }) end

describe("conv2d of small kernels", function()
  for dtype, most in pairs(room) do
    it("agrees with float64 in " .. dtype, function()
      gb.manual_seed(5)
      for _, case in ipairs(cases) do
        local n, c, h, w, o, kernel, options = table.unpack(case)
        local x, b = gb.randn(n, c, h, w):to(dtype), gb.randn(o):to(dtype)
        local weight = gb.randn(o, c, kernel[1], kernel[2]):to(dtype)
        local function run(kind, change)
          local leaves = { change(x:to(kind)), change(weight:to(kind)), b:to(kind) }
          for _, leaf in ipairs(leaves) do leaf:requires_grad_() end
          local y = F.conv2d(leaves[1], leaves[2], leaves[3], options)
          gb.manual_seed(6)
          local up = gb.randn(y.shape):to(dtype):to(kind)
          return { y, table.unpack(gb.grad(y, leaves, { grad_outputs = up })) }
        end
        local want = run("float64", function(t) return t end)
        for _, change in ipairs { function(t) return t:contiguous() end, last } do
          local got = run(dtype, change)
          for i = 1, 4 do expect(far(got[i], want[i]) <= most):to_be(true) end
        end
        local y = F.conv2d(x, weight, b, options)
        options.activation = "relu"
        expect(F.conv2d(last(x), weight, b, options)):to_equal_bits(y:relu())
        options.activation = nil
      end
    end)
  end

  -- Sums stay float32: what 16-bit operands give is as near as their rounding would never show.
  it("sums the weight's gradient of bfloat16 in float32", function()
    gb.manual_seed(7)
    local x, weight = gb.randn(6, 48, 20, 24):to("bfloat16"), gb.randn(32, 48, 3, 3):to("bfloat16"):float()
    weight:requires_grad_()
    local y = gb.amp.autocast("bf16-mixed", function() return F.conv2d(x, weight, nil, { padding = 1 }) end)
    local up = gb.randn(y.shape):to("bfloat16")
    local got = gb.grad(y, { weight }, { grad_outputs = up })[1]
    expect(got.dtype):to_be("float32")
    local exact = weight:detach():double():requires_grad_()
    y = F.conv2d(x:double(), exact, nil, { padding = 1 })
    local want = gb.grad(y, { exact }, { grad_outputs = up:double() })[1]
    expect(far(got, want) <= 1e-5):to_be(true)
  end)

  it("gives the same bits for any number of threads", function()
    for _, dtype in ipairs { "float32", "bfloat16", "float16" } do
      local x, weight = gb.randn(6, 32, 20, 24):to(dtype), gb.randn(48, 32, 3, 3):to(dtype)
      x:requires_grad_()
      weight:requires_grad_()
      local threads, first = gb.get_num_threads(), nil
      for _, count in ipairs { 1, 2, 3, 7 } do
        gb.set_num_threads(count)
        local y = F.conv2d(x, weight, nil, { padding = 1 })
        local dx, dw = table.unpack(gb.grad(y:float():square():sum(), { x, weight }))
        first = first or { y, dx, dw }
        expect(y):to_equal_bits(first[1])
        expect(dx):to_equal_bits(first[2])
        expect(dw):to_equal_bits(first[3])
      end
      gb.set_num_threads(threads)
    end
  end)

  -- Sums and differences of a tile would carry an infinity to results whose windows do not hold it.
  it("keeps infinities and NaN where a direct sum has them", function()
    for _, case in ipairs { { "float32", 16 }, { "float32", 32 }, { "bfloat16", 32 } } do
      local dtype, channels = table.unpack(case)
      for _, bad in ipairs { math.huge, -math.huge, 0 / 0 } do
        local x, weight = gb.randn(4, channels, 16, 16), gb.rand(channels, channels, 3, 3) + 0.5
        x[{ 2, 3, 7, 8 }] = bad
        x, weight = x:to(dtype):requires_grad_(), weight:to(dtype):requires_grad_()
        local y = F.conv2d(x, weight, nil, { padding = 1 })
        expect(y:isfinite():logical_not():sum():item()):to_be(channels * 9)
        expect(y[{ 2, {}, { 6, 8 }, { 7, 9 } }]:isfinite():any():item()):to_be(false)
        local up = gb.ones(y.shape):to(dtype)
        local dx, dw = table.unpack(gb.grad(y, { x, weight }, { grad_outputs = up, retain_graph = true }))
        expect(dx:isfinite():all():item()):to_be(true)
        expect(dw:isfinite():logical_not():sum():item()):to_be(channels * 9)
        up[{ 1, 5, 3, 4 }] = bad
        dx = gb.grad(y, { x }, { grad_outputs = up })[1]
        expect(dx:isfinite():logical_not():sum():item()):to_be(channels * 9)
      end
    end
  end)

  -- Sums of a tile have errors of its largest element.
  it("keeps a large element from results whose windows do not hold it", function()
    for dtype, larges in pairs { float32 = { 1e6, 1e30 }, bfloat16 = { 6e4, 1e6, 1e30 }, float16 = { 6e4 } } do
      local most = dtype == "float32" and 1e-5 or dtype == "bfloat16" and 2 ^ -7 or 2 ^ -9
      for _, large in ipairs(larges) do
        local x, apart = gb.randn(4, 64, 32, 32), gb.ones(4, 64, 32, 32)
        x[{ 2, {}, 14, 14 }] = large -- all channels of a pixel
        apart[{ 2, {}, { 13, 15 }, { 13, 15 } }] = 0
        x = x:to(dtype):requires_grad_()
        local weight = (gb.randn(64, 64, 3, 3) / 24):to(dtype):requires_grad_()
        local up = (gb.randn(4, 64, 32, 32) * apart):to(dtype)
        local y = F.conv2d(x, weight, nil, { padding = 1 })
        local dw = gb.grad(y, { weight }, { grad_outputs = up })[1]:double()
        local wide, weight64 = x:detach():double(), weight:detach():double():requires_grad_()
        local y64 = F.conv2d(wide, weight64, nil, { padding = 1 })
        local dw64 = gb.grad(y64, { weight64 }, { grad_outputs = up:double() })[1]
        -- absolute: results of a row of the weight's sums, whose root mean square is 1
        local zero = gb.zeros(1, { dtype = "float64" })
        local off = gb.where(apart:ne(0), (y:detach():double() - y64:detach()):abs(), zero)
        expect(off:max():item() < 4 * most):to_be(true)
        expect(((dw - dw64):norm() / dw64:norm()):item() < most):to_be(true)
      end
    end
  end)

  -- With a stride of 2 a tile may hold pixels at the end that no window reads.
  it("leaves out pixels that no window reads", function()
    for width = 24, 31 do
      local x, weight = gb.randn(2, 32, 31, width), gb.randn(32, 32, 4, 4):requires_grad_()
      local read = (width - 4) // 2 * 2 + 4
      local clean = x:clone()
      if read < width then x[{ {}, {}, {}, { read + 1, width } }] = 1e12 end
      x[{ {}, {}, 31, {} }] = 1e12
      x:requires_grad_()
      local y, want = F.conv2d(x, weight, nil, { stride = 2 }), F.conv2d(clean, weight, nil, { stride = 2 })
      expect(y):to_equal_bits(want)
      local dx, dw = table.unpack(gb.grad(y:square():sum(), { x, weight }))
      expect(dw):to_equal_bits(gb.grad(want:square():sum(), { weight })[1])
      expect(dx[{ {}, {}, 31, {} }]:count_nonzero():item()):to_be(0)
      if read < width then expect(dx[{ {}, {}, {}, { read + 1, width } }]:count_nonzero():item()):to_be(0) end
    end
  end)

  it("does not overflow where a direct sum does not", function()
    local x = gb.zeros(1, 16, 16, 16)
    x[{ 1, 1, 5, 5 }], x[{ 1, 1, 5, 7 }], x[{ 1, 1, 7, 5 }] = 3e38, -3e38, -3e38
    local y = F.conv2d(x, gb.full({ 16, 16, 3, 3 }, 0.25), nil, { padding = 1 })
    expect(y:isfinite():all():item()):to_be(true)
    local wide = gb.zeros(4, 32, 16, 16)
    wide[{ 1, 1, {}, {} }] = 3e38
    local weight = gb.full({ 32, 32, 3, 3 }, 0.1)
    y = F.conv2d(wide:to("bfloat16"), weight:to("bfloat16"), nil, { padding = 1 })
    expect(y:isfinite():all():item()):to_be(true)
  end)
end)

gb.test.finish()
