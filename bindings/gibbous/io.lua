-- io.lua - checkpoints: everything a run needs to go on with the same bits, in one safetensors file. Tensors are stored
-- by name, numbers and structure as JSON in the metadata; nothing in a file is ever run.

local gb, native = ...
local fail = native.fail -- raises with the recipe's line

local define, copy = native.define, native.copy
local save_tensors, load_tensors, get_rng, set_rng = native.save_tensors, native.load_tensors, native.get_rng,
  native.set_rng
local json_decode, json_encode, is_tensor = gb.io.json_decode, gb.io.json_encode, gb.is_tensor
local format, sub, concat, sort, utf8_len, math_type = string.format, string.sub, table.concat, table.sort, utf8.len,
  math.type

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
  local length, at = utf8_len(text)
  if length then return text end
  fail(format("save_checkpoint: %s is not UTF-8 from byte %d on; checkpoints hold text: keep bytes in a uint8 \z
    tensor, or spell them in hexadecimal", what, at))
end

-- Split a tree into tensors (by path) and a plain tree in which each tensor is { ["$tensor"] = path }, each inf or nan
-- { ["$number"] = name }.
local function split(value, path, tensors, depth)
  if is_tensor(value) then
    tensors[path] = value
    return { ["$tensor"] = path }
  end
  local kind = type(value)
  if kind == "number" then return plain_number(value) end
  if kind == "boolean" then return value end
  if kind == "string" then return check_utf8(value, "the string " .. path) end
  if kind ~= "table" then
    fail(format("save_checkpoint: %s is a %s; only tensors, numbers, strings, booleans and tables of them are saved",
      path, kind))
  end
  if depth > MOST_DEPTH then
    fail(format("save_checkpoint: %s... is nested deeper than %d tables, or holds itself", sub(path, 1, 40),
      MOST_DEPTH))
  end
  if gb.nn.is_module(value) then
    fail(format("save_checkpoint: %s is a module; save its state_dict(), or give it as model", path))
  end
  local plain = {}
  value = copy(value)
  for key, item in next, value do
    if math_type(key) == "integer" and not (key >= 1 and key <= #value) or type(key) ~= "string" and
      math_type(key) ~= "integer" then
      fail(format("save_checkpoint: %s has the key %s; keys are strings, or 1 .. n of a list", path, native.shown(key)))
    end
    if key == "$tensor" or key == "$number" then
      fail(format("save_checkpoint: %s has the key %s, which is reserved", path, key))
    end
    if type(key) == "string" then check_utf8(key, format("the key %q of %s", key, path)) end
    plain[key] = split(item, path .. "/" .. native.shown(key), tensors, depth + 1)
  end
  return plain
end

-- The tree as it was before split.
local function join(plain, tensors)
  if type(plain) ~= "table" then return plain end
  local path = plain["$tensor"]
  if path then return tensors[path] or fail(format("load_checkpoint: the tensor %s is missing", native.shown(path))) end
  local number = plain["$number"]
  if number then return not_finite[number] or
    fail(format("load_checkpoint: there is no number %s", native.shown(number))) end
  local value = {}
  for key, item in next, plain do value[key] = join(item, tensors) end
  return value
end

-- Each part but `extra` must be an object with the method; parts is a copy of ours.
local function check_parts(who, method, parts)
  for name, part in next, parts do
    if type(name) ~= "string" then
      fail(format("%s takes a table of parts by name, got the key %s", who, native.shown(name)))
    end
    local is_object = type(part) == "table" or type(part) == "userdata" and not is_tensor(part)
    if name ~= "extra" and not (is_object and type(part[method]) == "function") then
      fail(format("%s: '%s' has no %s", who, name, method))
    end
  end
end

gb.io.save_checkpoint = define("gb.io.save_checkpoint(path: path, parts: table): Write the state of every named \z
  part: anything with state_dict (model, optimizer, scaler, schedule, loader), and `extra`, a plain table. The \z
  random state is always saved. The file appears whole or not at all. Errors: a part without state_dict, a value \z
  that cannot be saved. Example: local path = os.tmpname() gb.io.save_checkpoint(path, { model = model, optimizer = \z
  opt, extra = { epoch = 1 } }) os.remove(path)", "files",
  function(path, parts)
    local tensors, tree = {}, {}
    check_parts("save_checkpoint", "state_dict", parts)
    for name, part in next, parts do
      local state = part
      if name ~= "extra" then state = part:state_dict() end
      tree[name] = split(state, name, tensors, 1)
    end
    local seed, offset = get_rng()
    tree["$rng"] = { seed = format("%d", seed), offset = format("%d", offset) }
    save_tensors(path, tensors, { format = FORMAT, tree = json_encode(tree) })
  end)

-- A copy of a state that nothing else writes to, tensors in the CPU's memory. What is no tensor, table or plain value
-- is the same object.
local function copied(value, seen, depth)
  if is_tensor(value) then
    local plain = value:detach()
    return plain.device == "cpu" and plain:clone() or plain:cpu()
  end
  if type(value) ~= "table" then return value end
  if seen[value] then return seen[value] end
  if depth > MOST_DEPTH then
    fail(format("load_checkpoint: the state of a part is nested deeper than %d tables", MOST_DEPTH))
  end
  local made = {}
  seen[value] = made
  for key, item in next, copy(value) do made[key] = copied(item, seen, depth + 1) end
  return made
end

-- What is read of a checkpoint: the state of each part asked for, the extra table and the random state. All of it is
-- there and well-formed.
local function read_states(path, names)
  local tensors, metadata = load_tensors(path)
  if metadata.format ~= FORMAT then
    fail(format("load_checkpoint: %s is not a checkpoint (format '%s')", path, native.shown(metadata.format)))
  end
  local tree, states = metadata.tree and json_decode(metadata.tree), {}
  if type(tree) ~= "table" then
    fail(format("load_checkpoint: %s is damaged: its tree is missing or not a table", path))
  end
  for i = 1, #names do
    local name = names[i]
    if tree[name] == nil then fail(format("load_checkpoint: %s holds no '%s'", path, name)) end
    states[name] = join(tree[name], tensors)
  end
  local rng = tree["$rng"]
  local seed, offset = type(rng) == "table" and math.tointeger(rng.seed), type(rng) == "table" and
    math.tointeger(rng.offset)
  if rng ~= nil and not (seed and offset) then
    fail(format("load_checkpoint: the random state in %s is malformed", path))
  end
  return states, join(tree.extra, tensors), seed, offset
end

-- The tree of a checkpoint as it stands in the file, with nothing of the tensors read; nil where the file is none, and
-- why where it cannot be read.
function native.tree_of(path)
  local ok, metadata = pcall(native.load_metadata, path)
  if not ok then return nil, metadata end
  if metadata.format ~= FORMAT or not metadata.tree then return nil end
  local read, tree = pcall(json_decode, metadata.tree)
  return read and type(tree) == "table" and tree or nil
end

-- Put parts back to what they were, the last first. Returns what to say of those that could not be.
local function put_back(changed)
  local text = ""
  for i = #changed, 1, -1 do
    local entry = changed[i]
    local ok, why = pcall(entry.load, entry.part, entry.before)
    if not ok then text = text .. format("\nand '%s' could not be put back: %s", entry.name, native.shown(why)) end
  end
  return text
end

gb.io.load_checkpoint = define("gb.io.load_checkpoint(path: path, parts: table) -> any: Read a checkpoint into the \z
  parts given, restore the random state, and return `extra`. All or nothing: what cannot be read changes no part, \z
  and where a part turns its state down, those before it are put back; for that their states are copied to the CPU's \z
  memory first. Parts without state_dict come last, since they cannot be put back. Errors: parts that the file lacks \z
  or that turn their state down, a file that is damaged or not a checkpoint. Example: local path = os.tmpname() \z
  gb.io.save_checkpoint(path, { model = model }) gb.io.load_checkpoint(path, { model = model }) os.remove(path)",
  "files",
  function(path, parts)
    check_parts("load_checkpoint", "load_state_dict", parts)
    local entries, names = {}, {}
    for name, part in next, parts do
      names[#names + 1] = name
      if name ~= "extra" then
        local save = part.state_dict
        entries[#entries + 1] = { name = name, part = part, load = part.load_state_dict, save = save,
          rank = (save and "1" or "2") .. name }
      end
    end
    sort(names)
    sort(entries, function(a, b) return a.rank < b.rank end)
    local states, extra, seed, offset = read_states(path, names)
    local old_seed, old_offset = get_rng()
    local changed = {}
    local ok, why = pcall(function()
      for i = 1, #entries do
        local entry = entries[i]
        entry.before = entry.save and copied(entry.save(entry.part), {}, 1)
      end
      for i = 1, #entries do
        local entry = entries[i]
        if entry.save then changed[#changed + 1] = entry end
        entry.load(entry.part, states[entry.name])
      end
    end)
    if not ok then
      local rest = put_back(changed)
      set_rng(old_seed, old_offset)
      error(type(why) == "string" and why .. rest or why, 0)
    end
    if seed then set_rng(seed, offset) end
    return extra
  end)

gb.save = define("gb.save(path: path, tensors: table; metadata?: table): A table of tensors by name, as \z
  safetensors; metadata is a table of strings. The file appears whole or not at all. Example: local path = \z
  os.tmpname() gb.save(path, model:state_dict()) os.remove(path)", "files",
  function(path, tensors, options)
    for name, t in next, tensors do
      if type(name) ~= "string" or not is_tensor(t) then fail("save: 'tensors' must be a table of tensors by name") end
    end
    save_tensors(path, tensors, options.metadata or {})
  end)

-- What is left out of a file, as one line: the first few by name, dtype and cure.
local function left_out_text(path, left_out, count)
  local names = {}
  for name in next, left_out do names[#names + 1] = name end
  sort(names)
  local first = left_out[names[1]].message
  local others = {}
  for i = 2, math.min(#names, 5) do others[#others + 1] = format("'%s' (%s)", names[i], left_out[names[i]].dtype) end
  if #names > 5 then others[#others + 1] = format("%d more", #names - 5) end
  local rest = #others > 0 and "; also " .. concat(others, ", ") or ""
  return format("gb.load left out %d of %d tensors of '%s': %s%s", #names, count, path, first, rest)
end

gb.load = define("gb.load(path: path; device?: device) -> table, table, table: The tensors of a safetensors file by \z
  name, on the CPU or on that device, and its metadata. Tensors of a dtype that the engine does not have (F8_E4M3, \z
  C64, ...) are left out: a line is printed that names them and the cure, asking the table for one by its name is an \z
  error that says the same, and the third table describes them: { name = { dtype =, shape =, message = } }. Errors: a \z
  file that is damaged or of another format, which is named where it is known (a .pt, a zip, a pickle, GGUF, HDF5, \z
  ...); one of which no tensor can be loaded. Example: local path = os.tmpname() gb.save(path, { x = x }) local \z
  tensors = gb.load(path) os.remove(path)",
  "files",
  function(path, options)
    local tensors, metadata, left_out = load_tensors(path)
    if options.device then
      for name, t in next, tensors do tensors[name] = t:to(options.device) end
    end
    if next(left_out) == nil then return tensors, metadata, left_out end
    local count, messages = 0, {}
    for _ in next, tensors do count = count + 1 end
    for name, entry in next, left_out do count, messages[name] = count + 1, entry.message end
    local text = left_out_text(path, left_out, count)
    if next(tensors) == nil then fail(text) end
    print(text)
    setmetatable(tensors, { __index = function(_, name)
      if messages[name] then fail(format("load: '%s' was left out: %s", name, messages[name])) end
    end })
    return tensors, metadata, left_out
  end)
