-- test_reference.lua - the reference, the types and help(): what is committed is what the sources say, every public
-- name is described, and the examples run.

local gb = require "gibbous"
gb.set_default_device("cpu") -- examples are written for the device that everybody has
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect

-- Names whose examples end the test, or stand inside another's; and those that need files, by their sandbox level, may
-- have none.
local without_example = { ["ctx:saved_tensors"] = true, ["gb.nn.library_class"] = true, ["gb.test.finish"] = true,
  ["Module:init"] = true }
local records = {} -- the sandbox level of each, by its path
do
  local list = gb.test.records()
  for i = 1, #list, 2 do records[list[i]:match("^[%w_.:]+")] = list[i + 1] end
end
local files = 1
local function may_have_none(name)
  return without_example[name] or records[name] == files or name == "text:close" or name == "tokens:close"
end

-- What examples take for granted.
local function surroundings()
  local model = gb.nn.Sequential(gb.nn.Linear(4, 4))
  local opt = gb.optim.SGD(model:parameters(), { lr = 0.1 })
  local x = gb.rand(4, 4)
  return setmetatable({
    gb = gb, F = gb.nn.functional, x = x, model = model, opt = opt, loss = model(x):sum(),
      scaler = gb.amp.GradScaler { init_scale = 2 },
    schedule = gb.optim.lr.Constant(opt),
      loader = gb.data.DataLoader(gb.data.TensorDataset(x:cpu(), gb.arange(4):cpu()), { batch_size = 2 }),
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
  it("makes types for editors that are Lua and name everything", function()
    local path = os.tmpname()
    assert(loadfile("cmake/reference.lua"))("--types", path)
    assert(loadfile(path))
    local text = assert(io.open(path)):read("a")
    os.remove(path)
    for _, row in ipairs(gb.test.public_names()) do
      local name = row.name:match("^tensor%.(.+)") or row.name
      assert(text:find(name, 1, true), name)
    end
  end)
end)

local names = gb.test.public_names()

describe("every public name", function()
  for _, row in ipairs(names) do
    it(row.name .. " has a signature and a description", function()
      local entry = assert(gb.test.help_entry(row.op and row.op.name or row.name))
      assert(#entry.signature > 0 and #entry.doc >= 5 and entry.doc:find("[.?]$"), entry.doc)
    end)
    local entry = not row.op and gb.test.help_entry(row.name)
    if entry and (entry.example or not may_have_none(row.name)) and not without_example[row.name] then
      it(row.name .. " has an example that runs", function() run_example(assert(entry.example, "there is none")) end)
    end
  end
end)

-- A method that help() did not list would also be missing above.
describe("every record", function()
  local known = {}
  for _, row in ipairs(names) do known[row.name] = true end
  for name in pairs(records) do
    it(name .. " is among the public names", function() assert(known[name], "help() does not list it") end)
  end
end)

local cases = dofile "tests/lua/cases.lua"

-- The tensors of a golden case by the names that the op's signature has for them.
local function tensors_of(row, case)
  local inputs, values, place = cases.inputs(case, "float32", { grad = false }), {}, 0
  for word in row.signature:gsub("%s*%->.*", ""):gsub(";", ","):gmatch("[^,]+") do
    place = place + 1
    local given = case.args[place]
    if type(given) == "table" and given["in"] then values[word:match("^%s*([%w_]+)")] = inputs[given["in"]] end
  end
  return values
end

-- Run an op's example on what is there, or else on the tensors of one of its golden cases; true, or the last error.
local function runs(row, example)
  local fn, ran, why
  local function try(values)
    local all = surroundings()
    all.y = gb.rand(4, 4)
    for name, value in pairs(values) do all[name] = value end
    fn = assert(load(example, "=example", "t", all))
    ran, why = pcall(fn)
    return ran
  end
  if try {} then return true end
  for _, case in ipairs(cases.list) do
    if case.op == row.name and try(tensors_of(row, case)) then return true end
  end
  return why
end

describe("every op", function()
  for _, row in ipairs(gb.test.ops()) do
    if row.public then
      it(row.name .. " has shapes, dtypes, errors, and an example that runs", function()
        local entry = assert(gb.test.help_entry(row.name))
        assert(entry.shapes and entry.dtypes and entry.errors and #entry.calls > 0)
        expect(runs(row, entry.example)):to_be(true)
      end)
    end
  end
end)

describe("records", function()
  it("are there for every name that can be reached, and for nothing else", function()
    local reached = {}
    for _, row in ipairs(names) do
      reached[row.name] = true
      if not row.op and not records[row.name] then error(row.name .. " has no record") end
    end
    for name in pairs(records) do assert(reached[name], name .. " has a record, but cannot be reached") end
  end)
  it("miss no name that is added, in a module or a class", function()
    local function missing()
      for _, row in ipairs(gb.test.public_names()) do
        if not row.op and not gb.test.help_entry(row.name) then return row.name end
      end
    end
    expect(missing()):to_be(nil)
    rawset(gb.random, "dice", print)
    expect(missing()):to_be("gb.random.dice")
    rawset(gb.random, "dice", nil)
    gb.nn.Module.explain = print
    expect(missing()):to_be("Module:explain")
    gb.nn.Module.explain = nil
  end)
  it("say the strictest sandbox that has a name", function()
    for name, level in pairs { ["gb.zeros"] = "strict", ["gb.save"] = "files", ["gb.doctor"] = "none",
      ["tensor.shape"] = "strict" } do
      expect(gb.test.help_entry(name).level):to_be(level)
    end
  end)
end)

describe("the shapes of an op", function()
  local bounds = { clamp = { 0, 1 }, threshold = { 0, 1 }, polygamma = { 1 } } -- what an op needs beside x
  local function run(row, x)
    local f = row.name ~= "dist" and rawget(gb, row.name) or rawget(gb.nn.functional, row.name) or x[row.name]
    return f(x, table.unpack(bounds[row.name] or {}))
  end
  for _, row in ipairs(gb.test.ops()) do
    local tensors = 0
    for word in row.signature:match("^[^;%-]*"):gmatch("[^,]+") do
      tensors = tensors + (word:find(":", 1, true) and 0 or 1)
    end
    local entry = row.public and tensors == 1 and gb.test.help_entry(row.name)
    if entry and entry.shapes == "the result is shaped like x" and not row.signature:find("[:|] *dims? *[,%-;]") and
      not row.signature:find("shape:") then
      it(row.name .. " is as help says", function()
        local ok, y = pcall(run, row, gb.rand(2, 3))
        if not ok then y = run(row, gb.ones({ 2, 3 }, { dtype = "int64" })) end -- bits
        expect(y):to_have_shape(2, 3)
      end)
    end
    if entry then
      it(row.name .. ", of one tensor, does not broadcast",
        function() assert(not entry.shapes:find("broadcast against")) end)
    end
  end
end)

describe("help", function()
  it("finds a name however it is written", function()
    for _, name in ipairs { "relu", "gb.relu", "F.relu", "gb.nn.functional.relu", "x:relu", "x:relu_", "tensor:relu",
      "relu_" } do
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
  it("says what is not built in, where recipes are told so too", function()
    for _, name in ipairs { "gb.amp.fp8", "amp.fp8", "fp8" } do
      local entry, why = gb.test.help_entry(name)
      expect(entry):to_be(nil)
      expect(why):to_be("; gb.amp.fp8 is not built into this version")
    end
    expect(select(2, gb.test.help_entry("gb.io.onnx"))):to_be("; gb.io.onnx is not built into this version")
    expect(function() return gb.amp.fp8 end):to_fail("gb.amp.fp8 is not built into this version")
    expect(function() return gb.io.onnx end):to_fail("gb.io.onnx is not built into this version")
    expect(function() return gb.zeross end):to_fail("gb has no 'zeross'; did you mean 'zeros'?")
  end)
  it("says the nearest name where there is none", function()
    local entry, near = gb.test.help_entry("rellu")
    expect(entry):to_be(nil)
    expect(near):to_be("; did you mean 'relu'?")
    expect(gb.test.help_entry(12)):to_be(nil)
  end)
end)

gb.test.finish()
