-- test_names.lua - every public name and option of PyTorch's (tests/golden/names.jsonl) is there, or
-- tests/lua/missing_names.lua says why it is not; what has appeared is off that list, and docs/coverage.md is current.

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
local compare = assert(loadfile("cmake/coverage.lua"))

describe("the names of PyTorch", function()
  for _, problem in ipairs(compare("--check")) do
    it(problem, function() error("so it is", 0) end)
  end
  it("are looked up", function()
    local count = 0
    for _ in io.lines("tests/golden/names.jsonl") do count = count + 1 end
    assert(count > 1500)
  end)
end)

-- The problems that name `name` after `change` is done to the table of reasons.
local function problems_after(change, name)
  local reasons, list = dofile("tests/lua/missing_names.lua"), {}
  change(reasons)
  for _, problem in ipairs(compare("--check", reasons)) do
    if problem:find(name, 1, true) then list[#list + 1] = problem end
  end
  return table.concat(list, "\n")
end

-- A change that adds a word to the last reason.
local function listed(word)
  return function(reasons)
    local last = reasons.reasons[#reasons.reasons]
    last.names = last.names .. " " .. word
  end
end

describe("it is found out", function()
  it("when a name has no reason", function()
    local change = function(reasons)
      for _, reason in ipairs(reasons.reasons) do reason.names = reason.names:gsub("Tensor%.apply_", "") end
    end
    expect(problems_after(change, "Tensor.apply_")):to_be(
      "PyTorch's Tensor.apply_ is not there, and tests/lua/missing_names.lua has no reason for it")
  end)
  it("when an option has no reason", function()
    local change = function(reasons)
      for _, reason in ipairs(reasons.reasons) do reason.names = reason.names:gsub("%*%(size_average%)", "") end
    end
    expect(problems_after(change, "nn.MSELoss(size_average)")):to_be(
      "PyTorch's nn.MSELoss(size_average) is not there, and tests/lua/missing_names.lua has no reason for it")
  end)
  it("when a listed name is there", function()
    expect(problems_after(listed("Tensor.abs"), "Tensor.abs ")):to_be(
      "Tensor.abs stands in tests/lua/missing_names.lua, but tensor:abs is there: run ./dev docs")
  end)
  it("when a listed option is there", function()
    expect(problems_after(listed("nn.Linear(bias)"), "nn.Linear(bias)")):to_be(
      "nn.Linear(bias) stands in tests/lua/missing_names.lua, but gb.nn.Linear is there: run ./dev docs")
  end)
  it("when PyTorch has no such name", function()
    expect(problems_after(listed("Tensor.absurd"), "absurd")):to_be(
      "Tensor.absurd stands in tests/lua/missing_names.lua, but PyTorch has no such name")
    expect(problems_after(listed("Tensor.abs(how)"), "(how)")):to_be(
      "Tensor.abs(how) stands in tests/lua/missing_names.lua, but PyTorch has no such name")
  end)
  it("when PyTorch has no such name to call otherwise", function()
    local change = function(reasons) reasons.renamed["Tensor.absurd"] = "tensor:abs" end
    expect(problems_after(change, "absurd")):to_be(
      "Tensor.absurd stands in tests/lua/missing_names.lua, but PyTorch has no such name")
  end)
  it("when a pattern stands for nothing", function()
    expect(problems_after(listed("Tensor.absur*"), "absur*")):to_be(
      "Tensor.absur* in tests/lua/missing_names.lua stands for nothing that is missing: run ./dev docs")
  end)
  it("when a name that is called otherwise is there as PyTorch calls it", function()
    local change = function(reasons) reasons.renamed["Tensor.abs"] = "tensor:absolute" end
    expect(problems_after(change, "Tensor.abs ")):to_be(
      "Tensor.abs is said to be tensor:absolute, but tensor:abs is there: run ./dev docs")
  end)
  it("when a name stands twice", function()
    expect(problems_after(listed("Tensor.apply_"), "Tensor.apply_")):to_be(
      "Tensor.apply_ stands under two reasons, or twice under one")
  end)
end)

gb.test.finish()
