-- data.lua - datasets and the DataLoader. Native datasets (mnist, idx, text, tokens, TensorDataset) are read ahead by a native thread; a table with
-- `#` and get(i) is a dataset too, and runs on the recipe's thread.

local gb, native = ...
local fail = native.fail -- raises with the recipe's line
local data = gb.data

-- gb.data.mnist(folder: string, options?: table) -> dataset, dataset: The four standard files of MNIST in a folder (gzipped or not): the training
-- and the test set. Where only the 10,000 test images are there, the first 8,000 train and the last 2,000 test, and a line says so. options: those
-- of idx. Errors: files that are not there.
function data.mnist(folder, options)
  if type(folder) ~= "string" or folder == "" then
    fail("data.mnist needs the folder with the MNIST files (train-images-idx3-ubyte, ..., gzipped or not)")
  end
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
  if not test then fail(("data.mnist: %s has no t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte, gzipped or not"):format(folder)) end
  local train = set("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
  if train then return train, test end
  print(("mnist: %s holds only the test images: training on the first 8,000, testing on the last 2,000"):format(folder))
  return test:subset(1, 8000), test:subset(8001, 10000)
end

-- {==== DataLoader ====

local known = { batch_size = 1, shuffle = false, drop_last = false, prefetch = 2, seed = 0, workers = 0, batches = 0 }

local Loader = {}
Loader.__index = Loader
Loader.__name = "gb.data.DataLoader"
native.classes.DataLoader = Loader

local function open_native(self)
  self.native = native.loader(self.dataset, { batch_size = self.batch_size, shuffle = self.shuffle, drop_last = self.drop_last,
                                              prefetch = self.prefetch, seed = self.seed, batches = self.batches })
end

-- gb.data.DataLoader(dataset, options?: table) -> loader: Batches of a dataset, native or a table with `#` and get(i). options: batch_size = 1,
-- shuffle = false, drop_last = false, prefetch = 2 (batches read ahead, native datasets), seed (gb's own unless given), batches = n (native
-- datasets: an epoch is n batches of samples drawn at random, with replacement). Example: local loader =
-- gb.data.DataLoader(gb.data.TensorDataset(gb.rand(8, 4)), { batch_size = 4, shuffle = true })
function data.DataLoader(dataset, options)
  options = options or {}
  if type(options) ~= "table" then fail(("DataLoader takes its options in a table, got %s"):format(type(options))) end
  for key in pairs(options) do
    if known[key] == nil then fail(("DataLoader has no option '%s'%s"):format(tostring(key), native.nearest(tostring(key), known))) end
  end
  if options.workers and options.workers ~= 0 and options.workers ~= 1 then
    fail("DataLoader: worker threads run native datasets only, and one reads ahead already; leave workers at 0 or 1")
  end
  local self = setmetatable({ dataset = dataset, batch_size = options.batch_size or 1, shuffle = options.shuffle or false,
                              drop_last = options.drop_last or false, prefetch = options.prefetch or 2, batches = options.batches, epoch = 0, batch = 0 }, Loader)
  self.batch_size = type(self.batch_size) == "number" and math.tointeger(self.batch_size)
  if not self.batch_size or self.batch_size < 1 then fail("DataLoader: batch_size is a whole number from 1") end
  for _, name in ipairs { "shuffle", "drop_last" } do
    if type(self[name]) ~= "boolean" then fail(("DataLoader: '%s' must be true or false, got %s"):format(name, type(self[name]))) end
  end
  if options.batches and not (type(options.batches) == "number" and math.tointeger(options.batches) and options.batches >= 1) then
    fail(("DataLoader: batches is a whole number from 1, got %s"):format(tostring(options.batches)))
  end
  self.seed = options.seed or (native.get_rng())
  if native.is_dataset(dataset) then
    open_native(self)
  elseif type(dataset) ~= "table" or type(dataset.get) ~= "function" then
    fail("DataLoader takes a dataset of gb.data, or a table with `#` and get(i)")
  elseif options.batches then
    fail("DataLoader: batches is for native datasets; shuffle a Lua dataset, or draw positions in its get(i)")
  end
  return self
end

-- The samples of a dataset that is a table. Its length is the recipe's word, and may be anything.
local function count_of(dataset)
  local n = #dataset
  if math.type(n) ~= "integer" or n < 0 then fail(("DataLoader: the length of a dataset is a whole number, got %s"):format(tostring(n))) end
  return n
end

-- Batches in an epoch.
function Loader:__len()
  if self.native then return self.native:batches() end
  local n = count_of(self.dataset)
  return n // self.batch_size + ((self.drop_last or n % self.batch_size == 0) and 0 or 1)
end

-- The columns of samples stacked into tensors.
local function collate(samples)
  local batch = {}
  for column = 1, samples[1].n do
    local values = {}
    for i, sample in ipairs(samples) do values[i] = sample[column] end
    batch[column] = gb.is_tensor(values[1]) and gb.stack(values) or gb.tensor(values)
  end
  return table.unpack(batch)
end

local function lua_batch(self)
  local n = count_of(self.dataset)
  if self.batch >= #self then return nil end
  self.order = self.order or (self.shuffle and native.shuffled(n, self.seed, self.epoch)) or false
  local samples = {}
  for i = self.batch * self.batch_size + 1, math.min((self.batch + 1) * self.batch_size, n) do
    local at = self.order and self.order[i] or i
    local sample = table.pack(self.dataset:get(at))
    if sample[1] == nil then fail(("DataLoader: get(%d) of the dataset returned nothing"):format(at)) end
    samples[#samples + 1] = sample
  end
  return collate(samples)
end

-- DataLoader:iter(device?: string) -> function: The batches of one epoch, from where the loader stands (a loop left by break goes on there); the
-- next call begins the next epoch. device moves each tensor there. There is one place to stand, so one loop at a time. Example: for x, y in
-- loader:iter("cpu") do print(x.shape, y.shape) end
function Loader:iter(device)
  local finished, loop = false, {}
  self.loop = loop
  return function()
    if finished then return nil end
    native.step_boundary()
    if self.loop ~= loop then fail("DataLoader: another loop over this loader was begun; give each loop a DataLoader of its own") end
    local batch
    if self.native then batch = table.pack(self.native:next()) else batch = table.pack(lua_batch(self)) end
    if batch[1] == nil then
      finished = true
      self.epoch, self.batch, self.order = self.epoch + 1, 0, nil
      return nil
    end
    self.batch = self.batch + 1
    if device and device ~= "cpu" then
      for i = 1, batch.n do batch[i] = batch[i]:to(device) end
    end
    return table.unpack(batch, 1, batch.n)
  end
end

-- DataLoader:state_dict() -> table: Where the loader stands: saved and restored with a checkpoint. Example: local state = loader:state_dict()
function Loader:state_dict() return { epoch = self.epoch, batch = self.batch, seed = ("%d"):format(self.seed) } end

-- DataLoader:load_state_dict(state: table): Go on from where state_dict was asked. Example: loader:load_state_dict(loader:state_dict())
function Loader:load_state_dict(state)
  if type(state) ~= "table" or not (math.type(state.epoch) == "integer" and math.type(state.batch) == "integer" and math.tointeger(state.seed)) then
    fail("DataLoader: load_state_dict takes what state_dict gave")
  end
  if state.epoch < 0 or state.batch < 0 or state.batch > #self then
    fail(("DataLoader: load_state_dict: there is no batch %d of epoch %d, an epoch has %d batches"):format(state.batch, state.epoch, #self))
  end
  self.epoch, self.batch, self.seed, self.order = state.epoch, state.batch, math.tointeger(state.seed), nil
  if self.native then
    self.native:close()
    open_native(self)
    self.native:seek(self.epoch, self.batch)
  end
end

-- ====}
