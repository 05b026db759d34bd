-- recipes.lua - makes hostile recipes for fuzz_recipes (recipes.c), which runs them: session(seed) gives one as text.
--
-- A session is what one host runs: a few programs, each a list of statements over a small world of tensors, modules,
-- optimizers, scalers, loaders and so on. What is called is not listed here: it comes from the public names and their
-- signatures (gb.test.public_names, help_entry), from the examples that stand in the reference, and from the golden
-- cases of every op, so most calls are valid. A twist or two then makes a call hostile: a table is weak, is read
-- through metamethods, loses elements, or is the same as another; an object is a fake; a number is none; a callback
-- frees, closes, collects, raises, yields, changes what is read, or calls back into the statement that runs (an
-- effect); a library function is replaced. helpers (recipes_helpers.lua) is what these statements are written in.

local gb = require "gibbous"
local random = math.random

local function pick(list) return list[random(#list)] end
local function chance(share) return random() < share end

-- {==== What can be called ====

-- The parts of text between commas that stand in no brackets.
local function split(text)
  local parts, depth, from = {}, 0, 1
  for at = 1, #text do
    local c = text:sub(at, at)
    if c:find("[%(%[{]") then depth = depth + 1 elseif c:find("[%)%]}]") then depth = depth - 1 end
    if c == "," and depth == 0 then
      parts[#parts + 1] = text:sub(from, at - 1)
      from = at + 1
    end
  end
  if text:sub(from):find("%S") then parts[#parts + 1] = text:sub(from) end
  return parts
end

-- "x?: int = 2" as { name, kind, optional }.
local function parameter(word)
  local name, optional, rest = word:match("^%s*([%w_%.]+)(%??)(.*)$")
  if not name then return nil end
  local kind = rest:match("^|?%a*:%s*(%a+)") or rest:find("|number", 1, true) and "tensor|number" or nil
  return { name = name, kind = kind, optional = optional ~= "" or rest:find("=", 1, true) ~= nil or rest:find("?", 1,
    true) ~= nil }
end

-- The parameters, the named options and the kind of the result of a signature.
local function parsed(signature, is_op)
  local inside, result = signature:match("^[^%(]*(%b())%s*%->%s*(.-)$")
  inside = inside or signature:match("^[^%(]*(%b())") or "()"
  local positional, named = inside:sub(2, -2):match("^([^;]*);?(.*)$")
  local s = { parameters = {}, options = {}, result = is_op and "tensor" or result and result:match("^%a+") }
  for _, word in ipairs(split(positional)) do
    local p = parameter(word)
    if p then
      if is_op and not p.kind then p.kind = p.name:find("%.%.%.$") and "tensors" or "tensor" end
      s.parameters[#s.parameters + 1] = p
    end
  end
  for _, word in ipairs(split(named)) do
    local p = parameter(word)
    if p then s.options[#s.options + 1] = p end
  end
  return s
end

-- Names that a description gives to options, and those of the tables of the example.
local function option_names(entry)
  local list, seen = {}, {}
  local function add(name)
    if not seen[name] and not name:find("^%d") then
      seen[name] = true
      list[#list + 1] = name
    end
  end
  local from = (entry.doc or ""):lower():find("options", 1, true)
  for name in (from and entry.doc:sub(from):match("^[^%.]*") or ""):gmatch("([%l_][%l%d_]+)") do add(name) end
  for name in ((entry.doc or "") .. (entry.example or "")):gmatch("([%l_][%l%d_]*)%s*=[^=]") do add(name) end
  return list
end

-- Variables of the world that stand for the objects of a class.
local receivers = {
  tensor = { "x", "w", "p", "h", "i", "s", "v", "loss", "r1" },
  Module = { "model", "norm", "modules", "rnn", "normed", "r1" },
  GradScaler = { "scaler" },
  Optimizer = { "opt" }, Schedule = { "schedule" }, DataLoader = { "loader" }, dataset = { "ds" }, hook = { "hook" },
  scope = { "scope" },
  numerics = { "numerics" }, policy = { "policy" }, progress = { "bar" }, ctx = { "ctx" }, LayerNorm = { "norm" },
  ModuleDict = { "modules" },
  ModuleList = { "modulelist" }, Average = { "average" }, Sequential = { "model" },
  text = { "text" }, tokens = { "tokens" }, LBFGS = { "lbfgs" }, Trainer = { "trainer" }, Metrics = { "metrics" },
  EarlyStopping = { "stopper" }, Vocabulary = { "words" }, Sampler = { "sampler" }, transform = { "transform" },
  ParameterList = { "plist" }, ParameterDict = { "pdict" }, DataParallel = { "parallel" }, RNN = { "rnn" },
  GRU = { "rnn" }, LSTM = { "rnn" }, MultiheadAttention = { "rnn" }, Dataset = { "ds" },
}
-- What would end the process, write what nobody reads, or start threads without end; and what tests are written with.
local unwanted = {
  ["gb.interrupt"] = true, ["gb.set_num_threads"] = true, ["gb.doctor"] = true, ["gb.set_default_device"] = true,
  ["gb.on_stop"] = true, ["gb.data.mnist"] = true,
}
local needs_files = {
  ["gb.save"] = true, ["gb.load"] = true, ["gb.data.text"] = true, ["gb.data.idx"] = true, ["gb.data.tokens"] = true,
  ["gb.data.csv"] = true,
  ["gb.io.save_checkpoint"] = true, ["gb.io.load_checkpoint"] = true,
}

local callables, by_op, fields, examples, chains = {}, {}, {}, {}, {}
for _, row in ipairs(gb.test.public_names()) do
  local entry = gb.test.help_entry(row.op and row.op.name or row.name)
  local class, method = row.name:match("^(%a+)[:%.]([%w_]+)$")
  if class == "gb" then class = nil end
  if entry and not row.name:find("^gb%.test") and not row.name:find("^expect") and not row.name:find("ersion$")
    and not unwanted[row.name] then
    local signature = row.op and row.op.signature or entry.signature
    local c = { name = row.name, class = class, method = method, files = needs_files[row.name] or class == "text"
      or class == "tokens",
                signature = parsed(row.op and ("(" .. signature:gsub("%s*%->", ") ->", 1)) or signature, row.op ~= nil),
                  op = row.op and row.op.name }
    c.option_names = option_names(entry)
    if row.name:find("^%a+%.[%w_]+$") and class then fields[#fields + 1] = c
    elseif not class or receivers[class] then
      callables[#callables + 1] = c
      if row.op then
        by_op[row.op.name] = by_op[row.op.name] or {}
        table.insert(by_op[row.op.name], c)
      end
    end
    if entry.example and not row.op and not c.files then examples[#examples + 1] = entry.example end
  end
end

-- Methods of what keeps a state: they are few among all names, and most of what a callback may spoil is theirs.
local of_objects = {}
for _, c in ipairs(callables) do
  if c.class and c.class ~= "tensor" and c.class ~= "Module" then of_objects[#of_objects + 1] = c end
end

-- A call that gives what it takes can be chained.
for _, c in ipairs(callables) do
  local own = c.class == "tensor" and "tensor" or c.class == "dataset" and "dataset" or c.class == "Module" and "module"
  for at, p in ipairs(c.signature.parameters) do
    local kind = p.kind or p.name:find("^modules") and "module"
    if kind == c.signature.result and (kind == "tensor" or kind == "module" or kind == "dataset") and not (c.op and own
      and at == 1) then
      chains[#chains + 1] = { call = c, at = at, kind = kind }
    end
  end
  if own and own == c.signature.result then chains[#chains + 1] = { call = c, at = 0, kind = own } end
end

-- The golden cases of the ops: arguments that fit.
local golden = {}
do
  local cases = dofile "tests/lua/cases.lua"
  for _, case in ipairs(cases.list) do
    case.shapes = {}
    for i = 0, case.inputs - 1 do
      local t = cases.stored(case, "in", i)
      local values = t and not t:is_floating_point() and t:numel() <= 24 and t:reshape(-1):tolist()
      case.shapes[i] = t and { shape = t.shape, dtype = t.dtype, values = values, n = t:numel() }
    end
    if by_op[case.op] then golden[#golden + 1] = case end
  end
end

-- ====}

-- {==== The world ====

-- How each variable is made; its statement comes before the first use.
local world = {
  x = "gb.rand(4, 4)", y = "gb.randn(4, 4)", w = "gb.rand(4, 4, { requires_grad = true })",
  p = "gb.nn.Parameter(gb.rand(4, 4))",
  h = "gb.rand(4, 4, { dtype = 'float16' })", d = "gb.rand(4, 4, { dtype = 'float64' })",
  i = "gb.tensor({ 1, 0, 3, 2 })", s = "gb.tensor(2.5)",
  n = "gb.tensor(3)", m = "gb.tensor({ true, false, true, true })", z = "gb.zeros(0, 4)", v = "gb.rand(4, 4):t()",
  img = "gb.rand(2, 1, 8, 8)",
  model = "gb.nn.Sequential(gb.nn.Linear(4, 4), gb.nn.ReLU())", norm = "gb.nn.LayerNorm(4)",
  modules = "gb.nn.ModuleDict({ a = gb.nn.Linear(4, 4) })", modulelist = "gb.nn.ModuleList({ gb.nn.Linear(4, 4) })",
  opt = "gb.optim.@Optimizer(@params, { lr = 0.1 })", loss = "model(x):sum() + (w * w):sum()",
  scaler = "gb.amp.GradScaler({ init_scale = 2 })", schedule = "gb.optim.lr.Lambda(opt, { fn = @fn })",
  rnn = "@Recurrent", normed = "gb.nn.utils.@norm(gb.nn.Linear(4, 4))", average = "gb.optim.Average(model)",
  astate = "average:state_dict()", mstate = "metrics:state_dict()", vstate = "words:state_dict()",
  ds = "gb.data.TensorDataset(x, i)", loader = "gb.data.DataLoader(ds, { batch_size = 2, shuffle = true })",
  hook = "w:register_hook(@fn)", scope = "gb.no_grad()", numerics = "gb.amp.numerics(x)",
  policy = "gb.amp.policy({ { '.+', 'float32' } })",
  bar = "gb.progress(4, 'steps')", precision = "gb.amp.precision('16-mixed')", state = "model:state_dict()",
  ostate = "opt:state_dict()",
  sstate = "scaler:state_dict()", lstate = "loader:state_dict()", cstate = "schedule:state_dict()",
  fun = "gb.Function({ name = 'fun', " ..
        "forward = function(c, a) ctx = c c:save_for_backward(a) @effect return a * 2 end, " ..
        "backward = function(c, g) ctx = c local a = c:saved_tensors() @effect return g * a end })",
  again_x = "gb.recompute(function(a) @effect return (a * w):tanh() end, x)", group = "opt.param_groups[1]",
  lbfgs = "gb.optim.LBFGS({ w, p }, { max_iter = 3 })", metrics = "gb.Metrics({ 'mae', 'mse' })",
  trainer = "gb.Trainer({ model = model, optimizer = { 'SGD', lr = 0.1 }, epochs = 1, progress = false, " ..
            "device = 'cpu', loss = function(a, b) @effect return gb.nn.functional.mse_loss(a, b) end, " ..
            "on = { step = @fn } })",
  stopper = "gb.EarlyStopping({ monitor = 'loss' })", words = "gb.data.Vocabulary({ 'a b', 'b c' })",
  sampler = "gb.data.@Sampler", transform = "gb.data.transforms.@transform", plist = "gb.nn.ParameterList({ p })",
  pdict = "gb.nn.ParameterDict({ a = p })", parallel = "gb.nn.parallel.DataParallel(model)",
  batches = "{ { x, y }, { x, y } }", picture = "gb.ones({ 3, 8, 8 }, { dtype = 'uint8' })",
  mhook = "model:register_full_backward_hook(@fn)",
  text = "gb.data.text('a.txt')", tokens = "gb.data.tokens('b.bin')", lend = "loan()", r1 = "(w * 2):sum()",
  r2 = "{ w, p }", ctx = "nil",
}
local needs = {
  opt = { "model", "w", "p" }, loss = { "model", "x", "w" }, schedule = { "opt" }, ds = { "x", "i" }, loader = { "ds" },
  hook = { "w" }, numerics = { "x" }, average = { "model" }, astate = { "average" },
  mstate = { "metrics" }, vstate = { "words" },
  lbfgs = { "w", "p" }, trainer = { "model" }, plist = { "p" }, pdict = { "p" }, parallel = { "model" },
  batches = { "x", "y" }, mhook = { "model" },
  state = { "model" }, ostate = { "opt" }, sstate = { "scaler" }, lstate = { "loader" }, cstate = { "schedule" },
  again_x = { "x", "w" }, group = { "opt" }, r1 = { "w" }, r2 = { "w", "p" },
}
local tensor_names = { "x", "y", "w", "p", "h", "d", "i", "s", "n", "m", "z", "v", "img", "loss", "again_x", "lend",
  "lend", "r1" }
local world_names = {}
for name in pairs(world) do world_names[#world_names + 1] = name end
table.sort(world_names)

-- ====}

-- {==== Values ====

local S -- the session: sandbox, files
local P -- the program that is made: statements, made (variables that are there), effects (how many)

local hostile = {
  "0/0", "1/0", "-1/0", "2^62", "math.tointeger(2^62)", "2^53 + 1", "(1 << 53) + 1", "-1", "0", "1.5",
  "math.mininteger", "math.maxinteger", "''",
  "'\\0'", "'a\\0b'", "('x'):rep(100000)", "'2'", "true", "false", "nil", "{}", "print", "coroutine.create(print)",
  "gb", "gb.nn.Linear", "function() end", "gb.tensor(3)", "gb.tensor(true)", "gb.rand(0, 4)", "gb.rand(3)",
  "setmetatable({}, { __name = 'x', __tostring = 5 })",
}

-- The variable, which is made now where it was not.
local function use(name)
  if P.made[name] or not world[name] then return name end
  P.made[name] = true
  for _, other in ipairs(needs[name] or {}) do use(other) end
  local made = world[name]:gsub("@fn", function() return P.callback() end):gsub("@effect",
    function() return P.effect() end)
  made = made:gsub("@Optimizer", function()
    return pick { "SGD", "Adam", "AdamW", "Lion", "RMSprop", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "Rprop",
      "ASGD",
      "LAMB", "LARS", "Muon", "Adafactor" }
  end)
  made = made:gsub("@Recurrent", function()
    return ("gb.nn.%s(4, 4)"):format(pick { "RNN", "GRU", "LSTM", "RNNCell", "GRUCell", "LSTMCell",
      "TransformerEncoderLayer", "MultiheadAttention" })
  end)
  made = made:gsub("@Sampler", function()
    return pick { "RandomSampler(4)", "WeightedRandomSampler({ 1, 2, 1 })", "BucketBatchSampler({ 3, 1, 2 }, 2)" }
  end)
  made = made:gsub("@transform", function()
    return pick { "resize(4)", "random_crop(4, { padding = 2 })", "rand_augment()", "elastic()", "normalize(0.5, 0.5)" }
  end)
  made = made:gsub("@norm", function() return pick { "weight_norm", "spectral_norm" } end)
  made = made:gsub("@params", function() return pick { "model:parameters()", "{ w, p }" } end)
  P.add(("%s = %s"):format(name, made))
  return name
end

local fresh = { "gb.rand(4, 4)", "gb.rand(4, 4, { requires_grad = true })", "gb.nn.Parameter(gb.rand(4, 4))",
  "gb.tensor(1.5)", "gb.rand(4)",
                "gb.tensor({ 0, 1, 1, 0 })", "(gb.rand(4, 4, { requires_grad = true }) * 2)" }

local value -- below

local function tensor(depth)
  if chance(depth > 0 and 0.6 or 0.3) then return pick(fresh) end
  local name = use(pick(tensor_names))
  if depth < 2 and chance(0.15) then return ("(%s * 2)"):format(name) end
  return name
end

-- A tensor of a golden case.
local function golden_tensor(t)
  local sizes = table.concat(t.shape, ", ")
  if t.values then
    local words = {}
    for i, number in ipairs(t.values) do words[i] = tostring(number) end
    if t.n == 0 then return ("gb.zeros({ %s }, { dtype = '%s' })"):format(sizes, t.dtype) end
    return ("gb.tensor({ %s }, { dtype = '%s' }):reshape({ %s })"):format(table.concat(words, ", "), t.dtype, sizes)
  end
  local grad = t.dtype:find("float") and chance(0.5) and "requires_grad = true, " or ""
  return ("gb.ones({ %s }, { %sdtype = '%s' })"):format(sizes, grad, t.dtype:find("float") and "float32" or t.dtype)
end

-- A table that lies in one way or another; text is its honest constructor.
local function twisted(text)
  local kind = pick { "v", "v", "v", "v", "v", "kv", "k", "index", "index", "index", "index", "half", "half", "len",
    "gc", "live", "live", "self", "shared",
                      "hole" }
  -- the requests of memory from which on it is collected
  if #kind <= 2 and kind ~= "gc" then kind = kind .. random(0, 9) end
  if kind == "shared" then
    P.shared = P.shared or 0
    if P.shared > 0 and chance(0.5) then return "shared" .. random(P.shared) end
    P.shared = P.shared + 1
    P.add(("shared%d = W('%s', %d, %s)"):format(P.shared, pick { "v3", "index", "live", "half" }, P.new_effect(), text))
    return "shared" .. P.shared
  end
  return ("W('%s', %d, %s)"):format(kind, P.new_effect(), text)
end

-- A table: honest, or twisted where the statement still has twists to give.
local function table_of(text)
  if P.twists > 0 and chance(0.6) then
    P.twists = P.twists - 1
    return twisted(text)
  end
  return text
end

-- An object: itself, or what takes its place.
local function object_of(text)
  if P.twists > 0 and chance(0.15) then
    P.twists = P.twists - 1
    return ("O(%d, %s, %s)"):format(P.new_effect(), text, tostring(chance(0.5)))
  end
  return text
end

local function list_of(element, n)
  local words = {}
  for k = 1, n do words[k] = element(k) end
  return table_of("{ " .. table.concat(words, ", ") .. " }")
end

local function numbers(n, least, most) return list_of(function() return tostring(random(least, most)) end, n) end

local dtypes = { "'float32'", "'float16'", "'bfloat16'", "'float64'", "'int64'", "'bool'" }

-- Options by their names; what is not here takes a value of any kind.
local option_values = {
  lr = "0.1", eps = "1e-5", weight_decay = "0.01", momentum = "0.9", dampening = "0", nesterov = "false",
  maximize = "true", betas = "@{ 0.9, 0.99 }",
  dtype = "@dtype", device = "'cpu'", requires_grad = "true", reduction = "'sum'", weight = "gb.rand(4)",
  ignore_index = "1", label_smoothing = "0.1",
  retain_graph = "true", create_graph = "true", allow_unused = "true", grad_outputs = "@{ gb.ones(4, 4) }",
  gradient = "gb.ones(4, 4)", clip = "1",
  norm_type = "2", fn = "@fn", steps = "10", warmup = "2", first = "1", last = "-1", batch_size = "2", shuffle = "true",
  drop_last = "true",
  prefetch = "2", seed = "3", batches = "3", enabled = "true", init_scale = "4", growth_factor = "2",
  backoff_factor = "0.5", growth_interval = "2",
  min_scale = "1", max_scale = "65536", max_skips = "3", hysteresis = "2", per_loss = "true", scale = "@fn",
  strict = "false", persistent = "false",
  metadata = "@{ a = 'b' }", width = "20", height = "4", title = "'t'", quiet = "true", bias = "gb.rand(4)",
  running_mean = "gb.rand(4)", mask = "gb.ones(4, 4):bool()", activation = "'relu'", affine = "true",
  out = "'autocast'", padding = "@{ 1, 1 }", stride = "@{ 1, 1 }", dilation = "1", groups = "1", kind = "'bytes'",
  vocabulary = "'ab\\n'",
  format = "'float16'", precision = "'16-mixed'", print = "false", keepdim = "true", correction = "1",
  training = "true", beta = "1", value = "2",
  alpha = "2", is_causal = "true", dropout_p = "0.1", dropout = "0.1", padding_idx = "0", largest = "false",
  descending = "true", dim = "1",
  params = "@{ gb.nn.Parameter(gb.rand(2)) }", names = "@{ 'a' }", scaler = "@var scaler", replacement = "true",
  interval = "1", unit = "'u'",
  log_target = "true", pos_weight = "2", threshold = "2", state = "@var ostate", groups_ = "{}", steps_ = "1",
  model = "@var model", optimizer = "@var opt", extra = "@{ a = 1 }", forward = "@fn", backward = "@fn", name = "'f'",
}

local function option(name)
  local text = option_values[name]
  if not text then return value { name = name, kind = pick { "number", "bool", "string", "tensor", "list", "function",
    "any" } } end
  if text == "@fn" then return P.callback() end
  if text == "@dtype" then return pick(dtypes) end
  if text:find("^@var") then return use(text:sub(6)) end
  if text:find("^@") then return table_of(text:sub(2)) end
  if P.twists > 0 and chance(0.08) then return pick(hostile) end
  return text
end

-- Some of the options that the callable has.
local function options_of(c)
  local names, words, any = {}, {}, false
  for _, p in ipairs(c.signature.options) do names[#names + 1] = p.name end
  for _, p in ipairs(c.op and c.signature.parameters or {}) do -- inputs that may be left out may be named
    if p.optional and p.kind == "tensor" then names[#names + 1] = p.name end
  end
  for _, name in ipairs(c.option_names) do names[#names + 1] = name end
  for _ = 1, math.min(#names, random(0, 3)) do
    words[#words + 1] = ("%s = %s"):format(pick(names), option(pick { pick(names) }))
    any = true
  end
  if any then -- each name with its own value
    for k, word in ipairs(words) do
      local name = word:match("^[%w_]+")
      words[k] = ("%s = %s"):format(name, option(name))
    end
  end
  return table_of("{ " .. table.concat(words, ", ") .. " }")
end

local by_name = { -- kinds of parameters that signatures leave open
  outputs = "tensors", inputs = "tensors", parameters = "params", params = "params", dataset = "dataset",
  loss = "tensors", points = "numbers",
  precision = "precision", shape = "ints", size = "ints", kernel = "ints", sizes = "ints", first = "int",
  length = "int", step = "function",
  device = "device", examples = "tensors", state = "state", tensors = "named", parts = "parts", rules = "rules",
  group = "group", dict = "moduledict",
  list = "modulelist", scale = "number", p = "number", path = "path", images = "path", labels = "path", folder = "path",
  ids = "ints tensor",
  index = "int", threads = "int", xs = "tensors", modules = "module", targets = "target", weight = "tensor",
  other = "tensor", loader = "loader", train = "loader", validation = "loader", closure = "closure", image = "image",
}

local words_of = {
  dtype = "'float16'", kind = "'bytes'", reduction = "'mean'", name = "'a'", title = "'t'", text = "'[1, 2]'",
  string = "'ab'", device = "'cpu'", nonlinearity = "'relu'", approximate = "'tanh'",
}

-- An argument for a parameter, as Lua text.
function value(p, c, depth)
  depth = depth or 0
  if P.twists > 0 and chance(0.07) then
    P.twists = P.twists - 1
    return pick(hostile)
  end
  local name = p.name:gsub("%.+$", "")
  local kind = p.kind
  if not kind or kind == "table" or kind == "list" or kind == "any" then kind = by_name[name] or kind or "any" end
  if kind == "tensor" or kind == "tensor|number" then
    if kind ~= "tensor" and chance(0.2) then return "0.5" end
    return object_of(tensor(depth))
  elseif kind == "tensors" then
    if chance(0.2) then return tensor(depth) end
    return list_of(function() return tensor(1) end, random(1, 4))
  elseif kind == "params" then
    if chance(0.3) then return use "model" .. ":parameters()" end
    return list_of(function() return pick { "gb.nn.Parameter(gb.rand(4, 4))", use "w", use "p",
      "gb.rand(4, 4, { requires_grad = true })" } end, random(1, 3))
  elseif kind == "int" or kind == "dim" then return tostring(random(1, kind == "dim" and 2 or 4))
  elseif kind == "ints" or kind == "dims" then
    if chance(0.3) then return tostring(random(1, 4)) end
    return list_of(function() return pick { "4", "4", "2", "1" } end, random(1, 2))
  elseif kind == "numbers" then return numbers(random(1, 5), -3, 5)
  elseif kind == "number" then return pick { "0.5", "1", "2", "0.1" }
  elseif kind == "bool" then return pick { "true", "false" }
  elseif kind == "dtype" then return pick(dtypes)
  elseif kind == "string" then return words_of[name] or pick { "'a'", "'cpu'", "'float16'", "'mean'", "'relu'" }
  elseif kind == "path" then return pick { "'a.txt'", "'c.safetensors'", "'b.bin'", "'d.checkpoint'", "'e/f'", "''",
    "'a\\0b'" }
  elseif kind == "function" then return P.callback()
  elseif kind == "module" then return object_of(pick { use "model", use "norm", "gb.nn.Linear(4, 4)", "gb.nn.ReLU()" })
  elseif kind == "optimizer" then return object_of(use "opt")
  elseif kind == "loader" then
    if chance(0.4) then return object_of(use "loader") end
    return table_of(("{ %s, %s }"):format(table_of(("{ %s, %s }"):format(tensor(1), tensor(1))), table_of "{ x, y }"))
  elseif kind == "closure" then
    return ("function() %s local l = (%s * w):sum() l:backward() return l end"):format(P.effect(), use "w")
  elseif kind == "image" then return object_of(use "picture")
  elseif kind == "dataset" then
    if chance(0.4) then
      local get, length = P.effect(), P.effect()
      return ("setmetatable({ get = function(self, k) %s return gb.rand(4), gb.tensor(k) end }, " ..
              "{ __len = function() %s return 4 end })"):format(get, length)
    end
    return object_of(use "ds")
  elseif kind == "precision" then return pick { use "precision", "'float16'",
    table_of "{ dtype = 'float16', enabled = true }", "nil" }
  elseif kind == "state" then
    local by_class = { Module = "state", Optimizer = "ostate", GradScaler = "sstate", DataLoader = "lstate",
      Schedule = "cstate", Average = "astate", LBFGS = "ostate", Metrics = "mstate", Vocabulary = "vstate" }
    if name == "state" and c and c.name == "gb.set_rng_state" then return table_of "gb.get_rng_state()" end
    return table_of(use(c and by_class[c.class] or pick { "state", "ostate", "sstate" }))
  elseif kind == "named" then return table_of(("{ a = %s, ['b.c'] = %s }"):format(tensor(1), tensor(1)))
  elseif kind == "parts" then
    if c and c.name == "gb.Function" then
      return table_of(("{ name = 'f', forward = function(ctx, a) %s return a * 2 end, " ..
                       "backward = function(ctx, g) %s return g end }"):format(P.effect(), P.effect()))
    end
    return table_of(("{ model = %s, optimizer = %s, extra = %s }"):format(object_of(use "model"), object_of(use "opt"),
      table_of "{ a = { 1, 2 } }"))
  elseif kind == "rules" then return table_of("{ " .. table_of "{ '.+', 'float32' }" .. " }")
  elseif kind == "group" then
    return table_of(("{ params = %s, lr = 0.5, betas = %s }"):format(value({ name = "params", kind = "params" }, c, 1),
      table_of "{ 0.9, 0.9 }"))
  elseif kind == "moduledict" then return table_of "{ a = gb.nn.Linear(4, 4), b = gb.nn.ReLU() }"
  elseif kind == "modulelist" then return table_of "{ gb.nn.Linear(4, 4), gb.nn.ReLU() }"
  elseif kind == "device" then return pick { "'cpu'", "nil" }
  elseif kind == "target" then return pick { "'float16'", "'cpu'", use "x", use "precision" }
  elseif kind == "ints tensor" then return "gb.tensor({ 0, 1 })"
  elseif kind == "options" or name == "options" or kind == "table" then return c and options_of(c) or table_of "{}"
  end
  local any = random(8)
  if any == 1 then return ("peek(%s, %d)"):format(use(pick(world_names)), random(12)) end
  if any == 2 then return ("peek(getmetatable(%s), %d)"):format(use(pick(world_names)), random(12)) end
  if any == 3 then return pick(hostile) end
  if any == 4 then return table_of("{ a = " .. tensor(1) .. ", " .. numbers(2, 1, 4) .. ", b = "
    .. table_of "{ 'x', 2 }" .. " }") end
  if any == 5 then return list_of(function() return numbers(2, 0, 5) end, 2) end
  if any == 6 then return P.callback() end
  return use(pick(world_names))
end

-- ====}

-- {==== Calls ====

local function arguments(c, from)
  local words = {}
  local parameters = c.signature.parameters
  local last = #parameters
  while last >= from and parameters[last].optional and chance(0.4) do last = last - 1 end
  for k = from, last do
    if parameters[k].name ~= "..." and parameters[k].name ~= "" then words[#words + 1] = value(parameters[k], c) end
  end
  if last == #parameters and #c.signature.options > 0 and chance(0.6) then words[#words + 1] = options_of(c) end
  if P.twists > 0 and chance(0.03) then table.remove(words, random(math.max(1, #words))) end
  if P.twists > 0 and chance(0.03) then words[#words + 1] = pick(hostile) end
  return table.concat(words, ", ")
end

-- receiver: text of the object that the method is called on, or nil: one of the world.
local function call_text(c, receiver)
  if not c.class then
    local path = c.name:gsub("^gb%.nn%.functional%.", "F.")
    return ("%s(%s)"):format(path, arguments(c, 1))
  end
  receiver = receiver or object_of(use(pick(receivers[c.class])))
  if receiver:find("^[%(OW]") then receiver = "(" .. receiver .. ")" end
  return ("%s:%s(%s)"):format(receiver, c.method, arguments(c, c.op and 2 or 1))
end

local function golden_argument(a, case)
  if type(a) ~= "table" then return type(a) == "string" and ("%q"):format(a) or tostring(a) end
  if a["in"] then return case.shapes[a["in"]] and object_of(golden_tensor(case.shapes[a["in"]])) or "nil" end
  if a["nil"] then return "nil" end
  local words = {}
  if a.options then
    local names = {}
    for name in pairs(a.options) do names[#names + 1] = name end
    table.sort(names)
    for _, name in ipairs(names) do words[#words + 1] = ("%s = %s"):format(name, golden_argument(a.options[name],
      case)) end
  else
    for k, element in ipairs(a) do words[k] = golden_argument(element, case) end
  end
  return table_of("{ " .. table.concat(words, ", ") .. " }")
end

local function golden_call()
  local case = pick(golden)
  local c = pick(by_op[case.op])
  local words = {}
  for k, a in ipairs(case.args) do
    words[k] = P.twists > 0 and chance(0.05) and pick(hostile) or golden_argument(a, case)
  end
  local needed = 0
  for at, p in ipairs(c.signature.parameters) do needed = p.optional and needed or at end
  if #words >= needed and type(case.args[#case.args]) == "table" and not case.args[#case.args].options
    and chance(0.5) then words[#words + 1] = options_of(c) end
  if not c.class then return ("%s(%s)"):format(c.name:gsub("^gb%.nn%.functional%.", "F."), table.concat(words,
    ", ")) end
  local receiver = table.remove(words, 1)
  if not receiver then return "nil" end
  return ("(%s):%s(%s)"):format(receiver, c.method, table.concat(words, ", "))
end

-- An example of the reference with its tables twisted, effects in its functions, and other objects in its variables.
local function example()
  local text = pick(examples)
  text = text:gsub("^local%s+[%w_, ]+=%s*", "r1 = ")
  text = text:gsub("%b{}", function(inside)
    if inside:find("function", 1, true) or P.twists == 0 or chance(0.4) then return inside end
    P.twists = P.twists - 1
    return "(" .. twisted(inside) .. ")"
  end)
  text = text:gsub("(function%b())", function(head) return head .. " " .. P.effect() .. " " end)
  for name in text:gmatch("%f[%w_][%a_][%w_]*") do
    if world[name] and #name > 1 or name == "x" or name == "w" then use(name) end
  end
  return text
end

-- Statements of a training step, so that what was registered comes to be called.
local function training()
  use "loss"
  local text = pick {
    "loss = model(x):sum() + (w * w):sum()", "loss:backward()", "loss:backward() @opt:step()",
    "@scaler:scale(loss):backward()",
    "@scaler:step(@opt)", "@scaler:unscale_(@opt)", "@scaler:update()", "@schedule:step()", "@opt:zero_grad()",
    "@fun(w):sum():backward()",
    "@again_x:sum():backward()", "for a, b in @loader:iter() do r1 = model(a) @effect end", "r1 = gb.grad(loss, w)",
    "loss = model(x):sum() loss:backward() @scaler:step(@opt, { clip = 1 })",
    "gb.nn.utils.clip_grad_norm_({ w, @p }, 1)", "r1 = gb.grad((w * w):sum(), { w }, { create_graph = true })",
  }
  return (text:gsub("@(%a[%w_]*)", function(name) return name == "effect" and P.effect() or use(name) end))
end

local function operator()
  local a, b = object_of(tensor(0)), tensor(0)
  return (pick {
    "r1 = A + B", "r1 = A * 2", "r1 = 2 / A", "r1 = -A", "r1 = A .. 'x'", "r1 = A == B", "r1 = #A", "r1 = tostring(A)",
    "r1 = A[1]", "r1 = A[LIST]",
    "r1 = A[{ 1, 2 }]", "A[1] = B", "A[LIST] = V", "A[{ {}, LIST }] = V", "r1 = A[{ LIST, 1 }]",
    "r1 = A[gb.tensor({ true, false, true, true })]", "A[i] = B",
    "for k, e in ipairs(A) do r1 = e EFFECT end", "do local c <close> = A end", "r1 = A < B", "r1 = A @ B",
    "r1 = { A:max(1) }", "r1 = A[LIST][LIST]",
    "A.grad = B", "A.grad = A", "A.grad = B B.grad = A", "A.requires_grad = true", "r1 = A.grad", "r1 = A.shape",
  }:gsub(" @ ", " // "):gsub("%f[%w]i%f[%W]", function() return use "i" end):gsub("LIST",
    function() return table_of("{ " .. random(1, 3) .. ", " .. random(2, 4) .. " }") end)
    :gsub("EFFECT", function() return P.effect() end):gsub("%f[%w]V%f[%W]", function() return value { name = "v",
      kind = "any" } end)
    :gsub("%f[%w]A%f[%W]", function() return a:find "^O" and "(" .. a .. ")" or a end):gsub("%f[%w]B%f[%W]",
      function() return b end))
end

-- A field of an object is written, read or called, whatever it is for.
local function poke()
  local name = use(pick(world_names))
  local kind = random(6)
  if kind == 1 then return ("poke(%s, %d, %s)"):format(name, random(12), value { name = "v", kind = "any" }) end
  if kind == 2 then return ("poke(getmetatable(%s), %d, %s)"):format(name, random(12), P.callback()) end
  if kind == 3 then
    local c = pick(callables)
    if c.class then return ("r1 = peek(%s, %d):%s(%s)"):format(name, random(12), c.method, arguments(c, 1)) end
  end
  if kind == 4 then return ("r1 = call(peek(getmetatable(%s), %d), %s)"):format(name, random(12), value { name = "v",
    kind = "any" }) end
  if kind == 5 then
    local f = pick(fields)
    return ("%s.%s = %s"):format(use(pick(receivers[f.class])), f.method, value { name = f.method,
      kind = f.signature.result or "any" })
  end
  return ("%s.%s = %s"):format(name, pick { "a", "weight", "forward", "get", "step", "param_groups", "training",
    "shape", "grad", "dataset" },
    value { name = "v", kind = "any" })
end

-- A chain of many links: f(f(f(x))), or one object in a field of the next; then it is used, and let go.
local function chain()
  local n = pick { 300, 3000, 30000, 50000 }
  local start, link
  if chance(0.4) then
    start = pick { "gb.rand(2)", "gb.nn.Linear(2, 2)" }
    link = start .. ("; local before = c c = o o.%s = before"):format(start:find "nn" and "inner" or "grad")
    link = "local o = " .. link
  else
    local k = pick(chains)
    start = k.kind == "tensor" and pick { "gb.rand(2, 2)", "gb.rand(2, 2, { requires_grad = true })" }
      or k.kind == "module" and "gb.nn.Linear(2, 2)" or
            "gb.data.TensorDataset(gb.rand(4, 2))"
    if k.at == 0 then link = "c = " .. call_text(k.call, "c")
    else
      local words = {}
      for at, p in ipairs(k.call.signature.parameters) do
        if at > k.at and p.optional then break end
        words[at] = at == k.at and "c" or value(p, k.call)
      end
      if k.call.class and k.call.op then
        link = ("c = %s:%s(%s)"):format(table.remove(words, 1), k.call.method, table.concat(words, ", "))
      elseif k.call.class then link = ("c = %s:%s(%s)"):format(use(pick(receivers[k.call.class])), k.call.method,
        table.concat(words, ", "))
      else link = ("c = %s(%s)"):format(k.call.name:gsub("^gb%.nn%.functional%.", "F."), table.concat(words, ", ")) end
    end
  end
  P.add(("c = chain(%s, %d, function(c) %s return c end)"):format(start, n, link))
  return pick { "c = nil collectgarbage()", "c:sum():backward()", "r1 = tostring(c)",
    "close(c) c = nil collectgarbage()", "c:parameters()", "c:get(1)",
                "c:train()", "c:state_dict()", "c(gb.rand(2, 2))", "c.grad = nil collectgarbage()",
                "gb.grad(c:sum(), c)", "c:backward()" }
end

local tampered = {}
for _, library in ipairs { "table", "string", "math", "coroutine", "utf8" } do
  for name, f in pairs(_G[library]) do
    if type(f) == "function" then tampered[#tampered + 1] = library .. "." .. name end
  end
end
for _, name in ipairs { "pairs", "ipairs", "next", "type", "tostring", "tonumber", "setmetatable", "getmetatable",
"rawget", "rawset", "rawequal", "rawlen", "select",
                        "pcall", "error", "assert", "require", "print", "collectgarbage", "load",
                        "xpcall" } do tampered[#tampered + 1] = name end
table.sort(tampered)

-- A library function, of Lua's or of gb, now runs an effect first.
local function tamper()
  local path = pick(tampered)
  if chance(0.3) then
    local c = pick(callables)
    if not c.class then path = c.name end
  end
  return ("tamper('%s', %d, '%s')"):format(path, P.new_effect(), pick { "first", "first", "instead", "after", "gone" })
end

-- A call of any sort, as one statement.
local function any_call(depth)
  local kind = random(20)
  if kind <= 6 then return "r1 = " .. golden_call() end
  if kind <= 11 then
    local from = chance(0.3) and of_objects or callables
    local c = pick(from)
    while c.files and not S.files do c = pick(from) end
    local text = call_text(c)
    return (c.signature.result == "tensor" and "r1 = " or "r9 = ") .. text
  end
  if kind <= 13 and depth == 0 then return example() end
  if kind <= 17 then return training() end
  if kind == 18 then return operator() end
  if kind == 19 then return poke() end
  return operator()
end

-- ====}

-- {==== Effects, statements, programs ====

-- A variable of the world, mostly one that this program uses.
local function victim()
  local used = {}
  for _, name in ipairs(world_names) do
    if P.made[name] then used[#used + 1] = name end
  end
  return #used > 0 and chance(0.85) and pick(used) or pick(world_names)
end

-- What an effect does: self is the table (or the like) that was being read, k the key.
local function effect_body()
  local kind = random(23)
  if kind <= 3 then return "collectgarbage()" end
  if kind <= 5 then return ("close(%s)"):format(victim()) end
  if kind <= 7 then
    local name = victim()
    return ("close(%s) %s = nil collectgarbage()"):format(name, name)
  end
  if kind == 8 then return ("%s = nil collectgarbage()"):format(victim()) end
  if kind == 9 then return "clear(self) collectgarbage()" end
  if kind == 10 then return "clear(live()) collectgarbage()" end
  if kind == 11 then return ("fill(self, k, %s) collectgarbage()"):format(pick(hostile)) end
  if kind == 12 then return pick { "error('effect')", "error({})", "error(nil)",
    "error(setmetatable({}, { __tostring = error }))" } end
  if kind == 13 then return "coroutine.yield(1)" end
  if kind <= 15 then return "again()" end
  if kind == 16 then return "return " .. pick(hostile) end
  if kind == 17 then return "revoke() collectgarbage()" end
  if kind == 18 then return "every(close, self) every(close, live()) collectgarbage()" end
  if kind == 19 then return ("(%s):sum():backward()"):format(victim()) end
  P.twists = 1
  return any_call(1)
end

-- Around a statement: where it runs.
local function placed(text)
  local kind = random(24)
  if kind == 1 then return ("co(function() %s end)"):format(text) end
  if kind == 2 then return ("gb.no_grad(function() %s end)"):format(text) end
  if kind == 3 then return ("gb.amp.autocast({ dtype = 'float16' }, function() %s end)"):format(text) end
  if kind == 4 then return ("gb.recompute(function(a) %s return a * 2 end, %s):sum():backward()"):format(text,
    use "w") end
  if kind == 5 then return ("%s:register_hook(function(g) %s end) (w * 2):sum():backward()"):format(use "w", text) end
  if kind == 6 then return ("apply(function() %s end)"):format(text) end
  if kind == 7 then return ("lent(%s, function() %s end)"):format(tensor(0), text) end
  if kind == 8 then return ("gb.time(function() %s end)"):format(text) end
  return text
end

local function new_program(statements)
  local made, pending = {}, {}
  P = { made = made, statements = {}, n_effects = 0, twists = 0 }
  function P.add(text) P.statements[#P.statements + 1] = text end
  function P.new_effect()
    if P.n_effects > 0 and chance(0.4) then return random(P.n_effects) end
    P.n_effects = P.n_effects + 1
    pending[#pending + 1] = P.n_effects
    return P.n_effects
  end
  function P.effect() return ("E(%d)"):format(P.new_effect()) end
  function P.callback()
    return ("function(...) local r = E(%d, ...) if r ~= nil then return r end %s end"):format(P.new_effect(),
      pick { "return ...", "return 1", "return", "return ...", "return 0.5" })
  end
  for _ = 1, statements do
    P.twists = random(10) <= 2 and 0 or random(10) <= 7 and 1 or 3
    local kind = random(40)
    if kind == 1 then P.add(tamper())
    elseif kind == 2 then P.add(("bomb(%d)"):format(P.new_effect()))
    elseif kind == 3 then P.add(pick { "collectgarbage()", "revoke()" })
    elseif kind == 4 and chance(0.05) then P.add(chain())
    elseif kind == 5 then P.add("live(" .. table_of("{ " .. tensor(0) .. ", " .. tensor(0) .. " }") .. ")")
    else
      local text = placed(any_call(0))
      P.add(text)
    end
  end
  -- effects stand in front of what causes them; making them may ask for more
  local main, effects, k = P.statements, {}, 1
  while pending[k] and k < 60 do
    P.statements = {}
    local body = effect_body()
    for _, text in ipairs(P.statements) do effects[#effects + 1] = text end
    effects[#effects + 1] = ("effect(%d, %d, function(self, k, ...) %s end)"):format(pending[k], random(3), body)
    k = k + 1
  end
  local all = {}
  table.move(effects, 1, #effects, #all + 1, all)
  table.move(main, 1, #main, #all + 1, all)
  local lines = { "begin()" }
  for _, text in ipairs(all) do lines[#lines + 1] = ("try(function() %s end)"):format(text) end
  lines[#lines + 1] = "finish()"
  return lines
end

-- One session: a line "sandbox collector", then programs; statements end with \1 and programs with \2.
function session(seed)
  math.randomseed(seed)
  local sandbox = pick { "none", "none", "strict", "strict", "files" }
  S = { files = sandbox ~= "strict", sandbox = sandbox }
  local collector = pick { "incremental", "incremental", "generational", "each", "plain", "plain", "plain" }
  local parts = { sandbox .. " " .. collector .. " " .. random(5, 200) }
  for _ = 1, 8 do parts[#parts + 1] = table.concat(new_program(random(3, 9)), "\1") end
  return table.concat(parts, "\2")
end

-- ====}
