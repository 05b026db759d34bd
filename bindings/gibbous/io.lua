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
  for key, item in next, value do
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

local check_path = native.check_path -- (who, path)

-- Each part but `extra` must be an object with the method.
local function check_parts(who, method, parts)
  if type(parts) ~= "table" then fail(("%s takes a table of parts by name, got %s"):format(who, type(parts))) end
  for name, part in next, parts do
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
  for name, part in next, parts do
    local state = part
    if name ~= "extra" then state = part:state_dict() end
    tree[name] = split(state, name, tensors, 1)
  end
  local seed, offset = native.get_rng()
  tree["$rng"] = { seed = ("%d"):format(seed), offset = ("%d"):format(offset) }
  native.save_tensors(path, tensors, { format = FORMAT, tree = native.json_encode(tree) })
end

-- A copy of a state that nothing else writes to, tensors in the CPU's memory. What is no tensor, table or plain value is the same object.
local function copied(value, seen)
  if gb.is_tensor(value) then
    local plain = value:detach()
    return plain.device == "cpu" and plain:clone() or plain:cpu()
  end
  if type(value) ~= "table" then return value end
  if seen[value] then return seen[value] end
  local copy = {}
  seen[value] = copy
  for key, item in next, value do copy[key] = copied(item, seen) end
  return copy
end

-- What is read of a checkpoint: the state of each part asked for, the extra table and the random state. All of it is there and well-formed.
local function read_states(path, names)
  local tensors, metadata = native.load_tensors(path)
  if metadata.format ~= FORMAT then fail(("load_checkpoint: %s is no checkpoint (format '%s')"):format(path, tostring(metadata.format))) end
  if not metadata.tree then fail(("load_checkpoint: the checkpoint %s has no tree"):format(path)) end
  local tree, states = native.json_decode(metadata.tree), {}
  if type(tree) ~= "table" then fail(("load_checkpoint: the tree of the checkpoint %s is no object"):format(path)) end
  for _, name in ipairs(names) do
    if tree[name] == nil then fail(("load_checkpoint: %s holds no '%s'"):format(path, name)) end
    states[name] = join(tree[name], tensors)
  end
  local rng = tree["$rng"]
  local seed, offset = type(rng) == "table" and math.tointeger(rng.seed), type(rng) == "table" and math.tointeger(rng.offset)
  if rng ~= nil and not (seed and offset) then fail(("load_checkpoint: the random state of the checkpoint %s is no state"):format(path)) end
  return states, join(tree.extra, tensors), seed, offset
end

-- Put parts back to what they were, the last first. Returns what to say of those that could not be.
local function put_back(changed)
  local text = ""
  for i = #changed, 1, -1 do
    local entry = changed[i]
    local ok, why = pcall(entry.load, entry.part, entry.before)
    if not ok then text = text .. ("\nand '%s' could not be put back: %s"):format(entry.name, tostring(why)) end
  end
  return text
end

-- gb.io.load_checkpoint(path: string, parts: table) -> any: Read a checkpoint into the parts given, restore the random state, and return `extra`.
-- All or nothing: what cannot be read changes no part, and where a part turns its state down, those before it are put back; for that their states
-- are copied to the CPU's memory first. Parts without state_dict come last, since they cannot be put back. Errors: parts that the file lacks or
-- that turn their state down, a file that is damaged or no checkpoint. Example: local path = os.tmpname() gb.io.save_checkpoint(path, { model =
-- model }) gb.io.load_checkpoint(path, { model = model }) os.remove(path)
function gb.io.load_checkpoint(path, parts)
  check_path("load_checkpoint", path)
  check_parts("load_checkpoint", "load_state_dict", parts)
  local entries, names = {}, {}
  for name, part in next, parts do
    names[#names + 1] = name
    if name ~= "extra" then
      local save = part.state_dict
      entries[#entries + 1] = { name = name, part = part, load = part.load_state_dict, save = save, rank = (save and "1" or "2") .. name }
    end
  end
  table.sort(names)
  table.sort(entries, function(a, b) return a.rank < b.rank end)
  local states, extra, seed, offset = read_states(path, names)
  local old_seed, old_offset = native.get_rng()
  local changed = {}
  local ok, why = pcall(function()
    for _, entry in ipairs(entries) do
      entry.before = entry.save and copied(entry.save(entry.part), {})
    end
    for _, entry in ipairs(entries) do
      if entry.save then changed[#changed + 1] = entry end
      entry.load(entry.part, states[entry.name])
    end
  end)
  if not ok then
    local rest = put_back(changed)
    native.set_rng(old_seed, old_offset)
    error(type(why) == "string" and why .. rest or why, 0)
  end
  if seed then native.set_rng(seed, offset) end
  return extra
end

-- gb.save(path: string, tensors: table, options?: table): A table of tensors by name, as safetensors. options: metadata, a table of strings. The
-- file appears whole or not at all. Example: local path = os.tmpname() gb.save(path, model:state_dict()) os.remove(path)
function gb.save(path, tensors, options)
  check_path("save", path)
  if type(tensors) ~= "table" then fail(("save takes a table of tensors by name, got %s"):format(type(tensors))) end
  if options ~= nil and type(options) ~= "table" then fail(("save takes its options in a table, got %s"):format(type(options))) end
  for key in next, options or {} do
    if key ~= "metadata" then fail(("save has no option '%s'; there is metadata"):format(tostring(key))) end
  end
  if options and options.metadata ~= nil and type(options.metadata) ~= "table" then fail("save: metadata is a table of strings") end
  for name, t in next, tensors do
    if type(name) ~= "string" or not gb.is_tensor(t) then fail("save takes a table of tensors by name") end
  end
  native.save_tensors(path, tensors, options and options.metadata or {})
end

-- What is left out of a file, as one line: the first few by name, dtype and cure.
local function left_out_text(path, left_out, count)
  local names = {}
  for name in next, left_out do names[#names + 1] = name end
  table.sort(names)
  local first = left_out[names[1]].message
  local others = {}
  for i = 2, math.min(#names, 5) do others[#others + 1] = ("'%s' (%s)"):format(names[i], left_out[names[i]].dtype) end
  if #names > 5 then others[#others + 1] = ("%d more"):format(#names - 5) end
  local rest = #others > 0 and "; also " .. table.concat(others, ", ") or ""
  return ("gb.load left out %d of %d tensors of '%s': %s%s"):format(#names, count, path, first, rest)
end

-- gb.load(path: string) -> table, table, table: The tensors of a safetensors file by name, and its metadata. Tensors of a dtype that the engine does
-- not have (F8_E4M3, I16, C64, ...) are left out: a line is printed that names them and the cure, asking the table for one by its name is an error
-- that says the same, and the third table describes them: { name = { dtype =, shape =, message = } }. Errors: a file that is damaged or of another
-- format, which is named where it is known (a .pt, a zip, a pickle, GGUF, HDF5, ...); one of which no tensor can be loaded. Example: local path =
-- os.tmpname() gb.save(path, { x = x }) local tensors = gb.load(path) os.remove(path)
function gb.load(path)
  check_path("load", path)
  local tensors, metadata, left_out = native.load_tensors(path)
  if next(left_out) == nil then return tensors, metadata, left_out end
  local count = 0
  for _ in next, tensors do count = count + 1 end
  for _ in next, left_out do count = count + 1 end
  local text = left_out_text(path, left_out, count)
  if next(tensors) == nil then fail(text) end
  print(text)
  setmetatable(tensors, { __index = function(_, name)
    if left_out[name] then fail(("load: '%s' was left out: %s"):format(name, left_out[name].message)) end
  end })
  return tensors, metadata, left_out
end
