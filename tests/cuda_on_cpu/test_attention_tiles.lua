-- test_attention_tiles.lua - the gradients of attention by tiles, on the CUDA device against the CPU's: heads of many
-- widths, times on both sides of a tile's edges, causal and full, with dropout and masks. Nothing here may run as
-- products; the test fails if the device says that it does.

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
local F = gb.nn.functional
local expect_alike, expect_alike_above = dofile("tests/cuda_on_cpu/alike.lua")

local dtypes = { "float32", "float16", "bfloat16" }

local function attention(options, mask)
  options.enable_gqa = true
  return function(q, k, v) return F.scaled_dot_product_attention(q, k, v, mask and mask:to(q.device), options) end
end

for _, dtype in ipairs(dtypes) do
  gb.manual_seed(9)
  local function randn(...) return gb.randn(...):to(dtype) end
  describe("tiles " .. dtype, function()
    for _, columns in ipairs { 1, 16, 40, 64, 80, 96, 128, 160, 256 } do
      it(columns .. " columns", function()
        expect_alike(dtype, attention { is_causal = columns % 3 ~= 0 }, randn(1, 1, 17, columns),
          randn(1, 1, 17, columns), randn(1, 1, 17, columns))
      end)
    end
    for _, times in ipairs { { 1, 1 }, { 1, 17 }, { 17, 1 }, { 64, 64 }, { 65, 40 }, { 129, 129 } } do
      local tq, tk = table.unpack(times)
      for _, causal in ipairs { false, true } do
        it(("%d by %d, %s"):format(tq, tk, causal and "causal" or "full"), function()
          -- with one key a share is 1 whatever the score: the gradient of the score is rounding, of products of the
          -- size of 1
          local least = (tk == 1 or tq == 1) and 1 or 1e-3
          expect_alike_above(least, dtype, attention { is_causal = causal }, randn(1, 2, tq, 24), randn(1, 1, tk, 24),
            randn(1, 1, tk, 40))
        end)
      end
    end
    it("several tiles of wide heads, in groups", function()
      for _, causal in ipairs { false, true } do
        expect_alike(dtype, attention { is_causal = causal }, randn(1, 4, 70, 100), randn(1, 2, 100, 100),
          randn(1, 2, 100, 72))
      end
    end)
    -- the form without checks is for 16 bits
    if dtype ~= "float32" then it("scores so small that a share beyond the last key would be infinite", function()
      local function far(sign, ...) return (gb.rand(...) * 0.1 + sign * 2.5):to(dtype) end
      for _, causal in ipairs { false, true } do
        -- rows of about 2.5, which cancel in the gradients: rounding is of that size
        expect_alike_above(4, dtype, attention { is_causal = causal, scale = 1 }, far(1, 1, 2, 70, 16),
          far(-1, 1, 1, 70, 16), randn(1, 1, 70, 16))
      end
    end) end
    for _, tk in ipairs { 64, 70 } do -- random words come in fours: rows of keys that begin with one, and that do not
      it("dropout over " .. tk .. " keys", function()
        expect_alike(dtype, attention { dropout_p = 0.4, is_causal = tk == 70 }, randn(1, 4, 70, 16),
          randn(1, 2, tk, 16), randn(1, 2, tk, 16))
      end)
    end
    for _, window in ipairs { 1, 20, 64 } do
      it("a window of " .. window, function()
        for _, causal in ipairs { false, true } do
          expect_alike_above(window == 1 and 1 or 1e-3, dtype, attention { window = window, is_causal = causal },
            randn(1, 2, 70, 16), randn(1, 1, 90, 16), randn(1, 1, 90, 24))
        end
      end)
    end
    it("everything is dropped", function() expect_alike(dtype, attention { dropout_p = 1 }, randn(1, 1, 5, 8),
      randn(1, 1, 5, 8), randn(1, 1, 5, 8)) end)
    it("wide heads in blocks of few rows", function()
      expect_alike(dtype, attention { is_causal = true, dropout_p = 0.2 }, randn(1, 2, 40, 200), randn(1, 1, 40, 200),
        randn(1, 1, 40, 136))
    end)
    it("masks: bools, and numbers of each dtype", function()
      local mask = gb.rand(2, 1, 7, 70):gt(0.4)
      mask[{ 1, 1, 3 }] = false
      expect_alike(dtype, attention({}, mask), randn(2, 3, 7, 8), randn(2, 3, 70, 8), randn(2, 3, 70, 8))
      for _, other in ipairs { "float32", "float16", "float64" } do
        expect_alike(dtype, attention({ scale = 0.3 }, gb.randn(2, 1, 1, 70):to(other)), randn(2, 3, 7, 8),
          randn(2, 3, 70, 8), randn(2, 3, 70, 8))
      end
    end)
    it("a scale of 0", function() expect_alike(dtype, attention { scale = 0 }, randn(1, 1, 5, 8), randn(1, 1, 5, 8),
      randn(1, 1, 5, 8)) end)
    it("rows that do not lie in one piece", function()
      local function spread(t) return gb.cat({ t, t }, -1):unflatten(-1, { 2, -1 }):transpose(-1, -2):select(-1, 2) end
      expect_alike(dtype, function(q, k, v) return F.scaled_dot_product_attention(spread(q), spread(k), spread(v)) end,
        randn(1, 2, 20, 8), randn(1, 2, 20, 8),
                   randn(1, 2, 20, 8))
      local function turned(q, k, v) return F.scaled_dot_product_attention(q:transpose(2, 3), k:transpose(2, 3),
        v:transpose(2, 3), nil, { is_causal = true }) end
      expect_alike(dtype, turned, randn(2, 20, 3, 12), randn(2, 20, 3, 12), randn(2, 20, 3, 12))
    end)
    it("the same bits twice", function()
      local q, k, v = randn(2, 2, 70, 40):to("cuda"), randn(2, 2, 70, 40):to("cuda"), randn(2, 2, 70, 40):to("cuda")
      local up, seen = randn(2, 2, 70, 40):to("cuda"), {}
      for run = 1, 4 do
        local operands = {}
        for i, t in ipairs { q, k, v } do operands[i] = t:detach():clone():requires_grad_(true) end
        gb.manual_seed(4)
        F.scaled_dot_product_attention(operands[1], operands[2], operands[3], nil,
          { dropout_p = run <= 2 and 0.1 or 0, is_causal = true }):backward(up)
        seen[run] = operands
      end
      for i = 1, 3 do
        for run = 1, 3, 2 do expect(seen[run][i].grad:to("cpu")):to_equal_bits(seen[run + 1][i].grad:to("cpu")) end
      end
    end)
  end)
end

gb.test.finish()
