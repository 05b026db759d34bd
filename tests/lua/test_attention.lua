-- test_attention.lua - attention over heads of several widths, and its gradients, against float64 numbers made with PyTorch.
--
-- Shares and their gradients are rounded to a 16-bit dtype before they are multiplied, and a gradient is a product of such products: three
-- roundings of the dtype, relative to the largest result. In float32 the sums, of up to 256 products in another order, decide.

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
local F = gb.nn.functional

local tensors, metadata = gb.load("tests/golden/attention.safetensors")
local cases = gb.io.json_decode(metadata.cases)
local tolerance = { float64 = 1e-6, float32 = 4e-6, float16 = 2 ^ -9, bfloat16 = 2 ^ -6 } -- the numbers are kept in float32

local function stored(k, name)
  local t = tensors[("%d.%s"):format(k - 1, name)]
  return t and t:to(gb.get_default_device())
end

local function is_close(a, b, dtype)
  local scale = math.max(b:abs():max():item(), 1e-3)
  expect(a.dtype):to_be(dtype)
  expect(a:to("float64") / scale):to_be_close(b:to("float64") / scale, tolerance[dtype])
end

for _, dtype in ipairs { "float64", "float32", "float16", "bfloat16" } do
  describe("attention " .. dtype, function()
    for k, case in ipairs(cases) do
      local shape = table.concat(stored(k, "query").shape, "x") .. " by " .. table.concat(stored(k, "value").shape, "x")
      it(shape, function()
        local operands = {}
        for i, name in ipairs { "query", "key", "value" } do operands[i] = stored(k, name):to(dtype):clone():requires_grad_(true) end
        local query, key, value = table.unpack(operands)
        local y = F.scaled_dot_product_attention(query, key, value, stored(k, "mask"), { is_causal = case.causal })
        is_close(y:detach(), stored(k, "y"), dtype)
        y:backward(stored(k, "up"):to(dtype))
        for i, name in ipairs { "dquery", "dkey", "dvalue" } do is_close(operands[i].grad, stored(k, name), dtype) end
      end)
    end
  end)
end

gb.test.finish()
