-- datasets.lua - datasets made of others, of functions and of files. A dataset is a native one, or any table with `#`
-- and get(i); those made here stay native where all they are made of is, so that they are read ahead by a thread.

local gb, native = ...
local fail = native.fail -- raises with the recipe's line
local define, own, private = native.define, native.own, native.private
local format, pack, unpack, floor, math_type = string.format, table.pack, table.unpack, math.floor, math.type
local concat, sort, move, insert = table.concat, table.sort, table.move, table.insert
local sub, max, tointeger = string.sub, math.max, math.tointeger
local is_native, is_tensor = native.is_dataset, gb.is_tensor
local data = gb.data

-- {==== Datasets in Lua ====

-- A class of gb.data whose objects have private fields of this kind: `text` of them is what tostring says, `count` the
-- length.
local function class_of_data(name, kind, text)
  local class = { __name = "gb.data." .. name }
  class.__index = class
  class.__len = function(self)
    local mine = private(self, kind)
    return mine and mine.count or 0
  end
  class.__tostring = function(self)
    local mine = private(self, kind)
    return mine and text(mine) or name
  end
  native.classes[name] = class
  return class
end
native.class_of_data = class_of_data

-- What is private of a dataset: count, get (a function of a position from 1), name (for tostring).
local Dataset = class_of_data("Dataset", "samples",
  function(mine) return format("%s (%d samples)", mine.name, mine.count) end)

-- A dataset of so many samples, each from a function.
local function make(name, count, get)
  return own(setmetatable({}, Dataset), "samples", { name = name, count = count, get = get })
end
native.make_dataset = make

-- Position i of count samples from 1, negative ones from the end; or an error.
local function position_of(i, count, who)
  local at = i < 0 and i + count + 1 or i
  if at < 1 or at > count then fail(format("%s: there is no sample %d among %d; positions count from 1", who, i,
    count)) end
  return at
end

Dataset.get = define("Dataset:get(i: int) -> any: Sample i (from 1, -1 is the last): as many values as a sample has. \z
  Example: print(gb.data.Dataset(3, function(i) return i * i end):get(2))", "strict",
  function(self, i)
    local mine = private(self, "samples")
    return mine.get(position_of(i, mine.count, "get"))
  end)

-- How many samples any dataset has, and a function that reads one. The length of a recipe's table is its word, and may
-- be anything.
local function reader_of(dataset, who)
  if is_native(dataset) then return #dataset, function(i) return dataset:get(i) end end
  local mine = private(dataset, "samples")
  if mine then return mine.count, mine.get end
  if type(dataset) ~= "table" or type(dataset.get) ~= "function" then
    fail(format("%s takes a dataset of gb.data, or a table with `#` and get(i), got a %s", who,
      native.type_name(dataset)))
  end
  local n = #dataset
  if math_type(n) ~= "integer" or n < 0 then
    fail(format("%s: the length of a dataset is a whole number, got %s", who, native.shown(n)))
  end
  return n, function(i) return dataset:get(i) end
end
native.reader_of = reader_of

data.Dataset = define("gb.data.Dataset(count: count, get: function) -> any: A dataset of so many samples; get(i), i \z
  from 1, returns the values of one: tensors, numbers, strings. Any table with `#` and get(i) is a dataset too. \z
  Example: local set = gb.data.Dataset(10, function(i) return gb.full({ 2 }, i), i % 2 end)", "strict",
  function(count, get) return make("Dataset", count, get) end)

data.map = define("gb.data.map(dataset: any, fn: function) -> any: The dataset of fn(...) of each sample's values, \z
  computed whenever a sample is asked for. Example: local set = gb.data.map(gb.data.TensorDataset(gb.rand(8, 4)), \z
  function(x) return x * 2 end)", "strict",
  function(dataset, fn)
    local count, get = reader_of(dataset, "map")
    return make("map", count, function(i) return fn(get(i)) end)
  end)

-- ====}

-- {==== Parts and wholes ====

-- The samples of these positions, in this order.
local function subset(dataset, positions, who)
  if is_native(dataset) then return dataset:subset(positions) end
  local count, get = reader_of(dataset, who)
  local list = {}
  for i = 1, #positions do
    local at = positions[i]
    if math_type(at) ~= "integer" then
      fail(format("%s: [%d] of the positions is %s, no whole number", who, i, native.shown(at)))
    end
    list[i] = position_of(at, count, who)
  end
  return make("Subset", #list, function(i) return get(list[i]) end)
end
native.subset = subset

data.Subset = define("gb.data.Subset(dataset: any, positions: list) -> any: The samples of these positions (from 1, \z
  -1 is the last), in this order; of a native dataset native too. Errors: a position that is none. Example: local set \z
  = gb.data.Subset(gb.data.TensorDataset(gb.rand(8, 4)), { 1, 3, 5 })", "strict",
  function(dataset, positions) return subset(dataset, positions, "Subset") end)

-- Are all of these native, with samples of one form?
local function all_alike(datasets)
  for i = 1, #datasets do
    if not is_native(datasets[i]) or not native.alike(datasets[1], datasets[i]) then return false end
  end
  return true
end

data.ConcatDataset = define("gb.data.ConcatDataset(datasets: list) -> any: The samples of datasets, one behind the \z
  other; native where all are, with samples of one form. Errors: no dataset. Example: local set = \z
  gb.data.TensorDataset(gb.rand(8, 4)) print(#gb.data.ConcatDataset { set, set })", "strict",
  function(datasets)
    if #datasets == 0 then fail("ConcatDataset takes a list of one dataset or more") end
    if all_alike(datasets) then return native.concat(datasets) end
    local ends, gets, count = {}, {}, 0
    for i = 1, #datasets do
      local n, get = reader_of(datasets[i], "ConcatDataset")
      count = count + n
      if count < 0 then fail("ConcatDataset: the datasets have more samples than can be counted") end
      ends[i], gets[i] = count, get
    end
    return make("ConcatDataset", count, function(i)
      local low, high = 1, #ends
      while low < high do
        local middle = (low + high) // 2
        if ends[middle] >= i then high = middle else low = middle + 1 end
      end
      return gets[low](i - (ends[low - 1] or 0))
    end)
  end)

-- How many samples each part has. Shares that sum to 1 are rounded down, and what is left goes to the parts in turn,
-- from the first on, as torch.utils.data.random_split has it. Above 1 a sum may be by its rounding alone, or the parts
-- would be more than the whole.
local function part_sizes(lengths, count, who)
  local sum, whole, sizes = 0, true, {}
  for i = 1, #lengths do
    local length = lengths[i]
    if type(length) ~= "number" or not (length >= 0 and length < math.huge) then
      fail(format("%s: [%d] of the lengths is %s; lengths are whole numbers or shares from 0 on", who, i,
        native.shown(length)))
    end
    sum, sizes[i], whole = sum + length, length, whole and floor(length) == length
  end
  if #sizes == 0 then fail(format("%s: there are no lengths; two parts are { 0.9, 0.1 }", who)) end
  if sum >= 1 - 1e-9 and sum <= 1 + 1e-12 then
    local left, n = count, #sizes
    for i = 1, n do
      sizes[i] = floor(sizes[i] * count)
      left = left - sizes[i]
    end
    for i = 1, n do sizes[i] = sizes[i] + left // n + (i <= left % n and 1 or 0) end
  elseif not whole or sum ~= count then
    fail(format("%s: the lengths sum to %s; they are shares that sum to 1, or whole numbers that sum to %d, the \z
      number of samples", who, native.shown(sum), count))
  end
  for i = 1, #sizes do sizes[i] = tointeger(sizes[i]) end
  return sizes
end

local SPLITS = 1 << 40 -- an epoch that no loader reaches, so that no split is the order of one

-- Lists of positions, of all numbers up to count: the parts of a random split.
local function split_positions(count, lengths, seed, who)
  local sizes, parts, at = part_sizes(lengths, count, who), {}, 0
  local order = native.shuffled(count, seed or (native.get_rng()), SPLITS)
  for i = 1, #sizes do
    parts[i] = move(order, at + 1, at + sizes[i], 1, {})
    at = at + sizes[i]
  end
  return parts
end
native.split_positions = split_positions

data.random_split = define("gb.data.random_split(dataset: any, lengths: list; seed?: int) -> any...: Random parts of \z
  a dataset that have no sample in common, one result for each length: shares that sum to 1, or whole numbers that \z
  sum to the number of samples. seed: gb's own unless given; the same seed gives the same parts. Errors: lengths that \z
  do not sum so. Example: local train, test = gb.data.random_split(gb.data.TensorDataset(gb.rand(10, 4)), { 0.8, 0.2 \z
  }, { seed = 1 })", "strict",
  function(dataset, lengths, options)
    local parts = split_positions(reader_of(dataset, "random_split"), lengths, options.seed, "random_split")
    for i = 1, #parts do parts[i] = subset(dataset, parts[i], "random_split") end
    return unpack(parts)
  end)

-- ====}

-- {==== Files ====

data.files = define("gb.data.files(folder: path; ending: string = \"\") -> list: The paths of the files in a folder \z
  whose names end so, sorted by bytes; hidden ones and folders are left out. Errors: a folder that is not there. \z
  Example: for _, path in ipairs(gb.data.files(\".\", { ending = \".csv\" })) do print(path) end", "files",
  function(folder, options)
    local names, paths, ending = native.folder(folder), {}, options.ending
    local slash = sub(folder, -1) == "/" and "" or "/"
    for i = 1, #names do
      if sub(names[i], -#ending) == ending or ending == "" then paths[#paths + 1] = folder .. slash .. names[i] end
    end
    return paths
  end)

data.safetensors = define("gb.data.safetensors(path: path; columns?: list) -> dataset: A dataset of the tensors of a \z
  safetensors file: sample i is row i of each. columns: their names, in the order of a sample's values; all of them \z
  unless given, by name. Errors: a name that the file lacks, tensors of different first dimensions, more than four. \z
  Example: local path = os.tmpname() gb.save(path, { x = gb.rand(8, 4), y = gb.arange(8) }) local set = \z
  gb.data.safetensors(path, { columns = { \"x\", \"y\" } }) os.remove(path)", "files",
  function(path, options)
    local tensors, _, left_out = native.load_tensors(path)
    local names, columns = options.columns, {}
    if not names then
      local _, entry = next(left_out)
      if entry then
        fail(format("safetensors: '%s': %s; or name the columns that are wanted", path, entry.message))
      end
      names = {}
      for name in next, tensors do names[#names + 1] = name end
      sort(names)
    end
    if #names == 0 then fail(format("safetensors: '%s' holds no tensor that can be loaded", path)) end
    for i = 1, #names do
      local name = names[i]
      if type(name) ~= "string" then fail(format("safetensors: [%d] of the columns is no name", i)) end
      if left_out[name] then fail(format("safetensors: '%s': %s", path, left_out[name].message)) end
      columns[i] = tensors[name] or fail(format("safetensors: '%s' has no tensor '%s'%s", path, name,
        native.nearest(name, tensors)))
    end
    return data.TensorDataset(unpack(columns))
  end)

-- The fields of a line's value, in their order.
local function pick(value, fields, path, number)
  local picked = { n = #fields }
  for i = 1, #fields do
    local field = type(value) == "table" and value[fields[i]]
    if field == nil or type(value) ~= "table" then
      fail(format("jsonl: '%s', line %d has no '%s', or null; give every line the field, or leave it out of fields%s",
        path, number, fields[i], type(value) == "table" and native.nearest(fields[i], value) or ""))
    end
    picked[i] = field
  end
  return unpack(picked, 1, picked.n)
end

data.jsonl = define("gb.data.jsonl(path: path; fields?: list) -> any: A file with a JSON value on each line as a \z
  dataset; lines are found when it is opened and read when they are asked for. A sample is the line's value, or with \z
  fields = { \"text\", \"label\" } the values of these, in this order: numbers, strings, or lists, which a DataLoader \z
  makes tensors of. Errors: a line that is no JSON or lacks a field, by its number. Example: local path = \z
  os.tmpname() local file = io.open(path, \"w\") file:write('{\"x\": [1, 2], \"y\": 0}\\n') file:close() \z
  print(gb.data.jsonl(path, { fields = { \"x\", \"y\" } }):get(1)) os.remove(path)", "files",
  function(path, options)
    local fields = options.fields
    for i = 1, fields and #fields or 0 do
      if type(fields[i]) ~= "string" then fail(format("jsonl: [%d] of the fields is no name", i)) end
    end
    local lines = native.lines(path)
    return make("jsonl", lines:count(), function(i)
      local value, number = lines:json(i)
      if fields then return pick(value, fields, path, number) end
      if value == nil then fail(format("jsonl: '%s', line %d is null, which is no sample", path, number)) end
      return value
    end)
  end)

gb.io.save_npz = define("gb.io.save_npz(path: path, tensors: table): Write a table of tensors by name as numpy.load \z
  reads it (stored, as numpy.savez writes). The file appears whole or not at all. Errors: bfloat16, which NumPy does \z
  not have, 4 GiB and more. Example: local path = os.tmpname() gb.io.save_npz(path, { x = gb.rand(2, 3) }) \z
  os.remove(path)", "files",
  function(path, tensors)
    local names, list = {}, {}
    for name, t in next, tensors do
      if type(name) ~= "string" or not is_tensor(t) then
        fail("save_npz: 'tensors' must be a table of tensors by name")
      end
      names[#names + 1] = name
    end
    sort(names)
    for i = 1, #names do list[i] = tensors[names[i]] end
    native.save_npz(path, names, list)
  end)

-- ====}

-- {==== Batches of samples ====

-- The values of one column as one: tensors are stacked, numbers, booleans and lists of numbers become a tensor, strings
-- a list.
local function join(values, column)
  local first = values[1]
  local kind = type(first)
  for i = 2, #values do
    if type(values[i]) ~= kind then
      fail(format("DataLoader: value %d of a sample is a %s, that of another in its batch a %s", column,
        native.type_name(first), native.type_name(values[i])))
    end
  end
  if is_tensor(first) then return gb.stack(values) end
  if kind == "string" then return values end
  if kind == "number" or kind == "boolean" or kind == "table" then return gb.tensor(values) end
  fail(format("DataLoader: value %d of a sample is a %s; samples are tensors, numbers, booleans, strings, or lists of \z
    numbers. What else there is needs a collate function", column, native.type_name(first)))
end

-- The values of samples by column.
local function columns_of(samples)
  local columns, first = {}, type(samples) == "table" and samples[1]
  if type(first) ~= "table" then fail("a collate function takes a list of samples, each a list of its values") end
  for c = 1, first.n or #first do
    local values = {}
    for i = 1, #samples do values[i] = samples[i][c] end
    columns[c] = values
  end
  return columns
end

-- The columns of samples as tensors: what a DataLoader does unless it is told otherwise.
function native.collate(samples)
  local columns = columns_of(samples)
  for c = 1, #columns do columns[c] = join(columns[c], c) end
  return unpack(columns)
end

-- Tensors whose first dimensions differ as one, with value behind each; and their lengths.
local function pad(tensors, value, multiple, column)
  local longest, lengths, first = 0, {}, tensors[1]
  for i = 1, #tensors do
    local t = tensors[i]
    if not is_tensor(t) or t:dim() ~= first:dim() or t.dtype ~= first.dtype or
      concat(t.shape, "x", 2) ~= concat(first.shape, "x", 2) then
      fail(format("pad_collate: value %d of the samples of a batch differ in more than their first dimension: {%s} %s \z
        and %s", column, concat(first.shape, ", "), first.dtype,
        is_tensor(t) and format("{%s} %s", concat(t.shape, ", "), t.dtype) or "a " .. native.type_name(t)))
    end
    lengths[i] = t.shape[1]
    longest = max(longest, lengths[i])
  end
  longest = (longest + multiple - 1) // multiple * multiple
  local shape = first.shape
  insert(shape, 1, #tensors)
  shape[2] = longest
  local batch = gb.full(shape, value, { dtype = first.dtype, device = first.device })
  for i = 1, #tensors do
    if lengths[i] > 0 then batch:select(1, i):narrow(1, 1, lengths[i]):copy_(tensors[i]) end
  end
  return batch, gb.tensor(lengths, { dtype = "int64" })
end

data.pad_collate = define("gb.data.pad_collate(; value: number = 0, multiple: size = 1) -> function: A collate \z
  function for samples of different lengths: the values of a sample that are tensors (or lists) of one dimension or \z
  more are filled with value behind their ends, up to the longest of the batch, or the next multiple. Batches end \z
  with one value more than samples have: the lengths of the first value that was filled, int64. Errors: tensors that \z
  differ in more than their first dimension. Example: local set = gb.data.Dataset(4, function(i) return gb.ones(i), \z
  i end) for x, y, lengths in gb.data.DataLoader(set, { batch_size = 4, collate = gb.data.pad_collate() }):iter() do \z
  print(x, lengths) end", "strict",
  function(options)
    local value, multiple = options.value, options.multiple
    return function(samples)
      local columns, lengths = columns_of(samples), nil
      for c = 1, #columns do
        local values = columns[c]
        if type(values[1]) == "table" then
          for i = 1, #values do values[i] = gb.tensor(values[i]) end
        end
        if is_tensor(values[1]) and values[1]:dim() > 0 then
          local padded, these = pad(values, value, multiple, c)
          columns[c], lengths = padded, lengths or these
        else columns[c] = join(values, c) end
      end
      if not lengths then fail("pad_collate: no value of the samples is a tensor of one dimension or more") end
      columns[#columns + 1] = lengths
      return unpack(columns)
    end
  end)

-- Sample at of a dataset as a list with n, checked against the first of its batch.
function native.read_sample(get, at, first)
  local sample = pack(get(at))
  if sample[1] == nil then fail(format("DataLoader: get(%d) of the dataset returned nothing", at)) end
  first = first or sample
  if sample.n ~= first.n then
    fail(format("DataLoader: get(%d) of the dataset returned %d values, another sample of the batch %d", at, sample.n,
      first.n))
  end
  for c = 1, sample.n do
    if sample[c] == nil then fail(format("DataLoader: value %d of get(%d) of the dataset is nil", c, at)) end
  end
  return sample
end

data.tensors = define("gb.data.tensors(dataset: any) -> tensor...: All samples of a dataset as one batch: a tensor \z
  for each value of a sample, with a first dimension that counts the samples. Errors: samples of different shapes. \z
  Example: print(gb.data.tensors(gb.data.TensorDataset(gb.rand(8, 4))).shape)", "strict",
  function(dataset)
    if is_native(dataset) then return native.read_batch(dataset) end
    local count, get = reader_of(dataset, "tensors")
    local samples = {}
    for i = 1, count do samples[i] = native.read_sample(get, i, samples[1]) end
    if count == 0 then fail("tensors: the dataset is empty") end
    return native.collate(samples)
  end)

-- ====}
