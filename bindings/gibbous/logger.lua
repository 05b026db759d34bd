-- logger.lua - gb.Logger: the numbers of a run in files that other programs read while it goes on, and
-- gb.io.save_image. The files themselves are the engine's (io/events.h, io/append.h).

local gb, native = ...
local fail = native.fail -- raises with the recipe's line
local define, own, private, copy = native.define, native.own, native.private, native.copy
local format, find, gsub, match, sub, rep = string.format, string.find, string.gsub, string.match, string.sub,
  string.rep
local concat, sort, huge, math_type = table.concat, table.sort, math.huge, math.type
local is_tensor, json_encode, time = gb.is_tensor, gb.io.json_encode, os and os.time
local json_decode = gb.io.json_decode

-- What is private of a logger: native (its file), path, write(mine, step, names, values), flush; of a CSV file its
-- columns, in their order and by name, too.
local Logger = { __name = "gb.Logger" }
Logger.__index = Logger
native.classes.Logger = Logger
Logger.__tostring = function(self)
  local mine = private(self, "logger")
  return mine and format("%s logger of %s", mine.form, mine.path) or "logger"
end

-- {==== numbers ==== --

-- The number that is logged for a value: a tensor's or a scaler's too.
local function number_of(name, value)
  if is_tensor(value) then
    if value:numel() ~= 1 then
      fail(format("Logger:log: '%s' is a tensor of %d elements; log its mean(), or a histogram", name, value:numel()))
    end
    value = value:item()
  end
  value = native.scale_of(value) or value
  if type(value) == "boolean" then value = value and 1 or 0 end
  if type(value) ~= "number" then
    fail(format("Logger:log: '%s' is a %s; values are numbers, or tensors of one element", name, type(value)))
  end
  return value
end

-- The names in their order, and the number of each.
local function numbers_of(values)
  local names, numbers = {}, {}
  for name, value in next, values do
    if type(name) ~= "string" or name == "" then
      fail(format("Logger:log takes values by name, got one with the name '%s' (%s)", native.shown(name), type(name)))
    end
    names[#names + 1] = name
    numbers[name] = number_of(name, value)
  end
  sort(names)
  return names, numbers
end

Logger.log = define("Logger:log(values: table, step: int): Write numbers by name: of Lua, of tensors of one element, \z
  or the scale of a GradScaler. They are in the file when log returns. Errors: a value that is no number. Example: \z
  local path = os.tmpname() local log = gb.Logger.jsonl(path) log:log({ loss = 0.5 }, 1) log:close() \z
  os.remove(path)", "files", function(self, values, step)
  local mine = private(self, "logger")
  local names, numbers = numbers_of(values)
  if #names > 0 then mine.write(mine, step, names, numbers) end
end)

Logger.flush = define("Logger:flush(): Wait until the disk has what was logged. Example: local path = os.tmpname() \z
  local log = gb.Logger.csv(path) log:flush() log:close() os.remove(path)", "files", function(self)
  local mine = private(self, "logger")
  mine.flush(mine.native)
end)

Logger.close = define("Logger:close(): End the file; a second time is fine. Example: local path = os.tmpname() local \z
  log = gb.Logger.csv(path) log:close() os.remove(path)", "files", function(self)
  private(self, "logger").native:close()
end)
Logger.__close = Logger.close

-- A logger with its private part.
local function logger(form, path, mine)
  mine.form, mine.path = form, path
  return own(setmetatable({}, Logger), "logger", mine)
end

-- ====} --

-- {==== JSONL and CSV ==== --

-- Where the file ends in half a line, as a killed run leaves it, cut that off; a line that is whole but for its end
-- gets that. Gives the text that is left.
local function whole_lines(file, text, is_whole)
  if text == "" or sub(text, -1) == "\n" then return text end
  local kept = match(text, "^.*\n") or ""
  if is_whole and is_whole(sub(text, #kept + 1)) then
    native.append_write(file, "\n")
    return text .. "\n"
  end
  native.append_cut(file, #kept)
  return kept
end

-- A number as both kinds of file have it; JSON has no inf and nan, so these are text there.
local function number_text(x, quote)
  if math_type(x) == "integer" then return format("%d", x) end
  if x ~= x then return quote .. "nan" .. quote end
  if x == huge or x == -huge then return quote .. (x > 0 and "inf" or "-inf") .. quote end
  local short = format("%.9g", x)
  return tonumber(short) == x and short or format("%.17g", x)
end

-- Names that the files themselves give.
local function refuse_own(names)
  for _, name in ipairs(names) do
    if name == "step" or name == "wall_time" then
      fail(format("Logger:log: '%s' stands there by itself; give the value another name", name))
    end
  end
end

local function write_json(mine, step, names, numbers)
  refuse_own(names)
  local parts = { format('"step":%d', step), format('"wall_time":%d', time()) }
  for i, name in ipairs(names) do
    parts[i + 2] = json_encode(name) .. ":" .. number_text(numbers[name], '"')
  end
  native.append_write(mine.native, "{" .. concat(parts, ",") .. "}\n")
end

-- Is the line a whole JSON value?
local function is_json(line) return (pcall(json_decode, line)) end

local BEGIN = '{"step":' -- of each line that is ours

-- Is the file one that a logger can go on with? Its first line is an object, or the beginning of one of ours.
local function is_jsonl(text)
  local line, ended = match(text, "^%s*([^\n]*)(\n?)")
  if line == "" then return text == "" end
  if sub(line, 1, 1) == "{" and is_json(line) then return true end
  return ended == "" and sub(line, 1, #BEGIN) == sub(BEGIN, 1, #line)
end

gb.Logger.jsonl = define("gb.Logger.jsonl(path: path) -> logger: A JSON object per line and call of log: step, \z
  wall_time (seconds since 1970) and the values by name; what is not finite is \"nan\", \"inf\" or \"-inf\". A file \z
  that is there is gone on with; half a line at its end, of a run that was killed, is cut off. Errors: a file whose \z
  first line is no JSON object; it stays as it is. Example: local path = os.tmpname() local log = \z
  gb.Logger.jsonl(path) log:log({ loss = 0.5 }, 1) log:close() os.remove(path)", "files",
  function(path)
    local file = native.append_open(path)
    local text = native.read_file(path)
    if not is_jsonl(text) then
      fail(format("jsonl: '%s' is there and no JSON object is its first line; choose another path", path))
    end
    whole_lines(file, text, is_json)
    return logger("JSONL", path, { native = file, flush = native.append_flush, write = write_json })
  end)

-- {---- CSV ---- --

-- A name as a cell of the header.
local function cell(name)
  if find(name, "[\r\n%z]") then
    fail(format("Logger:log: the name %q holds a line break; a column of a CSV file cannot", name))
  end
  return find(name, '[,"]') and '"' .. gsub(name, '"', '""') .. '"' or name
end

-- The names of a header line.
local function columns_of(line)
  local names, at = {}, 1
  line = line .. ","
  while at <= #line do
    local name, after = match(line, "^([^,]*),()", at)
    if sub(line, at, at) == '"' then
      local doubled
      name, after = "", at + 1
      repeat
        local part, behind = match(line, '^([^"]*)"()', after)
        if not part then fail("csv: the header of the file that is there has a quote without an end") end
        doubled = sub(line, behind, behind) == '"'
        name, after = name .. part .. (doubled and '"' or ""), behind + 1
      until not doubled
    end
    names[#names + 1], at = name, after
  end
  return names
end

local function header_of(columns)
  local cells = {}
  for i, name in ipairs(columns) do cells[i] = cell(name) end
  return concat(cells, ",") .. "\n"
end

-- New columns: the file is written anew with a longer header, and empty cells in the rows that were there.
local function add_columns(mine, names)
  local columns, before = copy(mine.columns), #mine.columns
  for _, name in ipairs(names) do
    if not mine.known[name] then columns[#columns + 1] = name end
  end
  if #columns == before then return end
  local header = header_of(columns)
  native.append_flush(mine.native)
  local rows = match(native.read_file(mine.path), "^[^\n]*\n(.*)$") or ""
  native.write_file(mine.path, header .. gsub(rows, "\n", rep(",", #columns - before) .. "\n"))
  mine.native:close()
  mine.native, mine.columns = native.append_open(mine.path), columns
  for _, name in ipairs(columns) do mine.known[name] = true end
end

local function write_csv(mine, step, names, numbers)
  refuse_own(names)
  add_columns(mine, names)
  local cells = {}
  for i, name in ipairs(mine.columns) do cells[i] = numbers[name] and number_text(numbers[name], "") or "" end
  cells[1], cells[2] = format("%d", step), format("%d", time())
  native.append_write(mine.native, concat(cells, ",") .. "\n")
end

local FIRST = "step,wall_time\n" -- the header before there are names

gb.Logger.csv = define("gb.Logger.csv(path: path) -> logger: A line per call of log, with the columns step, \z
  wall_time (seconds since 1970) and one for each name. Where a name comes that has no column yet, the file is \z
  written anew with it, and rows before it have an empty cell there: the file that readers see is whole at any \z
  time. A file that is there is gone on with. Errors: one that is no CSV of a logger; a name that holds a line \z
  break. Example: local path = os.tmpname() local log = gb.Logger.csv(path) log:log({ loss = 0.5 }, 1) log:close() \z
  os.remove(path)",
  "files", function(path)
    local file = native.append_open(path)
    local text = native.read_file(path)
    if text ~= sub(FIRST, 1, #text) and not find(text, "^step,wall_time[,\n]") then
      fail(format("csv: '%s' is there and does not begin with the columns step,wall_time of a logger; choose \z
        another path", path))
    end
    text = whole_lines(file, text)
    if text == "" then
      native.append_write(file, FIRST)
      text = FIRST
    end
    local columns, known = columns_of(match(text, "^([^\n]*)")), {}
    for _, name in ipairs(columns) do known[name] = true end
    return logger("CSV", path, { native = file, flush = native.append_flush, write = write_csv, columns = columns,
      known = known })
  end)

-- ---- } --
-- ====} --

-- {==== pictures ==== --

-- A tensor as pixels: uint8 [height, width, channels] in the CPU's memory. Floating ones are from 0 to 1.
local function pixels_of(who, x)
  local x_dims, channels = x:dim(), x:dim() == 3 and x.shape[1] or 1
  if (x_dims ~= 2 and x_dims ~= 3) or (channels ~= 1 and channels ~= 3 and channels ~= 4) or x:numel() == 0 then
    fail(format("%s: a picture is [height, width] or [1, 3 or 4, height, width], with pixels; this tensor is [%s]", who,
      concat(x.shape, ", ")))
  end
  return gb.no_grad(function()
    x = x:detach():to("cpu")
    if x:is_floating_point() then
      x = (gb.nan_to_num(x:float()) * 255 + 0.5):clamp(0, 255):to("uint8")
    elseif x.dtype == "bool" then
      x = x:to("uint8") * 255
    elseif x.dtype ~= "uint8" then
      fail(format("%s: pixels are uint8 from 0 to 255, or floating from 0 to 1; this tensor is %s", who, x.dtype))
    end
    return (x_dims == 2 and x:unsqueeze(-1) or x:permute(2, 3, 1)):contiguous()
  end)
end
native.pixels_of = pixels_of

gb.io.save_image = define("gb.io.save_image(path: path, x: tensor): A picture as a PNG file: [height, width], or \z
  [channels, height, width] with 1 (gray), 3 (RGB) or 4 (RGBA) channels; uint8, or floating from 0 to 1, which is \z
  rounded and clamped. The file appears whole or not at all. Errors: another shape or dtype; an engine without \z
  libpng. Example: local path = os.tmpname() gb.io.save_image(path, gb.rand(3, 8, 8)) os.remove(path)", "files",
  function(path, x) native.png_save(path, pixels_of("save_image", x)) end)

-- ====} --

-- {==== TensorBoard ==== --

local function write_scalars(mine, step, names, numbers)
  local values = {}
  for i, name in ipairs(names) do values[i] = numbers[name] end
  native.events_scalars(mine.native, step, names, values)
end

gb.Logger.tensorboard = define("gb.Logger.tensorboard(folder: path) -> logger: An event file in the folder (made \z
  where it is missing), which TensorBoard shows: numbers, and also histograms, pictures, texts and hyperparameters. \z
  One folder is one run. Example: local log = gb.Logger.tensorboard(\"/tmp/runs/1\") log:log({ loss = 0.5 }, 1) \z
  log:close()", "files", function(folder)
    local file, path = native.events_open(folder)
    return logger("TensorBoard", path, { native = file, flush = native.events_flush, write = write_scalars })
  end)

-- The private part of a TensorBoard logger; the others keep numbers alone.
local function events_of(self, what)
  local mine = private(self, "logger")
  if mine.form ~= "TensorBoard" then
    fail(format("Logger:%s: a %s logger keeps numbers alone; use gb.Logger.tensorboard", what, mine.form))
  end
  return mine.native
end

local function check_tag(what, tag)
  if tag == "" or find(tag, "%z") then fail(format("Logger:%s: the tag is empty or holds a NUL", what)) end
  return tag
end

Logger.histogram = define("Logger:histogram(tag: string, x: tensor, step: int): The distribution of a tensor's \z
  elements (TensorBoard only); those that are not finite are left out. Waits for the device. Example: local log = \z
  gb.Logger.tensorboard(\"/tmp/runs/1\") log:histogram(\"w\", gb.randn(9), 1) log:close()", "files",
  function(self, tag, x, step)
    local events = events_of(self, "histogram")
    local values = gb.no_grad(function() return x:detach():double():contiguous():to("cpu") end)
    native.events_histogram(events, step, check_tag("histogram", tag), values)
  end)

Logger.image = define("Logger:image(tag: string, x: tensor, step: int): A picture (TensorBoard only), of the shapes \z
  that gb.io.save_image takes. Errors: an engine without libpng. Example: local log = \z
  gb.Logger.tensorboard(\"/tmp/runs/1\") log:image(\"x\", gb.rand(3, 8, 8), 1) log:close()", "files",
  function(self, tag, x, step)
    local events = events_of(self, "image")
    native.events_image(events, step, check_tag("image", tag), pixels_of("image", x))
  end)

Logger.text = define("Logger:text(tag: string, text: string, step: int): A text, shown as Markdown (TensorBoard \z
  only). Example: local log = gb.Logger.tensorboard(\"/tmp/runs/1\") log:text(\"note\", \"first\", 1) log:close()",
  "files", function(self, tag, text, step)
    local events = events_of(self, "text")
    if not utf8.len(text) then fail("Logger:text: the text is not UTF-8") end
    native.events_text(events, step, check_tag("text", tag), text)
  end)

Logger.hparams = define("Logger:hparams(values: table, metrics?: table): The hyperparameters of this run by \z
  name (numbers, strings, booleans), for TensorBoard's table of runs; metrics are numbers by name, such as the best \z
  loss, or a list of tags that log has written. Example: local log = gb.Logger.tensorboard(\"/tmp/runs/1\") \z
  log:hparams({ lr = 1e-3 }, { loss = 0.5 }) log:close()", "files", function(self, values, metrics)
    local events = events_of(self, "hparams")
    local names, list, tags, numbers = {}, {}, {}, {}
    for name, value in next, values do
      local kind = type(value)
      if type(name) ~= "string" or kind ~= "number" and kind ~= "string" and kind ~= "boolean" then
        fail(format("Logger:hparams takes numbers, strings and booleans by name; '%s' is a %s", native.shown(name),
          kind))
      end
      names[#names + 1] = check_tag("hparams", name)
    end
    sort(names)
    for i, name in ipairs(names) do list[i] = values[name] end
    for key, value in next, metrics or {} do
      if type(key) == "string" then numbers[key] = number_of(key, value) end
      tags[#tags + 1] = type(key) == "string" and key or value
      if type(tags[#tags]) ~= "string" then fail("Logger:hparams: metrics are numbers by name, or a list of tags") end
      check_tag("hparams", tags[#tags])
    end
    sort(tags)
    native.events_hparams(events, names, list, tags)
    local written = {}
    for _, tag in ipairs(tags) do
      if numbers[tag] then written[#written + 1] = tag end
    end
    if #written > 0 then write_scalars({ native = events }, 0, written, numbers) end
  end)

-- The exponents of a record as a list without gaps.
local function bins_of(record)
  local least, most, counts = huge, -huge, {}
  for e in next, record.exponents do least, most = math.min(least, e), math.max(most, e) end
  if least > most then return 0, { 0 } end
  for e = least, most do counts[e - least + 1] = record.exponents[e] or 0 end
  return least, counts
end

Logger.exponents = define("Logger:exponents(x: module|any, step: int): A histogram of the exponents of each \z
  parameter of a module, and of its gradient where it has one, or of tensors in a table by name (TensorBoard only), \z
  under exponents/NAME and exponents/NAME.grad: where a 16-bit format would lose them. Example: local log = \z
  gb.Logger.tensorboard(\"/tmp/runs/1\") log:exponents(model, 1) log:close()", "files", function(self, x, step)
    local events = events_of(self, "exponents")
    local entries = gb.amp.numerics(is_tensor(x) and { x = x } or x)
    for i = 1, #entries do
      local entry = entries[i]
      local tag = "exponents/" .. entry.name
      for _, record in ipairs { entry.value, entry.grad } do
        local least, counts = bins_of(record)
        native.events_counts(events, step, check_tag("exponents", tag), least, counts)
        tag = tag .. ".grad"
      end
    end
  end)

-- ====} --
