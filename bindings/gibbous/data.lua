-- data.lua - datasets and the DataLoader. Native datasets are read ahead by a native thread; a table with `#` and
-- get(i) is a dataset too, and runs on the recipe's thread.

local gb, native = ...
local fail = native.fail -- raises with the recipe's line
local define, own, private = native.define, native.own, native.private
local format, match, pack, unpack, tointeger = string.format, string.match, table.pack, table.unpack, math.tointeger
local move, min, max, math_type = table.move, math.min, math.max, math.type
local read_dataset, read_sample, clock = native.read_dataset, native.read_sample, native.clock
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

-- What is private of a loader: dataset, its options, native (the native loader, where one reads ahead), epoch and batch
-- (where it stands), order and order_epoch (what a sampler or a shuffle gave for that epoch), loop (the loop that
-- runs), device (where that wants its batches, nil: where they are), waited and taken (the seconds that loops waited
-- for batches, and how many they got).
local Loader = {}
Loader.__index = Loader
Loader.__name = "gb.data.DataLoader"
native.classes.DataLoader = Loader

-- The native loader over a dataset: the loader's own.
local function open_native(mine, dataset)
  mine.native = native.loader(dataset, mine.batch_size, mine.shuffle, mine.drop_last, mine.prefetch, mine.seed,
    mine.batches, mine.workers, mine.pin_memory)
end

-- Options that exclude each other.
local function check_options(mine)
  local random = mine.shuffle and "shuffle" or mine.batches and "batches"
  for option, wants_batches in next, { sampler = false, batch_sampler = true } do
    if mine[option] ~= nil then
      mine[option] = native.check_sampler(mine[option], option, wants_batches)
      if random then fail(format("DataLoader: a %s has an order of its own; leave %s out", option, random)) end
    end
  end
  if mine.batch_sampler ~= nil and (mine.sampler ~= nil or mine.batch_size ~= 1 or mine.drop_last) then
    fail("DataLoader: a batch_sampler says what each batch holds; leave batch_size, drop_last and sampler out")
  end
end

data.DataLoader = define("gb.data.DataLoader(dataset: any; batch_size: size = 1, shuffle: bool = false, drop_last: \z
  bool = false, prefetch: int = 2, seed?: int, workers: int = 0, pin_memory: bool = false, batches?: size, sampler?: \z
  any, batch_sampler?: any, collate?: function, parts?: module) -> loader: Batches of a dataset, native or a table \z
  with `#` and get(i). prefetch: batches read ahead (native datasets). workers: threads that share the samples of a \z
  batch (native datasets: images); the batches are the same for any number. pin_memory (native datasets): batches \z
  are made in page-locked memory where there is a CUDA device, from where they cross to it without another copy; \z
  without one it changes nothing. seed: gb's own unless given. batches = n (native datasets): an epoch is n batches \z
  of samples drawn at random, with replacement. sampler: what gives the order of the samples, or a list of \z
  positions; batch_sampler: the same of batches, a list of lists. collate(samples) makes a batch: each sample is a \z
  list of its values with n; what it returns is what the loop gets. A batch_sampler and a collate function run on \z
  the recipe's thread. parts: a model that gb.nn.parallel.DataParallel gave; each process of the job reads only its \z
  part of each batch, that of its virtual shards. Example: local loader = \z
  gb.data.DataLoader(gb.data.TensorDataset(gb.rand(8, 4)), { batch_size = 4, shuffle = true })",
  "strict",
  function(dataset, mine)
    check_options(mine)
    mine.view = mine.parts and native.parts_for(mine.parts)
    mine.dataset, mine.seed, mine.epoch, mine.batch = dataset, mine.seed or (native.get_rng()), 0, 0
    mine.waited, mine.taken = 0.0, 0
    if native.is_dataset(dataset) then
      mine.is_native = mine.batch_sampler == nil and not mine.collate
      if not mine.is_native and mine.batches then
        fail("DataLoader: batches goes with no collate function; use gb.data.RandomSampler(#dataset, { replacement = \z
          true, samples = ... })")
      end
      if mine.is_native and mine.sampler == nil then open_native(mine, dataset) end
    elseif type(dataset) ~= "table" or type(dataset.get) ~= "function" then
      fail("DataLoader takes a dataset of gb.data, or a table with `#` and get(i)")
    elseif mine.batches then
      fail("DataLoader: batches is for native datasets; give gb.data.RandomSampler(#dataset, { replacement = true, \z
        samples = ... }) as sampler")
    end
    if mine.workers ~= 0 and not mine.is_native then
      fail(format("DataLoader: workers are threads for native datasets, got workers = %d; a table with get(i), a \z
        batch_sampler and a collate function run on the recipe's thread", mine.workers))
    end
    if mine.pin_memory and not mine.is_native then
      fail("DataLoader: pin_memory is for native datasets; what a table with get(i), a batch_sampler or a collate \z
        function gives lies where it was made, and crosses to a device by way of the engine's page-locked memory")
    end
    return own(setmetatable({ dataset = dataset, batch_size = mine.batch_size }, Loader), "loader", mine)
  end)

-- The order of the samples (or the batches) of the epoch where the loader stands; nil: as they lie.
local function order_of(mine, count)
  if mine.order_epoch == mine.epoch then return mine.order end
  local sampler = mine.batch_sampler
  if sampler == nil then sampler = mine.sampler end
  if sampler ~= nil then mine.order = native.sampler_order(sampler, mine.epoch, mine.seed)
  else mine.order = mine.shuffle and native.shuffled(count, mine.seed, mine.epoch) or nil end
  mine.order_epoch = mine.epoch
  return mine.order
end

-- How many samples there are.
local function count_of(mine) return (native.reader_of(mine.dataset, "DataLoader")) end

-- Batches in an epoch.
local function batches_of(mine)
  if mine.is_native and mine.sampler == nil then return mine.native:batches() end
  local n = count_of(mine)
  if mine.batch_sampler ~= nil then return #order_of(mine, n) end
  if mine.sampler ~= nil then n = #order_of(mine, n) end
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
  if mine.batch_sampler ~= nil then return format("DataLoader (%d batches)", batches_of(mine)) end
  local is_pinned = mine.pin_memory and mine.native and mine.native:pinned()
  return format("DataLoader (%d batches of %d%s%s)", batches_of(mine), mine.batch_size,
    mine.shuffle and ", shuffled" or "", is_pinned and ", in page-locked memory" or "")
end
-- A position: ipairs(loader) would run no times.
function Loader:__index(key)
  if type(key) == "number" then
    fail("a DataLoader is no list; loop over its batches with: for x, y in loader:iter() do")
  end
  return Loader[key]
end

Loader.__uncallable = true
function Loader:__call()
  loader_of(self)
  fail("a DataLoader is no iterator; loop over its batches with: for x, y in loader:iter() do")
end

function Loader:__pairs() loader_of(self) fail("a DataLoader is no table; loop over its batches with: for x, y in \z
  loader:iter() do") end

-- The positions of the samples of the batch where the loader stands, as they come.
local function batch_of(mine, order, count)
  if mine.batch_sampler ~= nil then
    local positions = order[mine.batch + 1]
    if type(positions) == "table" and #positions > 0 then return positions end
    fail(format("DataLoader: batch %d of the batch_sampler is no list of positions, or empty", mine.batch + 1))
  end
  local first, last = mine.batch * mine.batch_size + 1, min((mine.batch + 1) * mine.batch_size, order and #order or
    count)
  if order then return move(order, first, last, 1, {}) end
  local positions = {}
  for i = first, last do positions[i - first + 1] = i end
  return positions
end

-- The same, checked.
local function positions_of(mine, count)
  local positions = batch_of(mine, order_of(mine, count), count)
  for i = 1, #positions do
    local at = positions[i]
    if math_type(at) ~= "integer" or at < 1 or at > count then
      fail(format("DataLoader: the sampler asks for sample %s of %d; positions are whole numbers from 1", tostring(at),
        count))
    end
  end
  return positions
end

-- A sample of a native dataset. One that is random depends on the loader's seed and epoch, as in a batch.
local function drawn_sample(mine, at)
  local sample = pack(native.read_batch(mine.dataset, { at }, mine.seed, mine.epoch))
  for c = 1, sample.n do sample[c] = sample[c]:select(1, 1) end
  return unpack(sample, 1, sample.n)
end

-- {==== what one process of a job reads ====
-- A view is what one process reads of a loader: { shards, rank, size }: of each batch the samples that its virtual
-- shards take, as runtime/dist/shards.c cuts it; or { rank, size }: each size-th batch, from the rank-th on.

-- Where the part of a batch of n samples begins, from 0, and how many there are in it.
function native.part_of(view, n)
  local function edge(rank) return n * (view.shards * rank // view.size) // view.shards end
  local first = edge(view.rank)
  return first, edge(view.rank + 1) - first
end
local part_of = native.part_of

-- Of which batch a tensor is a part, as loaders have given them: total, its samples, and what must be the same on all
-- ranks (runtime/dist/shards.h): seed, samples of the dataset, batch size, place, and a number made of the order.
native.batch_notes = setmetatable({}, { __mode = "k" })

-- A number that tells orders of samples apart (FNV-1a).
local function digest_of(order)
  local hash = 0xCBF29CE484222325
  for i = 1, order and #order or 0 do
    local at = order[i]
    if type(at) == "table" then at = digest_of(at) end
    hash = (hash ~ (math_type(at) == "integer" and at or 0)) * 0x100000001B3
  end
  return hash
end

local function note_batch(mine, batch)
  local place = mine.epoch << 32 | mine.batch
  if mine.digest_epoch ~= mine.epoch or mine.digested ~= mine.order then
    mine.digest, mine.digest_epoch, mine.digested = digest_of(mine.order), mine.epoch, mine.order
  end
  local note = { total = mine.rows, mine.seed, count_of(mine), mine.batch_size, place, mine.digest }
  for i = 1, batch.n do
    local value = batch[i]
    if gb.is_tensor(value) then native.batch_notes[value] = note
    elseif type(value) == "table" then
      for _, inner in next, value do
        if gb.is_tensor(inner) then native.batch_notes[inner] = note end
      end
    end
  end
end

-- A batch without samples, of one with some.
local function emptied(batch)
  for i = 1, batch.n do batch[i] = native.cut(batch[i], 1, 0) end
  return batch
end

-- The view's part of a whole batch.
local function part_of_batch(mine, view, batch)
  mine.rows = native.samples_of(batch, "DataLoader")
  local first, rows = part_of(view, mine.rows)
  for i = 1, batch.n do batch[i] = native.cut(batch[i], first + 1, rows) end
  return batch
end

-- How many samples the batch where the loader stands has.
local function rows_there(mine, count) return min(mine.batch_size, count - mine.batch * mine.batch_size) end

-- The positions of so many samples that come after `first` in an order, or as they lie.
local function stretch(list, order, first, rows)
  for i = first + 1, first + rows do list[#list + 1] = order and order[i] or i end
  return list
end

-- The samples of an epoch that are read ahead of a view, in their order, and how many of a whole batch. Of a view of
-- shards a last, short batch is not among them: its part may be the larger one.
local function order_of_view(mine, view)
  local order, size, list = order_of(mine, count_of(mine)), mine.batch_size, {}
  local count = order and #order or count_of(mine)
  if not view.shards then
    for batch = view.rank, batches_of(mine) - 1, view.size do
      stretch(list, order, batch * size, min(size, count - batch * size))
    end
    return list, size
  end
  local skipped, rows = part_of(view, size)
  for batch = 0, count // size - 1 do stretch(list, order, batch * size + skipped, rows) end
  return list, rows
end

-- A batch of a view that is read ahead: each epoch has a native loader of its own, over the samples of the view.
local function ahead_of_view(mine, view)
  local seen = mine.seen
  if not seen or seen.view ~= view or seen.epoch ~= mine.epoch or seen.batch ~= mine.batch then
    if seen then seen.native:close() end
    local list, size = order_of_view(mine, view)
    seen = { view = view, epoch = mine.epoch, native = native.loader(native.subset(mine.dataset, list, "DataLoader"),
      size, false, false, mine.prefetch, mine.seed, nil, mine.workers, mine.pin_memory) }
    local before = view.shards and mine.batch or (mine.batch - view.rank + view.size - 1) // view.size
    seen.native:seek(mine.epoch, before)
    mine.seen = seen
  end
  seen.batch = mine.batch + (view.shards and 1 or view.size)
  return seen.native:next(mine.device)
end

-- A native dataset's batch of a view. One without samples is made of the first that there is.
local function view_batch(mine, view)
  local order = order_of(mine, count_of(mine))
  mine.rows, mine.drifted = rows_there(mine, order and #order or count_of(mine)), true
  if not view.shards then return ahead_of_view(mine, view) end
  local skipped, rows = part_of(view, mine.rows)
  if rows > 0 and mine.rows == mine.batch_size then return ahead_of_view(mine, view) end
  local positions = stretch({}, order, mine.batch * mine.batch_size + (rows > 0 and skipped or 0), max(rows, 1))
  local batch = pack(native.read_batch(mine.dataset, positions, mine.seed, mine.epoch))
  return unpack(rows > 0 and batch or emptied(batch), 1, batch.n)
end

-- ====}

-- The samples at these positions as a batch, made on the recipe's thread.
local function read_positions(mine, get, positions)
  if native.is_dataset(mine.dataset) then
    if not mine.collate then return native.read_batch(mine.dataset, positions, mine.seed, mine.epoch) end
    get = function(at) return drawn_sample(mine, at) end
  end
  local samples = {}
  for i = 1, #positions do samples[i] = read_sample(get, positions[i], samples[1]) end
  if not samples[1] then fail("DataLoader: the dataset became shorter while it was read") end
  return (mine.collate or native.collate)(samples)
end

-- A batch that is made on the recipe's thread, or a view's part of it. What a collate function makes of a whole batch
-- may hang on all of its samples, so that is cut when it is made.
local function lua_batch(mine, view)
  local count, get = native.reader_of(mine.dataset, "DataLoader")
  if mine.batch >= batches_of(mine) then return nil end
  local positions, is_empty = positions_of(mine, count), false
  mine.rows = #positions
  if view and view.shards and not mine.collate then
    local first, rows = part_of(view, #positions)
    is_empty = rows == 0
    positions = is_empty and { positions[1] } or move(positions, first + 1, first + rows, 1, {})
  end
  local batch = pack(read_positions(mine, get, positions))
  if batch[1] == nil then return nil end
  if is_empty then batch = emptied(batch)
  elseif view and view.shards and mine.collate then batch = part_of_batch(mine, view, batch) end
  return unpack(batch, 1, batch.n)
end

-- Stand at this place: no batch before it is read.
local function stand(mine, epoch, batch)
  mine.epoch, mine.batch, mine.drifted = epoch, batch, nil
  if mine.native and mine.sampler == nil then mine.native:seek(epoch, batch)
  else mine.native_epoch = nil end
end

-- A batch that is read ahead, or a view's part of it. With a sampler each epoch has a native loader of its own, over
-- the samples in their order.
local function native_batch(mine, view)
  if mine.batches and view and view.shards then -- drawn natively, by no order that could be cut
    local batch = pack(mine.native:next())
    if batch[1] == nil then return nil end
    return unpack(part_of_batch(mine, view, batch), 1, batch.n)
  end
  if mine.drifted and not view then stand(mine, mine.epoch, mine.batch) end -- a view went on without it
  if mine.sampler == nil and (not view or mine.batches) then return mine.native:next(mine.device) end
  if mine.batch >= batches_of(mine) then return nil end
  if view then return view_batch(mine, view) end
  if mine.native_epoch ~= mine.epoch then
    if mine.native then mine.native:close() end
    mine.native = nil
    local part = native.subset(mine.dataset, order_of(mine), "DataLoader")
    open_native(mine, part)
    mine.native:seek(mine.epoch, mine.batch)
    mine.native_epoch = mine.epoch
  end
  return mine.native:next(mine.device)
end

-- Where a loop that was left begins again: at the first batch, but of a shuffled loader in the next order.
local function begin_again(mine)
  local random = mine.shuffle or mine.batches or mine.sampler ~= nil or mine.batch_sampler ~= nil
  stand(mine, mine.epoch + (random and 1 or 0), 0)
end

-- The next batch, or what a view has of it; nil at the end of an epoch.
local function next_batch(mine, view)
  if mine.is_native then return native_batch(mine, view) end
  return lua_batch(mine, view)
end

-- Go on to a batch of the view, where it has whole ones.
local function skip_others(mine, view)
  if not view or view.shards then return end
  while mine.batch < batches_of(mine) and mine.batch % view.size ~= view.rank do
    if mine.is_native and mine.batches then mine.native:next() end
    mine.batch = mine.batch + 1
  end
end

-- The batches of an epoch, or what a view has of them.
function native.iterate(mine, device, resume, view)
  local finished, loop = false, {}
  if view and view.size == 1 then view = nil end
  if mine.batch > 0 and not mine.loaded and not resume then begin_again(mine) end
  mine.loop, mine.loaded = loop, nil
  return function()
    if finished then return nil end
    native.step_boundary()
    if mine.loop ~= loop then
      fail("DataLoader: another loop over this loader was begun; give each loop a DataLoader of its own")
    end
    local started = clock()
    mine.device = device
    skip_others(mine, view)
    local batch = pack(next_batch(mine, view))
    if batch[1] == nil then
      if mine.collate and mine.batch < batches_of(mine) then
        fail("DataLoader: the collate function returned nothing")
      end
      finished = true
      mine.epoch, mine.batch = mine.epoch + 1, 0
      return nil
    end
    mine.batch = mine.batch + 1
    if device then
      for i = 1, batch.n do
        if gb.is_tensor(batch[i]) then batch[i] = batch[i]:to(device) end
      end
    end
    if view and view.shards then note_batch(mine, batch) end
    mine.waited, mine.taken = mine.waited + (clock() - started), mine.taken + 1
    return unpack(batch, 1, batch.n)
  end
end

Loader.iter = define("DataLoader:iter(device?: device; resume: bool = false) -> function: The batches of one epoch \z
  from its beginning; the next call begins the next epoch, also where a loop was left by break. With resume the loop \z
  goes on where a checkpoint that was loaded, or a loop that was left, stood. device moves each tensor there. There \z
  is one place to stand, so one loop at a time. Example: for x, y in loader:iter(\"cpu\") do print(x.shape, y.shape) \z
  end", "strict", function(self, device, options)
  local mine = private(self, "loader")
  return native.iterate(mine, device, options.resume, mine.view)
end)

Loader.waited = define("DataLoader:waited() -> number, int: How many seconds loops over the loader have waited for \z
  their batches so far, until these were there and, with a device, on their way to it; and how many batches. Beside \z
  the time of the steps it says whether more workers would help. Example: print(loader:waited())", "strict",
  function(self)
    local mine = private(self, "loader")
    return mine.waited, mine.taken
  end)

Loader.state_dict = define("DataLoader:state_dict() -> table: Where the loader stands: saved and restored with a \z
  checkpoint. Example: local state = loader:state_dict()", "strict", function(self)
  local mine = private(self, "loader")
  return { epoch = mine.epoch, batch = mine.batch, seed = format("%d", mine.seed) }
end)

Loader.load_state_dict = define("DataLoader:load_state_dict(state: table): Go on from where state_dict was asked: \z
  the next loop begins there, and what lies before is not read again. Errors: a state of another form, a batch that \z
  an epoch does not have. Example: loader:load_state_dict(loader:state_dict())", "strict",
  function(self, state)
    local mine = private(self, "loader")
    local epoch, batch, seed = state.epoch, state.batch, tointeger(state.seed)
    if math_type(epoch) ~= "integer" or math_type(batch) ~= "integer" or not seed then
      fail("DataLoader: load_state_dict takes what state_dict gave")
    end
    local next_place = setmetatable({ epoch = epoch, seed = seed, order_epoch = false }, { __index = mine })
    local most = epoch >= 0 and batches_of(next_place) or batches_of(mine)
    if epoch < 0 or batch < 0 or batch > most then
      fail(format("DataLoader: load_state_dict: there is no batch %d of epoch %d, an epoch has %d batches", batch,
        epoch, most))
    end
    local was = mine.seed
    mine.seed, mine.order, mine.order_epoch, mine.loaded, mine.seen = seed, nil, nil, true, nil
    if seed ~= was and mine.is_native and mine.sampler == nil then
      mine.native:close()
      open_native(mine, mine.dataset)
    end
    stand(mine, epoch, batch)
  end)

-- ====}

-- {==== batches that are there ====

-- The values of a batch that is a list of one.
local function only(samples) return unpack(samples[1], 1, samples[1].n) end

data.batches = define("gb.data.batches(list: list) -> loader: A list of batches, { x, y } each or a tensor alone, as \z
  a DataLoader that gives them as they are, in their order. Errors: a batch that is no list and no tensor. Example: \z
  for x, y in gb.data.batches({ { gb.rand(8, 4), gb.zeros(8) } }):iter() do print(x.shape, y.shape) end", "strict",
  function(list)
    for i = 1, #list do
      local batch = list[i]
      if type(batch) ~= "table" and not gb.is_tensor(batch) then
        fail(format("batches: batch %d of the list is a %s; a batch is { x, y }, or a tensor", i,
          native.type_name(batch)))
      end
      list[i] = type(batch) == "table" and native.copy(batch) or { batch }
    end
    local rows = setmetatable({ get = function(_, i) return unpack(list[i]) end },
      { __len = function() return #list end })
    return data.DataLoader(rows, { collate = only })
  end)

data.first_batches = define("gb.data.first_batches(loader: loader, n: count; device?: device) -> loader: The first n \z
  batches that a DataLoader gives now, kept, as a DataLoader of its own: the same ones in each epoch, to try a model \z
  with. Example: local few = gb.data.first_batches(gb.data.DataLoader(gb.data.TensorDataset(gb.rand(8, 4)), { \z
  batch_size = 4 }), 1) print(#few)", "strict", function(loader, n, options)
  local list, source = {}, loader:iter(options.device)
  for i = 1, min(n, #loader) do list[i] = pack(source()) end
  return data.batches(list)
end)

-- ====}
