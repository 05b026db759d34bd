-- test_io.lua - files: safetensors round trips of every dtype and layout, checkpoints that go on with the same bits,
-- and files that are cut short, changed or made by somebody else.

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
local nn, optim, amp, data, F = gb.nn, gb.optim, gb.amp, gb.data, gb.nn.functional

local dtypes = { "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool" }

local function read(path)
  local f = assert(io.open(path, "rb"))
  local bytes = f:read("a")
  f:close()
  return bytes
end

local function write(path, bytes)
  local f = assert(io.open(path, "wb"))
  f:write(bytes)
  f:close()
end

local path = os.tmpname()

describe("gb.save and gb.load", function()
  it("every dtype, shapes of all kinds, the same bits", function()
    gb.manual_seed(1)
    local tensors = {}
    for _, dtype in ipairs(dtypes) do
      tensors[dtype] = gb.randn(3, 5):mul(40):to(dtype)
      tensors[dtype .. ".scalar"] = gb.tensor(3, { dtype = dtype })
      tensors[dtype .. ".empty"] = gb.zeros(0, 4, { dtype = dtype })
      tensors[dtype .. ".strided"] = gb.randn(6, 4):mul(9):to(dtype):t()[{ { 1, -1, 2 }, { 2, 5 } }]
      tensors[dtype .. ".expanded"] = gb.ones(1, 3, { dtype = dtype }):expand(2, 3)
    end
    tensors["näme with \"quotes\" \\ and\nlines"] = gb.ones(2)
    gb.save(path, tensors)
    local loaded = gb.load(path)
    local count = 0
    for name, t in pairs(loaded) do
      count = count + 1
      expect(t):to_equal_bits(tensors[name])
    end
    expect(count):to_be(5 * #dtypes + 1)
  end)
  it("keeps NaN, infinities and subnormals", function()
    local odd = gb.tensor({ 0 / 0, math.huge, -math.huge, -0.0, 1e-45, 2 ^ -24 })
    gb.save(path, { a = odd, b = odd:half(), c = odd:bfloat16() })
    local loaded = gb.load(path)
    expect(loaded.a):to_equal_bits(odd)
    expect(loaded.b):to_equal_bits(odd:half())
    expect(loaded.c):to_equal_bits(odd:bfloat16())
  end)
  it("metadata", function()
    gb.save(path, { x = gb.ones(1) }, { metadata = { author = "nobody", note = "a \"b\" c" } })
    local _, metadata = gb.load(path)
    expect(metadata.author):to_be("nobody")
    expect(metadata.note):to_be("a \"b\" c")
  end)
  it("nothing at all", function()
    gb.save(path, {})
    expect(next((gb.load(path)))):to_be(nil)
  end)
  it("the same tensors give the same file", function()
    local t = { b = gb.ones(2), a = gb.zeros(3), c = gb.arange(4) }
    gb.save(path, t)
    local first = read(path)
    gb.save(path, { c = t.c, a = t.a, b = t.b })
    expect(read(path)):to_be(first)
  end)
  it("a tensor that requires gradients is saved as its values", function()
    local x = gb.ones(2, { requires_grad = true })
    gb.save(path, { x = x, y = x * 2 })
    local loaded = gb.load(path)
    expect(loaded.x.requires_grad):to_be(false)
    expect(loaded.y):to_be_close({ 2, 2 })
  end)
  it("refuses what it cannot save, and leaves the old file whole", function()
    gb.save(path, { x = gb.ones(1) })
    local before = read(path)
    expect(function() gb.save(path, { x = 5 }) end):to_fail("tensors by name")
    expect(function() gb.save(path, { gb.ones(1) }) end):to_fail("tensors by name")
    expect(function() gb.save(path) end):to_fail("save")
    expect(function() gb.save(path, gb.ones(1)) end):to_fail("save")
    expect(function() gb.save(nil, {}) end):to_fail("'path' is missing")
    expect(function() gb.save(path, { x = gb.ones(1) }, { metadata = { a = 5 } }) end):to_fail("metadata")
    expect(function() gb.save(path, { x = gb.ones(1) }, { metdata = { a = "b" } }) end):to_fail("metadata")
    expect(function() gb.save("/nowhere/at/all/x.safetensors", { x = gb.ones(1) }) end):to_fail("/nowhere/at/all")
    expect(function() gb.load("/nowhere/at/all") end):to_fail("/nowhere/at/all")
    expect(function() gb.load() end):to_fail("'path' is missing")
    expect(read(path)):to_be(before)
  end)
end)

-- A safetensors file from its header and the bytes behind it.
local function file_of(header, bytes) write(path, string.pack("<I8", #header) .. header .. bytes) end

describe("files that are not right", function()
  it("cut short anywhere are errors", function()
    gb.save(path, { x = gb.randn(4, 4), y = gb.arange(5) }, { metadata = { a = "b" } })
    local whole = read(path)
    for length = 0, #whole - 1, 3 do
      write(path, whole:sub(1, length))
      expect(function() gb.load(path) end):to_fail(path)
    end
    write(path, whole .. "x")
    expect(function() gb.load(path) end):to_fail(path)
  end)
  it("headers that lie are errors", function()
    local four = ("\0"):rep(16)
    local function x(dtype, shape, from,
      to) return ('{"x":{"dtype":"%s","shape":%s,"data_offsets":[%s,%s]}}'):format(dtype, shape, from, to) end
    file_of(x("F32", "[4]", 0, 16), four)
    expect(gb.load(path).x):to_have_shape(4)
    for _, header in ipairs {
      x("F31", "[4]", 0, 16), x("F8_E4M3", "[16]", 0, 16), x("F32", "[5]", 0, 16), x("F32", "[4]", 0, 15),
        x("F32", "[4]", 0, 20), x("F32", "[4]", 16, 0),
      x("F32", "[-4]", 0, 16), x("F32", "[4.5]", 0, 16), x("F32", "4", 0, 16), x("F32", "[4]", -1, 15),
        x("F32", "[4294967296,4294967296]", 0, 16),
      x("F32", "[1,1,1,1,1,1,1,1,4]", 0, 16), x("F32", "[9223372036854775807,4]", 0, 16), '{"x":5}', '{"x":{}}', "[]",
        "{", "", "null", '{"x":{"dtype":"F32","shape":[4]}}',
      '{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"y":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}',
      '{"__metadata__":{"a":5},"x":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}',
      '{"x":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},"x":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}',
    } do
      file_of(header, four)
      local ok, why = pcall(gb.load, path)
      if ok then error("accepted: " .. header) end
      expect(type(why)):to_be("string")
    end
    write(path, "\255\255\255\255\255\255\255\127{}")
    expect(function() gb.load(path) end):to_fail(path)
  end)
  it("random changes of a file never crash", function()
    gb.save(path, { x = gb.randn(3), y = gb.arange(2) })
    local whole = read(path)
    math.randomseed(1)
    for _ = 1, 400 do
      local at = math.random(#whole)
      write(path, whole:sub(1, at - 1) .. string.char(math.random(0, 255)) .. whole:sub(at + 1))
      local ok, why = pcall(gb.load, path)
      if not ok then expect(type(why)):to_be("string") end
    end
  end)
end)

describe("tensors of dtypes that the engine does not have", function()
  local header =
    '{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"%s","shape":[2,2],"data_offsets":[4,%d]},'
    .. '"c":{"dtype":"U8","shape":[2],"data_offsets":[%d,%d]}}'
  local sizes = { U16 = 8, U32 = 16, U64 = 32, C64 = 32, F8_E4M3 = 4, F8_E5M2 = 4, F8_E8M0 = 4, F4 = 2, NEW_9 = 5 }
  local printed
  local function load_file()
    local real = print
    printed = {}
    print = function(...) printed[#printed + 1] = table.concat({ ... }, "\t") end -- luacheck: ignore
    local results = table.pack(pcall(gb.load, path))
    print = real -- luacheck: ignore
    assert(results[1], results[2])
    return table.unpack(results, 2)
  end
  it("are left out and named, the others load", function()
    for dtype, size in pairs(sizes) do
      file_of(header:format(dtype, 4 + size, 4 + size, 6 + size), string.pack("<f", 2.5) .. ("x"):rep(size) .. "\7\8")
      local tensors, metadata, left_out = load_file()
      expect(tensors.a:item()):to_be(2.5)
      expect(tensors.c:tolist()[2]):to_be(8)
      expect(rawget(tensors, "b")):to_be(nil)
      expect(next(metadata)):to_be(nil)
      expect(left_out.b.dtype):to_be(dtype)
      expect(left_out.b.shape[2]):to_be(2)
      expect(next(left_out, next(left_out))):to_be(nil)
      expect(#printed):to_be(1)
      expect(printed[1]:find("left out 1 of 3", 1, true) ~= nil and
        printed[1]:find("tensor 'b' is " .. dtype, 1, true) ~= nil):to_be(true)
      expect(function() return tensors.b end):to_fail("'b' was left out")
      expect(function() return tensors.b end):to_fail("convert it in Python")
      expect(tensors.d):to_be(nil)
    end
  end)
  it("leave nothing to say where all tensors load", function()
    gb.save(path, { x = gb.ones(1) })
    local _, _, left_out = load_file()
    expect(next(left_out)):to_be(nil)
    expect(#printed):to_be(0)
  end)
  it("are an error where nothing else is in the file, or where a checkpoint needs them", function()
    file_of('{"b":{"dtype":"U16","shape":[2],"data_offsets":[0,4]}}', "abcd")
    expect(function() gb.load(path) end):to_fail("tensor 'b' is U16")
    file_of('{"__metadata__":{"format":"gibbous-checkpoint-1","tree":"{\\"extra\\":{\\"$tensor\\":\\"b\\"}}"},'
      .. '"b":{"dtype":"U16","shape":[2],"data_offsets":[0,4]}}', "abcd")
    expect(function() gb.io.load_checkpoint(path, {}) end):to_fail("tensor b is missing")
  end)
end)

describe("files of other formats", function()
  it("are named, with the way to convert them", function()
    for first, says in pairs {
      ["PK\3\4\20\0\0\0\8\0"] = "torch.load", ["\x80\2\x8a\nl\xfc\x9cF\xf9"] = "torch.load",
        ["\x80\4\x95\0\0\0\0\0\0\0\0"] = "pickle",
      ["\x93NUMPY\1\0v\0{'descr'"] = "numpy.load", ["GGUF\3\0\0\0\0\0\0\0"] = "GGUF",
        ["\x89HDF\r\n\x1a\n\0\0"] = "h5py",
      ["\x1f\x8b\8\0\0\0\0\0\0\3"] = "gunzip", ["\x89PNG\r\n\x1a\n\0\0\0\r"] = "PNG image",
        ["\xff\xd8\xff\xe0\0\x10JFIF"] = "JPEG",
      ["\0\0\8\3\0\0\x27\x10\0\0\0\x1c"] = "gb.data.idx",
        ["version https://git-lfs.github.com/spec/v1"] = "git lfs pull",
      ["<!DOCTYPE html><html>"] = "HTML", ["PK\3\4"] = "zip",
    } do
      write(path, first .. ("\0"):rep(#first > 4 and 50 or 0))
      expect(function() gb.load(path) end):to_fail(says)
      expect(function() gb.load(path) end):to_fail(path)
      expect(function() gb.io.load_checkpoint(path, {}) end):to_fail(says)
    end
  end)
  it("but a header whose length looks like one is read", function()
    for _, length in ipairs { 0x0280, 0x8b1f } do -- a pickle's first bytes, and gzip's
      local header = '{"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'
      file_of(header .. (" "):rep(length - #header), "\5")
      expect(gb.load(path).x:item()):to_be(5)
    end
  end)
end)

describe("paths", function()
  it("with a NUL are refused wherever a path is taken", function()
    gb.save(path, { x = gb.ones(1) })
    local bad = path .. "\0.safetensors"
    local model = nn.Linear(1, 1)
    for name, attempt in pairs {
      save = function() gb.save(bad, { x = gb.zeros(1) }) end, load = function() gb.load(bad) end,
      save_checkpoint = function() gb.io.save_checkpoint(bad, { model = model }) end,
      load_checkpoint = function() gb.io.load_checkpoint(bad, { model = model }) end,
      ["data.idx"] = function() data.idx(bad) end, ["data.text"] = function() data.text(bad) end,
        ["data.tokens"] = function() data.tokens(bad) end,
      ["data.csv"] = function() data.csv(bad) end,
      args = function() gb.args({ { "log", "", "a file", writes = true } }, { "--log", bad }) end,
    } do
      expect(attempt):to_fail("NUL")
      expect(name):to_be(name)
    end
    expect(function() data.idx(path, bad) end):to_fail("NUL")
    expect(function() data.mnist(bad) end):to_fail("NUL")
    expect(function() gb.load("") end):to_fail("'path' is empty")
    expect(function() gb.load(5) end):to_fail("string")
    expect(gb.load(path).x:item()):to_be(1.0)
  end)
end)

describe("a table of tensors", function()
  it("may be weak, lie about itself, and take table.sort away", function()
    local weak = setmetatable({}, { __mode = "v", __index = error, __pairs = error, __len = error })
    for i = 1, 200 do rawset(weak, "t" .. i, gb.full({ 3 }, i)) end
    local sort = table.sort
    table.sort = function() collectgarbage() error("not mine") end -- luacheck: ignore
    pcall(gb.save, path, weak) -- what is still there when it is read is saved, or an error says that it has gone
    gb.save(path, { b = gb.ones(1), a = gb.zeros(1) })
    table.sort = sort -- luacheck: ignore
    expect(gb.load(path).b:item()):to_be(1.0)
    for round = 1, 20 do
      for i = 1, 50 do rawset(weak, "t" .. i, gb.full({ 300 }, i)) end
      setmetatable({}, { __gc = function() for key in next, weak do weak[key] = nil end end })
      if round % 2 == 0 then collectgarbage("step") end
      pcall(gb.save, path, weak, { metadata = setmetatable({ a = ("x"):rep(round * 1000) }, { __mode = "v" }) })
    end
  end)
end)

describe("a save that fails", function()
  local function no_temporary()
    local f = io.open(path .. ".tmp", "rb")
    expect(f):to_be(nil)
  end
  it("leaves the old file and no temporary one", function()
    gb.save(path, { x = gb.ones(1) })
    local before = read(path)
    local turned = gb.ones(300, 200):t()
    gb.interrupt()
    local ok, why = pcall(gb.save, path, { a = gb.empty(0), x = turned })
    gb.interrupt(false)
    expect(ok):to_be(false)
    expect(tostring(why):find("interrupted") ~= nil):to_be(true)
    no_temporary()
    expect(read(path)):to_be(before)
    expect(function() gb.save(path, { ["\xff"] = turned }) end):to_fail("UTF-8")
    no_temporary()
    expect(function() gb.io.save_checkpoint(path,
      { model = { state_dict = function() error("not now") end, load_state_dict = print } }) end):to_fail("not now")
    no_temporary()
    expect(read(path)):to_be(before)
  end)
end)

describe("JSON", function()
  it("goes there and back", function()
    for _, value in ipairs { 1, -5, 1.5, 1e300, "text \"q\" \\ \n ä \0 z", true, false, {}, { 1, 2, { 3 } },
      { a = 1, b = { c = "d" } }, math.maxinteger, math.mininteger } do
      local text = gb.io.json_encode(value)
      expect(gb.io.json_encode(gb.io.json_decode(text))):to_be(text)
    end
    expect(math.type(gb.io.json_decode("3"))):to_be("integer")
    expect(gb.io.json_decode("9007199254740993")):to_be(9007199254740993)
    expect(gb.io.json_decode('"\\u00e4\\ud83d\\ude00"')):to_be("ä😀")
  end)
  it("refuses what is none", function()
    for _, text in ipairs { "", "{", "[1,]", "{a:1}", "nul", "1 2", "'a'", "[1}", "01", "+1", '"\\x"', '"\t"', "\xff",
      ("["):rep(100000) } do
      expect(function() gb.io.json_decode(text) end):to_fail("json_decode")
    end
    expect(function() gb.io.json_encode(print) end):to_fail("json_encode")
    expect(function() gb.io.json_encode({ [1.5] = 2 }) end):to_fail("json_encode")
    expect(function() gb.io.json_decode() end):to_fail("string")
    local loop = {}
    loop.loop = loop
    expect(function() gb.io.json_encode(loop) end):to_fail("json_encode")
  end)
end)

-- Everything a run is made of, in 16-mixed.
local function make()
  gb.manual_seed(3)
  local run = { model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3),
    nn.Linear(16, 4)) }
  run.optimizer = optim.AdamW({ { params = run.model[1]:parameters(), lr = 0.02 },
    { params = { run.model[2].weight, run.model[2].bias, run.model[5].weight, run.model[5].bias }, weight_decay = 0 } },
    { lr = 0.01 })
  run.scaler = amp.GradScaler { init_scale = 256, growth_interval = 3 }
  run.schedule = optim.lr.Cosine(run.optimizer, { steps = 40, warmup = 4 })
  local x, y = gb.randn(40, 6), gb.randint(4, { 40 })
  run.loader = data.DataLoader(data.TensorDataset(x:cpu(), y:cpu()), { batch_size = 8, shuffle = true, seed = 1 })
  return run
end

local function train(run, steps)
  local losses = {}
  while #losses < steps do
    for x, y in run.loader:iter(gb.get_default_device(), { resume = true }) do
      run.optimizer:zero_grad()
      local loss = amp.autocast({ dtype = "float16" }, function() return F.cross_entropy(run.model(x), y) end)
      run.scaler:scale(loss):backward()
      run.scaler:unscale_(run.optimizer)
      nn.utils.clip_grad_norm_(run.model:parameters(), 1.0)
      run.scaler:step(run.optimizer)
      run.scaler:update()
      run.schedule:step()
      losses[#losses + 1] = loss:item()
      if #losses == steps then break end
    end
  end
  return losses
end

describe("checkpoints", function()
  it("a run goes on with the same bits", function()
    local whole = make()
    train(whole, 7) -- in the middle of an epoch
    gb.io.save_checkpoint(path, { model = whole.model, optimizer = whole.optimizer, scaler = whole.scaler,
      schedule = whole.schedule, loader = whole.loader,
                                  extra = { step = 7, name = "run", list = { 1, 2, 3 }, best = gb.tensor { 1.5 } } })
    local expected = train(whole, 9)
    local other = make()
    gb.manual_seed(99)
    train(other, 2)
    local extra = gb.io.load_checkpoint(path,
      { model = other.model, optimizer = other.optimizer, scaler = other.scaler, schedule = other.schedule,
      loader = other.loader })
    expect(extra.step):to_be(7)
    expect(extra.name):to_be("run")
    expect(extra.list[3]):to_be(3)
    expect(extra.best:item()):to_be(1.5)
    local losses = train(other, 9)
    for i = 1, 9 do expect(losses[i]):to_be(expected[i]) end
    local theirs = whole.model:state_dict()
    for name, t in pairs(other.model:state_dict()) do expect(t):to_equal_bits(theirs[name]) end
    expect(other.scaler:get_scale()):to_be(whole.scaler:get_scale())
    expect(gb.io.json_encode(other.schedule:get_last_lr())):to_be(gb.io.json_encode(whole.schedule:get_last_lr()))
    local a, b = whole.optimizer:state_dict(), other.optimizer:state_dict()
    for i = 1, #a.state do
      expect(b.state[i].steps):to_be(a.state[i].steps)
      expect(b.state[i].exp_avg):to_equal_bits(a.state[i].exp_avg)
    end
  end)
  it("and 16-bit parameters with their masters", function()
    local function new()
      gb.manual_seed(5)
      local model = nn.Linear(4, 3):to("bfloat16")
      return model, optim.Adam(model:parameters(), { lr = 1e-3 }), gb.randn(8, 4, { dtype = "bfloat16" })
    end
    local function steps(model, opt, x, n)
      for _ = 1, n do
        opt:zero_grad()
        model(x):float():square():mean():backward()
        opt:step()
      end
    end
    local model, opt, x = new()
    steps(model, opt, x, 5)
    gb.io.save_checkpoint(path, { model = model, optimizer = opt })
    steps(model, opt, x, 20)
    local again, other = new()
    gb.io.load_checkpoint(path, { model = again, optimizer = other })
    steps(again, other, x, 20)
    expect(again.weight:detach()):to_equal_bits(model.weight:detach())
    expect(other:state_dict().state[1].master):to_equal_bits(opt:state_dict().state[1].master)
  end)
  it("restores the random state", function()
    gb.manual_seed(4)
    gb.rand(3)
    gb.io.save_checkpoint(path, { extra = {} })
    local a = gb.rand(5)
    gb.manual_seed(77)
    gb.io.load_checkpoint(path, {})
    expect(gb.rand(5)):to_equal_bits(a)
  end)
  it("load all of their parts or none", function()
    local saved = make()
    train(saved, 3)
    local good = { a = 1 }
    local parts = { model = saved.model, optimizer = saved.optimizer, scaler = saved.scaler, schedule = saved.schedule,
      loader = saved.loader,
                    zz = { state_dict = function() return good end, load_state_dict = print } }
    gb.io.save_checkpoint(path, parts)
    local function bits(run)
      local all = {}
      for name, t in pairs(run.model:state_dict()) do all[name] = t:clone() end
      for i, entry in ipairs(run.optimizer:state_dict().state) do
        all["avg" .. i], all["sq" .. i], all["steps" .. i] = entry.exp_avg, entry.exp_avg_sq, entry.steps
      end
      local state = gb.get_rng_state()
      all.scale, all.count, all.seed, all.offset = run.scaler:get_scale(), run.schedule:state_dict().count, state.seed,
        state.offset
      all.lr = run.optimizer.param_groups[1].lr
      all.epoch, all.batch = run.loader:state_dict().epoch, run.loader:state_dict().batch
      return all
    end
    local function same(a, b)
      for name, value in pairs(a) do
        if gb.is_tensor(value) then expect(b[name]):to_equal_bits(value) else expect(b[name]):to_be(value) end
      end
    end
    local other, unlike = make(), nn.Linear(3, 3)
    gb.manual_seed(31)
    train(other, 9)
    local before, mine = bits(other), { value = "mine" }
    local failing = { -- the last in the alphabet turns its state down, after it has changed itself
      state_dict = function() return { value = mine.value } end,
      load_state_dict = function(_, state)
        mine.value = state.value or "theirs"
        gb.rand(1)
        if not state.value then error("not this one") end
      end,
    }
    local theirs = { model = other.model, optimizer = other.optimizer, scaler = other.scaler, schedule = other.schedule,
      loader = other.loader, zz = failing }
    expect(function() gb.io.load_checkpoint(path, theirs) end):to_fail("not this one")
    same(before, bits(other))
    expect(mine.value):to_be("mine")
    theirs.zz = { load_state_dict = function() error("nor this one") end } -- cannot be put back, so it comes last
    expect(function() gb.io.load_checkpoint(path, theirs) end):to_fail("nor this one")
    same(before, bits(other))
    theirs.zz = nil
    theirs.model = unlike -- not the first in the alphabet
    expect(function() gb.io.load_checkpoint(path, theirs) end):to_fail("load_state_dict")
    same(before, bits(other))
    local expected = train(other, 3)
    local again = make() -- a run whose loads failed goes on as if none had been tried
    gb.manual_seed(31)
    train(again, 9)
    local losses = train(again, 3)
    for i = 1, 3 do expect(losses[i]):to_be(expected[i]) end
  end)
  it("and so does a module: a state that does not fit changes nothing", function()
    local model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    local state = {}
    for name, t in pairs(model:state_dict()) do state[name] = t:clone():add_(1) end
    local names = {}
    for name in pairs(state) do names[#names + 1] = name end
    for _, name in ipairs(names) do
      local kept = state[name]
      for _, bad in ipairs { gb.ones(7, 7), "text" } do
        state[name] = bad
        local before = {}
        for key, t in pairs(model:state_dict()) do before[key] = t:clone() end
        expect(function() model:load_state_dict(state) end):to_fail(name)
        for key, t in pairs(model:state_dict()) do expect(t):to_equal_bits(before[key]) end
      end
      state[name] = kept
    end
    model:load_state_dict(state)
  end)
  it("numbers that JSON has no word for come back as they were", function()
    local extra = { best = math.huge, worst = -math.huge, losses = { 1.5, 0 / 0, math.huge },
      nested = { { deep = 0 / 0 } }, tiny = 2 ^ -1074, zero = -0.0 }
    gb.io.save_checkpoint(path, { extra = extra })
    local back = gb.io.load_checkpoint(path, {})
    expect(back.best):to_be(math.huge)
    expect(back.worst):to_be(-math.huge)
    expect(back.losses[1]):to_be(1.5)
    expect(back.losses[2] ~= back.losses[2]):to_be(true)
    expect(back.losses[3]):to_be(math.huge)
    expect(back.nested[1].deep ~= back.nested[1].deep):to_be(true)
    expect(back.tiny):to_be(2 ^ -1074)
    expect(1 / back.zero):to_be(-math.huge)
    gb.save(path, {}, { metadata = { format = "gibbous-checkpoint-1", tree = '{"extra":{"a":{"$number":"huge"}}}' } })
    expect(function() gb.io.load_checkpoint(path, {}) end):to_fail("there is no number huge")
  end)
  it("a text that is not UTF-8 is refused, with its key, and the old file stays", function()
    local function with(extra) return function() gb.io.save_checkpoint(path, { extra = extra }) end end
    with({ name = "gr\u{fc}n", ["\u{e9}"] = "NUL \0 too" })()
    expect(gb.io.load_checkpoint(path, {}).name):to_be("gr\u{fc}n")
    local before = read(path)
    expect(with { run = { name = "gr\xfcn" } }):to_fail("the string extra/run/name is not UTF-8 from byte 3 on")
    expect(with { ["\xff"] = 1 }):to_fail("of extra is not UTF-8 from byte 1 on")
    expect(read(path)):to_be(before)
  end)
  it("a table that is no list or record, or holds itself, is refused, and the old file stays", function()
    local function with(extra) return function() gb.io.save_checkpoint(path, { extra = extra }) end end
    with({ step = 1 })()
    local before = read(path)
    local loop = { 1, 2 }
    loop[3] = { loop }
    expect(with(loop)):to_fail("holds itself")
    local deep = {}
    for _ = 1, 60 do deep = { deep } end
    expect(with(deep)):to_fail("nested deeper than 50 tables")
    expect(with { [0] = "a" }):to_fail("the key 0")
    expect(with { 1, 2, [5] = 3 }):to_fail("the key 5")
    expect(with { [-1] = 3 }):to_fail("the key -1")
    expect(with { [1.5] = 3 }):to_fail("the key 1.5")
    expect(with { [true] = 3 }):to_fail("the key true")
    expect(with { inner = { [gb.ones(1)] = 3 } }):to_fail("extra/inner")
    expect(with { ["$number"] = "inf" }):to_fail("which is reserved")
    expect(with { inner = { ["$tensor"] = "x" } }):to_fail("extra/inner has the key $tensor")
    expect(read(path)):to_be(before)
  end)
  it("what does not fit is an error that says what", function()
    local model = nn.Linear(2, 2)
    gb.io.save_checkpoint(path, { model = model, extra = { a = 1 } })
    expect(function() gb.io.load_checkpoint(path, { model = nn.Linear(3, 2) }) end):to_fail("weight")
    expect(function() gb.io.load_checkpoint(path,
      { optimizer = optim.SGD(model:parameters(), {}) }) end):to_fail("optimizer")
    expect(function() gb.io.save_checkpoint(path, { extra = { fn = print } }) end):to_fail("extra/fn")
    expect(function() gb.io.save_checkpoint(path, { thing = 5 }) end):to_fail("thing")
    expect(function() gb.io.save_checkpoint(path) end):to_fail("save_checkpoint")
    expect(function() gb.io.load_checkpoint(path, { model = 5 }) end):to_fail("model")
    gb.save(path, { x = gb.ones(1) })
    expect(function() gb.io.load_checkpoint(path, {}) end):to_fail("is not a checkpoint")
    gb.save(path, { x = gb.ones(1) }, { metadata = { format = "gibbous-checkpoint-1" } })
    expect(function() gb.io.load_checkpoint(path, {}) end):to_fail("checkpoint")
    gb.save(path, {}, { metadata = { format = "gibbous-checkpoint-1", tree = '{"extra":{"a":{"$tensor":"gone"}}}' } })
    expect(function() gb.io.load_checkpoint(path, {}) end):to_fail("gone")
    gb.save(path, {}, { metadata = { format = "gibbous-checkpoint-1", tree = "[1" } })
    expect(function() gb.io.load_checkpoint(path, {}) end):to_fail("json_decode")
  end)
end)

os.remove(path)
gb.test.finish()
