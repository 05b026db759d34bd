-- test_products.lua - the bits of a product do not depend on how its operands lie or how it is cut
-- (runtime/cpu/matmul.c, gemm.c, gemm_kernel.c).
--
-- Every way sums along k from the first element on, in float32, and adds the bias last: a model must not change when
-- its batch is split.

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
local F = gb.nn.functional

local LARGE = 70 -- rows and columns from which a product is packed, whatever k
local sizes = { { 2, 1, 2 }, { 2, 2, 2 }, { 3, 5, 7 }, { 8, 8, 8 }, { 5, 16, 9 }, { 16, 16, 16 }, { 2, 64, 16 },
  { 31, 3, 17 }, { 2, 3, 64 }, { 2, 0, 3 } }

if gb.get_default_device() == "cpu" then
  describe("a tiny product", function()
    for _, s in ipairs(sizes) do
      local m, k, n = s[1], s[2], s[3]
      gb.manual_seed(m + 100 * k + 10000 * n)
      local x, y, bias = gb.randn(LARGE, k), gb.randn(k, LARGE), gb.randn(LARGE)
      local small_x, small_y = x:narrow(1, 1, m), y:narrow(2, 1, n)
      it(("has the bits of a large one: %dx%d by %dx%d"):format(m, k, k, n), function()
        local whole = x:matmul(y):narrow(1, 1, m):narrow(2, 1, n)
        expect(small_x:matmul(small_y)):to_equal_bits(whole)
        expect(small_x:contiguous():matmul(small_y:contiguous())):to_equal_bits(whole)
        local left, right = small_x:t():contiguous():t(), small_y:t():contiguous():t()
        expect(left:matmul(right)):to_equal_bits(whole)
        expect(small_x:matmul(y)):to_equal_bits(x:matmul(y):narrow(1, 1, m))
      end)
      it(("has them in linear too: %dx%d by %dx%d"):format(m, k, k, n), function()
        local weight = y:t():contiguous()
        local whole = F.linear(x, weight, bias):narrow(1, 1, m):narrow(2, 1, n)
        expect(F.linear(small_x, weight:narrow(1, 1, n), bias:narrow(1, 1, n))):to_equal_bits(whole)
        expect(F.linear(small_x, weight:narrow(1, 1, n),
          gb.stack({ bias, bias }, -1):select(-1, 1):narrow(1, 1, n))):to_equal_bits(whole)
      end)
    end
    it("keeps infinities and NaN where they belong", function()
      local x, y = gb.zeros(3, 3), gb.ones(3, 3)
      x[1][1], x[2][2] = 1 / 0, 0 / 0
      local z = x:matmul(y):tolist()
      for j = 1, 3 do
        expect(z[1][j]):to_be(1 / 0)
        expect(z[2][j] ~= z[2][j]):to_be(true)
        expect(z[3][j]):to_be(0.0)
      end
    end)
  end)

  -- Rows of a which lie well are read in place and the others packed; b is packed by each tile, or once where it is
  -- small and several tiles of one product want it. Elements two apart are always packed, and so is b by each tile in a
  -- batch.
  describe("a product in tiles", function()
    local function twice_apart(x) return gb.stack({ x, x }, -1):select(-1, 1) end
    local function in_rows_of(x, columns) -- x as part of a wider matrix
      local wide = gb.full({ x.shape[1], columns }, 0 / 0)
      wide:narrow(2, 2, x.shape[2]):copy_(x)
      return wide:narrow(2, 2, x.shape[2])
    end
    local shapes = { { 12, 40, 33 }, { 13, 256, 98 }, { 130, 257, 200 }, { 241, 300, 520 }, { 500, 129, 96 },
      { 768, 70, 98 }, { 253, 700, 800 }, { 25, 400, 400 }, { 64, 90, 8193 } }
    for _, s in ipairs(shapes) do
      local m, k, n = s[1], s[2], s[3]
      it(("has the same bits however its operands lie: %dx%d by %dx%d"):format(m, k, k, n), function()
        gb.manual_seed(m + k + n)
        local x, y = gb.randn(m, k), gb.randn(k, n)
        local packed = twice_apart(x):matmul(twice_apart(y))
        -- k roundings, each of half an ulp of a sum whose size is about the root of k
        expect(packed:double() / k ^ 1.5):to_be_close(x:double():matmul(y:double()) / k ^ 1.5, 2 ^ -22)
        for _, left in ipairs { x, x:t():contiguous():t(), in_rows_of(x, k + 3), in_rows_of(x, 1024),
          in_rows_of(x:t(), m + 5):t() } do
          expect(left:matmul(y)):to_equal_bits(packed)
        end
        expect(x:matmul(y:t():contiguous():t())):to_equal_bits(packed)
        expect(x:expand(2, m, k):matmul(y):select(1, 2)):to_equal_bits(packed)
        expect(gb.addmm(gb.zeros(m, n), x, y)):to_equal_bits(packed)
        local threads = gb.get_num_threads()
        for count = 1, 3 do
          gb.set_num_threads(count)
          expect(x:matmul(y)):to_equal_bits(packed)
        end
        gb.set_num_threads(threads)
      end)
    end
  end)
end

-- Where the CPU has a unit for 16 bits, a block of operands that it would get wrong goes another way, and the blocks
-- after it by the unit again.
describe("16-bit elements that a unit does not take", function()
  for _, dtype in ipairs { "float16", "bfloat16" } do
    it("leave all other elements as they are: " .. dtype, function()
      gb.manual_seed(12)
      for _, s in ipairs { { 64, 512, 64 }, { 300, 1100, 70 }, { 96, 700, 200 } } do
        local m, k, n = table.unpack(s)
        local x, y = gb.randn(m, k):to(dtype), gb.randn(k, n):to(dtype)
        local wide = x:double():matmul(y:double())
        local whole = x:matmul(y)
        x[{ 1, 1 }] = 1 / 0
        x[{ 2, 3 }] = 0 / 0
        x[{ 3, 5 }] = 1e-40
        y[{ k, n }] = 1e-39
        local z = x:matmul(y)
        -- sums of k products with float32's rounding, rounded to 16 bits
        local near = (dtype == "float16" and 2 ^ -11 or 2 ^ -8) * 4 * k ^ 0.5
        for _, product in ipairs { whole, z } do
          expect(product:narrow(1, 4, m - 3):narrow(2, 1, n - 1):double()):to_be_close(
            wide:narrow(1, 4, m - 3):narrow(2, 1, n - 1), near)
        end
        expect(z:select(1, 1):isfinite():any():item()):to_be(false)
        expect(z:select(1, 2):isnan():all():item()):to_be(true)
      end
    end)
  end
end)

-- Where an element of each matrix follows one of the matrix before it, matrices are taken apart first. 16 of 1 x 200
-- times 200 x 9 had other bits before that.
describe("matrices that lie between one another", function()
  it("give the bits of those that lie apart", function()
    for _, kind in ipairs { "float32", "float64", "bfloat16" } do
      for _, size in ipairs { { 64, 128, 96, 32 }, { 7, 40, 50, 60 }, { 16, 1, 200, 9 }, { 3, 3000, 2, 2 } } do
        local b, m, k, n = table.unpack(size)
        local x = gb.randn(m, k, b):to(kind):permute(3, 1, 2)
        local y = gb.randn(k, n, b):to(kind):permute(3, 1, 2)
        expect(x:matmul(y)):to_equal_bits(x:contiguous():matmul(y:contiguous()))
        expect(x:matmul(y[1])):to_equal_bits(x:contiguous():matmul(y[1]:contiguous()))
      end
    end
  end)
end)

-- The gradient of a weight sums over the rows of a batch: over a few thousand of them in slices, whose number the
-- shape decides. Steps along k of 2 KB are packed, others are read where they lie; 2049 leaves a slice of one row.
describe("the gradient of a weight over many rows", function()
  for _, s in ipairs { { 2048, 96, 40 }, { 2049, 33, 512 }, { 2600, 512, 33 }, { 4099, 2, 3 }, { 2100, 525, 500 } } do
    local rows, wide, out = table.unpack(s)
    local roundings = { float32 = 0, float64 = 0 }
    if gb.get_default_device() == "cpu" then roundings.bfloat16, roundings.float16 = 2 ^ -8, 2 ^ -11 end
    for dtype, rounding in pairs(roundings) do
      it(("is that in float64, whatever the number of threads: %d rows, %d -> %d, %s"):format(rows, wide, out, dtype),
        function()
          gb.manual_seed(rows + out)
          local x, up = gb.randn(rows, wide, { dtype = dtype }), gb.randn(rows, out, { dtype = dtype })
          local exact = up:double():t():matmul(x:double())
          local error = dtype == "float64" and 1e-13 or rows * 2 ^ -24 -- relative to the sum of magnitudes
          local bound = up:double():abs():t():matmul(x:double():abs()) * error + exact:abs() * rounding
          local before, found = gb.get_num_threads(), {}
          for threads = 1, 3 do
            gb.set_num_threads(threads)
            local weight = gb.zeros({ out, wide }, { dtype = dtype }):requires_grad_()
            F.linear(x, weight):backward(up)
            found[threads] = weight.grad:clone()
            F.linear(x, weight):backward(up) -- onto the first; in 16 bits it is rounded once more
            if rounding == 0 then expect(weight.grad):to_equal_bits(found[threads] + found[threads]) end
            expect((weight.grad:double() - exact * 2):abs():le(bound * 3):all():item()):to_be(true)
          end
          gb.set_num_threads(before)
          expect((found[1]:double() - exact):abs():le(bound):all():item()):to_be(true)
          expect(found[2]):to_equal_bits(found[1])
          expect(found[3]):to_equal_bits(found[1])
        end)
    end
  end
end)

gb.test.finish()
