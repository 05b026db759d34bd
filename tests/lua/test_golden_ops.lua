-- test_golden_ops.lua - every op against float64 numbers made with PyTorch, forward and backward, in each floating
-- dtype.
--
-- The tolerance is a count of spacings of the output's dtype: one rounding on storing, and per case the growth that its
-- sums allow (the `growth` of the case). Gradients pass several roundings, so they get twice that. The self-test shows
-- that an error of twice the tolerance fails.

local gb = require "gibbous"
local describe, it = gb.test.describe, gb.test.it
local cases = dofile("tests/lua/cases.lua")

local dtypes = { "float64", "float32", "bfloat16", "float16" }

-- Ops whose 16-bit results are compared too, but with one more rounding of an intermediate that the op documents (P
-- before PV, composites).
local function growth_of(case, dtype)
  if dtype == "float64" or dtype == "float32" then return case.growth end
  return math.max(case.growth / 4, 4)
end

local function check(case, dtype, layout)
  local inputs = cases.inputs(case, dtype, { layout = layout })
  local outputs = cases.run(case, inputs)
  if #outputs ~= case.outputs then error(("%d outputs, expected %d"):format(#outputs, case.outputs)) end
  local growth = growth_of(case, dtype)
  for i, y in ipairs(outputs) do
    local reference = cases.stored(case, "out", i - 1)
    if table.concat(y.shape, "x") ~= table.concat(reference.shape, "x") then
      error(("output %d has shape %s, expected %s"):format(i, table.concat(y.shape, "x"),
        table.concat(reference.shape, "x")))
    end
    if not reference:is_floating_point() and y.dtype ~= reference.dtype then
      error(("output %d is %s, expected %s"):format(i, y.dtype, reference.dtype))
    end
    local ok, why = cases.within(y, reference, y:is_floating_point() and y.dtype or "float64", growth)
    if not ok then error(("output %d: %s"):format(i, why)) end
  end
  for i, g in pairs(cases.gradients(case, inputs, outputs)) do
    local ok, why = cases.within(g, cases.stored(case, "grad", i), g.dtype, 2 * growth)
    if not ok then error(("gradient of input %d: %s"):format(i, why)) end
  end
end

for _, dtype in ipairs(dtypes) do
  describe(dtype, function()
    for _, case in ipairs(cases.list) do
      it(case.name, function() check(case, dtype) end)
    end
  end)
end

describe("strided inputs", function()
  for _, case in ipairs(cases.list) do
    if case.op ~= "view" then -- what no view can express is its error
      it(case.name, function() check(case, "float64", "strided") end)
    end
  end
end)

describe("self-test", function()
  it("an error of twice the tolerance fails", function()
    local tried = 0
    for _, case in ipairs(cases.list) do
      local reference = case.outputs > 0 and cases.stored(case, "out", 0)
      if reference and reference:is_floating_point() and reference:numel() > 0 and reference:abs():amax():item() > 0 and
        reference:isfinite():all():item() then
        local y = reference:clone()
        local ok = cases.within(y, reference, "float32", case.growth, 2)
        if ok then error(case.name .. " does not notice") end
        tried = tried + 1
      end
    end
    if tried < 100 then error("only " .. tried .. " cases were tried") end
  end)
end)

gb.test.finish()
