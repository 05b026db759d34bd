-- alike.lua - compares attention and its kin on the CUDA device with the CPU's, gradients included. Loaded by the tests
-- with dofile.
--
-- Both round probabilities to the 16-bit dtype before they are multiplied, the CPU tile by tile and the device row by
-- row, so that results differ by a few roundings of the dtype, relative to the largest of them; a gradient goes through
-- three such products.

local gb = require "gibbous"
local expect = gb.test.expect

local tolerance = { float64 = 1e-13, float32 = 4e-6, float16 = 2 ^ -9, bfloat16 = 2 ^ -6 }

-- f(tensors of the device): a result whose gradients are compared, for those tensors that have floats. What is smaller
-- than `least` is compared with that.
local function expect_alike_above(least, dtype, f, ...)
  local given, seen = { ... }, {}
  for d, device in ipairs { "cpu", "cuda" } do
    local operands = {}
    for i, t in ipairs(given) do
      operands[i] = t:clone():to(device)
      if t:is_floating_point() then operands[i]:requires_grad_(true) end
    end
    gb.manual_seed(11) -- the same numbers for dropout
    local y = f(table.unpack(operands))
    gb.manual_seed(12)
    y:backward(gb.randn(y.shape):to(y.dtype):to(device))
    seen[d] = { y:detach() }
    for _, t in ipairs(operands) do
      if t.requires_grad then table.insert(seen[d], t.grad) end
    end
  end
  for i, a in ipairs(seen[1]) do
    local b = seen[2][i]
    expect(b.device):to_be("cuda:0")
    expect(b.dtype):to_be(a.dtype)
    local scale = math.max(a:to("float64"):abs():max():item(), least)
    expect(b:to("cpu"):to("float64") / scale):to_be_close(a:to("float64") / scale, tolerance[dtype])
  end
end

return function(...) expect_alike_above(1e-3, ...) end, expect_alike_above
