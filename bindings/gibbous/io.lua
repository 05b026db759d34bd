-- io.lua - checkpoints: everything a run needs to go on with the same bits, in one safetensors file. Tensors are stored by name, numbers and
-- structure as JSON in the metadata; nothing in a file is ever run.

local gb, native = ...
local fail = native.fail -- raises with the recipe's line

-- JSON text to a Lua value and back: arrays count from 1, integers stay integers.
gb.io.json_decode, gb.io.json_encode = native.json_decode, native.json_encode

local FORMAT = "gibbous-checkpoint-1"

-- Split a tree into tensors (by path) and a plain tree in which each tensor is replaced by { ["$tensor"] = path }.
local function split(value, path, tensors)
  if gb.is_tensor(value) then
    tensors[path] = value
    return { ["$tensor"] = path }
  end
  if type(value) ~= "table" then
    local kind = type(value)
    if kind == "number" or kind == "string" or kind == "boolean" then return value end
    fail(("save_checkpoint: %s is a %s; only tensors, numbers, strings, booleans and tables of them are saved"):format(path, kind))
  end
  local plain = {}
  for key, item in pairs(value) do
    if type(key) ~= "string" and math.type(key) ~= "integer" then fail(("save_checkpoint: %s has a key that is a %s"):format(path, type(key))) end
    plain[key] = split(item, path .. "/" .. tostring(key), tensors)
  end
  return plain
end

local function join(plain, tensors)
  if type(plain) ~= "table" then return plain end
  local path = plain["$tensor"]
  if path then return tensors[path] or fail(("load_checkpoint: the tensor %s is missing"):format(tostring(path))) end
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
    local is_object = type(part) == "table" or type(part) == "userdata" and not gb.is_tensor(part)
    if name ~= "extra" and not (is_object and part[method]) then fail(("%s: '%s' has no %s"):format(who, tostring(name), method)) end
  end
end

-- Write the state of every named part: anything with state_dict (model, optimizer, scaler, schedule, loader), and `extra`, a plain table.
-- The random state is always saved. The file appears whole or not at all.
function gb.io.save_checkpoint(path, parts)
  local tensors, tree = {}, {}
  check_path("save_checkpoint", path)
  check_parts("save_checkpoint", "state_dict", parts)
  for name, part in pairs(parts) do
    tree[name] = split(name == "extra" and part or part:state_dict(), name, tensors)
  end
  local seed, offset = native.get_rng()
  tree["$rng"] = { seed = ("%d"):format(seed), offset = ("%d"):format(offset) }
  native.save_tensors(path, tensors, { format = FORMAT, tree = native.json_encode(tree) })
end

-- Read a checkpoint into the parts given, restore the random state, and return `extra`. Parts that the file lacks are an error.
function gb.io.load_checkpoint(path, parts)
  check_path("load_checkpoint", path)
  check_parts("load_checkpoint", "load_state_dict", parts)
  local tensors, metadata = native.load_tensors(path)
  if metadata.format ~= FORMAT then fail(("load_checkpoint: %s is no checkpoint (format '%s')"):format(path, tostring(metadata.format))) end
  local tree = native.json_decode(metadata.tree or fail(("load_checkpoint: the checkpoint %s has no tree"):format(path)))
  if type(tree) ~= "table" then fail(("load_checkpoint: the tree of the checkpoint %s is no table"):format(path)) end
  for name, part in pairs(parts) do
    if tree[name] == nil then fail(("load_checkpoint: %s holds no '%s'"):format(path, name)) end
    if name ~= "extra" then part:load_state_dict(join(tree[name], tensors)) end
  end
  local rng = tree["$rng"]
  if rng then native.set_rng(math.tointeger(rng.seed), math.tointeger(rng.offset)) end
  return tree.extra and join(tree.extra, tensors)
end

-- A table of tensors by name, as safetensors. options: metadata, a table of strings.
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

-- The tensors of a safetensors file by name, and its metadata.
function gb.load(path)
  check_path("load", path)
  return native.load_tensors(path)
end
