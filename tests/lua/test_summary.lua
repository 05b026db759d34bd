-- test_summary.lua - gb.summary: shapes, parameters and operations, worked out by hand beside the cases; memory within
-- what the tensors of a step take; and nothing of the model changes.

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
local nn = gb.nn
local quiet = { print = false }

local function row_of(report, name)
  for _, row in ipairs(report.rows) do
    if row.name == name then return row end
  end
  error("no row " .. name)
end

local function shape(row, i) return table.concat(row.shapes[i or 1], "x") end

describe("a summary", function()
  local model = nn.Sequential(nn.Conv2d(3, 8, 3, { padding = 1 }), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(),
    nn.Linear(8 * 16 * 16, 10))
  local report = gb.summary(model, gb.randn(4, 3, 16, 16), quiet)
  it("has shapes and parameters", function()
    expect(shape(row_of(report, "0"))):to_be("4x8x16x16")
    expect(shape(row_of(report, "4"))):to_be("4x10")
    expect(shape(row_of(report, ""))):to_be("4x10")
    expect(row_of(report, "0").parameters):to_be(8 * 3 * 9 + 8)
    expect(row_of(report, "1").parameters):to_be(16)
    expect(row_of(report, "4").parameters):to_be(8 * 256 * 10 + 10)
    expect(report.parameters):to_be(8 * 27 + 8 + 16 + 20480 + 10)
    expect(report.trainable):to_be(report.parameters)
  end)
  it("counts operations: two for a multiply-add", function()
    expect(row_of(report, "0").operations):to_be(2 * 4 * 8 * 256 * 27)
    expect(row_of(report, "4").operations):to_be(2 * 4 * 2048 * 10)
    expect(report.operations):to_be(2 * 4 * 8 * 256 * 27 + 2 * 4 * 2048 * 10)
  end)
  it("has the memory of training by precision", function()
    for _, name in ipairs { "32-true", "16-mixed", "bf16-mixed" } do
      local m = report.memory[name]
      expect(m.parameters):to_be(4 * report.parameters)
      expect(m.gradients):to_be(4 * report.parameters)
      expect(m.optimizer):to_be(8 * report.parameters)
      expect(m.total):to_be(m.parameters + m.gradients + m.optimizer + m.activations)
    end
    -- what the norm and relu give are kept, of 4 x 8 x 16 x 16 floats each; no more than eight such at once
    local one = 4 * 8 * 256 * 4
    expect(report.memory["32-true"].activations >= 2 * one):to_be(true)
    expect(report.memory["32-true"].activations <= 8 * one):to_be(true)
  end)
  it("counts gradients once", function()
    local heavy = nn.Linear(500, 500) -- a megabyte of gradients, and next to no activations
    local m = gb.summary(heavy, gb.randn(2, 500), quiet).memory["32-true"]
    expect(m.activations < m.gradients / 4):to_be(true)
  end)
  it("says that 16 bits need less where activations weigh most", function()
    local wide = nn.Sequential(nn.Linear(32, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1))
    local m = gb.summary(wide, gb.randn(2048, 32), quiet).memory
    expect(m["16-mixed"].activations < 0.8 * m["32-true"].activations):to_be(true)
    expect(m["bf16-mixed"].activations < 0.8 * m["32-true"].activations):to_be(true)
  end)
  it("counts shared weights once, and what is not trained apart", function()
    local first = nn.Linear(4, 4)
    local tied = nn.Sequential(first, nn.Linear(4, 4):share(first))
    expect(gb.summary(tied, gb.ones(1, 4), quiet).parameters):to_be(20)
    local frozen = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    frozen[1]:requires_grad_(false)
    local m = gb.summary(frozen, gb.ones(1, 4), quiet)
    expect(m.parameters):to_be(30)
    expect(m.trainable):to_be(10)
    expect(m.memory["32-true"].gradients):to_be(40)
  end)
  it("counts calls, takes several inputs, and shows tables of results", function()
    local Twice = nn.Module:extend("Twice")
    function Twice:init() self.inner = nn.Linear(4, 4) end
    function Twice:forward(a, b) return { self.inner(self.inner(a)), sum = b:sum() } end
    local twice = gb.summary(Twice(), { gb.ones(2, 4), gb.ones(3) }, quiet)
    expect(row_of(twice, "inner").calls):to_be(2)
    expect(row_of(twice, "inner").operations):to_be(2 * 2 * 2 * 16)
    expect(shape(row_of(twice, ""))):to_be("2x4")
    expect(#row_of(twice, "").shapes[2]):to_be(0)
  end)
  it("is a text, as deep as asked", function()
    local text = tostring(report)
    for _, part in ipairs { "0 Conv2d", "4x8x16x16", "20,490", "16-mixed", "together" } do
      expect(text:find(part, 1, true) ~= nil):to_be(true)
    end
    local nested = nn.Sequential(nn.Sequential(nn.Linear(2, 2)))
    local flat = tostring(gb.summary(nested, gb.ones(1, 2), { print = false, depth = 1 }))
    expect(flat:find("Linear", 1, true)):to_be(nil)
  end)
end)

describe("the model", function()
  it("is afterwards what it was", function()
    gb.manual_seed(7)
    local model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))
    model:eval()
    model[1].weight.grad = gb.ones(8, 4)
    local mean, grad = model[2].running_mean:clone(), model[1].weight.grad:clone()
    local weight, before = model[1].weight:detach():clone(), gb.get_rng_state()
    gb.summary(model, gb.randn(16, 4), quiet)
    gb.set_rng_state(before)
    expect(model[2].running_mean):to_equal_bits(mean)
    expect(model[1].weight.grad):to_equal_bits(grad)
    expect(model[1].weight:detach()):to_equal_bits(weight)
    expect(model[4].weight.grad):to_be(nil)
    expect(model.training):to_be(false)
    expect(model[3].training):to_be(false)
    expect(model[1]._hooks):to_be(false)
  end)
  it("leaves the random state alone", function()
    local model, x = nn.Dropout(0.5), gb.randn(8)
    gb.manual_seed(9)
    local first = gb.rand(3)
    gb.manual_seed(9)
    gb.summary(model, x, quiet)
    expect(gb.rand(3)):to_equal_bits(first)
  end)
  it("may fail on the sample, and is what it was", function()
    local model = nn.Sequential(nn.Linear(4, 2))
    model:eval()
    expect(function() gb.summary(model, gb.ones(1, 5), quiet) end):to_fail("linear")
    expect(model.training):to_be(false)
    expect(model[1]._hooks):to_be(false)
    local function with(name) gb.summary(model, gb.ones(1, 4), { print = false, precisions = { name } }) end
    expect(function() with("17-mixed") end):to_fail("17")
    expect(function() with(1) end):to_fail("no name")
    gb.summary(model, gb.ones(1, 4), quiet)
  end)
  it("keeps its hooks", function()
    local model, calls = nn.Linear(2, 2), 0
    local remove = model:register_forward_hook(function() calls = calls + 1 end)
    gb.summary(model, gb.ones(1, 2), quiet)
    expect(calls):to_be(4)
    model(gb.ones(1, 2))
    expect(calls):to_be(5)
    remove()
    model(gb.ones(1, 2))
    expect(calls):to_be(5)
  end)
  it("may be stepped by an optimizer meanwhile", function()
    local model = nn.Linear(4, 4)
    local opt = gb.optim.AdamW(model:parameters(), { lr = 0.1 })
    local x = gb.ones(2, 4)
    local function step()
      opt:zero_grad()
      model(x):sum():backward()
      opt:step()
    end
    step()
    model(x):sum():backward()
    local grad = model.weight.grad:clone()
    gb.summary(model, x, quiet)
    expect(model.weight.grad):to_equal_bits(grad)
    step()
  end)
end)

gb.test.finish()
