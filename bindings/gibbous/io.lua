-- io.lua - checkpoints: everything a run needs to go on with the same bits, in one safetensors file. Tensors are stored by name, numbers and
-- structure as JSON in the metadata; nothing in a file is ever run.

local gb, native = ...

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
    error(("save_checkpoint: %s is a %s; only tensors, numbers, strings, booleans and tables of them are saved"):format(path, kind), 4)
  end
  local plain = {}
  for key, item in pairs(value) do
    if type(key) ~= "string" and math.type(key) ~= "integer" then error(("save_checkpoint: %s has a key that is a %s"):format(path, type(key)), 4) end
    plain[key] = split(item, path .. "/" .. tostring(key), tensors)
  end
  return plain
end

local function join(plain, tensors)
  if type(plain) ~= "table" then return plain end
  local path = plain["$tensor"]
  if path then return tensors[path] or error(("load_checkpoint: the tensor %s is missing"):format(tostring(path)), 3) end
  local value = {}
  for key, item in pairs(plain) do value[key] = join(item, tensors) end
  return value
end

-- Write the state of every named part: anything with state_dict (model, optimizer, scaler, schedule, loader), and `extra`, a plain table.
-- The random state is always saved. The file appears whole or not at all.
function gb.io.save_checkpoint(path, parts)
  local tensors, tree = {}, {}
  for name, part in pairs(parts) do
    tree[name] = split(name == "extra" and part or part:state_dict(), name, tensors)
  end
  local seed, offset = native.get_rng()
  tree["$rng"] = { seed = ("%d"):format(seed), offset = ("%d"):format(offset) }
  native.save_tensors(path, tensors, { format = FORMAT, tree = native.json_encode(tree) })
end

-- Read a checkpoint into the parts given, restore the random state, and return `extra`. Parts that the file lacks are an error.
function gb.io.load_checkpoint(path, parts)
  local tensors, metadata = native.load_tensors(path)
  if metadata.format ~= FORMAT then error(("load_checkpoint: %s is no checkpoint (format '%s')"):format(path, tostring(metadata.format)), 2) end
  local tree = native.json_decode(metadata.tree)
  for name, part in pairs(parts) do
    if tree[name] == nil then error(("load_checkpoint: %s holds no '%s'"):format(path, name), 2) end
    if name ~= "extra" then part:load_state_dict(join(tree[name], tensors)) end
  end
  local rng = tree["$rng"]
  if rng then native.set_rng(math.tointeger(rng.seed), math.tointeger(rng.offset)) end
  return tree.extra and join(tree.extra, tensors)
end

-- A table of tensors by name, as safetensors. options: metadata, a table of strings.
function gb.save(path, tensors, options)
  for name, t in pairs(tensors) do
    if type(name) ~= "string" or not gb.is_tensor(t) then error("save takes a table of tensors by name", 2) end
  end
  native.save_tensors(path, tensors, options and options.metadata or {})
end

-- The tensors of a safetensors file by name, and its metadata.
function gb.load(path) return native.load_tensors(path) end
