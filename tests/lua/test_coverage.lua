-- test_coverage.lua - fails when a row of ops.def lacks a golden case, a gradient check, an autocast test or a doc
-- line. The autocast test and the gradient checks run every golden case of a row, so what must be there is a case
-- (differentiated where the row is differentiable). What is made of ops has lines of its own (tests/golden/calls.py and
-- others): the second half fails where a function, layer, loss, optimizer or schedule lacks them and
-- tests/lua/lacking.lua does not say why.

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
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

-- {==== what is no row ====

local goldens = dofile("tests/lua/goldens.lua")
local called = dofile("tests/lua/called.lua")

local kinds = { "golden", "gradient", "autocast", "hostile", "device" }
local has = {}
for _, kind in ipairs(kinds) do has[kind] = {} end

-- A golden line of this name: test_calls, test_linalg, test_recurrent and test_training read it on every device; and
-- what more it proves.
local function line_of(name, graded, scoped)
  has.golden[name], has.device[name] = true, true
  if graded then has.gradient[name] = true end
  if scoped then has.autocast[name] = true end
end

for _, line in ipairs(goldens.read("calls", { "functions", "layers", "losses" })) do
  for _, name in ipairs(line.names) do line_of(name, #line.graded > 0, true) end
end
local behind = { rebuilt = "svd", of_symmetric = "eigh", squares = "eigh" } -- functions of test_linalg
for _, line in ipairs(goldens.read("linalg", { "linalg" })) do
  for name in line.lua:gmatch("L%.([%w_]+)") do line_of("gb.linalg." .. name, line.grad, true) end
  for name, which in pairs(behind) do
    if line.lua:find(name, 1, true) then line_of("gb.linalg." .. which, line.grad, true) end
  end
  for name in line.lua:gmatch("[ab]:([%w_]+)%(") do
    line_of("tensor:" .. name, line.grad, true)
    line_of("gb." .. name, line.grad, true)
  end
end
local tables = { gb = "gb.", F = "gb.nn.functional.", L = "gb.linalg.", nn = "gb.nn.", utils = "gb.nn.utils." }
-- What the lines need besides.
local brought = { is_tensor = true, Parameter = true, no_grad = true, tensor = true, empty = true }
for _, line in ipairs(goldens.read("made", { "made" })) do -- test_made
  for head, name in line.lua:gmatch("%f[%w](%w+)%.([%w_]+)%s*[({]") do
    if tables[head] and not brought[name] then
      line_of(tables[head] .. name, #line.grad > 0, not goldens.multiplies(line))
    end
  end
end
for folder, prefix in pairs { layers = "gb.nn.", recurrent = "gb.nn.", transformers = "gb.nn.",
  optimizers = "gb.optim.", schedules = "gb.optim.lr." } do
  for _, line in ipairs(goldens.read("training", { folder })) do
    line_of(prefix .. line.name:match("^%w+"), prefix == "gb.nn.", folder == "recurrent")
  end
end

for _, line in ipairs(goldens.read("training", { "averages" })) do
  line_of(line.name:find("^ema") and "gb.optim.EMA" or "gb.optim.Average")
end
line_of("gb.optim.LBFGS") -- tests/golden/lbfgs.py
for _ in ipairs(goldens.read("training", { "norms" })) do line_of("gb.nn.utils.clip_grad_norm_") end

for path, module in pairs(called.modules) do
  for name in pairs(module) do
    if not called.apart[name] then has.hostile[path .. "." .. name] = true end
  end
end
for _, name in ipairs(called.methods) do has.hostile["tensor:" .. name] = true end

-- What is asked of a name: optimizers and schedules are no functions of tensors.
local function asked_of(name)
  if name:find("^gb%.optim") then return { "golden", "hostile", "device" } end
  return kinds
end

-- The rest of the library has files of tests of its own.
local scope = { ["gb"] = true, ["gb.linalg"] = true, ["gb.nn"] = true, ["gb.nn.functional"] = true,
  ["gb.nn.init"] = true, ["gb.nn.utils"] = true, ["gb.nn.utils.rnn"] = true, ["gb.optim"] = true,
  ["gb.optim.lr"] = true, ["gb.random"] = true }

local reasons, said = {}, {}
for i, group in ipairs(dofile("tests/lua/lacking.lua")) do
  for name in group.names:gmatch("%S+") do
    if reasons[name] then error("tests/lua/lacking.lua has " .. name .. " twice") end
    reasons[name], said[name] = group, i
  end
end

describe("what is no row of ops.def", function()
  for _, row in ipairs(gb.test.public_names()) do
    local name = row.name
    local path = name:match("^(gb[%w_.]*)%.[%w_]+$") or name:match("^(tensor):")
    if not row.op and row.value and (scope[path] or path == "tensor") then
      it(name .. " has what is asked of it, or a reason", function()
        local lacks = {}
        for _, kind in ipairs(asked_of(name)) do
          if not has[kind][name] then lacks[#lacks + 1] = kind end
        end
        local group = reasons[name]
        said[name] = nil
        if #lacks == 0 then
          if group then error("it lacks nothing; take it off tests/lua/lacking.lua", 0) end
          return
        end
        local list = table.concat(lacks, " ")
        if not group then error("it lacks: " .. list .. "; tests/lua/lacking.lua has no reason", 0) end
        if group.lacks ~= list then error(("it lacks: %s; the table says: %s"):format(list, group.lacks), 0) end
        if group.test and not mentions(group.test, name:match("[%w_]+$")) then
          error(group.test .. " does not name it", 0)
        end
      end)
    end
  end
  it("tests/lua/lacking.lua has no other names", function()
    expect(next(said)):to_be(nil)
  end)
end)

-- ====}

gb.test.finish()
