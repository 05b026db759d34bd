-- test_attention.lua - attention and linear_cross_entropy on the CUDA device against the CPU's, with gradients.

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
local F = gb.nn.functional

local expect_alike = dofile("tests/cuda_on_cpu/alike.lua")

for _, dtype in ipairs { "float64", "float32", "float16", "bfloat16" } do
  gb.manual_seed(3)
  local function randn(...) return gb.randn(...):to(dtype) end
  local function attention(mask, options)
    return function(q, k, v) return F.scaled_dot_product_attention(q, k, v, mask and mask:to(q.device), options) end
  end
  describe("attention " .. dtype, function()
    it("full, of other times and head_dims",
      function() expect_alike(dtype, attention(), randn(2, 3, 17, 8), randn(2, 3, 19, 8), randn(2, 3, 19, 5)) end)
    it("causal", function() expect_alike(dtype, attention(nil, { is_causal = true }), randn(2, 3, 17, 8),
      randn(2, 3, 17, 8), randn(2, 3, 17, 8)) end)
    it("more query heads than key heads", function()
      expect_alike(dtype, attention(nil, { is_causal = true, enable_gqa = true }), randn(2, 4, 17, 8),
        randn(2, 2, 17, 8), randn(2, 2, 17, 8))
    end)
    it("dropout draws the same numbers", function()
      expect_alike(dtype, attention(nil, { is_causal = true, dropout_p = 0.3, enable_gqa = true }),
        randn(2, 4, 17, 8), randn(2, 2, 17, 8), randn(2, 2, 17, 8))
    end)
    it("a mask of bools, one row without any", function()
      local mask = gb.rand(7, 9):gt(0.4)
      mask[3] = false
      expect_alike(dtype, attention(mask), randn(2, 3, 7, 8), randn(2, 3, 9, 8), randn(2, 3, 9, 8))
    end)
    it("a mask that is added, another scale", function()
      expect_alike(dtype, attention(gb.randn(2, 1, 7, 9), { scale = 0.3 }), randn(2, 3, 7, 8), randn(2, 3, 9, 8),
        randn(2, 3, 9, 8))
    end)
    it("a window, causal and not", function()
      for _, causal in ipairs { false, true } do
        expect_alike(dtype, attention(nil, { is_causal = causal, window = 3, enable_gqa = true }), randn(2, 4, 17, 8),
          randn(2, 2, 12, 8), randn(2, 2, 12, 8))
      end
    end)
    it("a mask with a gradient, of every score and broadcast", function()
      for _, shape in ipairs { { 2, 4, 7, 9 }, { 4, 1, 9 }, { 7, 9 } } do
        local function biased(q, k, v, mask)
          return F.scaled_dot_product_attention(q, k, v, mask, { window = 8, enable_gqa = true })
        end
        expect_alike(dtype, biased, randn(2, 4, 7, 8), randn(2, 2, 9, 8), randn(2, 2, 9, 8), randn(shape))
      end
    end)
    it("heads that lie beside each other", function()
      local function turned(q, k, v)
        return F.scaled_dot_product_attention(q:transpose(2, 3), k:transpose(2, 3), v:transpose(2, 3), nil,
          { is_causal = true })
      end
      expect_alike(dtype, turned, randn(2, 6, 3, 8), randn(2, 6, 3, 8), randn(2, 6, 3, 8))
    end)
    it("two and three dimensions", function()
      expect_alike(dtype, attention(), randn(7, 8), randn(9, 8), randn(9, 8))
      expect_alike(dtype, attention(), randn(3, 7, 8), randn(3, 9, 8), randn(3, 9, 8))
    end)
  end)
  describe("linear_cross_entropy " .. dtype, function()
    local target = gb.randint(0, 13, { 11 })
    target[4] = -100
    it("mean, with a bias", function()
      expect_alike(dtype, function(x, w, b) return F.linear_cross_entropy(x, w, target:to(x.device), b) end,
        randn(11, 6), randn(13, 6), randn(13))
    end)
    it("sum, without", function()
      expect_alike(dtype, function(x, w) return F.linear_cross_entropy(x, w, target:to(x.device), nil,
        { reduction = "sum" }) end, randn(11, 6), randn(13, 6))
    end)
  end)
end

-- The CPU's kernels stand in for the library's then, so whatever the library is given has the CPU's bits.
if os.getenv("GIBBOUS_CUDNN_ON_CPU") == "all" then
  describe("gradients of attention", function()
    local function gradients(device, options)
      gb.manual_seed(4)
      local x = {}
      for i = 1, 3 do x[i] = gb.randn(2, 3, 70, 16):to("bfloat16"):to(device):requires_grad_(true) end
      local y = F.scaled_dot_product_attention(x[1], x[2], x[3], nil, options)
      y:backward(gb.ones_like(y))
      return x[1].grad:cpu(), x[2].grad:cpu(), x[3].grad:cpu()
    end
    for _, causal in ipairs { false, true } do
      it("are the library's where nobody asks for others, causal " .. tostring(causal), function()
        local here, there = { gradients("cpu", { is_causal = causal }) }, { gradients("cuda", { is_causal = causal }) }
        for i = 1, 3 do expect(there[i]):to_equal_bits(here[i]) end
      end)
    end
  end)
end

describe("linear_cross_entropy", function()
  it("names a target that is no class", function()
    local x, w = gb.ones({ 2, 3 }, { device = "cuda" }), gb.ones({ 4, 3 }, { device = "cuda" })
    expect(function() F.linear_cross_entropy(x, w,
      gb.tensor({ 1, 4 }):to("cuda")):item() end):to_fail("target 4 is out of range 0 .. 3")
  end)
end)

gb.test.finish()
