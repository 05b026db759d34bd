-- test_reference.lua - the reference, the types and help(): what is committed is what the sources say, every public name is described, and the
-- examples run.

local gb = require "gibbous"
gb.set_default_device("cpu") -- examples are written for the device that everybody has
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect

-- Names whose examples need files that are not here, or end the test, or stand inside another's.
local without_example = {
  ["ctx:saved_tensors"] = true, ["gb.data.idx"] = true, ["gb.data.mnist"] = true, ["gb.data.text"] = true, ["gb.data.tokens"] = true,
  ["gb.nn.library_class"] = true,
  ["gb.test.finish"] = true, ["Module:init"] = true,
}
local function has_none(name) return without_example[name] or name:find("^text:") end

-- What examples take for granted.
local function surroundings()
  local model = gb.nn.Sequential(gb.nn.Linear(4, 4))
  local opt = gb.optim.SGD(model:parameters(), { lr = 0.1 })
  local x = gb.rand(4, 4)
  return setmetatable({
    gb = gb, F = gb.nn.functional, x = x, model = model, opt = opt, loss = model(x):sum(), scaler = gb.amp.GradScaler { init_scale = 2 },
    schedule = gb.optim.lr.Constant(opt), loader = gb.data.DataLoader(gb.data.TensorDataset(x:cpu(), gb.arange(4):cpu()), { batch_size = 2 }),
    print = function() end,
  }, { __index = _G })
end

-- Run the example; what it prints through the library (plot, plan, progress) is not the test's.
local function run_example(code)
  local shown = print
  local fn = assert(load(code, "=example", "t", surroundings()))
  _G.print = function() end
  local ok, why = pcall(fn)
  _G.print = shown
  if not ok then error(why, 0) end
end

describe("the generator", function()
  it("would write what is committed, and finds a description above every public function", function()
    expect(table.concat(assert(loadfile("cmake/reference.lua"))("--check"), "\n")):to_be("")
  end)
  it("has made types that are Lua", function() assert(loadfile("bindings/meta/gibbous.lua")) end)
end)

local names = gb.test.public_names()

describe("every public name", function()
  for _, row in ipairs(names) do
    it(row.name .. " has a signature and a description", function()
      local entry = assert(gb.test.help_entry(row.op and row.op.name or row.name))
      assert(#entry.signature > 0 and #entry.doc >= 5 and entry.doc:find("[.?]$"), entry.doc)
    end)
    if not row.op and not has_none(row.name) then
      it(row.name .. " has an example that runs", function()
        run_example(assert(gb.test.help_entry(row.name).example, "there is none"))
      end)
    end
  end
end)

describe("every op", function()
  for _, row in ipairs(gb.test.ops()) do
    if row.public then
      it(row.name .. " has shapes, dtypes, errors, and an example that is Lua", function()
        local entry = assert(gb.test.help_entry(row.name))
        assert(entry.shapes and entry.dtypes and entry.errors and #entry.calls > 0)
        assert(load(entry.example))
      end)
    end
  end
end)

describe("help", function()
  it("finds a name however it is written", function()
    for _, name in ipairs { "relu", "gb.relu", "F.relu", "gb.nn.functional.relu", "x:relu", "x:relu_", "tensor:relu", "relu_" } do
      expect(gb.test.help_entry(name).name):to_be("relu")
    end
    expect(gb.test.help_entry("Linear").name):to_be("gb.nn.Linear")
    expect(gb.test.help_entry("nn.Linear").name):to_be("gb.nn.Linear")
    expect(gb.test.help_entry("x:item").name):to_be("tensor:item")
    expect(gb.test.help_entry("AdamW").name):to_be("gb.optim.AdamW")
  end)
  it("finds a function, a class and a module", function()
    expect(gb.test.help_entry(gb.relu).name):to_be("relu")
    expect(gb.test.help_entry(gb.zeros).name):to_be("gb.zeros")
    expect(gb.test.help_entry(gb.zeros(1).item).name):to_be("tensor:item")
    expect(gb.test.help_entry(gb.nn.Linear).name):to_be("gb.nn.Linear")
    expect(gb.test.help_entry(gb.nn.Linear(1, 1)).name):to_be("gb.nn.Linear")
    expect(gb.test.help_entry(gb.nn.Module:extend("Mine")()).name):to_be("gb.nn.Module")
  end)
  it("says the nearest name where there is none", function()
    local entry, near = gb.test.help_entry("rellu")
    expect(entry):to_be(nil)
    expect(near):to_be("; did you mean 'relu'?")
    expect(gb.test.help_entry(12)):to_be(nil)
  end)
end)

gb.test.finish()
