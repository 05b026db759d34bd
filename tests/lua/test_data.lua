-- test_data.lua - datasets and the loader, on small files written here: what a batch holds is a function of (dataset,
-- options, epoch, batch).

local gb = require "gibbous"
gb.set_default_device("cpu") -- datasets and what the loader gives without a device lie in host memory
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
local data = gb.data

local function temporary(content)
  local path = os.tmpname()
  local f = assert(io.open(path, "wb"))
  f:write(content)
  f:close()
  return path
end

-- An idx file of uint8: 0 0 8 ndim, sizes as big-endian int32, bytes.
local function idx_file(sizes, bytes)
  local head = { string.char(0, 0, 8, #sizes) }
  for i, size in ipairs(sizes) do head[i + 1] = string.pack(">I4", size) end
  return temporary(table.concat(head) .. bytes)
end

local function all_of(loader, options)
  local batches = {}
  for x, y in loader:iter(nil, options) do batches[#batches + 1] = { x, y } end
  return batches
end

local function expect_list(t, list) expect(gb.io.json_encode(t:tolist())):to_be(gb.io.json_encode(list)) end

describe("idx files", function()
  local pixels = {}
  for i = 0, 5 * 2 * 3 - 1 do pixels[#pixels + 1] = string.char(i * 8) end
  local images, labels = idx_file({ 5, 2, 3 }, table.concat(pixels)), idx_file({ 5 }, "\3\1\4\1\5")
  it("images in 0 .. 1, one channel, labels int64", function()
    local set = data.idx(images, labels)
    expect(#set):to_be(5)
    local x, y = set:get(2)
    expect(x):to_have_shape(1, 2, 3)
    expect(x.dtype):to_be("float32")
    expect(x):to_be_close({ 48 / 255, 56 / 255, 64 / 255, 72 / 255, 80 / 255, 88 / 255 }, 1e-6)
    expect(y.dtype):to_be("int64")
    expect(y:item()):to_be(1)
    local _, last = set:get(-1)
    expect(last:item()):to_be(5)
  end)
  it("normalised by mean and std", function()
    local x = data.idx(images, labels, { mean = 0.5, std = 0.25 }):get(1)
    expect(x[{ 1, 1, 1 }]:item()):to_be_near(-2, 1e-6)
    expect(function() data.idx(images, labels, { std = 0 }) end):to_fail("std")
    expect(function() data.idx(images, labels, { meen = 0 }) end):to_fail("mean")
  end)
  it("images alone", function()
    local x, y = data.idx(images):get(1)
    expect(x):to_have_shape(1, 2, 3)
    expect(y):to_be(nil)
  end)
  it("gzipped", function()
    local zipped = os.tmpname() .. ".gz"
    if os.execute(("gzip -c '%s' > '%s' 2>/dev/null"):format(images, zipped)) then
      expect_list(data.idx(zipped):get(3), data.idx(images):get(3):tolist())
    end
    os.remove(zipped)
  end)
  it("what is wrong is said", function()
    local set = data.idx(images, labels)
    expect(function() set:get(0) end):to_fail("count from 1")
    expect(function() set:get(6) end):to_fail("6")
    expect(function() set:get(-6) end):to_fail("-6")
    expect(function() set:get("a") end):to_fail("get")
    expect(function() data.idx("/nowhere/at/all") end):to_fail("/nowhere/at/all")
    expect(function() data.idx() end):to_fail("images")
    expect(function() data.idx(images, idx_file({ 4 }, "\1\2\3\4")) end):to_fail("4")
    for _, content in ipairs { "", "\0\0\8", "\0\0\8\3\0\0\0\5", "\0\0\9\1\0\0\0\1x", "text, not idx",
      "\0\0\8\1\255\255\255\255", "\0\0\8\1\0\0\0\9abc" } do
      local path = temporary(content)
      expect(function() data.idx(path) end):to_fail(path)
    end
    expect(function() data.idx("tests") end):to_fail("it is a folder, no regular file; name a file in it")
    local pipe = os.tmpname()
    os.execute(("rm '%s' && mkfifo '%s'"):format(pipe, pipe)) -- to open one that nobody writes waits for ever
    expect(function() data.idx(pipe) end):to_fail("it is no regular file")
    os.remove(pipe)
  end)
  it("data.mnist by the standard names", function()
    expect(function() data.mnist("/nowhere") end):to_fail("t10k-images-idx3-ubyte")
    expect(function() data.mnist() end):to_fail("folder")
    expect(function() data.mnist(5) end):to_fail("folder")
  end)
  it("subsets", function()
    local set = data.idx(images, labels)
    expect(#set:subset(2, 4)):to_be(3)
    expect(select(2, set:subset(2, 4):get(1)):item()):to_be(1)
    expect(select(2, set:subset({ 5, 1, -1 }):get(3)):item()):to_be(5)
    expect(#set:subset(3, 2)):to_be(0)
    expect(function() set:subset(0, 2) end):to_fail("subset")
    expect(function() set:subset(2, 6) end):to_fail("subset")
    expect(function() set:subset({ 0 }) end):to_fail("count from 1")
    expect(function() set:subset({ 6 }) end):to_fail("sample 6")
  end)
end)

describe("text", function()
  local path = temporary("hëllo wörld")
  it("as characters, encoded and decoded", function()
    local text = data.text(path)
    expect(#text):to_be(11)
    expect(text:vocabulary_size()):to_be(9)
    expect(text:vocabulary()):to_be(" dhlorwëö") -- by code point
    local ids = text:encode("hëll")
    expect(ids.dtype):to_be("int64")
    expect(text:decode(ids)):to_be("hëll")
    expect(text:decode(text:encode(""))):to_be("")
    expect(function() text:encode("z") end):to_fail("z")
    expect(function() text:decode(gb.tensor { 100 }) end):to_fail("100")
    expect(function() text:decode(gb.tensor { -1 }) end):to_fail("-1")
  end)
  it("as bytes", function()
    local text = data.text(path, { kind = "bytes" })
    expect(#text):to_be(13)
    expect(text:vocabulary_size()):to_be(256)
    expect(text:vocabulary()):to_be(nil)
    expect_list(text:encode("AB"), { 65, 66 })
    expect(text:decode(gb.tensor { 104, 105 })):to_be("hi")
  end)
  it("with the vocabulary of another", function()
    local text = data.text(path)
    local other = data.text(temporary("world"), { vocabulary = "dlorwö" })
    expect(other:vocabulary_size()):to_be(6)
    expect(function() data.text(path, { vocabulary = "abc" }) end):to_fail("vocabulary")
    expect(text:decode(text:encode("wörld"))):to_be("wörld")
  end)
  it("split and windows", function()
    local text = data.text(temporary("abcdefghij"))
    local first, rest = text:split(0.8)
    expect(#first):to_be(8)
    expect(#rest):to_be(2)
    local windows = first:windows(3)
    expect(#windows):to_be(5)
    local x, y = windows:get(1)
    expect(text:decode(x)):to_be("abc")
    expect(text:decode(y)):to_be("bcd")
    x, y = windows:get(5)
    expect(text:decode(x)):to_be("efg")
    expect(text:decode(y)):to_be("fgh") -- and nothing of the rest
    expect(function() text:split(0) end):to_fail("share")
    expect(function() text:split(1.5) end):to_fail("share")
    expect(function() text:windows(0) end):to_fail("block")
    expect(function() rest:windows(5) end):to_fail("block")
    expect(function() text:windows("a") end):to_fail("block")
  end)
  it("what is no text is an error", function()
    expect(function() data.text("/nowhere/at/all") end):to_fail("/nowhere/at/all")
    expect(function() data.text(temporary("\xff\xfe")) end):to_fail("UTF-8")
    expect(function() data.text(path, { kind = "words" }) end):to_fail("words")
    expect(function() data.text(path, { knd = "bytes" }) end):to_fail("kind")
  end)
end)

describe("token files", function()
  local path = temporary(string.pack("<I2I2I2I2I2", 7, 50256, 0, 300, 65535))
  it("of each width", function()
    local tokens = data.tokens(path)
    expect(#tokens):to_be(5)
    local x, y = tokens:windows(4):get(1)
    expect(x.dtype):to_be("int64")
    expect_list(x, { 7, 50256, 0, 300 })
    expect_list(y, { 50256, 0, 300, 65535 })
    expect_list(data.tokens(temporary("\1\2\255"), { dtype = "uint8" }):windows(2):get(1), { 1, 2 })
    expect_list(data.tokens(temporary(string.pack("<i4i4", 70000, -1)), { dtype = "int32" }):windows(1):get(1),
      { 70000 })
  end)
  it("with the header of llm.c", function()
    local head = string.pack("<i4i4i4", 20240520, 1, 3) .. ("\0"):rep(1012)
    expect_list(data.tokens(temporary(head .. string.pack("<I2I2I2", 5, 6, 7))):windows(2):get(1), { 5, 6 })
    expect(function() data.tokens(temporary(head .. "\0\0")) end):to_fail("3 ids")
  end)
  it("in parts", function()
    local first, rest = data.tokens(path):split(0.6)
    expect(#first):to_be(3)
    expect_list(select(2, rest:windows(1):get(-1)), { 65535 })
    expect(function() rest:windows(2) end):to_fail("too few")
  end)
  it("through a loader", function()
    local ids = {}
    for i = 1, 100 do ids[i] = string.pack("<I2", i) end
    for x, y in data.DataLoader(data.tokens(temporary(table.concat(ids))):windows(8),
      { batch_size = 16, batches = 5, seed = 1 }):iter() do
      expect(x):to_have_shape(16, 8)
      expect((y - x):eq(1):all():item()):to_be(true)
    end
  end)
  -- A hole of 5 GB takes no room on the disk; where a file system has no holes, nothing is shown
  it("of any size, in memory that does not grow with it", function()
    local function most_memory()
      for line in io.lines("/proc/self/status") do
        local kilobytes = line:match("^VmHWM:%s*(%d+)")
        if kilobytes then return tonumber(kilobytes) << 10 end
      end
    end
    local function read(size)
      local huge_file = os.tmpname()
      local f = assert(io.open(huge_file, "wb"))
      f:seek("set", size - 1)
      f:write("\7")
      f:close()
      local windows = data.tokens(huge_file, { dtype = "uint8" }):windows(512)
      local loader = data.DataLoader(windows, { batch_size = 16, batches = 40, seed = 1 })
      for x in loader:iter() do expect(x):to_have_shape(16, 512) end
      expect(#windows):to_be(size - 512)
      expect(select(2, windows:get(-1))[-1]:item()):to_be(7)
      os.remove(huge_file)
    end
    if not most_memory() then return end
    read(1 << 20)
    local before = most_memory()
    read(5 << 30)
    expect(most_memory() - before < 64 << 20):to_be(true)
  end)
  it("that became shorter is an error of the batch, with file, place and cure", function()
    for _, workers in ipairs { 0, 2 } do
      local cut_file = temporary(("ab"):rep(5000))
      local loader = data.DataLoader(data.tokens(cut_file):windows(10), { batch_size = 100, workers = workers,
        prefetch = 0 })
      local source = loader:iter()
      expect(source()):to_have_shape(100, 10)
      local f = assert(io.open(cut_file, "wb"))
      f:write(("ab"):rep(700))
      f:close()
      local function rest() for _ in source do end end
      expect(rest):to_fail(cut_file .. "' ends at byte 1400")
      expect(rest):to_fail("of the 5000 that it had when it was opened; write it whole, and open it again")
      os.remove(cut_file)
    end
  end)
  it("what is none is an error", function()
    expect(function() data.tokens("/nowhere/at/all") end):to_fail("/nowhere/at/all")
    expect(function() data.tokens(path, { dtype = "float32" }) end):to_fail("float32")
    expect(function() data.tokens(path, { dtyp = "uint8" }) end):to_fail("dtype")
    expect(function() data.tokens(temporary("abc")) end):to_fail("3 bytes")
    expect(function() data.tokens(path):encode("a") end):to_fail("encode")
  end)
end)

describe("TensorDataset", function()
  it("gives rows, and holds its tensors", function()
    local set = data.TensorDataset(gb.arange(6):reshape(3, 2), gb.tensor { 7.0, 8.0, 9.0 })
    collectgarbage()
    expect(#set):to_be(3)
    local x, y = set:get(2)
    expect_list(x, { 2, 3 })
    expect(y:item()):to_be(8.0)
    expect_list(data.TensorDataset(gb.arange(6):reshape(2, 3):t()):get(2), { 1, 4 })
    expect(function() data.TensorDataset() end):to_fail("TensorDataset")
    expect(function() data.TensorDataset(5) end):to_fail("tensor")
    expect(function() data.TensorDataset(gb.ones(2), gb.ones(3)) end):to_fail("3")
    expect(function() data.TensorDataset(gb.tensor(1)) end):to_fail("dim")
    expect(function() data.TensorDataset(gb.ones(1), gb.ones(1), gb.ones(1), gb.ones(1), gb.ones(1)) end):to_fail("4")
  end)
end)

-- A dataset in Lua with the same samples as a native one.
local function lua_dataset(n)
  return setmetatable({ get = function(_, i) return gb.tensor { i, i * i }, i end },
    { __len = function() return n end })
end
local function native_dataset(n)
  local i = gb.arange(1, n + 1)
  return data.TensorDataset(gb.stack({ i, i * i }, 2), i)
end

for name, make in pairs { native = native_dataset, lua = lua_dataset } do
  describe("DataLoader over a " .. name .. " dataset", function()
    it("batches in order; the last one may be short", function()
      local batches = all_of(data.DataLoader(make(7), { batch_size = 3 }))
      expect(#batches):to_be(3)
      expect_list(batches[1][1], { { 1, 1 }, { 2, 4 }, { 3, 9 } })
      expect_list(batches[3][2], { 7 })
      local loader = data.DataLoader(make(7), { batch_size = 3, drop_last = true })
      expect(#loader):to_be(2)
      expect(#all_of(loader)):to_be(2)
      expect(#data.DataLoader(make(7), { batch_size = 3 })):to_be(3)
      expect(#all_of(data.DataLoader(make(2), { batch_size = 5 }))):to_be(1)
      expect(#all_of(data.DataLoader(make(2)))):to_be(2)
    end)
    it("shuffles by (seed, epoch): again the same, and each epoch another", function()
      local function epochs(seed)
        local loader, list = data.DataLoader(make(20), { batch_size = 20, shuffle = true, seed = seed }), {}
        for e = 1, 3 do list[e] = all_of(loader)[1][2] end
        return list
      end
      local a, b, c = epochs(1), epochs(1), epochs(2)
      for e = 1, 3 do
        expect(a[e]):to_equal_bits(b[e])
        expect((a[e]:sort())):to_be_close(gb.arange(1, 21))
      end
      expect(a[1]:eq(a[2]):all():item()):to_be(false)
      expect(a[1]:eq(c[1]):all():item()):to_be(false)
    end)
    it("resumes in the middle of a shuffled epoch", function()
      local function new() return data.DataLoader(make(23), { batch_size = 4, shuffle = true, seed = 5 }) end
      local whole = new()
      all_of(whole)
      local rest, state = {}, nil
      local count = 0
      for _, y in whole:iter() do
        count = count + 1
        if count == 2 then state = whole:state_dict() end
        if count > 2 then rest[#rest + 1] = y end
      end
      local other = new()
      other:load_state_dict(gb.io.json_decode(gb.io.json_encode(state)))
      local again = all_of(other)
      expect(#again):to_be(#rest)
      for i, y in ipairs(rest) do expect(again[i][2]):to_equal_bits(y) end
      expect(all_of(other)[1][2]):to_equal_bits(all_of(whole)[1][2]) -- the epoch after it, too
    end)
    it("takes its seed from gb where none is given", function()
      local function first(seed)
        gb.manual_seed(seed)
        return all_of(data.DataLoader(make(30), { batch_size = 30, shuffle = true }))[1][2]
      end
      expect(first(3)):to_equal_bits(first(3))
      expect(first(3):eq(first(4)):all():item()):to_be(false)
    end)
    it("moves batches to a device", function()
      for x in data.DataLoader(make(3), { batch_size = 3 }):iter("cpu") do expect(x.device):to_be("cpu") end
      expect(function()
        for _ in data.DataLoader(make(3)):iter("cuda:7") do end -- luacheck: ignore
      end):to_fail("cuda:7")
      for x in data.DataLoader(make(3)):iter(gb.best_device()) do
        expect(x.device):to_be(gb.device(gb.best_device()))
      end
    end)
    it("a loop that was left begins again at the first batch, or goes on where it stood when asked", function()
      local loader = data.DataLoader(make(6), { batch_size = 2 })
      for _, y in loader:iter() do
        expect_list(y, { 1, 2 })
        break
      end
      expect(loader:state_dict().batch):to_be(1)
      local left = all_of(loader, { resume = true })
      expect(#left):to_be(2)
      expect_list(left[1][2], { 3, 4 })
      loader:iter()()
      expect(#all_of(loader)):to_be(3)
    end)
    it("a shuffled loop that was left is followed by the next epoch's order", function()
      local function orders(leave)
        local loader = data.DataLoader(make(20), { batch_size = 20, shuffle = true, seed = 3 })
        local list = {}
        for i = 1, 3 do
          for _, y in loader:iter() do
            list[i] = table.concat(y:tolist(), " ")
            if leave then break end
          end
        end
        return list
      end
      local whole, left = orders(false), orders(true)
      for i = 1, 3 do expect(left[i]):to_be(whole[i]) end
      expect(whole[1] ~= whole[2]):to_be(true)
    end)
    it("is looped over by iter alone", function()
      local loader = data.DataLoader(make(6), { batch_size = 2 })
      expect(function() for _ in ipairs(loader) do end end):to_fail("loader:iter()") -- luacheck: ignore
      expect(function() for _ in pairs(loader) do end end):to_fail("loader:iter()") -- luacheck: ignore
      expect(tostring(loader)):to_be("DataLoader (3 batches of 2)")
    end)
    it("refuses a place that is none, and stays where it stood", function()
      local loader = data.DataLoader(make(6), { batch_size = 2 })
      loader:iter()()
      local function at(epoch, batch) return function() loader:load_state_dict { epoch = epoch, batch = batch,
        seed = "7" } end end
      expect(at(0, 4)):to_fail("no batch 4 of epoch 0, an epoch has 3 batches")
      expect(at(0, -1)):to_fail("no batch -1")
      expect(at(-1, 0)):to_fail("epoch -1")
      expect(at(0, 1.5)):to_fail("state_dict")
      expect(loader:state_dict().batch):to_be(1)
      expect(loader:state_dict().seed ~= "7"):to_be(true)
      expect_list(all_of(loader, { resume = true })[1][2], { 3, 4 })
      at(2, 3)() -- behind the last batch is a place: the end of the epoch
      expect(#all_of(loader)):to_be(0)
      expect(#all_of(loader)):to_be(3)
    end)
    it("has one place to stand: a second loop stops the first with an error", function()
      local loader = data.DataLoader(make(6), { batch_size = 2 })
      expect(function()
        for _ in loader:iter() do
          for _ in loader:iter() do end -- luacheck: ignore
        end
      end):to_fail("give each loop a DataLoader of its own")
      expect(#all_of(loader)):to_be(3) -- the inner loop ended an epoch; the next one is whole
      local count = 0
      for _ in data.DataLoader(make(6), { batch_size = 2 }):iter() do
        for _ in data.DataLoader(make(6), { batch_size = 2 }):iter() do count = count + 1 end
      end
      expect(count):to_be(9)
    end)
  end)
end

describe("DataLoader", function()
  -- tests/cuda_on_cpu/test_runtime.lua has what it does with a device
  it("takes pin_memory with every device, for native datasets", function()
    local set = data.TensorDataset(gb.arange(10))
    local plain = all_of(data.DataLoader(set, { batch_size = 3, shuffle = true, seed = 2 }))
    local loader = data.DataLoader(set, { batch_size = 3, shuffle = true, seed = 2, pin_memory = true })
    for i, batch in ipairs(all_of(loader)) do expect(batch[1]):to_equal_bits(plain[i][1]) end
    local has_cuda = gb.cuda.is_available()
    expect(tostring(loader):find("page-locked", 1, true) ~= nil):to_be(has_cuda)
    expect(function() data.DataLoader(data.Dataset(3, function(i) return i end), { pin_memory = true }) end)
      :to_fail("pin_memory is for native datasets")
  end)
  it("native and Lua datasets are shuffled alike", function()
    local a = all_of(data.DataLoader(native_dataset(50), { batch_size = 7, shuffle = true, seed = 9 }))
    local b = all_of(data.DataLoader(lua_dataset(50), { batch_size = 7, shuffle = true, seed = 9 }))
    for i = 1, #a do expect_list(a[i][2], b[i][2]:tolist()) end
  end)
  it("prefetching changes nothing", function()
    local lists = {}
    for i, prefetch in ipairs { 0, 1, 8 } do
      lists[i] = {}
      for _,
        batch in ipairs(all_of(data.DataLoader(native_dataset(40),
        { batch_size = 3, shuffle = true, seed = 2, prefetch = prefetch }))) do
        lists[i][#lists[i] + 1] = gb.io.json_encode(batch[2]:tolist())
      end
    end
    expect(table.concat(lists[2])):to_be(table.concat(lists[1]))
    expect(table.concat(lists[3])):to_be(table.concat(lists[1]))
  end)
  it("batches: so many random ones make an epoch", function()
    local loader = data.DataLoader(native_dataset(5), { batch_size = 4, batches = 10, seed = 1 })
    expect(#loader):to_be(10)
    local list = all_of(loader)
    expect(#list):to_be(10)
    for _, batch in ipairs(list) do expect(batch[1]):to_have_shape(4, 2) end
  end)
  it("a batch lives on when the loader is gone", function()
    local x = all_of(data.DataLoader(native_dataset(4), { batch_size = 2 }))[1][1]
    collectgarbage()
    collectgarbage()
    for _ = 1, 10 do all_of(data.DataLoader(native_dataset(4), { batch_size = 2 })) end
    expect_list(x, { { 1, 1 }, { 2, 4 } })
  end)
  it("an error in a Lua dataset reaches the recipe", function()
    local bad = setmetatable({ get = function(_, i) if i == 3 then error("sample 3 is bad") end return i end },
      { __len = function() return 5 end })
    expect(function() all_of(data.DataLoader(bad)) end):to_fail("sample 3 is bad")
  end)
  it("refuses what it does not know", function()
    local set = native_dataset(3)
    expect(function() data.DataLoader(set, { batchsize = 3 }) end):to_fail("batch_size")
    expect(function() data.DataLoader(set, { batch_size = 0 }) end):to_fail("batch_size")
    expect(function() data.DataLoader(set, { batch_size = 1.5 }) end):to_fail("batch_size")
    expect(function() data.DataLoader(set, { batch_size = "3" }) end):to_fail("batch_size")
    expect(function() data.DataLoader(set, { workers = 400 }) end):to_fail("workers is 0 .. 64")
    expect(function() data.DataLoader(set, { shuffle = 1 }) end):to_fail("shuffle")
    expect(function() data.DataLoader(set, { prefetch = -1 }) end):to_fail("prefetch")
    expect(function() data.DataLoader({}) end):to_fail("dataset")
    expect(function() data.DataLoader() end):to_fail("dataset")
    expect(function() data.DataLoader(5) end):to_fail("dataset")
    expect(function() data.DataLoader(gb.ones(3)) end):to_fail("dataset")
    expect(function() data.DataLoader(set, 5) end):to_fail("DataLoader")
    expect(function() data.DataLoader(lua_dataset(3), { batches = 3 }) end):to_fail("batches")
  end)
end)

gb.test.finish()
