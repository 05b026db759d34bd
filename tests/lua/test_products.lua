-- test_products.lua - products too small to be packed (runtime/cpu/matmul.c) have the bits of the same rows and columns in a large one.
--
-- Both sum along k from the first element on, in float32, and add the bias last: a model must not change when its batch is split.

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
local F = gb.nn.functional

local LARGE = 70 -- rows and columns from which a product is packed, whatever k
local sizes = { { 2, 1, 2 }, { 2, 2, 2 }, { 3, 5, 7 }, { 8, 8, 8 }, { 5, 16, 9 }, { 16, 16, 16 }, { 2, 64, 16 }, { 31, 3, 17 }, { 2, 3, 64 }, { 2, 0, 3 } }

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
        expect(F.linear(small_x, weight:narrow(1, 1, n), gb.stack({ bias, bias }, -1):select(-1, 1):narrow(1, 1, n))):to_equal_bits(whole)
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
end

gb.test.finish()
