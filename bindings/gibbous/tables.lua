-- tables.lua - what is learned from the columns of a table of text, apart from the samples: fitted on the training
-- part, saved with a checkpoint, and used for every other file.

local gb, native = ...
local fail = native.fail -- raises with the recipe's line
local define, own, private = native.define, native.own, native.private
local format, match, gmatch, unpack = string.format, string.match, string.gmatch, table.unpack
local data = gb.data

-- What is private of a preparation: options (of gb.data.csv), fitted (a dataset that knows the columns, or nil).
local Preparation = {}
Preparation.__index = Preparation
Preparation.__name = "gb.data.Preparation"
native.classes.Preparation = Preparation

function Preparation:__tostring()
  local mine = private(self, "preparation")
  if not mine then return "Preparation" end
  return mine.fitted and format("Preparation (%d columns)", #mine.fitted:columns()) or "Preparation (not fitted)"
end

-- The options that a fit settles: whoever is fitted to it leaves them out.
local learned = { target = true, columns = true, standardize = true }

-- Read rows of a file by gb.data.csv: fitted to a dataset, or fitting itself.
local function read(mine, path, rows, fitted)
  local options = { rows = rows, fitted = fitted }
  for name, value in next, mine.options do
    if not (fitted and learned[name]) then options[name] = value end
  end
  return data.csv(path, options)
end

-- The options of gb.data.csv by name, as its record has them.
local known = {}
for _, text in ipairs(native.dataset_readers()) do
  local options = match(text, "^gb%.data%.csv%(.-;(.-)%) %->")
  for name in gmatch(options or "", "([%w_]+)%??:") do known[name] = true end
end

data.Preparation = define("gb.data.Preparation(options?: table) -> any: What a table's columns are, learned from the \z
  training part: means and standard deviations of numbers, categories and their ids, what stands for missing values. \z
  options: those of gb.data.csv (target, columns, standardize, ...) but fitted and rows. Save it with a checkpoint as \z
  any part. Example: local preparation = gb.data.Preparation({ target = \"price\", standardize = true })", "strict",
  function(options)
    options = native.copy(options or {}, true)
    if options.fitted ~= nil or options.rows ~= nil then
      fail("Preparation: fitted and rows are given to fit and read, not to a preparation")
    end
    for name in next, options do
      if not known[name] then
        fail(format("Preparation: unknown option '%s'%s", native.shown(name), type(name) == "string" and
          native.nearest(name, known) or "; options have names, as { target = \"price\" }"))
      end
    end
    return own(setmetatable({}, Preparation), "preparation", { options = options })
  end)

Preparation.fit = define("Preparation:fit(path: path; rows?: list) -> dataset: Read a table (or only the rows of \z
  these positions) and learn what its columns are. Errors: as gb.data.csv. Example: local path = os.tmpname() local \z
  file = io.open(path, \"w\") file:write(\"a,b\\n1,x\\n3,y\\n\") file:close() local train = \z
  gb.data.Preparation():fit(path) os.remove(path)", "files",
  function(self, path, options)
    local mine = private(self, "preparation")
    local dataset = read(mine, path, options.rows)
    mine.fitted = dataset
    return dataset
  end)

Preparation.read = define("Preparation:read(path: path; rows?: list) -> dataset: Read a table by what was learned: \z
  the means, deviations and categories of the fitted data. A file without the target gives no y. Errors: before fit, \z
  a column that is not there. Example: local path = os.tmpname() local file = io.open(path, \"w\") \z
  file:write(\"a,b\\n1,x\\n3,y\\n\") file:close() local preparation = gb.data.Preparation() preparation:fit(path) \z
  print(#preparation:read(path)) os.remove(path)", "files",
  function(self, path, options)
    local mine = private(self, "preparation")
    if not mine.fitted then fail("Preparation: read comes after fit, or after load_state_dict") end
    return read(mine, path, options.rows, mine.fitted)
  end)

Preparation.split = define("Preparation:split(path: path, lengths: list; seed?: int) -> dataset...: Random parts of \z
  one table, as gb.data.random_split has them: the first is fitted, the others are read by what it taught. Errors: as \z
  fit and random_split, a part without rows. Example: local path = os.tmpname() local file = io.open(path, \"w\") \z
  file:write(\"a,b\\n1,x\\n3,y\\n\") file:close() local train, test = gb.data.Preparation():split(path, { 0.5, 0.5 }, \z
  { seed = 1 }) os.remove(path)", "files",
  function(self, path, lengths, options)
    local mine = private(self, "preparation")
    local parts = native.split_positions(#read(mine, path), lengths, options.seed, "split")
    for i = 1, #parts do
      if #parts[i] == 0 then fail(format("split: part %d has no rows", i)) end
      parts[i] = read(mine, path, parts[i], i > 1 and parts[1] or nil)
    end
    mine.fitted = parts[1]
    return unpack(parts)
  end)

Preparation.columns = define("Preparation:columns() -> list: What was learned, as dataset:columns() tells it; empty \z
  before fit. Example: print(#gb.data.Preparation():columns())", "strict",
  function(self)
    local mine = private(self, "preparation")
    return mine.fitted and mine.fitted:columns() or {}
  end)

Preparation.state_dict = define("Preparation:state_dict() -> table: What was learned, for a checkpoint. Example: \z
  local state = gb.data.Preparation():state_dict()", "strict",
  function(self)
    local mine, columns = private(self, "preparation"), {}
    for i, column in ipairs(mine.fitted and mine.fitted:columns() or {}) do
      columns[i] = { name = column.name, mean = column.mean, std = column.std, categories = column.categories,
        target = column.tensor == "y" or nil }
    end
    return { columns = columns, standardize = mine.standardize or mine.options.standardize == true }
  end)

-- One column of a state, checked.
local function check_column(column, i)
  local good = type(column) == "table" and type(column.name) == "string"
  if good and type(column.categories) == "table" then return end
  if not (good and type(column.mean) == "number" and type(column.std) == "number") then
    fail(format("Preparation: load_state_dict: column %d has no name, or neither categories nor mean and std", i))
  end
end

Preparation.load_state_dict = define("Preparation:load_state_dict(state: tree): Know what state_dict told of. Errors: \z
  a state of another form. Example: local preparation = gb.data.Preparation() \z
  preparation:load_state_dict(preparation:state_dict())", "strict",
  function(self, state)
    local mine, columns = private(self, "preparation"), state.columns
    if type(columns) ~= "table" or type(state.standardize) ~= "boolean" then
      fail("Preparation: load_state_dict takes what state_dict gave")
    end
    for i = 1, #columns do check_column(columns[i], i) end
    mine.standardize = state.standardize
    mine.fitted = #columns > 0 and native.csv_fitted(columns, state.standardize) or nil
  end)

