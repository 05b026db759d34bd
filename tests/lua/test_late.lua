-- test_late.lua - chunks of the Lua half that wait until one of their names is used: opening runs none of them, each
-- name finds its own, and nothing that a recipe did before reaches into one that runs late.
--
-- Every case is a script of its own, in a process that has used nothing yet.

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect

-- Before each script: loaded() is a list of the units that have run, waiting those that there are, by name. The table
-- that notes them lies in the registry.
local PRELUDE = [[
local gb = require "gibbous"
local find_debug, sort, concat = debug.getregistry, table.sort, table.concat
local late
for _, value in next, find_debug() do
  if type(value) == "table" and rawget(value, "status") and rawget(value, "native") then late = value end
end
local waiting = rawget(late.native, "units")
local function loaded()
  local list = {}
  for unit in next, late.status do list[#list + 1] = unit end
  sort(list)
  return concat(list, " ")
end
]]

-- What a script prints, and its errors.
local function output(script)
  local path = os.tmpname()
  local file = assert(io.open(path, "w"))
  assert(file:write(PRELUDE, script))
  file:close()
  local pipe = assert(io.popen(gb.test.program() .. " " .. path .. " 2>&1"))
  local text = pipe:read("a")
  pipe:close()
  os.remove(path)
  return (text:gsub("%s+$", ""))
end

-- Chunks that no program should pay for before it uses them.
local LATE = { "amp", "args", "average", "checkpoints", "cuda", "data", "datasets", "dist", "early_stopping",
  "evaluate", "functions", "io", "lbfgs", "linalg", "lines", "logger", "methods", "metrics", "named", "nn/init",
  "nn/layers", "nn/module", "nn/parallel", "nn/recurrent", "nn/sync", "nn/transformer", "nn/utils", "nn/vision",
  "nn/weights", "nn/windows", "numerics", "optim", "plot", "progress", "samplers", "schedules", "seal", "tables",
  "test", "tools", "trainer", "transforms" }

describe("opening the library", function()
  it("runs no chunk that is meant to wait", function()
    expect(output("print(late.native.waits(), '[' .. loaded() .. ']')")):to_be("true\t[]")
  end)
  it("knows each of them", function()
    local script = {}
    for _, unit in ipairs(LATE) do script[#script + 1] = ("assert(waiting[%q], %q)"):format(unit, unit) end
    expect(output(table.concat(script, "\n"))):to_be("")
  end)
  it("runs what a name needs, and no more", function()
    expect(output("local _ = gb.args print(loaded())")):to_be("args")
    expect(output("local _ = gb.optim.lr.Cosine print(loaded())")):to_be("schedules")
    expect(output("gb.zeros(2):relu() print('[' .. loaded() .. ']')")):to_be("[]")
    expect(output("print(gb.amp.autocast('16-mixed', function() return gb.amp.is_enabled() end))")):to_be("true")
    expect(output("gb.eye(2):logdet() print(loaded())")):to_be("functions linalg methods")
  end)
end)

describe("names that wait", function()
  it("are listed by pairs", function()
    expect(output([[
      local count = {}
      for _, module in ipairs { "", "nn", "optim", "data" } do
        local table_, n = module == "" and gb or gb[module], 0
        for name, value in pairs(table_) do
          assert(type(name) == "string" and value ~= nil)
          n = n + 1
        end
        count[#count + 1] = n > 5 and module .. "+" or n
      end
      assert(rawget(gb, "Trainer") and rawget(gb.nn, "Linear") and rawget(gb.optim, "AdamW"))
      print(concat(count, " "))]])):to_be("+ nn+ optim+ data+")
  end)
  it("are one value, however they are asked for", function()
    expect(output([[
      local Linear = gb.nn.Linear
      for name, value in pairs(gb.nn) do if name == "Linear" then assert(value == Linear) end end
      assert(Linear == require "gibbous".nn.Linear and gb.Trainer == gb.Trainer)
      print(rawequal(gb.nn.Linear(2, 2).forward, Linear.forward))]])):to_be("true")
  end)
  it("are suggested for a misspelt one", function()
    expect(output("print(select(2, pcall(function() return gb.Trainr end)))"):match("gb has no.*")):to_be(
      "gb has no 'Trainr'; did you mean 'Trainer'?")
    local text = output("print(select(2, pcall(function() return gb['args\\0'] end)))")
    expect(text:find("gb has no", 1, true)):to_be_truthy()
  end)
  it("are the recipe's to take away and to replace", function()
    expect(output([[
      gb.args = nil
      print(pcall(function() return gb.args end))
      gb.nn.Linear = "mine"
      for name, value in pairs(gb.nn) do if name == "Linear" then assert(value == "mine") end end
      for name in pairs(gb) do assert(name ~= "args") end
      local clock = gb.clock
      gb.clock = nil
      print(clock ~= nil, pcall(function() return gb.clock end))]]):gsub("[^\n]*gb has no", "gb has no")):to_be(
      "gb has no 'args'\ngb has no 'clock'")
  end)
  it("are replaced for the library too, as those that it had before", function()
    expect(output([[
      gb.linalg.slogdet = function() error("the recipe's", 0) end
      print(pcall(gb.logdet, gb.eye(2)))]])):to_be("false\tthe recipe's")
  end)
end)

-- A recipe that has spoilt everything first; each chunk must run all the same.
local SPOILT = [[
  for _, name in ipairs { "string", "table", "math", "utf8" } do
    local library = _G[name]
    for key in next, library do library[key] = nil end
  end
  for _, name in ipairs { "zeros", "is_tensor", "no_grad", "empty" } do gb[name] = false end
  gb.nn.functional.linear = false
]]

describe("a chunk that runs late", function()
  it("sees none of the globals, modules and functions that a recipe has changed", function()
    expect(output(SPOILT .. [[
      local nn, optim, amp, native = gb.nn, gb.optim, gb.amp, late.native
      for _, name in ipairs { "nn", "optim", "amp", "random", "data", "io", "dist" } do gb[name] = nil end
      for unit in pairs(waiting) do native.load(unit) end
      for unit in pairs(waiting) do assert(late.status[unit] == 2) end
      print(nn.Module ~= nil, optim.AdamW ~= nil, amp.autocast ~= nil)]])):to_be("true\ttrue\ttrue")
  end)
  it("is let alone by hooks, which are there again afterwards", function()
    expect(output([[
      local inner = 0
      debug.sethook(function() if debug.getinfo(2, "S").source:find("^=gibbous") then inner = inner + 1 end end, "", 1)
      local before = debug.gethook()
      local _ = gb.Trainer
      assert(debug.gethook() == before)
      debug.sethook()
      print(inner)]])):to_be("0")
  end)
  it("is whole after one that failed in a deep recursion", function()
    expect(output([[
      local function dig(n) return pcall(function() dig(n + 1) local _ = gb.nn.Transformer, gb.Trainer end) end
      dig(1)
      local function down() local _ = gb.data.DataLoader return 1 + down() end
      assert(not pcall(down))
      print(gb.nn.Transformer ~= nil, gb.Trainer ~= nil, gb.data.DataLoader ~= nil)]])):to_be("true\ttrue\ttrue")
  end)
  it("meets no finaliser", function()
    expect(output([[
      collectgarbage("incremental", 0, 1000)
      for i = 1, 1000 do
        setmetatable({}, { __gc = function() local _ = gb.Trainer, gb.nn.LSTM, gb.Metrics end })
      end
      for _ in pairs(gb.nn) do end
      local _ = gb.Trainer
      print(gb.nn.LSTM(2, 2) ~= nil)]])):to_be("true")
  end)
  it("may be asked for in a coroutine", function()
    expect(output([[
      local run = coroutine.wrap(function() local class = gb.nn.GRU coroutine.yield(class) end)
      print(run() == gb.nn.GRU)]])):to_be("true")
  end)
end)

gb.test.finish()
