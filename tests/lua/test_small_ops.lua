-- test_small_ops.lua - small elementwise ops take a way of their own where operands lie as the loop takes them: it
-- gives the bits of the long way.

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect

local LONG, SHORT = 3000, 700 -- elements: of several tiles, and of less than one

local unary = { "neg", "abs", "exp", "log", "sqrt", "tanh", "sigmoid", "relu", "silu", "erf", "floor", "square",
  "reciprocal", "isnan", "logical_not" }
local binary = { "add", "sub", "mul", "div", "maximum", "minimum", "pow", "atan2", "remainder", "eq", "lt", "ge",
  "logical_and", "floor_divide" }

-- The first elements of a long result, and the result of the first elements, are the same; NaN is NaN.
local function check(name, f, ...)
  local short = {}
  for i, x in ipairs({ ... }) do short[i] = type(x) == "number" and x or x:narrow(1, 1, SHORT):clone() end
  local whole, part = f(...):narrow(1, 1, SHORT), f(table.unpack(short))
  expect(part.dtype):to_be(whole.dtype)
  local a, b = whole:tolist(), part:tolist()
  for i = 1, SHORT do
    if a[i] ~= b[i] and (a[i] == a[i] or b[i] == b[i]) then
      error(("%s, element %d: %s, and %s by the long way"):format(name, i, b[i], a[i]))
    end
  end
end

for _, dtype in ipairs({ "float32", "float64", "int64", "bfloat16" }) do
  describe("small ops of " .. dtype, function()
    gb.manual_seed(1)
    local x, y = (gb.randn(LONG) * 8):to(dtype), (gb.randn(LONG) * 8):to(dtype)
    local divisor = gb.where(y:eq(0), gb.ones(LONG):to(dtype), y)
    local mask = x:gt(1)
    it("of one operand", function()
      for _, name in ipairs(unary) do
        if not (name == "silu" and dtype == "int64") then check(name, gb[name], x) end
      end
    end)
    it("of two", function()
      for _, name in ipairs(binary) do
        if not (name == "pow" and dtype == "int64") then check(name, gb[name], x, divisor) end
      end
    end)
    it("of one and a number", function()
      for _, number in ipairs({ 3, 0.3, -1e10, (1 << 53) + 1, 1e300 }) do
        for _, name in ipairs({ "add", "mul", "div", "pow", "maximum", "lt" }) do
          local fits = math.type(number) == "float" or dtype ~= "int64" or name ~= "pow"
          if fits then check(name .. " " .. number, gb[name], x, number) end
        end
      end
    end)
    it("of masks", function()
      check("where", gb.where, mask, x, y)
      check("masked_fill", function(a, m) return a:masked_fill(m, 2) end, x, mask)
    end)
  end)
end

gb.test.finish()
