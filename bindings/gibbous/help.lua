-- help.lua - what help() says of a name or a value, and the list of all public names. Ops are described by their rows in the table of ops;
-- everything else by help_entries.lua, which cmake/reference.lua makes from the comments above the functions and which is read when it
-- is first asked for.
--
-- An entry is { name, signature, doc, example, errors } and, of an op, also { calls (its spellings), shapes, dtypes, autocast, derivative }.

local gb, native, run = ...
local find, match, gmatch, gsub, format = string.find, string.match, string.gmatch, string.gsub, string.format -- a script may take methods away

-- {==== ops ====

local dtypes = {
  keep = "runs in what it is given, by the usual promotion",
  lower = "under autocast floating inputs except float64 are cast to the scope's dtype",
  float32 = "under autocast it computes in float32 and returns float32",
  widest = "under autocast floating inputs are cast to the widest among them",
  banned = "an error under autocast",
}

local family_shapes = {
  create = "the result is shaped like x",
  elementwise = "inputs broadcast against each other; the result has their common shape",
  reduce = "dim goes away, or stays with size 1 with keepdim = true; without dim the result is 0-d",
  matmul = "[..., n, k] by [..., k, m] gives [..., n, m], the dimensions in front broadcast; vectors lose theirs",
  conv = "x [n, c, h, w]: y [n, channels, rows, columns]",
  norm = "the result is shaped like x",
  loss = "a 0-d tensor; with reduction = \"none\" a loss for each target",
  attention = "query [batch, heads, time, head_dim], key and value [batch, heads, source, head_dim]: y shaped like query",
  index = "as the description says; dimensions that it does not name stay",
  view = "the elements of x, seen in another shape",
}
local op_shapes = { -- where an op differs from its family
  softmax = "the result is shaped like x", log_softmax = "the result is shaped like x", cumsum = "the result is shaped like x",
  multinomial = "x [n] or [rows, n]: y [samples] or [rows, samples]",
  linear = "x [..., inputs], weight [outputs, inputs], bias [outputs]: y [..., outputs]",
  mlp = "x [..., inputs], weight1 [hidden, inputs], weight2 [outputs, hidden]: y [..., outputs]",
  dot = "two vectors of one length give a 0-d tensor", outer = "vectors of n and m elements give [n, m]",
}

-- Arguments of an example by their names, then by their types.
local samples = {
  shape = "{ 2, -1 }", dims = "{ 2, 1 }", second = "2", classes = "10", start = "1", position = "1", first = "1", size = "1",
  dim = "-1", int = "2", ints = "2", number = "0.5", dtype = "\"float16\"", ["xs..."] = "{ x, y }",
}
local examples = { -- where the rule gives what would not run
  clamp = "local y = x:clamp(0, 1)", expand = "local y = x:expand({ 4, 4 })", layer_norm = "local y = F.layer_norm(x, { 4 })",
  rms_norm = "local y = F.rms_norm(x, { 4 })", add_layer_norm = "local y, sum = F.add_layer_norm(x, residual, { 4 })",
  max = "local value = x:max() local values, indices = x:max(-1)", min = "local value = x:min() local values, indices = x:min(-1)",
}

-- The parts of a signature: its arguments as written, and the visible outputs.
local function parts_of(signature)
  local arguments, outputs = match(signature, "^(.-)%s*%->%s*(.-)$")
  return arguments, (gsub(outputs, "%s*;.*$", ""))
end

-- The arguments that a call must have, as an example spells them, and those in front of them.
local function required(arguments)
  local list, last = {}, 0
  for word in gmatch(match(arguments, "^[^;]*"), "[^,]+") do
    local name, optional, kind, default = match(word, "^%s*([%w_.]+)(%??)|?%a*:?%s*(%a*)%s*(=?)")
    list[#list + 1] = samples[name] or samples[kind] or name
    if optional == "" and default == "" then last = #list end
  end
  return table.move(list, 1, last, 1, {})
end

local function example_of(row, arguments, outputs)
  if examples[row.name] then return examples[row.name] end
  local list = required(arguments)
  local form = find(row.where, "G") and "gb." or find(row.where, "F") and "F." or table.remove(list, 1) .. ":"
  return format("local %s = %s%s(%s)", outputs, form, row.name, table.concat(list, ", "))
end

local spellings = { G = "gb.%s", M = "x:%s", F = "F.%s", I = "x:%s_" } -- by the letter of a row's `where`

-- How a recipe can write an op.
local function calls_of(row)
  local calls = {}
  for letter in gmatch(row.where, "%a") do calls[#calls + 1] = format(spellings[letter], row.name) end
  return calls
end

local function op_entry(row)
  local arguments, outputs = parts_of(row.signature)
  local errors = "arguments of another type, unknown options, and shapes or dtypes that do not fit"
  if row.autocast == "banned" then errors = errors .. "; any call under autocast" end
  if row.derivative == "once" then errors = errors .. "; a second derivative" end
  return {
    name = row.name, signature = format("%s(%s) -> %s", row.name, arguments, outputs), doc = row.doc, calls = calls_of(row),
    shapes = op_shapes[row.name] or family_shapes[row.family], dtypes = dtypes[row.autocast],
    autocast = row.autocast, derivative = row.derivative, errors = errors, example = example_of(row, arguments, outputs),
  }
end

local rows -- public ops by name

local function op_rows()
  if rows then return rows end
  rows = {}
  for _, row in ipairs(native.ops()) do
    if row.public then rows[row.name] = row end
  end
  return rows
end

-- ====}

-- {==== names ====

-- The parts of gb, and the kinds of native objects, by the names that the reference gives them.
local modules = { "nn", "nn.functional", "nn.init", "nn.utils", "optim", "optim.lr", "amp", "data", "io", "cuda", "test" }
local natives = { GradScaler = "gibbous.scaler", dataset = "gibbous.dataset", text = "gibbous.text", hook = "gibbous.hook", ctx = "gibbous.ctx",
                  scope = "gibbous.scope" }

-- The row of the op that a function of gb, F or a tensor's method is.
local function op_of(key)
  local all = op_rows()
  if all[key] then return all[key] end
  local row = all[match(key, "^(.*)_$")]
  return row and find(row.where, "I") and row or nil
end

local function sorted(table_)
  local keys = {}
  for key in pairs(table_) do
    if type(key) == "string" then keys[#keys + 1] = key end
  end
  table.sort(keys)
  return keys
end

local function is_class(value) return type(value) == "table" and rawget(value, "__values") ~= nil end

-- Functions of a class that it does not share with the one it extends; what Lua and Module call stays unsaid.
local silent = { init = true, forward = true, extra = true, describe = true }

local function add_class(list, name, class, is_layer)
  for _, key in ipairs(sorted(class)) do
    if type(class[key]) == "function" and not find(key, "^_") and not (is_layer and silent[key]) then
      list[#list + 1] = { name = name .. ":" .. key, value = class[key] }
    end
  end
end

local function add_module(list, path, module)
  local has_ops = path == "gb" or path == "gb.nn.functional"
  for _, key in ipairs(sorted(module)) do
    local value = rawget(module, key)
    if type(value) == "function" or is_class(value) or key == "version" or key == "_VERSION" then
      list[#list + 1] = { name = path .. "." .. key, value = value, op = has_ops and op_of(key) or nil }
      if is_class(value) and value ~= gb.nn.Module then add_class(list, key, value, true) end
    end
  end
end

-- Every public name: a list of { name, value, op }, sorted.
function native.late.public_names()
  local list = {}
  add_module(list, "gb", gb)
  for _, path in ipairs(modules) do
    local module = gb
    for key in gmatch(path, "%a+") do module = module[key] end
    add_module(list, "gb." .. path, module)
  end
  for key, value in pairs(native.methods("gibbous.tensor")) do
    local field = type(value) ~= "function"
    list[#list + 1] = { name = (field and "tensor." or "tensor:") .. key, value = not field and value or nil, op = not field and op_of(key) or nil }
  end
  add_class(list, "Module", gb.nn.Module)
  for _, name in ipairs(sorted(native.classes)) do add_class(list, name, native.classes[name]) end
  for _, name in ipairs(sorted(natives)) do add_class(list, name, native.methods(natives[name]) or {}) end
  table.sort(list, function(a, b) return a.name < b.name end)
  return list
end

-- ====}

-- {==== asking ====

local texts -- { [name] = { signature, doc, errors, example } }

local function text_entry(name)
  if not texts then
    run("help_entries")
    texts, native.help_texts = native.help_texts, nil
  end
  local text = texts[name]
  return text and { name = name, signature = text[1], doc = text[2], errors = text[3], example = text[4] }
end

local function named(name) return text_entry(name) or op_rows()[name] and op_entry(op_rows()[name]) end

-- What people leave out of a name.
local prefixes = { "gb.", "gb.nn.", "tensor:", "tensor.", "Module:", "gb.optim.", "gb.optim.lr.", "gb.amp.", "gb.data.", "gb.io.", "gb.nn.init.",
                   "gb.nn.utils.", "gb.cuda.", "gb.random.", "gb.test." }

local function by_name(what)
  local bare = gsub(gsub(gsub(what, "^gb%.nn%.functional%.", ""), "^F%.", ""), "^gb%.", "")
  local last = match(bare, "^%a+:([%w_]+)$") -- x:relu
  local entry = named(what) or named(bare)
  for i = 1, entry and 0 or #prefixes do
    entry = entry or text_entry(prefixes[i] .. bare) or last and text_entry(prefixes[i] .. last)
  end
  if entry then return entry end
  local row = op_of(last or bare)
  return row and op_entry(row)
end

-- What help(what) shows: what is a name in any of its spellings, a function, a class, or a module. nil and "; did you mean ...?" for what has none.
function native.late.help_entry(what)
  if type(what) == "string" then
    local entry = by_name(what)
    if entry then return entry end
    local known = {}
    for _, row in ipairs(native.public_names()) do known[row.name], known[match(row.name, "[%w_]+$")] = true, true end
    return nil, native.nearest(what, known)
  end
  if gb.nn.is_module(what) then
    what = native.class_of(what)
    if rawget(gb.nn, what.__name) ~= what then what = gb.nn.Module end -- a class of the recipe's
  end
  if type(what) ~= "function" and type(what) ~= "table" then return nil, "" end
  for _, row in ipairs(native.public_names()) do
    if rawequal(row.value, what) then return row.op and op_entry(row.op) or text_entry(row.name) end
  end
  return nil, ""
end

-- ====}
