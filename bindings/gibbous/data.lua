-- data.lua - datasets and the DataLoader. Native datasets are read ahead by a native thread; a table with `#` and
-- get(i) is a dataset too, and runs on the recipe's thread.

local gb, native = ...
local fail = native.fail -- raises with the recipe's line
local define, own, private = native.define, native.own, native.private
local format, match, pack, unpack, tointeger = string.format, string.match, table.pack, table.unpack, math.tointeger
local read_dataset = native.read_dataset
local data = gb.data

-- The native readers, each by its record.
for i, text in ipairs(native.dataset_readers()) do
  data[match(text, "^gb%.data%.([%w_]+)")] = define(text, "files", function(...) return read_dataset(i, ...) end)
end

data.mnist = define("gb.data.mnist(folder: path; mean?: number, std?: number) -> dataset, dataset: The four \z
  standard files of MNIST in a folder (gzipped or not): the training and the test set. Where only the 10,000 test \z
  images are there, the first 8,000 train and the last 2,000 test, and a line says so. Errors: files that are not \z
  there.", "files", function(folder, options)
  local function find(name)
    for _, ending in ipairs { "", ".gz" } do
      local path = folder .. "/" .. name .. ending
      if native.file_exists(path) then return path end
    end
  end
  local function set(images, labels)
    local a, b = find(images), find(labels)
    return a and b and data.idx(a, b, options)
  end
  local test = set("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
  if not test then
    fail(format("data.mnist: %s has no t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte, gzipped or not", folder))
  end
  local train = set("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
  if train then return train, test end
  print(format("mnist: %s holds only the test images: training on the first 8,000, testing on the last 2,000", folder))
  return test:subset(1, 8000), test:subset(8001, 10000)
end)

-- {==== DataLoader ====

-- What is private of a loader: dataset, its options, native (the native loader, of a native dataset), epoch and batch
-- (where it stands), order (of a shuffled Lua dataset's epoch), loop (the loop that runs).
local Loader = {}
Loader.__index = Loader
Loader.__name = "gb.data.DataLoader"
native.classes.DataLoader = Loader

local function open_native(mine)
  mine.native = native.loader(mine.dataset, mine.batch_size, mine.shuffle, mine.drop_last, mine.prefetch, mine.seed,
    mine.batches, mine.workers)
end

data.DataLoader = define("gb.data.DataLoader(dataset: any; batch_size: size = 1, shuffle: bool = false, drop_last: \z
  bool = false, prefetch: int = 2, seed?: int, workers: int = 0, batches?: size) -> loader: Batches of a dataset, \z
  native or a table with `#` and get(i). prefetch: batches read ahead (native datasets). workers: threads that share \z
  the samples of a batch (native datasets: images); the batches are the same for any number. seed: gb's own unless \z
  given. batches = n (native datasets): an epoch is n batches of samples drawn at random, with replacement. Example: \z
  local loader = gb.data.DataLoader(gb.data.TensorDataset(gb.rand(8, 4)), { batch_size = 4, shuffle = true })",
  "strict",
  function(dataset, mine)
    mine.dataset, mine.seed, mine.epoch, mine.batch = dataset, mine.seed or (native.get_rng()), 0, 0
    if native.is_dataset(dataset) then open_native(mine)
    elseif type(dataset) ~= "table" or type(dataset.get) ~= "function" then
      fail("DataLoader takes a dataset of gb.data, or a table with `#` and get(i)")
    elseif mine.workers ~= 0 then
      fail(format("DataLoader: workers are threads for native datasets, got workers = %d; a table with get(i) runs on \z
        the recipe's thread", mine.workers))
    elseif mine.batches then
      fail("DataLoader: batches is for native datasets; shuffle a Lua dataset, or draw positions in its get(i)")
    end
    return own(setmetatable({ dataset = dataset, batch_size = mine.batch_size }, Loader), "loader", mine)
  end)

-- The samples of a dataset that is a table. Its length is the recipe's word, and may be anything.
local function count_of(dataset)
  local n = #dataset
  if math.type(n) ~= "integer" or n < 0 then
    fail(format("DataLoader: the length of a dataset is a whole number, got %s", tostring(n)))
  end
  return n
end

-- Batches in an epoch.
local function batches_of(mine)
  if mine.native then return mine.native:batches() end
  local n = count_of(mine.dataset)
  return n // mine.batch_size + ((mine.drop_last or n % mine.batch_size == 0) and 0 or 1)
end

local function loader_of(self)
  local mine = private(self, "loader")
  if not mine then fail("this is no DataLoader; gb.data.DataLoader(dataset) makes one") end
  return mine
end

function Loader:__len() return batches_of(loader_of(self)) end
function Loader:__tostring()
  local mine = loader_of(self)
  return format("DataLoader (%d batches of %d%s)", batches_of(mine), mine.batch_size,
    mine.shuffle and ", shuffled" or "")
end
-- A position: ipairs(loader) would run no times.
function Loader:__index(key)
  if type(key) == "number" then
    fail("a DataLoader is no list; loop over its batches with: for x, y in loader:iter() do")
  end
  return Loader[key]
end
function Loader:__pairs() loader_of(self) fail("a DataLoader is no table; loop over its batches with: for x, y in \z
  loader:iter() do") end

-- The columns of samples stacked into tensors.
local function collate(samples)
  local batch = {}
  for column = 1, samples[1].n do
    local values = {}
    for i, sample in ipairs(samples) do values[i] = sample[column] end
    batch[column] = gb.is_tensor(values[1]) and gb.stack(values) or gb.tensor(values)
  end
  return unpack(batch)
end

local function lua_batch(mine)
  local dataset = mine.dataset
  local n = count_of(dataset)
  if mine.batch >= batches_of(mine) then return nil end
  mine.order = mine.order or (mine.shuffle and native.shuffled(n, mine.seed, mine.epoch)) or false
  local samples = {}
  for i = mine.batch * mine.batch_size + 1, math.min((mine.batch + 1) * mine.batch_size, n) do
    local at = mine.order and mine.order[i] or i
    local sample = pack(dataset:get(at))
    if sample[1] == nil then fail(format("DataLoader: get(%d) of the dataset returned nothing", at)) end
    local first = samples[1] or sample
    if sample.n ~= first.n then
      fail(format("DataLoader: get(%d) of the dataset returned %d values, another sample of the batch %d", at, sample.n,
        first.n))
    end
    for c = 1, sample.n do
      if sample[c] == nil then fail(format("DataLoader: value %d of get(%d) of the dataset is nil", c, at)) end
    end
    samples[#samples + 1] = sample
  end
  if not samples[1] then fail("DataLoader: the dataset became shorter while it was read") end
  return collate(samples)
end

-- Where a loop that was left begins again: at the first batch, but of a shuffled loader in the next order.
local function begin_again(mine)
  if mine.shuffle or mine.batches then mine.epoch = mine.epoch + 1 end
  mine.batch, mine.order = 0, nil
  if mine.native then mine.native:seek(mine.epoch, 0) end
end

Loader.iter = define("DataLoader:iter(device?: device; resume: bool = false) -> function: The batches of one epoch \z
  from its beginning; the next call begins the next epoch, also where a loop was left by break. With resume the loop \z
  goes on where a checkpoint that was loaded, or a loop that was left, stood. device moves each tensor there. There \z
  is one place to stand, so one loop at a time. Example: for x, y in loader:iter(\"cpu\") do print(x.shape, y.shape) \z
  end", "strict", function(self, device, options)
  local mine, finished, loop = private(self, "loader"), false, {}
  if mine.batch > 0 and not mine.loaded and not options.resume then begin_again(mine) end
  mine.loop, mine.loaded = loop, nil
  return function()
    if finished then return nil end
    native.step_boundary()
    if mine.loop ~= loop then
      fail("DataLoader: another loop over this loader was begun; give each loop a DataLoader of its own")
    end
    local batch
    if mine.native then batch = pack(mine.native:next()) else batch = pack(lua_batch(mine)) end
    if batch[1] == nil then
      finished = true
      mine.epoch, mine.batch, mine.order = mine.epoch + 1, 0, nil
      return nil
    end
    mine.batch = mine.batch + 1
    if device and device ~= "cpu" then
      for i = 1, batch.n do batch[i] = batch[i]:to(device) end
    end
    return unpack(batch, 1, batch.n)
  end
end)

Loader.state_dict = define("DataLoader:state_dict() -> table: Where the loader stands: saved and restored with a \z
  checkpoint. Example: local state = loader:state_dict()", "strict", function(self)
  local mine = private(self, "loader")
  return { epoch = mine.epoch, batch = mine.batch, seed = format("%d", mine.seed) }
end)

Loader.load_state_dict = define("DataLoader:load_state_dict(state: table): Go on from where state_dict was asked: \z
  the next loop begins there. Errors: a state of another form, a batch that an epoch does not have. Example: \z
  loader:load_state_dict(loader:state_dict())", "strict",
  function(self, state)
    local mine = private(self, "loader")
    local epoch, batch, seed = state.epoch, state.batch, tointeger(state.seed)
    if math.type(epoch) ~= "integer" or math.type(batch) ~= "integer" or not seed then
      fail("DataLoader: load_state_dict takes what state_dict gave")
    end
    local most = batches_of(mine)
    if epoch < 0 or batch < 0 or batch > most then
      fail(format("DataLoader: load_state_dict: there is no batch %d of epoch %d, an epoch has %d batches", batch,
        epoch, most))
    end
    local was = mine.seed
    mine.epoch, mine.batch, mine.seed, mine.order, mine.loaded = epoch, batch, seed, nil, true
    if not mine.native then return end
    if seed ~= was then
      mine.native:close()
      open_native(mine)
    end
    mine.native:seek(epoch, batch)
  end)

-- ====}
