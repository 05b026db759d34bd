-- test_coverage.lua - fails when a row of ops.def lacks a golden case, a gradient check, an autocast test or a doc
-- line. The autocast test and the gradient checks run every golden case of a row, so what must be there is a case
-- (differentiated where the row is differentiable).

local gb = require "gibbous"
local describe, it = gb.test.describe, gb.test.it
local cases = dofile("tests/lua/cases.lua")

-- Rows that a golden case cannot express, and the file that tests them instead.
local elsewhere = {
  bernoulli = "tests/lua/test_random.lua", multinomial = "tests/lua/test_random.lua",
  nextafter = "tests/lua/test_small_ops.lua",
}

-- Rows whose gradient is 0 everywhere, and the file that tests it: differences would see the steps.
local flat = { sign = true, floor = true, ceil = true, round = true, trunc = true }
local flat_file = "tests/lua/test_numbers.lua"

local seen, differentiated = {}, {}
for _, case in ipairs(cases.list) do
  seen[case.op] = true
  if next(case.differentiable) then differentiated[case.op] = true end
end

local function mentions(file, name)
  local f = io.open(file)
  if not f then return false end
  local text = f:read("a")
  f:close()
  return text:find(name, 1, true) ~= nil
end

local words = { ["and"] = 1, ["break"] = 1, ["do"] = 1, ["else"] = 1, ["end"] = 1, ["for"] = 1, ["if"] = 1, ["in"] = 1,
  ["not"] = 1, ["or"] = 1, ["repeat"] = 1 }

local family = {}
for _, row in ipairs(gb.test.ops()) do family[row.name] = row.family end

-- The numbers of a case hang on its name alone, and a family's file is made alone.
describe("every golden case", function()
  for _, case in ipairs(cases.list) do
    it(case.name .. " stands in the file of its op's family", function()
      gb.test.expect(case.family):to_be(family[case.op])
    end)
    it(case.name .. " is named by its op and tag", function()
      gb.test.expect(case.name):to_be(case.tag == "" and case.op or ("%s (%s)"):format(case.op, case.tag))
    end)
  end
end)

describe("every row of ops.def", function()
  for _, row in ipairs(gb.test.ops()) do
    it(row.name .. " has a doc line", function()
      if #row.doc < 5 or not row.doc:match("%.$") then error("its doc line is '" .. row.doc .. "'") end
    end)
    it(row.name .. " can be called by its name", function()
      if words[row.name] then error("the name is a word of Lua's") end
      assert(load("return function(x) return x:" .. row.name .. "() end"))
    end)
    if row.public then
      it(row.name .. " has a golden case", function()
        if not seen[row.name] and not (elsewhere[row.name] and mentions(elsewhere[row.name], row.name)) then
          error("there is none")
        end
      end)
      if row.derivative ~= "no" then
        it(row.name .. " has a gradient check", function()
          if not differentiated[row.name] and not (flat[row.name] and mentions(flat_file, row.name)) then
            error("no case differentiates it")
          end
        end)
      end
    end
  end
end)

gb.test.finish()
