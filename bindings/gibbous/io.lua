-- io.lua - checkpoints: everything a run needs to go on with the same bits, in one safetensors file. Tensors are stored by name, numbers and
-- structure as JSON in the metadata; nothing in a file is ever run.

local gb, native = ...
local fail = native.fail -- raises with the recipe's line

-- gb.io.json_decode(text: string) -> any: The Lua value of JSON text: arrays count from 1, integers stay integers. Errors: text that is not JSON,
-- with the place. Example: local value = gb.io.json_decode('{"a": [1, 2]}')
-- gb.io.json_encode(value) -> string: A Lua value as JSON text. Errors: a value that JSON cannot hold. Example: print(gb.io.json_encode { a = { 1, 2
-- } })
gb.io.json_decode, gb.io.json_encode = native.json_decode, native.json_encode

local FORMAT = "gibbous-checkpoint-1"

local MOST_DEPTH = 50 -- of tables in tables: what holds itself is deeper

-- Numbers that JSON cannot hold: a run that diverged has such losses.
local not_finite = { inf = math.huge, ["-inf"] = -math.huge, nan = 0 / 0 }

local function plain_number(value)
  if value ~= value then return { ["$number"] = "nan" } end
  if value == math.huge or value == -math.huge then return { ["$number"] = value > 0 and "inf" or "-inf" } end
  return value
end

-- A text that JSON can hold: UTF-8. what says whose text it is.
local function check_utf8(text, what)
  local length, at = utf8.len(text)
  if length then return text end
  fail(("save_checkpoint: %s is not UTF-8 from byte %d on; checkpoints hold text: keep bytes in a uint8 tensor, or spell them in hexadecimal")
    :format(what, at))
end

-- Split a tree into tensors (by path) and a plain tree in which each tensor is { ["$tensor"] = path }, each inf or nan { ["$number"] = name }.
local function split(value, path, tensors, depth)
  if gb.is_tensor(value) then
    tensors[path] = value
    return { ["$tensor"] = path }
  end
  local kind = type(value)
  if kind == "number" then return plain_number(value) end
  if kind == "boolean" then return value end
  if kind == "string" then return check_utf8(value, "the string " .. path) end
  if kind ~= "table" then
    fail(("save_checkpoint: %s is a %s; only tensors, numbers, strings, booleans and tables of them are saved"):format(path, kind))
  end
  if depth > MOST_DEPTH then fail(("save_checkpoint: %s... is nested deeper than %d tables, or holds itself"):format(path:sub(1, 40), MOST_DEPTH)) end
  local plain = {}
  for key, item in pairs(value) do
    if math.type(key) == "integer" and not (key >= 1 and key <= #value) or type(key) ~= "string" and math.type(key) ~= "integer" then
      fail(("save_checkpoint: %s has the key %s; keys are strings, or 1 .. n of a list"):format(path, tostring(key)))
    end
    if key == "$tensor" or key == "$number" then fail(("save_checkpoint: %s has the key %s, which is kept for checkpoints"):format(path, key)) end
    if type(key) == "string" then check_utf8(key, ("the key %q of %s"):format(key, path)) end
    plain[key] = split(item, path .. "/" .. tostring(key), tensors, depth + 1)
  end
  return plain
end

local function join(plain, tensors)
  if type(plain) ~= "table" then return plain end
  local path = plain["$tensor"]
  if path then return tensors[path] or fail(("load_checkpoint: the tensor %s is missing"):format(tostring(path))) end
  local number = plain["$number"]
  if number then return not_finite[number] or fail(("load_checkpoint: there is no number %s"):format(tostring(number))) end
  local value = {}
  for key, item in pairs(plain) do value[key] = join(item, tensors) end
  return value
end

local function check_path(who, path)
  if type(path) ~= "string" then fail(("%s takes the path of a file, a string, got %s"):format(who, type(path))) end
end

-- Each part but `extra` must be an object with the method.
local function check_parts(who, method, parts)
  if type(parts) ~= "table" then fail(("%s takes a table of parts by name, got %s"):format(who, type(parts))) end
  for name, part in pairs(parts) do
    if type(name) ~= "string" then fail(("%s takes a table of parts by name, got the key %s"):format(who, tostring(name))) end
    local is_object = type(part) == "table" or type(part) == "userdata" and not gb.is_tensor(part)
    if name ~= "extra" and not (is_object and part[method]) then fail(("%s: '%s' has no %s"):format(who, tostring(name), method)) end
  end
end

-- gb.io.save_checkpoint(path: string, parts: table): Write the state of every named part: anything with state_dict (model, optimizer, scaler,
-- schedule, loader), and `extra`, a plain table. The random state is always saved. The file appears whole or not at all. Errors: a part without
-- state_dict, a value that cannot be saved. Example: local path = os.tmpname() gb.io.save_checkpoint(path, { model = model, optimizer = opt, extra =
-- { epoch = 1 } }) os.remove(path)
function gb.io.save_checkpoint(path, parts)
  local tensors, tree = {}, {}
  check_path("save_checkpoint", path)
  check_parts("save_checkpoint", "state_dict", parts)
  for name, part in pairs(parts) do
    local state = part
    if name ~= "extra" then state = part:state_dict() end
    tree[name] = split(state, name, tensors, 1)
  end
  local seed, offset = native.get_rng()
  tree["$rng"] = { seed = ("%d"):format(seed), offset = ("%d"):format(offset) }
  native.save_tensors(path, tensors, { format = FORMAT, tree = native.json_encode(tree) })
end

-- gb.io.load_checkpoint(path: string, parts: table) -> any: Read a checkpoint into the parts given, restore the random state, and return `extra`.
-- Errors: parts that the file lacks, a file that is damaged or no checkpoint. Example: local path = os.tmpname() gb.io.save_checkpoint(path, { model
-- = model }) gb.io.load_checkpoint(path, { model = model }) os.remove(path)
function gb.io.load_checkpoint(path, parts)
  check_path("load_checkpoint", path)
  check_parts("load_checkpoint", "load_state_dict", parts)
  local tensors, metadata = native.load_tensors(path)
  if metadata.format ~= FORMAT then fail(("load_checkpoint: %s is no checkpoint (format '%s')"):format(path, tostring(metadata.format))) end
  local tree = native.json_decode(metadata.tree or fail(("load_checkpoint: the checkpoint %s has no tree"):format(path)))
  if type(tree) ~= "table" then fail(("load_checkpoint: the tree of the checkpoint %s is no table"):format(path)) end
  local names = {}
  for name in pairs(parts) do names[#names + 1] = name end
  table.sort(names)
  for _, name in ipairs(names) do
    if tree[name] == nil then fail(("load_checkpoint: %s holds no '%s'"):format(path, name)) end
  end
  for _, name in ipairs(names) do
    if name ~= "extra" then parts[name]:load_state_dict(join(tree[name], tensors)) end
  end
  local rng = tree["$rng"]
  local seed, offset = type(rng) == "table" and math.tointeger(rng.seed), type(rng) == "table" and math.tointeger(rng.offset)
  if rng ~= nil and not (seed and offset) then fail(("load_checkpoint: the random state of the checkpoint %s is no state"):format(path)) end
  if rng ~= nil then native.set_rng(seed, offset) end
  return join(tree.extra, tensors)
end

-- gb.save(path: string, tensors: table, options?: table): A table of tensors by name, as safetensors. options: metadata, a table of strings. The
-- file appears whole or not at all. Example: local path = os.tmpname() gb.save(path, model:state_dict()) os.remove(path)
function gb.save(path, tensors, options)
  check_path("save", path)
  if type(tensors) ~= "table" then fail(("save takes a table of tensors by name, got %s"):format(type(tensors))) end
  if options ~= nil and type(options) ~= "table" then fail(("save takes its options in a table, got %s"):format(type(options))) end
  for key in pairs(options or {}) do
    if key ~= "metadata" then fail(("save has no option '%s'; there is metadata"):format(tostring(key))) end
  end
  if options and options.metadata ~= nil and type(options.metadata) ~= "table" then fail("save: metadata is a table of strings") end
  for name, t in pairs(tensors) do
    if type(name) ~= "string" or not gb.is_tensor(t) then fail("save takes a table of tensors by name") end
  end
  native.save_tensors(path, tensors, options and options.metadata or {})
end

-- gb.load(path: string) -> table, table: The tensors of a safetensors file by name, and its metadata. Errors: a file that is damaged or of another
-- format. Example: local path = os.tmpname() gb.save(path, { x = x }) local tensors = gb.load(path) os.remove(path)
function gb.load(path)
  check_path("load", path)
  return native.load_tensors(path)
end
