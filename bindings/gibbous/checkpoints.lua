-- checkpoints.lua - gb.Checkpoints: which states of a run are kept as files. The last one, from which a run goes on,
-- and the best by a measure, or the most recent.
--
-- A save writes the file that is to be kept, then last.safetensors, and then removes what has become too many. Each
-- file appears whole (gb.io.save_checkpoint), and last.safetensors says what is kept and what was still to be removed:
-- a run that is killed anywhere in between goes on from it and leaves the same files.

local gb, native = ...
local fail = native.fail -- raises with the recipe's line
local define, own, private, copy = native.define, native.own, native.private, native.copy
local format, gsub, find, match, sub = string.format, string.gsub, string.find, string.match, string.sub
local gmatch = string.gmatch
local remove, math_type, huge = table.remove, math.type, math.huge
local save_checkpoint, load_checkpoint = gb.io.save_checkpoint, gb.io.load_checkpoint

-- What is private of one: its options, kept (a list of { name, score } in order of saving), removed (names of files
-- that go after the save), saves (how many there were), since (the clock at the last), resumed (it was loaded: files
-- with its names are its own).
local Checkpoints = { __name = "gb.Checkpoints" }
native.classes.Checkpoints = Checkpoints

local LAST, ENDING = "last.safetensors", ".safetensors"

local function path_of(mine, name) return mine.folder .. "/" .. name end

-- Is the first score better than the second?
local function better(mine, a, b)
  if mine.mode == "min" then return a < b end
  return a > b
end

-- The kept file that is the best, or with a sign of -1 the worst; of equals the oldest.
local function extreme(mine, sign)
  local at
  for i = 1, #mine.kept do
    local a, b = mine.kept[i].score, at and mine.kept[at].score
    if a and (not at or (sign > 0 and better(mine, a, b) or sign < 0 and better(mine, b, a))) then at = i end
  end
  return at
end

local shown = {
  last = function(mine) return native.file_exists(path_of(mine, LAST)) and path_of(mine, LAST) or nil end,
  best = function(mine)
    local at = mine.monitor and extreme(mine, 1) or #mine.kept
    return mine.kept[at] and path_of(mine, mine.kept[at].name)
  end,
  best_score = function(mine)
    local at = mine.monitor and extreme(mine, 1)
    return at and mine.kept[at].score
  end,
  kept = function(mine)
    local paths = {}
    for i = 1, #mine.kept do paths[i] = path_of(mine, mine.kept[i].name) end
    return paths
  end,
  monitor = function(mine) return mine.monitor end,
  mode = function(mine) return mine.mode end,
  folder = function(mine) return mine.folder end,
}
Checkpoints.__index = function(self, key)
  local mine = shown[key] and private(self, "checkpoints")
  if mine then return shown[key](mine) end
  return Checkpoints[key]
end
Checkpoints.__tostring = function(self)
  local mine = private(self, "checkpoints")
  return mine and format("Checkpoints (%s, %d kept)", mine.folder, #mine.kept) or "Checkpoints"
end

-- {==== names ====

local FIELD = "{([%w_]+):?(%.?%d*[fdge]?)}"

-- A name that files can have, in the folder itself, and not that of the last state.
local function check_name(name)
  local rest = gsub(name, FIELD, "x")
  local why = find(rest, "[{}]") and "has a brace that is no field; fields are {step}, {val_loss} or {val_loss:.3f}" or
    find(rest, "/", 1, true) and "has a /; the files lie in the folder itself" or
    (rest == "" or sub(rest, 1, 1) == ".") and "begins with no letter, digit or field" or
    rest == "last" and "is that of the state to go on from" or
    #name > 100 and "has more than 100 letters"
  if why then fail(format("Checkpoints: the name '%s' %s", name, why)) end
end

-- The fields that the names of its files have.
function native.fields_of(checkpoints)
  local fields = {}
  for field in gmatch(private(checkpoints, "checkpoints").name, FIELD) do fields[#fields + 1] = field end
  return fields
end

-- "epoch=3-step=120": the pattern with its fields filled in.
local function name_of(mine, values)
  local name = gsub(mine.name, FIELD, function(field, form)
    local value = values[field]
    if type(value) ~= "number" then
      fail(format("Checkpoints: the name '%s' has a field %s, which is %s", mine.name, field,
        value == nil and "not among the values" or "a " .. type(value)))
    end
    if value ~= value then value = math.abs(value) end -- whose sign would be written
    local pattern = form == "" and (math_type(value) == "integer" and "d" or ".4f") or
      match(form, "%a$") and form or form .. "f"
    local ok, text = pcall(format, "%" .. pattern, value)
    if not ok then
      fail(format("Checkpoints: the name '%s' has a field {%s:%s} that cannot hold %s; d is for whole numbers, .3f, \z
        .3e and .3g for others, and digits are two at most", mine.name, field, form, tostring(value)))
    end
    return field .. "=" .. text
  end)
  return (gsub(name, "[^%w_%.=+-]", "_"))
end

-- The name with what keeps it from a file that another run left: -v1, -v2, ...
local function free_name(mine, values)
  local name, ours = name_of(mine, values), {}
  for i = 1, #mine.kept do ours[mine.kept[i].name] = true end
  local candidate, version = name .. ENDING, 0
  while ours[candidate] or not mine.resumed and native.file_exists(path_of(mine, candidate)) do
    version = version + 1
    candidate = format("%s-v%d%s", name, version, ENDING)
  end
  return candidate
end

-- A name that a file of ours can have: in the folder itself.
local function is_name(name)
  return type(name) == "string" and #name <= 255 and find(name, "^[%w_%.=+-]+$") and sub(name, 1, 1) ~= "." and
    sub(name, -#ENDING) == ENDING and name ~= LAST
end

-- ====}

-- {==== saving ====

local function score_of(mine, values)
  local score = values[mine.monitor]
  if gb.is_tensor(score) then score = score:item() end
  if score == nil then return nil end
  if type(score) ~= "number" then
    fail(format("Checkpoints: '%s' must be a number, got a %s", mine.monitor, type(score)))
  end
  if score ~= score then return mine.mode == "min" and huge or -huge end -- NaN is worse than everything
  return score
end

-- What is to be kept now, as a list, if these values are worth a file; and the name of the one that goes for it.
local function plan(mine, values)
  local score = mine.monitor and score_of(mine, values)
  if mine.keep == 0 or mine.monitor and not score then return nil end
  local kept, going = copy(mine.kept), {}
  if mine.monitor and mine.keep > 0 and #kept >= mine.keep then
    local worst = extreme(mine, -1)
    if not better(mine, score, kept[worst].score) then return nil end
    going[1] = remove(kept, worst).name
  end
  local name = free_name(mine, values)
  kept[#kept + 1] = { name = name, score = score or nil, major = mine.major ~= nil and mine.saves % mine.major == 0 }
  local minor = 0
  for i = #kept, 1, -1 do -- the most recent, and each major one
    if not mine.monitor and mine.keep > 0 and not kept[i].major then
      minor = minor + 1
      if minor > mine.keep then going[#going + 1] = remove(kept, i).name end
    end
  end
  return kept, going, name
end

local function drop_files(mine)
  for _, name in ipairs(mine.removed) do native.remove_file(path_of(mine, name)) end
  mine.removed = {}
end

-- Write what the parts are under a name, with what is kept from now on.
local function write(self, mine, name, parts, weights_only)
  if weights_only then
    local model = parts.model or fail("Checkpoints: weights_only saves the part named model, which is not there")
    return gb.save(path_of(mine, name), model:state_dict())
  end
  parts.checkpoints = self
  save_checkpoint(path_of(mine, name), parts)
end

Checkpoints.save = define("Checkpoints:save(parts: table, values?: table) -> string: Save the parts (as \z
  gb.io.save_checkpoint takes them) where the values, a table of numbers by name, are among the best, or always where \z
  nothing is monitored; and last.safetensors. Returns the path of the file that is kept, or nil. Errors: files that \z
  cannot be written; then nothing is removed. Example: local folder = os.tmpname() os.remove(folder) local files = \z
  gb.Checkpoints(folder) print(files:save({ model = model }, { epoch = 1, step = 10 }))", "files",
  function(self, parts, values)
    local mine = private(self, "checkpoints")
    values = values or {}
    native.make_folder(mine.folder)
    local before = { kept = mine.kept, removed = mine.removed, saves = mine.saves }
    local kept, going, name = plan(mine, values)
    if kept then
      mine.kept, mine.saves, mine.removed = kept, mine.saves + 1, copy(mine.removed)
      for _, gone in ipairs(going) do mine.removed[#mine.removed + 1] = gone end
    end
    local ok, why = pcall(function()
      if kept then write(self, mine, name, copy(parts), mine.weights_only) end
      if mine.last then write(self, mine, LAST, copy(parts), false) end
    end)
    if not ok then
      mine.kept, mine.removed, mine.saves = before.kept, before.removed, before.saves
      error(why, 0)
    end
    drop_files(mine)
    mine.since = native.clock()
    return name and path_of(mine, name)
  end)

Checkpoints.save_last = define("Checkpoints:save_last(parts: table) -> string: Write last.safetensors alone, as where \z
  a run is stopped. Errors: a file that cannot be written. Example: local folder = os.tmpname() os.remove(folder) \z
  print(gb.Checkpoints(folder):save_last({ model = model }))", "files", function(self, parts)
  local mine = private(self, "checkpoints")
  native.make_folder(mine.folder)
  write(self, mine, LAST, parts, false)
  return path_of(mine, LAST)
end)

Checkpoints.prepare = define("Checkpoints:prepare(): Make the folder, and try whether files can be written there, \z
  which is better known before a run has worked for hours. Errors: they cannot. Example: local folder = os.tmpname() \z
  os.remove(folder) gb.Checkpoints(folder):prepare()", "files", function(self)
  local mine = private(self, "checkpoints")
  native.make_folder(mine.folder)
  local why = native.why_unwritable(path_of(mine, LAST))
  if why then fail(format("Checkpoints: they cannot be written: %s", why)) end
end)

Checkpoints.due = define("Checkpoints:due(values: table; kind: \"step\"|\"epoch\"|\"validation\" = \"step\") -> bool: \z
  Is it time to save, after a step, at the end of an epoch or after a validation? values has step and epoch. Without \z
  every_steps, every_epochs and every_seconds: after each validation. Example: print(gb.Checkpoints(\"runs\", { \z
  every_steps = 10 }):due({ step = 20, epoch = 0 }))", "strict", function(self, values, options)
  local mine = private(self, "checkpoints")
  local function is_multiple(value, every) return math_type(value) == "integer" and value % every == 0 end
  if mine.every_steps then return options.kind == "step" and is_multiple(values.step, mine.every_steps) end
  if mine.every_epochs then return options.kind == "epoch" and is_multiple(values.epoch, mine.every_epochs) end
  if mine.every_seconds then return options.kind == "step" and native.clock() - mine.since >= mine.every_seconds end
  return options.kind == "validation"
end)

-- ====}

-- {==== going on ====

Checkpoints.load = define("Checkpoints:load(parts: table, which: string = \"last\") -> any: Load the parts from the \z
  last file, the \"best\", or the path of one, as gb.io.load_checkpoint does; the extra table is returned. From the \z
  last file the list of what is kept goes on too. Errors: a file that is not there. Example: local folder = \z
  os.tmpname() os.remove(folder) local files = gb.Checkpoints(folder) files:save_last({ model = model }) \z
  files:load({ model = model })", "files", function(self, parts, which)
  local mine = private(self, "checkpoints")
  local path = which == "last" and path_of(mine, LAST) or which == "best" and shown.best(mine) or which
  if which == "best" and path == "best" then fail(format("Checkpoints: %s has no best file as yet", mine.folder)) end
  if which == "last" then parts.checkpoints = self end
  local extra = load_checkpoint(path, parts)
  if which == "last" then drop_files(mine) end
  return extra
end)

-- The files of the folder from which a Trainer could go on, besides the last: { path, name, step, is_first }, those of
-- the most steps first, and at the end those that cannot be read, with step = -1. is_first: when it was written,
-- nothing else had been.
function native.runs_of(checkpoints)
  local folder, runs = private(checkpoints, "checkpoints").folder, {}
  if not native.file_exists(folder) then return runs end
  for _, name in ipairs(native.folder(folder)) do
    local path = folder .. "/" .. name
    local tree, why
    if is_name(name) then tree, why = native.tree_of(path) end
    local step = tree and type(tree.trainer) == "table" and tree.trainer.step
    local files = tree and type(tree.checkpoints) == "table" and tree.checkpoints
    if why then runs[#runs + 1] = { path = path, name = name, step = -1 } end
    if math_type(step) == "integer" then
      runs[#runs + 1] = { path = path, name = name, step = step, is_first = files and files.saves == 1 }
    end
  end
  table.sort(runs, function(a, b)
    if a.step ~= b.step then return a.step > b.step end
    return a.name < b.name
  end)
  return runs
end

Checkpoints.state_dict = define("Checkpoints:state_dict() -> table: The files that are kept, with their scores. \z
  Example: local state = gb.Checkpoints(\"runs\"):state_dict()", "strict", function(self)
  local mine = private(self, "checkpoints")
  return { kept = copy(mine.kept, true), removed = copy(mine.removed), saves = mine.saves }
end)

Checkpoints.load_state_dict = define("Checkpoints:load_state_dict(state: tree): Go on from what state_dict gave: \z
  files of these names are this run's own. Errors: a state of another form, names that are not of this folder. \z
  Example: local files = gb.Checkpoints(\"runs\") files:load_state_dict(files:state_dict())", "strict",
  function(self, state)
  local mine, kept, removed = private(self, "checkpoints"), {}, {}
  if type(state.kept) ~= "table" or type(state.removed) ~= "table" or math_type(state.saves) ~= "integer" then
    fail("Checkpoints: load_state_dict takes what state_dict gave: kept, removed and saves")
  end
  for i, entry in ipairs(state.kept) do
    local is_entry = type(entry) == "table" and is_name(entry.name)
    if not is_entry or not (entry.score == nil or type(entry.score) == "number") then
      fail(format("Checkpoints: file %d of the state is not one that these checkpoints keep", i))
    end
    if mine.monitor and not entry.score then
      fail(format("Checkpoints: %s was kept without a measure, and now '%s' is monitored; give another folder, or the \z
        options that the run began with", entry.name, mine.monitor))
    end
    kept[i] = { name = entry.name, score = entry.score, major = entry.major == true }
  end
  for i, name in ipairs(state.removed) do
    if not is_name(name) then fail(format("Checkpoints: the name %d to remove in the state is no file of ours", i)) end
    removed[i] = name
  end
  mine.kept, mine.removed, mine.saves, mine.resumed = kept, removed, state.saves, true
end)

-- ====}

gb.Checkpoints = define("gb.Checkpoints(folder: path; monitor?: string, mode: \"min\"|\"max\" = \"min\", keep: int = \z
  1, last: bool = true, name: string = \"{epoch}-{step}\", every_steps?: size, every_epochs?: size, every_seconds?: \z
  number, weights_only: bool = false, major?: size) -> checkpoints: Files of a run's states in a folder: the keep \z
  best by the value named monitor, or without it the keep most recent (-1 all, 0 none), of equal ones the older; \z
  major = m keeps each m-th of the recent for ever; last.safetensors, to go on from, is written at each save, or with \z
  last = false only where a run stops or ends. Fields of name become epoch=3, or -v1 is added \z
  where another run left that file. weights_only: what is kept holds only the model's weights. last, best, \z
  best_score and kept can be read. Errors: more than one of every_steps, every_epochs \z
  and every_seconds; a name with a /, with braces that are no field, or \"last\". \z
  Example: local files = gb.Checkpoints(\"runs/a\", { monitor = \"val_loss\", keep = 3 })",
  "files",
  function(folder, options)
    local triggers = 0
    for _, name in ipairs { "every_steps", "every_epochs", "every_seconds" } do
      if options[name] ~= nil then triggers = triggers + 1 end
    end
    if triggers > 1 then
      fail("Checkpoints: give one of every_steps, every_epochs and every_seconds; several are several gb.Checkpoints")
    end
    if options.keep < -1 then fail(format("Checkpoints: 'keep' must be from 0, or -1 for all, got %d",
      options.keep)) end
    if options.every_seconds and not (options.every_seconds > 0) then
      fail(format("Checkpoints: 'every_seconds' must be above 0, got %g", options.every_seconds))
    end
    check_name(options.name)
    if options.major and options.monitor then fail("Checkpoints: 'major' is for the most recent, without a monitor") end
    options.folder, options.kept, options.removed, options.saves = folder, {}, {}, 0
    options.since, options.resumed = native.clock(), false
    return own(setmetatable({}, Checkpoints), "checkpoints", options)
  end)
