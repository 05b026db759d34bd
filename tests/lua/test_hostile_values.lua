-- test_hostile_values.lua - tensors made of values that change or vanish while they are read, and calls that only look
-- right.

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect

-- Run fn with a collector that never rests.
local function collecting(fn)
  collectgarbage("incremental", 0, 1000, 1)
  local ok, why = pcall(fn)
  collectgarbage("incremental", 200, 100, 13)
  if not ok then error(why, 0) end
end

-- A list of n new lists that nothing else holds.
local function weak_rows(n)
  local rows = {}
  for i = 1, n do rows[i] = { i, i + 1 } end
  return setmetatable(rows, { __mode = "v" })
end

describe("gb.tensor", function()
  it("reads a weak list of lists as it is, or says what is wrong", function()
    collecting(function()
      for _ = 1, 200 do
        local rows = weak_rows(8)
        local ok, x = pcall(gb.tensor, rows)
        if ok then expect(x.shape[2] == 2 and x.shape[1] <= 8):to_be(true) else assert(x:find("lists", 1, true), x) end
      end
    end)
  end)
  it("says so when a finaliser changes the lists between two looks", function()
    local seen = 0
    for _, spoil in ipairs {
      function(list) list[2] = nil end, function(list) list[1] = { 1, 2, 3 } end, function(list) list[2] = "text" end,
      function(list) list[1][2] = {} end, function(list) list[1][1] = 0.5 end,
    } do
      local list
      local meta = { __gc = function() if list then spoil(list) end end }
      collecting(function()
        for _ = 1, 1000 do
          for _ = 1, 20 do setmetatable({}, meta) end
          list = { { 1, 2 }, { 3, 4 } }
          local ok, why = pcall(gb.tensor, list)
          list = nil
          if not ok then
            assert(why:find("tensor: ", 1, true), why)
            seen = seen + (why:find("changed while", 1, true) and 1 or 0)
          end
        end
      end)
    end
    expect(seen > 0):to_be(true)
  end)
  it("asks no metamethod of lists or options", function()
    local function no() error("asked") end
    local meta = { __index = no, __len = no, __newindex = no, __pairs = no, __call = no }
    expect(gb.tensor(setmetatable({ setmetatable({ 1, 2 }, meta) }, meta),
      setmetatable({ dtype = "int32" }, meta)).dtype):to_be("int32")
    expect(gb.full(setmetatable({ 2, 3 }, meta), 1)):to_have_shape(2, 3)
    expect(gb.random.shuffle(setmetatable({ 7 }, meta))[1]):to_be(7)
  end)
end)

describe("signatures of what makes tensors", function()
  it("take a shape as a list where numbers follow it", function()
    expect(function() gb.full(2, 3) end):to_fail("full: 'shape' must be a list of integers, such as { 2, 3 }, got 2")
    expect(function() gb.ones(1):new_full(2, 3) end):to_fail("new_full: 'shape' must be a list")
    expect(gb.full({}, 1)):to_have_shape()
    expect(gb.zeros({})):to_have_shape()
    expect(gb.randint(0, 5, {})):to_have_shape()
    expect(gb.from_bytes("\1\2\3\4", "int32", {})):to_have_shape()
    expect(function() gb.randint(0, 5) end):to_fail("pass the shape as a table")
    expect(function() gb.randint(5, { 2 }, { 3 }) end):to_fail("given twice")
  end)
  it("keep 64-bit integers", function()
    expect(gb.full({ 1 }, math.maxinteger):item()):to_be(math.maxinteger)
    expect(gb.arange(math.maxinteger - 2, math.maxinteger):tolist()[2]):to_be(math.maxinteger - 1)
    expect(gb.zeros(1):new_full({ 1 }, math.mininteger, { dtype = "int64" }):item()):to_be(math.mininteger)
  end)
  it("refuse what they would have swallowed", function()
    expect(function() gb.randperm(3, { type = "int32" }) end):to_fail("unknown option 'type'")
    expect(function() gb.zeros_like(gb.ones(1), 2) end):to_fail("table of options")
    expect(function() gb.eye(2, 2, 2) end):to_fail("eye")
    expect(function() gb.to_bytes(gb.ones(1), 1) end):to_fail("too many arguments")
  end)
  it("name the function that was called, not the op behind it", function()
    expect(function() gb.full({ 2 }, 300, { dtype = "uint8" }) end):to_fail("full: ")
    expect(function() gb.randint(0, { 3 }) end):to_fail("randint: ")
    expect(function() gb.zeros(2, { dtype = "uint8" })[1] = 300 end):to_fail("assignment: ")
  end)
  it("say that a function is called with a dot", function()
    expect(function() gb:zeros(2) end):to_fail("zeros: call it with a dot, gb.zeros(...), not with a colon")
    expect(function() gb:relu(gb.ones(1)) end):to_fail("relu: call it with a dot, gb.relu(...)")
    expect(function() gb.nn.functional:softmax(gb.ones(1), 1) end):to_fail("softmax: call it with a dot, \z
      gb.nn.functional.softmax(...)")
    expect(function() gb:seed() end):to_fail("seed: call it with a dot")
  end)
end)

describe("the text of an error", function()
  local nn, optim = gb.nn, gb.optim
  local asked = 0
  local value = setmetatable({}, { __tostring = function()
    asked = asked + 1
    error("asked")
  end })
  local function parameter() return nn.Parameter(gb.ones(1)) end
  local calls = {
    ["a field's name"] = function()
      local module = nn.Linear(1, 1)
      module[value] = parameter()
      module[value] = gb.ones(1)
    end,
    ["a rate"] = function()
      optim.lr.Lambda(optim.SGD({ parameter() }, { lr = 1 }), function() return value end):step()
    end,
    ["a metric"] = function() optim.lr.ReduceOnPlateau(optim.SGD({ parameter() }, { lr = 1 })):step(value) end,
    ["the name of an option"] = function() gb.Trainer(nn.Linear(1, 1), { [value] = 1 }) end,
    ["the value of an option"] = function() gb.Trainer(nn.Linear(1, 1), { epochs = value }) end,
    ["a length"] = function() return #gb.data.Dataset { length = function() return value end, get = print } end,
    ["a place to split"] = function() gb.tensor_split(gb.ones(4), { value }) end,
    ["the kind of a state"] = function() optim.SGD({ parameter() }, { lr = 1 }):load_state_dict { kind = value } end,
    ["the name of a tensor"] = function() nn.Linear(1, 1):load_state_dict { [value] = gb.ones(1) } end,
    ["the length of a sequence"] = function() nn.utils.rnn.unpad_sequence(gb.ones(2, 2), { value, 1 }) end,
  }
  for name, call in pairs(calls) do
    it("asks no metamethod: " .. name, function()
      local ok, why = pcall(call)
      expect(ok):to_be(false)
      expect(type(why)):to_be("string")
      expect(asked):to_be(0)
    end)
  end
end)

describe("checkpoints and JSON", function()
  local path = os.tmpname()
  it("read tables past metatables, and keep what is weak", function()
    local function no() error("asked") end
    local meta = { __index = no, __len = no, __pairs = no, __mode = "v" }
    collecting(function()
      for _ = 1, 20 do
        local list = setmetatable({ 1, 2, setmetatable({ 3 }, meta) }, { __index = no, __len = no, __pairs = no })
        gb.io.save_checkpoint(path, setmetatable({ extra = { list = list } }, { __index = no, __pairs = no }))
        local text = gb.io.json_encode(gb.io.load_checkpoint(path, {}).list)
        assert(text == "[1,2,[3]]", text)
        expect(gb.io.json_encode(list)):to_be("[1,2,[3]]")
        gb.save(path, setmetatable({ x = gb.ones(1) }, meta),
          setmetatable({ metadata = setmetatable({ a = "b" }, meta) }, meta))
      end
    end)
    os.remove(path)
  end)
  it("turn down a state that holds itself", function()
    local loop = {}
    for _ = 1, 60 do loop = { loop } end
    gb.io.save_checkpoint(path, { part = { state_dict = function() return { a = 1 } end } })
    local part = { state_dict = function() return loop end, load_state_dict = print }
    expect(function() gb.io.load_checkpoint(path, { part = part }) end):to_fail("nested deeper than")
    os.remove(path)
  end)
end)

gb.test.finish()
