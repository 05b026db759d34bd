-- test_csv.lua - gb.data.csv against tables that pandas read, what it turns down, and where it says the fault is.

local gb = require "gibbous"
gb.set_default_device("cpu") -- datasets lie in host memory
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
local goldens = dofile("tests/lua/goldens.lua")
local csv = gb.data.csv

local path = os.tmpname()

local function write(text)
  local file <close> = assert(io.open(path, "wb"))
  assert(file:write(text))
end

-- The dataset of a table of this text.
local function read(text, options)
  write(text)
  return csv(path, options)
end

-- The samples of a dataset as one batch, by the name of the tensor.
local function samples_of(dataset)
  local batch, there = {}, {}
  for _, column in ipairs(dataset:columns()) do there[column.tensor or ""] = true end
  local list = table.pack(gb.data.DataLoader(dataset, { batch_size = #dataset }):iter()())
  for _, name in ipairs { "x", "ids", "y" } do
    if there[name] then batch[name] = table.remove(list, 1) end
  end
  expect(#list):to_be(0)
  return batch
end

describe("a table as pandas reads it", function()
  for _, row in ipairs(goldens.read("data", { "csv" })) do
    it(row.name, function()
      local options = {}
      for name, value in pairs(row.options) do options[name] = value end
      if row.fitted then options.fitted = read(row.fitted, row.fitted_options) end
      local dataset = read(row.text, options)
      local got, columns = samples_of(dataset), dataset:columns()
      for _, name in ipairs { "x", "ids", "y" } do
        local want = row.tensors[name] and goldens.tensor(row.tensors[name])
        expect(got[name] ~= nil):to_be(want ~= nil)
        if want then
          expect(got[name].dtype):to_be(want.dtype)
          expect(table.concat(got[name].shape, "x")):to_be(table.concat(want.shape, "x"))
          expect(got[name]):to_be_close(want, name == "ids" and 0 or 1e-6)
        end
      end
      expect(#columns):to_be(#row.columns)
      for i, want in ipairs(row.columns) do
        local column = columns[i]
        expect(column.name):to_be(want.name)
        expect(column.kind):to_be(want.kind)
        expect(column.missing):to_be(want.missing)
        if want.kind == "number" then
          expect(column.mean):to_be_near(want.mean, 1e-12)
          expect(column.std):to_be_near(want.std, 1e-12)
        else
          expect(gb.io.json_encode(column.categories)):to_be(gb.io.json_encode(want.categories))
          if column.tensor then expect(column.unseen):to_be(want.unseen) end
        end
      end
    end)
  end
end)

describe("a dataset of a table", function()
  it("is shuffled, split and read ahead as any other", function()
    local lines = { "n,y" }
    for i = 1, 100 do lines[i + 1] = ("%d,%d"):format(i, 2 * i) end
    local dataset = read(table.concat(lines, "\n"), { target = "y" })
    local sum, batches = 0, 0
    for x, y in gb.data.DataLoader(dataset:subset(51, 100), { batch_size = 8, shuffle = true, seed = 3 }):iter() do
      expect(gb.io.json_encode((x:squeeze(2) * 2):tolist())):to_be(gb.io.json_encode(y:tolist()))
      sum, batches = sum + y:sum():item(), batches + 1
    end
    expect(batches):to_be(7)
    expect(sum):to_be(2.0 * (51 + 100) * 25)
  end)
  it("tells of its columns when it is a part, and after the one that it was fitted to was closed", function()
    local train = read("a,b\n1,u\n3,v\n")
    local part = train:subset(1, 1):subset(1, 1)
    expect(part:columns()[1].mean):to_be(2.0)
    local test = read("a,b\n,w\n5,v\n", { fitted = part })
    local again = read("a,b\n,u\n", { fitted = test })
    train:close()
    part:close()
    test:close()
    collectgarbage()
    collectgarbage()
    expect(table.concat(again:columns()[2].categories, " ")):to_be("u v")
    expect(again:columns()[1].missing):to_be(1)
    local x, ids = again:get(1)
    expect(x[1]:item()):to_be(2.0)
    expect(ids[1]:item()):to_be(0)
  end)
  it("has no columns to tell of where it is of another kind", function()
    expect(#gb.data.TensorDataset(gb.ones(2)):columns()):to_be(0)
  end)
  it("trains: numbers through a layer, ids through an embedding", function()
    gb.manual_seed(1)
    local lines = { "kind,size,price" }
    for i = 1, 200 do lines[i + 1] = ("%s,%d,%g"):format(i % 2 == 0 and "flat" or "house", i, i * 0.01 + (i % 2)) end
    local dataset = read(table.concat(lines, "\r\n"), { target = "price", standardize = true })
    local emb, linear = gb.nn.Embedding(3, 1), gb.nn.Linear(1, 1)
    local model = gb.nn.ModuleList { emb, linear }
    local opt, loss = gb.optim.Adam(model:parameters(), { lr = 0.05 }), nil
    for _ = 1, 40 do
      for x, ids, y in gb.data.DataLoader(dataset, { batch_size = 50, shuffle = true }):iter() do
        loss = ((linear(x) + emb(ids:squeeze(2))):squeeze(2) - y):square():mean()
        opt:zero_grad()
        loss:backward()
        opt:step()
      end
    end
    assert(loss:item() < 0.01, loss:item())
  end)
end)

describe("a table with a fault", function()
  local function fails(text, options, ...)
    local said = { ... }
    local ok, why = pcall(read, text, options)
    if ok then error("it was read: " .. text) end
    for _, part in ipairs(said) do
      if not tostring(why):find(part, 1, true) then error(("'%s' is not in: %s"):format(part, why)) end
    end
  end
  it("is named by file, line, column and cure", function()
    fails("a,b\n1,2\n3\n", nil, path, "line 3", "1 fields, but line 1 has 2", "separator")
    fails("a,b\n\"x\ny\",2\n\n3,4,5\n", nil, "line 5", "3 fields")
    fails("a,b\n1,\"2\n3,4\n", nil, "line 2", "not closed", "quotes = false")
    fails("a,b\n1,\"2\" 3\n", nil, "line 2", "behind a closing quote")
    fails("a,b\n1,2\"\n", nil, "line 2", "does not begin with one")
    fails("a,b\n1,2\0\n", nil, "line 2", "zero byte")
    fails("a,b\n1," .. ("x"):rep(70000) .. "\n", nil, "line 2", "65536 bytes")
    fails("a,b\n1,\"" .. ("x\n"):rep(40000), nil, "line 2", "not closed")
    fails("a,b\n1,x\n2,3\n", { columns = { b = "number" } }, "line 2", "column 2 ('b')", "'x' is no number", "markers")
    fails("a,b\n1,2\n2,1e39\n", nil, "line 3", "column 2 ('b')", "not finite", "markers")
    fails("a,b\n1,2\n2,\n-inf,4\n", nil, "line 4", "column 1 ('a')", "'-inf' is not finite")
    fails("a,b\n,2\ninf,4\n", nil, "line 3", "'inf' is not finite")
    fails("a,b\n1,2\n,4\n", { target = "a" }, "line 3", "column 1 ('a')", "target is missing")
    fails("a,b\n1,x\n2,\n", { missing = "error" }, "line 3", "column 2 ('b')", "value is missing", "fill")
    fails("a,b\n1,\n2,\n", nil, "column 2 ('b')", "no value", "skip")
    fails("a,a\n1,2\n", nil, "columns 1 and 2", "names")
    fails("", nil, "is empty")
    fails("\r\n\n", nil, "is empty")
    fails("\239\187\191", nil, "is empty")
    fails("a,b\n", nil, "no rows")
    fails("a\n1\n", { target = "a" }, "no column beside the target")
  end)
  it("does not fit what it is fitted to", function()
    local train = read("a,b,c\n1,u,0\n2,v,1\n", { target = "b" })
    fails("b,c\nu,1\n", { fitted = train }, "no column 'a'")
    fails("a,b,c\nx,u,1\n", { fitted = train }, "line 2", "column 1 ('a')", "the fitted data has numbers")
    fails("a,b,c\n1,w,1\n", { fitted = train }, "line 2", "column 2 ('b')", "none of the 2 categories")
    fails("a,b,c\n1,u,1\n", { fitted = train, target = "a" }, "'target' comes with 'fitted'")
    fails("a,b,c\n1,u,1\n", { fitted = train, standardize = false }, "'standardize' comes with 'fitted'")
    fails("a,b,c\n1,u,1\n", { fitted = gb.data.TensorDataset(gb.ones(1)) }, "a dataset of gb.data.csv")
    fails("a\n1\n", { fitted = 5 }, "'fitted' must be a dataset")
  end)
  it("does not leave float32 by what it is fitted to", function()
    local train = read("a\n0\n1e-30\n", { standardize = true })
    fails("a\n1\n1e30\n", { fitted = train }, "line 3", "'1e30' is not finite")
  end)
  it("is asked for what it does not have", function()
    local text = "a,b\n1,x\n"
    fails(text, { target = "c" }, "'target' names 'c'", "2")
    fails(text, { target = "a\0" }, "'target' names")
    for _, position in ipairs { 0, 3, -3, math.mininteger, math.maxinteger } do
      fails(text, { target = position }, "counted from 1")
    end
    fails(text, { target = 1.5 }, "'target' must be a string or an integer")
    fails(text, { target = "a", columns = { a = "skip" } }, "leaves it out")
    fails(text, { columns = { a = "float" } }, '"number", "category" or "skip"', "float")
    fails(text, { columns = { a = {} } }, '"number", "category" or "skip"')
    fails(text, { columns = { [1.5] = "skip" } }, "names or positions")
    fails(text, { columns = { c = "skip" } }, "'columns' names 'c'")
    fails(text, { columns = { "skip", "skip" } }, "no column beside")
    fails(text, { columns = { gb.ones(1) } }, "no string")
    fails(text, { names = { "a" } }, "1 names")
    fails(text, { names = { "a", 5 } }, "list of strings")
    fails(text, { names = { "a", "a" } }, "columns 1 and 2")
    fails(text, { markers = { 5 } }, "list of strings")
    for _, separator in ipairs { "", ",,", "\n", "\"", "\0" } do
      fails(text, { separator = separator }, "'separator' is one byte")
    end
    fails(text, { seperator = ";" }, "did you mean 'separator'?")
    fails(text, { missing = "drop" }, "'fill' or 'error'")
    expect(function() csv("/nowhere/at.csv") end):to_fail("/nowhere/at.csv")
    expect(function() csv() end):to_fail("path")
  end)
  it("is not read through what options pretend to be", function()
    local function through() error("read through") end
    local touched = setmetatable({}, { __index = through, __len = function() return 3 end, __pairs = through })
    expect(#read("a\n1\n", { columns = touched, markers = touched })):to_be(1)
    local weak = setmetatable({ a = "category" }, { __mode = "kv" })
    expect(read("a\n1\n", { columns = weak }):columns()[1].kind):to_be("category")
    local closing = read("a\n1\n")
    closing:close()
    fails("a\n1\n", { fitted = closing }, "closed")
    for count = 1, 12 do -- at each step of the call
      local train, steps = read("a\n1\n"), 0
      debug.sethook(function()
        steps = steps + 1
        if steps == count then train:close() end
      end, "", 1)
      local ok, why = pcall(csv, path, { fitted = train })
      debug.sethook()
      assert(ok or tostring(why):find("closed", 1, true), why)
    end
  end)
end)

os.remove(path)
gb.test.finish()
