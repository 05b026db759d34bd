-- test_datasets.lua - datasets of others, of functions and of files, samplers, and what a DataLoader makes of them:
-- above all that a loader which goes on in the middle of an epoch gives the batches that it would have given, and reads
-- none of those before.

local gb = require "gibbous"
gb.set_default_device("cpu") -- datasets and what the loader gives without a device lie in host memory
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
local data = gb.data

local function temporary(content)
  local path = os.tmpname()
  local f <close> = assert(io.open(path, "wb"))
  f:write(content)
  return path
end

local function text(value) return gb.io.json_encode(gb.is_tensor(value) and value:tolist() or value) end

-- The first values of all samples.
local function values(dataset)
  local list = {}
  for i = 1, #dataset do
    local value = dataset:get(i)
    list[i] = gb.is_tensor(value) and value:tolist() or value
  end
  return list
end

-- Samples i, i * i: as a native dataset, as one in Lua that notes what is read, and as a recipe's own table.
local read = {}
local makers = {
  native = function(n)
    local i = gb.arange(1, n + 1)
    return data.TensorDataset(i, i * i)
  end,
  lua = function(n)
    return data.Dataset(n, function(i)
      read[#read + 1] = i
      return i, i * i
    end)
  end,
  own = function(n)
    return setmetatable({ get = function(_, i) return i, i * i end }, { __len = function() return n end })
  end,
}

describe("a dataset of a function", function()
  it("has so many samples", function()
    local set = data.Dataset(3, function(i) return i, "s" .. i end)
    expect(#set):to_be(3)
    expect(tostring(set)):to_be("Dataset (3 samples)")
    expect(select(2, set:get(-1))):to_be("s3")
    expect(function() set:get(0) end):to_fail("no sample 0 among 3")
    expect(function() set:get(4) end):to_fail("no sample 4 among 3")
    expect(function() set:get(math.mininteger) end):to_fail("among 3")
    expect(function() data.Dataset(-1, print) end):to_fail("count")
    expect(function() data.Dataset(1) end):to_fail("get")
    expect(#data.Dataset(0, print)):to_be(0)
  end)
  it("becomes another by a function", function()
    for _, make in pairs(makers) do
      local set = data.map(make(4), function(i, square) return square - i end)
      expect(text(values(set))):to_be("[0,2,6,12]")
    end
    expect(function() data.map(5, print) end):to_fail("map takes a dataset")
    expect(function() data.map(data.map(makers.lua(2), error), print):get(1) end):to_fail("1")
  end)
  it("is one batch of all its samples", function()
    for _, make in pairs(makers) do
      local x, y = data.tensors(make(3))
      expect(text(x)):to_be("[1,2,3]")
      expect(text(y)):to_be("[1,4,9]")
    end
    expect(data.tensors(makers.native(3):subset(3, 2))):to_have_shape(0)
    expect(function() data.tensors(makers.lua(0)) end):to_fail("empty")
  end)
end)

describe("parts of datasets", function()
  for name, make in pairs(makers) do
    it("by positions, of a " .. name .. " one", function()
      expect(text(values(data.Subset(make(9), { 3, -1, 3 })))):to_be("[3,9,3]")
      expect(text(values(data.Subset(data.Subset(make(9), { 3, 5, 7 }), { 2 })))):to_be("[5]")
      expect(#data.Subset(make(9), {})):to_be(0)
      expect(function() data.Subset(make(9), { 10 }) end):to_fail("10")
      expect(function() data.Subset(make(9), { 0 }) end):to_fail("position")
      expect(function() data.Subset(make(9), { 1.5 }) end):to_fail("1")
      expect(function() data.Subset(make(9), { "a" }) end):to_fail("position")
    end)
    it("at random, of a " .. name .. " one", function()
      local a, b, c = data.random_split(make(11), { 0.5, 0.3, 0.2 }, { seed = 3 })
      expect(text { #a, #b, #c }):to_be("[6,3,2]") -- rounded down, and one more for the first
      local all = {}
      for _, part in ipairs { a, b, c } do
        for _, value in ipairs(values(part)) do all[#all + 1] = value end
      end
      expect(text(all) ~= "[1,2,3,4,5,6,7,8,9,10,11]"):to_be(true)
      table.sort(all)
      expect(text(all)):to_be("[1,2,3,4,5,6,7,8,9,10,11]")
      expect(text(values((data.random_split(make(11), { 6, 5 }, { seed = 3 }))))):to_be(text(values(a)))
      expect(text(values((data.random_split(make(11), { 6, 5 }, { seed = 4 })))) ~= text(values(a))):to_be(true)
      gb.manual_seed(3)
      expect(text(values((data.random_split(make(11), { 6, 5 }))))):to_be(text(values(a)))
    end)
  end
  it("need lengths that make the whole", function()
    local function fails(lengths, said)
      expect(function() data.random_split(makers.native(10), lengths) end):to_fail(said)
    end
    fails({ 5, 4 }, "sum to 9; they are shares that sum to 1, or whole numbers that sum to 10")
    fails({ 0.5, 0.4 }, "sum to 0.9")
    fails({ -5, 15 }, "lengths are whole numbers or shares from 0 on")
    fails({ 0 / 0 }, "lengths are")
    fails({ math.huge }, "lengths are")
    fails({ "a" }, "lengths are")
    fails({ 5.5, 4.5 }, "sum to 10.0")
    fails({}, "no lengths")
    fails({ 0.4999996, 0.4999996 }, "sum to 0.9999992; they are shares")
    fails({ 0.5000004, 0.5000004 }, "sum to 1.0000008; they are shares")
    local many = data.Dataset(1 << 30, function(i) return i end) -- no order is made for lengths that are refused
    expect(function() data.random_split(many, { 0.5000001, 0.5000001 }) end):to_fail("sum to 1.0000002")
    local third = 1 / 3
    local a, b, c = data.random_split(makers.native(11), { third, third, third })
    expect(text { #a, #b, #c }):to_be("[4,4,3]")
    expect(#data.random_split(makers.native(0), { 0.5, 0.5 })):to_be(0)
    expect(#data.random_split(makers.native(10), { 1 })):to_be(10)
  end)
  it("one behind the other", function()
    local native = data.ConcatDataset { makers.native(2), makers.native(0), makers.native(3):subset { 3, 1 } }
    expect(native:get(3):item()):to_be(3)
    expect(tostring(native)):to_be("dataset (4 samples of 2 tensors)")
    expect(text(values(native))):to_be("[1,2,3,1]")
    local mixed = data.ConcatDataset { makers.native(2), makers.lua(0), makers.own(3) }
    expect(text(values(mixed))):to_be("[1,2,1,2,3]")
    local other = data.ConcatDataset { makers.native(1), data.TensorDataset(gb.ones(2, 2)) } -- not alike
    expect(text(values(other))):to_be("[1,[1.0,1.0],[1.0,1.0]]")
    expect(#data.ConcatDataset { makers.native(0), makers.native(0) }):to_be(0)
    expect(function() data.ConcatDataset {} end):to_fail("one dataset or more")
    expect(function() data.ConcatDataset { 5 } end):to_fail("takes a dataset")
    local big = {}
    for i = 1, 40 do big[i] = makers.native(20) end
    local sum = 0
    for x in data.DataLoader(data.ConcatDataset(big), { batch_size = 700, shuffle = true, seed = 1 }):iter() do
      sum = sum + x:sum():item()
    end
    expect(sum):to_be(40 * 210)
  end)
  it("have a length that is a number", function()
    local bad = setmetatable({ get = print }, { __len = function() return "many" end })
    expect(function() data.Subset(bad, { 1 }) end):to_fail("length of a dataset")
    expect(function() data.map(setmetatable({ get = print }, { __len = function() return -1 end }), print) end)
      :to_fail("-1")
  end)
end)

-- All batches of the epochs from where the loader stands, each as text.
local function batches(loader, epochs, options)
  local list = {}
  for _ = 1, epochs do
    for x in loader:iter(nil, options) do list[#list + 1] = text(x) end
    list[#list + 1] = "end"
    options = nil
  end
  return list
end

describe("a sampler", function()
  it("draws by weights", function()
    local sampler = data.WeightedRandomSampler({ 1, 0, 3 }, 40000)
    expect(#sampler):to_be(40000)
    local counts = { 0, 0, 0 }
    for _, at in ipairs(sampler:order(0, 1)) do counts[at] = counts[at] + 1 end
    expect(counts[2]):to_be(0)
    expect(counts[1] / 40000):to_be_near(0.25, 0.01) -- four standard deviations are 0.009
    expect(text(sampler:order(0, 1)) == text(sampler:order(0, 1))):to_be(true)
    expect(text(sampler:order(0, 1)) == text(sampler:order(1, 1))):to_be(false)
    expect(text(data.WeightedRandomSampler(gb.tensor { 0.0, 2.0 }):order(0, 1))):to_be("[2,2]")
    expect(text(data.WeightedRandomSampler({ 5e-324, 0 }, 3):order(0, 1))):to_be("[1,1,1]")
  end)
  it("draws by weights without replacement: each once, and the heavy ones first", function()
    local weights, first = {}, { 0, 0 }
    for i = 1, 100 do weights[i] = i % 10 end
    local order = data.WeightedRandomSampler(weights, 90, { replacement = false }):order(0, 1)
    table.sort(order)
    for i = 2, #order do assert(order[i] ~= order[i - 1] and order[i] % 10 ~= 0) end
    for seed = 1, 4000 do
      local at = data.WeightedRandomSampler({ 1, 3 }, 1, { replacement = false }):order(0, seed)[1]
      first[at] = first[at] + 1
    end
    expect(first[2] / 4000):to_be_near(0.75, 0.03)
  end)
  it("turns down what are no weights", function()
    local function check(said, ...)
      local arguments = table.pack(...)
      expect(function() data.WeightedRandomSampler(table.unpack(arguments, 1, arguments.n)) end):to_fail(said)
    end
    check("weight 2 is -1", { 1, -1 })
    check("nan; weights are", { 0 / 0 })
    check("weight 1 is inf", { math.huge })
    check("weight 1 is a", { "a" })
    check("no weight is above 0", { 0, 0 })
    check("no weight is above 0", {})
    check("sum of the weights is not finite", { 1e308, 1e308 })
    check("2 different samples cannot be drawn of 1", { 1, 0 }, 2, { replacement = false })
    check("2 dimensions", gb.ones(2, 2))
    check("samples", { 1 }, 0)
  end)
  it("keeps lengths together", function()
    local lengths = {}
    for i = 1, 1003 do lengths[i] = (i * 7919) % 101 end
    local sampler = data.BucketBatchSampler(lengths, 10)
    expect(#sampler):to_be(101)
    local order, seen, filled, sizes = sampler:order(0, 1), {}, 0, {}
    for b, batch in ipairs(order) do
      local longest = 0
      for _, at in ipairs(batch) do
        assert(not seen[at])
        seen[at], longest = true, math.max(longest, lengths[at])
      end
      for _, at in ipairs(batch) do filled = filled + longest - lengths[at] end
      sizes[b] = #batch
    end
    expect(#seen):to_be(1003)
    expect(sizes[101]):to_be(3)
    expect(filled < 1003):to_be(true) -- less than one a sample, where batches at random have 46
    local rising = 0 -- batches lie in no order of length
    for b = 2, 100 do rising = rising + (lengths[order[b][1]] >= lengths[order[b - 1][1]] and 1 or 0) end
    expect(rising > 30 and rising < 70):to_be(true)
    expect(text(sampler:order(0, 1))):to_be(text(order))
    expect(text(sampler:order(1, 1)) == text(order)):to_be(false)
    expect(text(data.BucketBatchSampler({ 5, 1, 4 }, 2, { shuffle = false }):order(9, 9))):to_be("[[2,3],[1]]")
    expect(#data.BucketBatchSampler({ 5, 1, 4 }, 2, { drop_last = true })):to_be(1)
    expect(#data.BucketBatchSampler({ 5 }, 1 << 62):order(0, 0)):to_be(1)
    expect(function() data.BucketBatchSampler({ 5, 1.5 }, 2) end):to_fail("length 2 is 1.5")
    expect(function() data.BucketBatchSampler({ -1 }, 2) end):to_fail("length 1 is -1")
    expect(function() data.BucketBatchSampler({ 1 }, 2, { drop_last = true }) end):to_fail("no full batch")
  end)
  it("of some positions, or with replacement", function()
    local order = data.SubsetRandomSampler({ 2, 4, 6, 8 }):order(0, 5)
    table.sort(order)
    expect(text(order)):to_be("[2,4,6,8]")
    expect(#data.RandomSampler(5, { replacement = true, samples = 50 }):order(0, 1)):to_be(50)
    expect(#data.RandomSampler(5, { samples = 3 }):order(0, 1)):to_be(3)
    expect(function() data.RandomSampler(5, { samples = 6 }) end):to_fail("replacement = true")
    expect(function() data.SubsetRandomSampler({}) end):to_fail("one position")
  end)
end)

-- Options of loaders over 23 samples, whose orders differ from epoch to epoch where they are random.
local lengths = {}
for i = 1, 23 do lengths[i] = i * 5 % 7 end
local weights = {}
for i = 1, 23 do weights[i] = i % 4 end
local ways = {
  { "in order", { batch_size = 4 } },
  { "shuffled", { batch_size = 4, shuffle = true, seed = 5 } },
  { "shuffled, without the last", { batch_size = 4, shuffle = true, drop_last = true, seed = 5 } },
  { "weighted", { batch_size = 4, sampler = data.WeightedRandomSampler(weights, 30), seed = 5 } },
  { "weighted, once each", { batch_size = 4, seed = 5,
    sampler = data.WeightedRandomSampler(weights, 13, { replacement = false }) } },
  { "with replacement", { batch_size = 5, seed = 5, sampler = data.RandomSampler(23, { replacement = true }) } },
  { "some of them", { batch_size = 2, seed = 5, sampler = data.SubsetRandomSampler { 3, 9, 11, 20, 21 } } },
  { "in buckets", { seed = 5, batch_sampler = data.BucketBatchSampler(lengths, 4, { window = 3 }) } },
  { "by a list", { batch_size = 2, sampler = { 5, 4, 5, 3, 1 } } },
  { "by a list of batches", { batch_sampler = { { 5 }, { 4, 3, 2 }, { 1, 23 } } } },
  { "by a recipe's sampler", { batch_size = 3, seed = 5, sampler = { order = function(_, epoch, seed)
    return { 1 + epoch, 2, 3 + seed % 2, 4, 5, 6, 7 }
  end } } },
  { "collated by a recipe", { batch_size = 3, shuffle = true, seed = 5, collate = function(samples)
    local list = {}
    for i, sample in ipairs(samples) do list[i] = sample[1] * 1000 end
    return gb.tensor(list)
  end } },
}

for _, way in ipairs(ways) do
  local name, options = way[1], way[2]
  describe("a loader " .. name, function()
    it("gives the same of any dataset, and as many batches as it says", function()
      local lists = {}
      for kind, make in pairs(makers) do
        if not (name == "collated by a recipe" and kind == "native") then -- its samples are tensors
          local loader = data.DataLoader(make(23), options)
          local count = #loader
          lists[#lists + 1] = batches(loader, 3)
          expect(lists[#lists][count + 1]):to_be("end")
          expect(text(lists[#lists])):to_be(text(lists[1]))
        end
      end
    end)
    for kind, make in pairs(name == "collated by a recipe" and { lua = makers.lua } or makers) do
      it("goes on in the middle of an epoch of a " .. kind .. " dataset", function()
        local whole = batches(data.DataLoader(make(23), options), 3)
        local loader = data.DataLoader(make(23), options)
        local function other() -- another seed, which the state takes the place of
          local changed = {}
          for key, value in pairs(options) do changed[key] = value end
          changed.seed = 77
          return data.DataLoader(make(23), changed)
        end
        local seen = 0
        for _ = 1, 2 do
          for _ in loader:iter() do
            seen = seen + 1
            local state = gb.io.json_decode(gb.io.json_encode(loader:state_dict()))
            local again = other()
            again:load_state_dict(state)
            read = {}
            local rest = batches(again, 3 - state.epoch)
            local from = state.epoch == 0 and seen or seen + 1 -- with the end of the first epoch
            local expected = table.move(whole, from + 1, #whole, 1, {})
            expect(text(rest)):to_be(text(expected))
            if kind == "lua" and not options.batch_sampler and not options.collate then
              local count = 0
              for _, batch in ipairs(rest) do
                if batch ~= "end" then count = count + #gb.io.json_decode(batch) end
              end
              expect(#read):to_be(count) -- what was given already is not read again
            end
          end
        end
      end)
    end
  end)
end

describe("a loader with a sampler", function()
  it("does not resume by reading: a native dataset is asked for nothing that was given", function()
    local loader = data.DataLoader(makers.lua(1000), { batch_size = 10, sampler = data.RandomSampler(1000), seed = 1 })
    loader:load_state_dict { epoch = 3, batch = 99, seed = "1" }
    read = {}
    expect(#batches(loader, 1)):to_be(2)
    expect(#read):to_be(10)
  end)
  it("refuses options that say otherwise, and what is no sampler", function()
    local set = makers.native(5)
    local function fails(options, said) expect(function() data.DataLoader(set, options) end):to_fail(said) end
    local random, buckets = data.RandomSampler(5), data.BucketBatchSampler({ 1, 2 }, 1)
    fails({ sampler = random, shuffle = true }, "leave shuffle out")
    fails({ sampler = random, batches = 3 }, "leave batches out")
    fails({ batch_sampler = buckets, batch_size = 2 }, "leave batch_size")
    fails({ batch_sampler = buckets, drop_last = true }, "leave batch_size, drop_last")
    fails({ batch_sampler = random }, "give it as sampler")
    fails({ sampler = buckets }, "give it as batch_sampler")
    fails({ sampler = 5 }, "list of positions, not a number")
    fails({ sampler = {} }, "table without any")
    fails({ batch_sampler = "a" }, "list of lists of positions")
    fails({ collate = 5 }, "collate")
    fails({ collate = print, batches = 2 }, "batches goes with no collate")
  end)
  it("turns down positions that are none, before it reads", function()
    for kind, make in pairs(makers) do
      local function fails(options, said)
        local loader = data.DataLoader(make(5), options)
        expect(function() batches(loader, 1) end):to_fail(said)
      end
      fails({ sampler = { 1, 6 }, batch_size = 2 }, "6")
      fails({ sampler = { 0 } }, "0")
      fails({ sampler = { 1.5 } }, "1")
      fails({ sampler = { gb.ones(1) } }, "")
      fails({ batch_sampler = { { 1, 6 } } }, "6")
      fails({ batch_sampler = { {} } }, "empty")
      fails({ batch_sampler = { 5 } }, "no list of positions")
      fails({ sampler = { order = function() return 5 end } }, "returned a number")
      fails({ sampler = { order = function() error("no order") end } }, "no order")
      expect(kind ~= nil):to_be(true)
    end
  end)
  it("keeps what it was given: the list may change", function()
    local list = { 1, 2, 3 }
    local loader = data.DataLoader(makers.native(5), { batch_size = 3, sampler = list })
    list[1] = 99
    expect(text(batches(loader, 1))):to_be('["[1,2,3]","end"]')
  end)
end)

describe("random images", function()
  local folder = "tests/golden/images"
  if not pcall(gb.io.image, folder .. "/gray.png") or not pcall(gb.io.image, folder .. "/gray.jpg") then
    print("random images: this build has no libjpeg-turbo or no libpng; skipped")
    return
  end
  local set = data.images(folder, { size = 12, transform = data.transforms.compose {
    data.transforms.random_crop(8), data.transforms.flip(), data.transforms.to_float() } })
  local order, pairs_of = {}, {}
  for i = 1, #set do order[i] = i end
  for i = 1, #set, 2 do pairs_of[#pairs_of + 1] = { i, i < #set and i + 1 or nil } end

  -- The bytes of all batches of two epochs.
  local function bytes(dataset, options)
    local list, loader = {}, data.DataLoader(dataset, options)
    for _ = 1, 2 do
      for x in loader:iter() do list[#list + 1] = gb.to_bytes(x) end
    end
    return table.concat(list)
  end
  it("are functions of seed, epoch and sample, whatever asks for them", function()
    local plain = bytes(set, { batch_size = 2, seed = 4 })
    expect(plain:sub(1, #plain // 2) == plain:sub(#plain // 2 + 1)):to_be(false)
    expect(bytes(set, { batch_size = 2, seed = 5 }) == plain):to_be(false)
    expect(bytes(set, { batch_size = 2, seed = 4, sampler = order }) == plain):to_be(true)
    expect(bytes(set, { batch_size = 2, seed = 4, sampler = order, workers = 2 }) == plain):to_be(true)
    expect(bytes(set, { seed = 4, batch_sampler = pairs_of }) == plain):to_be(true)
    expect(bytes(set, { batch_size = 2, seed = 4, collate = function(samples)
      local list = {}
      for i, sample in ipairs(samples) do list[i] = sample[1] end
      return gb.stack(list)
    end }) == plain):to_be(true)
    expect(bytes(data.Subset(set, order), { batch_size = 2, seed = 4 }) == plain):to_be(true)
    expect(bytes(data.ConcatDataset { set, set:subset(1, 0) }, { batch_size = 2, seed = 4 }) == plain):to_be(true)
  end)
end)

describe("a collate function", function()
  local function ragged(n)
    return data.Dataset(n, function(i) return gb.arange(1, i + 1), i end)
  end
  it("fills what is short, and says how long it was", function()
    local loader = data.DataLoader(ragged(3), { batch_size = 3, collate = data.pad_collate { value = -1 } })
    for x, y, n in loader:iter() do
      expect(text(x)):to_be("[[1,-1,-1],[1,2,-1],[1,2,3]]")
      expect(text(y)):to_be("[1,2,3]")
      expect(text(n)):to_be("[1,2,3]")
      expect(n.dtype):to_be("int64")
    end
    for x in data.DataLoader(ragged(3), { batch_size = 3, collate = data.pad_collate { multiple = 8 } }):iter() do
      expect(x):to_have_shape(3, 8)
    end
    local lists = data.Dataset(2, function(i) return i == 1 and { 1.5 } or { 2.5, 3.5 } end)
    for x in data.DataLoader(lists, { batch_size = 2, collate = data.pad_collate() }):iter() do
      expect(text(x)):to_be("[[1.5,0.0],[2.5,3.5]]")
    end
    local matrices = data.Dataset(3, function(i) return gb.ones(i - 1, 2) end)
    for x, n in data.DataLoader(matrices, { batch_size = 3, collate = data.pad_collate() }):iter() do
      expect(x):to_have_shape(3, 2, 2)
      expect(x:sum():item()):to_be(6.0)
      expect(text(n)):to_be("[0,1,2]")
    end
  end)
  it("of padding turns down what differs otherwise", function()
    local function fails(get, said)
      local loader = data.DataLoader(data.Dataset(2, get), { batch_size = 2, collate = data.pad_collate() })
      expect(function() batches(loader, 1) end):to_fail(said)
    end
    fails(function(i) return gb.ones(2, i) end, "more than their first dimension: {2, 1} float32 and {2, 2}")
    fails(function(i) return i == 1 and gb.ones(2) or gb.ones(2):long() end, "int64")
    fails(function(i) return i == 1 and gb.ones(2) or 5 end, "a number")
    fails(function(i) return i end, "no value of the samples is a tensor")
    for _, value in ipairs { 5, {}, { 5 } } do
      expect(function() data.pad_collate()(value) end):to_fail("takes a list of samples")
    end
    expect(text((data.pad_collate()({ { { 1 } }, { { 2, 3 } } })))):to_be("[[1,0],[2,3]]")
  end)
  it("of a recipe gets a list of samples, and its results are the batch", function()
    local loader = data.DataLoader(makers.native(5), { batch_size = 2, collate = function(samples)
      return #samples, samples[1].n, samples[1][2]
    end })
    local list = {}
    for n, width, first in loader:iter(gb.best_device()) do list[#list + 1] = { n, width, first:item() } end
    expect(text(list)):to_be("[[2,2,1],[2,2,9],[1,2,25]]")
    expect(function() batches(data.DataLoader(makers.lua(2), { collate = function() end }), 1) end)
      :to_fail("returned nothing")
  end)
  it("unless given: strings stay strings, what is mixed is an error", function()
    local set = data.Dataset(2, function(i) return "s" .. i, i, { i, 2 }, i == 1 end)
    for s, i, list, flag in data.DataLoader(set, { batch_size = 2 }):iter("cpu") do
      expect(text(s)):to_be('["s1","s2"]')
      expect(text(i)):to_be("[1,2]")
      expect(text(list)):to_be("[[1,2],[2,2]]")
      expect(flag.dtype):to_be("bool")
    end
    local mixed = data.Dataset(2, function(i) return i == 1 and "a" or 1 end)
    local loader = data.DataLoader(mixed, { batch_size = 2 })
    expect(function() batches(loader, 1) end):to_fail("is a string, that of another")
    local odd = data.Dataset(1, function() return print end)
    expect(function() batches(data.DataLoader(odd), 1) end):to_fail("a collate function")
  end)
end)

describe("a file of JSON lines", function()
  local path = temporary('\n{"x": [1, 2.5], "y": 3, "s": "a"}\r\n\n  \n{"x": [3, 4], "y": 4, "s": "\u{e9}"}')
  it("is a dataset of its lines, or of fields of them", function()
    local set = data.jsonl(path)
    expect(#set):to_be(2)
    expect(set:get(2).s):to_be("\u{e9}")
    local loader = data.DataLoader(data.jsonl(path, { fields = { "x", "y", "s" } }), { batch_size = 2 })
    for x, y, s in loader:iter() do
      expect(text(x)):to_be("[[1.0,2.5],[3.0,4.0]]")
      expect(text(y)):to_be("[3,4]")
      expect(s[2]):to_be("\u{e9}")
    end
  end)
  it("has errors with the number of the line", function()
    local function fails(content, fields, said)
      expect(function() data.jsonl(temporary(content), { fields = fields }):get(1) end):to_fail(said)
    end
    fails("\n\n{x}\n", nil, "line 3")
    fails("{}{}", nil, "line 1")
    fails('{"lable": 1}', { "label" }, "line 1 has no 'label'")
    fails('{"lable": 1}', { "label" }, "did you mean 'lable'")
    fails('{"a": null}', { "a" }, "or null")
    fails("5", { "a" }, "has no 'a'")
    fails("null", nil, "is null")
    fails("\xff", nil, "line 1")
    expect(function() data.jsonl(temporary("{}\n\0")) end):to_fail("line 2, byte 4 of the file: a zero byte")
    expect(function() data.jsonl("/nowhere/at/all") end):to_fail("/nowhere/at/all")
    expect(function() data.jsonl(path, { fields = { 1 } }) end):to_fail("no name")
    expect(#data.jsonl(temporary(""))):to_be(0)
  end)
  it("that changes under the dataset is an error", function()
    local changing = temporary('{"a": 1}\n{"a": 2}\n')
    local set = data.jsonl(changing)
    local f <close> = io.open(changing, "w")
    f:write('{"a"')
    f:flush()
    expect(function() set:get(2) end):to_fail(changing)
  end)
end)

describe("a file of lines", function()
  local path = temporary("the cat sat\nThe dog  sat\t\n\nbird\n")
  it("is words by how often they occur", function()
    local set, vocabulary = data.lines(path)
    expect(#set):to_be(3)
    expect(text(vocabulary:words())):to_be('["sat","The","bird","cat","dog","the"]')
    expect(#vocabulary):to_be(8)
    expect(text(set:get(2))):to_be("[3,6,2]")
    expect(vocabulary:decode(set:get(1))):to_be("the cat sat")
    expect(text(vocabulary:encode("the horse"))):to_be("[7,1]")
    expect(vocabulary:decode(vocabulary:encode("the horse", { length = 4 }))):to_be("the <unk>")
    expect(text(vocabulary:encode("sat sat sat", { length = 2 }))):to_be("[2,2]")
    expect(vocabulary:encode("")):to_have_shape(0)
  end)
  it("in small letters, of words that are frequent", function()
    local _, vocabulary = data.lines(path, { lower = true, min_count = 2 })
    expect(text(vocabulary:words())):to_be('["sat","the"]')
    expect(text(vocabulary:encode("THE \u{c9}"))):to_be("[3,1]")
    _, vocabulary = data.lines(path, { max_vocabulary = 3 })
    expect(text(vocabulary:words())):to_be('["sat"]')
    expect(data.Vocabulary({ "\u{c9} \u{d7}" }, { lower = true }):words()[2]):to_be("\u{e9}")
    expect(function() data.lines(path, { max_vocabulary = 2 }) end):to_fail("max_vocabulary = 2")
  end)
  it("of one length is a native dataset", function()
    local set = data.lines(path, { length = 2 })
    expect(tostring(set)):to_be("dataset (3 samples of 1 tensors)")
    expect(text(data.tensors(set))):to_be("[[7,5],[3,6],[4,0]]")
  end)
  it("of several files has their labels", function()
    local other = temporary("fish")
    local set, vocabulary = data.lines { path, other }
    expect(select(2, set:get(3))):to_be(0)
    expect(select(2, set:get(4))):to_be(1)
    local _, y = data.tensors((data.lines({ path, other }, { labels = { 7, 9 }, length = 1, vocabulary = vocabulary })))
    expect(text(y)):to_be("[7,7,7,9]")
    expect(function() data.lines({ path, other }, { labels = { 7 } }) end):to_fail("1 labels and 2 paths")
    expect(function() data.lines({ path, other }, { labels = { 7, "a" } }) end):to_fail("label 2")
    expect(function() data.lines({}) end):to_fail("list of paths")
    expect(function() data.lines({ path, 5 }) end):to_fail("path 2")
  end)
  it("is text, or bytes", function()
    expect((data.lines(path, { level = "text" }):get(2))):to_be("The dog  sat\t")
    local set, vocabulary = data.lines(path, { level = "bytes" })
    expect(text(set:get(3))):to_be(text { ("bird"):byte(1, -1) })
    expect(#vocabulary):to_be(256)
    expect(vocabulary:decode(set:get(3))):to_be("bird")
    expect(text(data.tensors((data.lines(path, { level = "bytes", length = 5 })))[3])):to_be("[98,105,114,100,0]")
    local train = data.Subset(data.lines(path, { level = "text" }), { 1 })
    expect(text(data.Vocabulary(train):words())):to_be('["cat","sat","the"]')
  end)
  it("in Latin-1", function()
    local latin = temporary("caf\xe9 \xc0\n")
    expect(function() data.lines(latin) end):to_fail("line 1, byte 4 is not UTF-8; say encoding = \"latin-1\"")
    local _, vocabulary = data.lines(latin, { encoding = "latin-1", lower = true })
    expect(text(vocabulary:words())):to_be('["caf\u{e9}","\u{e0}"]')
    local _, raw = data.lines(latin, { encoding = "bytes" })
    expect(raw:words()[1]):to_be("caf\xe9")
    expect(function() raw:state_dict() end):to_fail("latin-1")
    expect(text((data.lines(latin, { level = "bytes" }):get(1)))):to_be("[99,97,102,233,32,192]")
  end)
  it("has a vocabulary that is saved with a checkpoint", function()
    local set, vocabulary = data.lines(path, { lower = true })
    local file = os.tmpname()
    gb.io.save_checkpoint(file, { vocabulary = vocabulary })
    local again = data.Vocabulary()
    expect(#again):to_be(2)
    gb.io.load_checkpoint(file, { vocabulary = again })
    expect(#again):to_be(#vocabulary)
    expect(text(data.lines(path, { vocabulary = again }):get(2))):to_be(text(set:get(2)))
    expect(text(again:encode("DOG"))):to_be(text(vocabulary:encode("dog")))
    local bytes = data.Vocabulary(nil, { level = "bytes" })
    again:load_state_dict(bytes:state_dict())
    expect(again:decode(again:encode("ab"))):to_be("ab")
    local function fails(state, said) expect(function() again:load_state_dict(state) end):to_fail(said) end
    fails({}, "what state_dict gave")
    fails({ level = "words", lower = false, words = { "a", 5 } }, "word 2 is no string")
    fails({ level = "words", lower = false, words = { "a", "a" } }, "word 2 is there twice")
    fails({ level = "letters", lower = false, words = {} }, "what state_dict gave")
  end)
  it("turns down ids that there are not, and texts that are none", function()
    local vocabulary = data.Vocabulary { "a b" }
    expect(function() vocabulary:decode { 4 } end):to_fail("id 4 is none of 0 .. 3")
    expect(function() vocabulary:decode { -1 } end):to_fail("id -1")
    expect(function() vocabulary:decode { 1.5 } end):to_fail("id 1.5")
    expect(function() vocabulary:decode(gb.ones(2, 2)) end):to_fail("2 dimensions")
    expect(function() data.Vocabulary { "a", 5 } end):to_fail("sample 2 is a number")
    expect(function() data.Vocabulary(makers.native(2)) end):to_fail("sample 1 is a tensor")
    expect(function() data.lines(path, { vocabulary = {} }) end):to_fail("gb.data.Vocabulary")
    expect(function() data.lines(path, { level = "letters" }) end):to_fail("letters")
    expect(function() data.lines(temporary("a\0b")) end):to_fail("line 1, byte 2 of the file: a zero byte")
  end)
end)

describe("a safetensors file", function()
  local path = os.tmpname()
  gb.save(path, { x = gb.arange(6):reshape(3, 2), y = gb.tensor { 7, 8, 9 }, scalar = gb.tensor(1) })
  it("is a dataset of its tensors", function()
    local x, y = data.safetensors(path, { columns = { "x", "y" } }):get(2)
    expect(text(x)):to_be("[2,3]")
    expect(y:item()):to_be(8)
    expect(function() data.safetensors(path) end):to_fail("scalar")
    expect(function() data.safetensors(path, { columns = { "z" } }) end):to_fail("no tensor 'z'")
    expect(function() data.safetensors(path, { columns = { 1 } }) end):to_fail("no name")
    gb.save(path, {})
    expect(function() data.safetensors(path) end):to_fail("holds no tensor")
    gb.save(path, { b = gb.ones(2), a = gb.zeros(2) })
    expect(data.safetensors(path):get(1):item()):to_be(0.0)
  end)
  it("does not pass over a tensor in silence whose dtype the engine lacks", function()
    local head = '{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},' ..
      '"b":{"dtype":"U32","shape":[1],"data_offsets":[4,8]}}'
    local mixed = temporary(string.pack("<s8", head .. (" "):rep(-#head % 8)) .. string.pack("<fI4", 2.5, 7))
    expect(function() data.safetensors(mixed) end):to_fail("name the columns that are wanted")
    expect(function() data.safetensors(mixed, { columns = { "b" } }) end):to_fail("U32")
    expect(data.safetensors(mixed, { columns = { "a" } }):get(1):item()):to_be(2.5)
  end)
end)

describe("a folder", function()
  it("is a sorted list of its files", function()
    local list = data.files("tests/golden/data", { ending = "s.jsonl" })
    expect(list[1]):to_be("tests/golden/data/arrays.jsonl")
    for i, path in ipairs(list) do
      assert(path:match("s%.jsonl$") and (i == 1 or list[i - 1] < path))
    end
    expect(#data.files("tests/golden/data/", { ending = "arrays.npz" })):to_be(1)
    expect(text(data.files("tests", { ending = "README.md" }))):to_be('["tests/README.md"]')
    expect(function() data.files("/nowhere/at/all") end):to_fail("/nowhere/at/all")
    expect(function() data.files("README.md") end):to_fail("README.md")
    expect(#data.files("tests", { ending = "\0" })):to_be(0)
  end)
end)

describe("a preparation", function()
  it("knows its options when it is made", function()
    expect(function() data.Preparation { targt = "price" } end):to_fail("unknown option 'targt'; did you mean 'target'")
    expect(function() data.Preparation { "price" } end):to_fail("options have names")
  end)
  local lines = { "size,kind,price" }
  for i = 1, 40 do
    lines[i + 1] = ("%s,%s,%d"):format(i % 7 == 0 and "" or i, ({ "flat", "house", "" })[i % 3 + 1], i * 10)
  end
  local path = temporary(table.concat(lines, "\n"))
  local options = { target = "price", standardize = true }

  it("is fitted on one part of a table, and the others are read by it", function()
    local preparation = data.Preparation(options)
    local train, test = preparation:split(path, { 0.75, 0.25 }, { seed = 2 })
    expect(text { #train, #test }):to_be("[30,10]")
    local prices = 0
    for _, part in ipairs { train, test } do
      local _, _, y = data.tensors(part)
      prices = prices + y:sum():item()
    end
    expect(prices):to_be(8200.0)
    -- the mean and the deviation are those of the training rows that have a value
    local sum, squares, n = 0, 0, 0
    local _, _, y = data.tensors(train)
    for _, price in ipairs(y:tolist()) do
      local i = price // 10
      if i % 7 ~= 0 then sum, squares, n = sum + i, squares + i * i, n + 1 end
    end
    local mean = sum / n
    local std = math.sqrt(squares / n - mean * mean)
    local size = preparation:columns()[1]
    expect(size.mean):to_be_near(mean, 1e-9)
    expect(size.std):to_be_near(std, 1e-9)
    local x, ids, price = test:get(1)
    local i = price:item() // 10
    expect(x:item()):to_be_near(i % 7 == 0 and 0 or (i - mean) / std, 1e-6)
    expect(ids:item()):to_be(({ 0, 1, 2 })[math.tointeger(i) % 3 + 1])
  end)
  it("goes through a checkpoint, and reads what comes later without a target", function()
    local preparation = data.Preparation(options)
    preparation:fit(path)
    local file = os.tmpname()
    gb.io.save_checkpoint(file, { preparation = preparation })
    local again = data.Preparation(options)
    expect(function() again:read(path) end):to_fail("after fit")
    gb.io.load_checkpoint(file, { preparation = again })
    local later = temporary("kind,size\nhouse,7\ncastle,\n")
    local x, ids = data.tensors(preparation:read(later))
    local x2, ids2, none = data.tensors(again:read(later))
    expect(x2):to_equal_bits(x)
    expect(ids2):to_equal_bits(ids)
    expect(none):to_be(nil)
    expect(text(ids)):to_be("[[1],[2]]")
    expect(x[2]:item()):to_be(0.0)
    expect(text(again:state_dict())):to_be(text(preparation:state_dict()))
    expect(tostring(again)):to_be("Preparation (3 columns)")
    again:load_state_dict(data.Preparation():state_dict())
    expect(function() again:read(path) end):to_fail("after fit")
  end)
  it("takes only the rows that it is told", function()
    local set = data.csv(path, { rows = { 3, 1, 1 } })
    expect(text(data.tensors(set))):to_be("[[1.0,10.0],[3.0,30.0]]")
    local function fails(rows, said) expect(function() data.csv(path, { rows = rows }) end):to_fail(said) end
    fails({}, "names no row")
    fails({ 0 }, "element 1 is none")
    fails({ 1, 41 }, "1 to 40")
    fails({ 1.5 }, "element 1")
    fails({ 0 / 0 }, "element 1")
    fails({ "1" }, "no number")
    expect(function() data.csv(temporary("a\n1\nx\n"), { rows = { 2 }, columns = { a = "number" } }) end)
      :to_fail("line 3") -- the line of the file
  end)
  it("turns down options and states that are none", function()
    expect(function() data.Preparation { fitted = 5 } end):to_fail("fitted and rows")
    expect(function() data.Preparation({ targt = "price" }):fit(path) end):to_fail("did you mean 'target'")
    expect(function() data.Preparation(options):split(path, { 40, 0 }) end):to_fail("part 2 has no rows")
    local preparation = data.Preparation()
    local function fails(state, said) expect(function() preparation:load_state_dict(state) end):to_fail(said) end
    local function columns(...) return { standardize = false, columns = { ... } } end
    fails({}, "what state_dict gave")
    fails(columns {}, "column 1")
    fails(columns { name = "a" }, "column 1")
    fails(columns({ name = "a", mean = 1, std = 0 }, { name = "b", mean = 1 }), "column 2")
    fails(columns { name = "a", mean = 0 / 0, std = 1 }, "no data has")
    fails(columns { name = "a", mean = 1, std = -1 }, "no data has")
    fails(columns { name = "a", categories = {} }, "no categories")
    fails(columns { name = "a", categories = { "b", "a" } }, "order of bytes")
    fails(columns { name = "a", categories = { "a", 5 } }, "no string")
    fails(columns { name = "a", categories = { "a\0" } }, "zero byte")
    fails(columns { name = "a\0", mean = 1, std = 1 }, "zero byte")
    fails(columns { name = "a", mean = 1, std = 1, target = true }, "beside the target")
    fails(columns({ name = "a", mean = 1, std = 1, target = true }, { name = "b", mean = 1, std = 1, target = true }),
      "two columns")
    expect(#preparation:columns()):to_be(0)
  end)
end)

gb.test.finish()
