-- help.lua - what help() says of a name or a value, and the list of all public names. Ops are described by their rows
-- in the table of ops; everything else by its record, which stands beside its code (reader.h) and is cut into its parts
-- here, when it is first asked for.
--
-- An entry is { name, signature, doc, example, errors } and, of a record, also { level (of the strictest sandbox that
-- has it) }, of an op also { calls (its spellings), shapes, dtypes, autocast, derivative }.

local _, native = ...
local gb = native.view("gb") -- with what the recipe has added
-- a script may take methods away
local find, match, gmatch, gsub, format = string.find, string.match, string.gmatch, string.gsub, string.format

-- {==== ops ====

local dtypes = {
  keep = "runs in what it is given, by the usual promotion",
  lower = "under autocast floating inputs except float64 are cast to the scope's dtype",
  float32 = "under autocast it computes in float32 and returns float32",
  widest = "under autocast floating inputs are cast to the widest among them",
  banned = "an error under autocast",
}

local like_x = "the result is shaped like x"
local broadcast = "inputs broadcast against each other; the result has their common shape"
local reduced = "dim goes away, or stays with size 1 with keepdim = true"
local each_loss = "a 0-d tensor; with reduction = \"none\" a loss for each "

local family_shapes = { create = like_x, norm = like_x, gated = like_x, loss = each_loss .. "element of x" }
local halved = "the result is shaped like x, with half as many elements along dim"
local op_shapes = { -- where an op differs from its family
  glu = halved, swiglu = halved, geglu = halved,
  isclose = broadcast, prelu = "the result is shaped like x; weight [1] or [channels]",
  multinomial = "x [n] or [rows, n]: y [samples] or [rows, samples]",
  cumsum = like_x, softmax = like_x, log_softmax = like_x,
  matmul = "[..., n, k] by [..., k, m] gives [..., n, m], the dimensions in front broadcast; vectors lose theirs",
  mm = "[n, k] by [k, m] gives [n, m]", bmm = "[batch, n, k] by [batch, k, m] gives [batch, n, m]",
    mv = "[n, k] by [k] gives [n]",
  addmm = "a [n, k], b [k, m]: z [n, m]; x broadcasts to it",
  baddbmm = "a [batch, n, k], b [batch, k, m]: z [batch, n, m]; x broadcasts to it",
  dot = "two vectors of one length give a 0-d tensor", outer = "vectors of n and m elements give [n, m]",
  linear = "x [..., inputs], weight [outputs, inputs], bias [outputs]: y [..., outputs]",
  mlp = "x [..., inputs], weight1 [hidden, inputs], weight2 [outputs, hidden]: y [..., outputs]",
  conv2d = "x [n, c, h, w], weight [channels, c / groups, rows, columns]: y [n, channels, h', w']",
  conv1d = "x [n, c, l], weight [channels, c / groups, size]: y [n, channels, l']",
  conv3d = "x [n, c, d, h, w], weight [channels, c / groups, kd, kh, kw]: y [n, channels, d', h', w']",
  conv_transpose1d = "x [n, c, l], weight [c, channels / groups, size]: y [n, channels, l']",
  conv_transpose2d = "x [n, c, h, w], weight [c, channels / groups, rows, columns]: y [n, channels, h', w']",
  conv_transpose3d = "x [n, c, d, h, w], weight [c, channels / groups, kd, kh, kw]: y [n, channels, d', h', w']",
  max_pool1d = "x [n, c, l]: y and indices [n, c, l']", max_pool2d = "x [n, c, h, w]: y and indices [n, c, h', w']",
  max_pool3d = "x [n, c, d, h, w]: y and indices [n, c, d', h', w']",
  avg_pool1d = "x [n, c, l]: y [n, c, l']", avg_pool2d = "x [n, c, h, w]: y [n, c, h', w']",
  avg_pool3d = "x [n, c, d, h, w]: y [n, c, d', h', w']",
  lp_pool1d = "x [n, c, l]: y [n, c, l']", lp_pool2d = "x [n, c, h, w]: y [n, c, h', w']",
  max_unpool1d = "x and indices [n, c, l']: y [n, c, l]", max_unpool2d = "x and indices [n, c, h', w']: y [n, c, h, w]",
  max_unpool3d = "x and indices [n, c, d', h', w']: y [n, c, d, h, w]",
  adaptive_avg_pool1d = "x [n, c, l]: y [n, c, size]", adaptive_avg_pool2d = "x [n, c, h, w]: y [n, c, size]",
  adaptive_avg_pool3d = "x [n, c, d, h, w]: y [n, c, size]",
  adaptive_max_pool1d = "x [n, c, l]: y and indices [n, c, size]",
  adaptive_max_pool2d = "x [n, c, h, w]: y and indices [n, c, size]",
  adaptive_max_pool3d = "x [n, c, d, h, w]: y and indices [n, c, size]", add_layer_norm = "y and sum are shaped like x",
  cross_entropy = each_loss .. "target", nll_loss = each_loss .. "target", linear_cross_entropy = each_loss .. "target",
  ctc_loss = "log_probs [time, n, classes], targets [n, length] or one after another, lengths [n]: " .. each_loss ..
    "sample",
  triplet_margin_loss = each_loss .. "sample: all but the last dimension",
    cosine_embedding_loss = each_loss .. "target",
  multilabel_margin_loss = each_loss .. "row of x", multilabel_soft_margin_loss = each_loss .. "row of x",
    multi_margin_loss = each_loss .. "target",
  dice_loss = each_loss .. "sample: the first dimension",
    sigmoid_focal_loss = "like x; with reduction \"mean\" or \"sum\" a 0-d tensor",
  cosine_similarity = "x1 and x2 broadcast; dim goes away",
    pairwise_distance = "x1 and x2 broadcast; the last dimension goes away",
  cdist = "[..., n, size] and [..., m, size] give [..., n, m]", normalize = like_x,
    bilinear = "x1 [..., n], x2 [..., m], weight [out, n, m]: y [..., out]",
  scaled_dot_product_attention = "query [batch, heads, time, head_dim], key and value [batch, heads, source, \z
    head_dim]: y shaped like query",
  rotary_embedding = "x [..., dim], cos and sin [..., n] with 2 n <= dim, broadcast to x: y shaped like x",
  pad = "like x, longer or shorter by what pad says", channel_shuffle = "x [n, c, ...]: y like it",
  instance_norm = "x [n, c, ...]: y like it", local_response_norm = "x [n, c, ...]: y like it",
  dropout1d = "x [n, c, l]: y like it", dropout2d = "x [n, c, h, w]: y like it",
    dropout3d = "x [n, c, d, h, w]: y like it",
  alpha_dropout = like_x, feature_alpha_dropout = "x [n, c, ...]: y like it",
  pixel_shuffle = "x [..., c * factor^2, h, w]: y [..., c, h * factor, w * factor]",
  pixel_unshuffle = "x [..., c, h * factor, w * factor]: y [..., c * factor^2, h, w]",
  im2col = "x [n, c, h, w]: y [n, c * kernel places, windows]",
    col2im = "x [n, c * kernel places, windows]: y [n, c, output_size]",
  interpolate = "x [n, c, ...]: y [n, c, size]", grid_sample = "x [n, c, h, w], grid [n, h', w', 2]: y [n, c, h', w']",
  affine_grid = "theta [n, 2, 3]: y [n, h, w, 2] for size { n, c, h, w }",
  embedding_bag = "index [bags, n], or [n] with offsets [bags]; weight [rows, size]: y [bags, size]",
  embedding = "index [...], weight [rows, size]: y [..., size]", gather = "the result is shaped like index",
  scatter_add = like_x, index_add = like_x, index_put = like_x, masked_scatter = like_x, flip = like_x,
  sort = "values and indices are shaped like x", topk = "values and indices are shaped like x, with k elements \z
    along dim",
  index_select = "shaped like x, with as many elements along dim as index has",
    masked_select = "a vector of the elements picked",
  nonzero = "[count, dimensions of x]", one_hot = "x [...]: y [..., classes]",
  cat = "alike but along dim, where the sizes add up",
    stack = "all of one shape; the result has one dimension more, dim",
  repeat_interleave = "shaped like x, as long along dim as repeats says",
  view = "the elements of x in another shape", reshape = "the elements of x in another shape",
  flatten = "dimensions first .. last become one", unflatten = "dim becomes the dimensions of shape",
  transpose = "like x, two dimensions exchanged", permute = "like x, the dimensions in another order",
    t = "[n, m] gives [m, n]",
  squeeze = "like x without dimensions of size 1", unsqueeze = "like x with one dimension more, of size 1",
  expand = "shape, to which x broadcasts", narrow = "like x, with length elements along dim",
    select = "like x without dim",
  slice = "like x, with the elements first, first + step, ... last along dim",
  diagonal = "like x without the two dimensions, and their diagonal as the last one",
  movedim = "like x, the dimensions in another order",
  broadcast_to = "shape, to which x broadcasts",
  cumprod = like_x, logcumsumexp = like_x, cummax = like_x, cummin = like_x, mode = reduced,
  scatter_reduce = like_x, index_reduce = like_x, slice_scatter = like_x, diagonal_scatter = like_x, put = like_x,
  take = "the result is shaped like index",
  rfft = "like x, n / 2 + 1 elements along dim, and 2 as a last dimension",
  irfft = "like x without the last dimension, n elements along dim",
  stft = "x [..., time], window [win_length]: y [..., n_fft / 2 + 1, windows, 2]",
  istft = "x [..., n_fft / 2 + 1, windows, 2], window [win_length]: y [..., time]",
  unfold = "like x, fewer positions along dim, and size as the last dimension",
  roll = like_x, fliplr = like_x, flipud = like_x, rot90 = "like x, the two dimensions exchanged for an odd k",
  index_fill = like_x, index_copy = like_x, select_scatter = like_x, scatter = like_x, renorm = like_x, msort = like_x,
  argsort = like_x, bucketize = "the result is shaped like values", searchsorted = "the result is shaped like values",
  isin = like_x, diag = "a vector gives a matrix, a matrix a vector",
    diag_embed = "x [..., n]: y [..., n + |offset|, n + |offset|]",
  diff = "like x, n elements fewer along dim", trapezoid = "like y without dim",
    take_along_dim = "the result is shaped like index",
  dist = "the result is 0-d", unique = "a vector of values, inverse shaped like x, a vector of counts",
  unique_consecutive = "a vector of values, inverse shaped like x, a vector of counts",
  bincount = "a vector of the largest element of x and 1 more, or of minlength", histc = "a vector of bins elements",
  einsum = "what the equation says", inner = "the dimensions of x and then of y, each without the last one",
  tensordot = "the dimensions of x and then of y that do not meet",
    vdot = "two vectors of one length give a 0-d tensor",
  ger = "vectors of n and m elements give [n, m]", kron = "each dimension is x's times y's", cross = broadcast,
  addmv = "a [n, k], b [k]: z [n]; x broadcasts to it", addr = "a [n], b [m]: z [n, m]; x broadcasts to it",
  addbmm = "a [batch, n, k], b [batch, k, m]: z [n, m]; x broadcasts to it",
  quantile = "a vector q gives a first dimension; " .. reduced,
    nanquantile = "a vector q gives a first dimension; " .. reduced,
  kthvalue = reduced, median = reduced, nanmedian = reduced, nansum = reduced, nanmean = reduced, var_mean = reduced,
  std_mean = reduced, aminmax = reduced, count_nonzero = "dim goes away; without dim the result is 0-d",
  cov = "x [rows, n]: y [rows, rows]; a vector gives a 0-d tensor",
    corrcoef = "x [rows, n]: y [rows, rows]; a vector gives a 0-d tensor",
}

-- What is true of the shapes of an op: of elementwise ones and reductions its signature says it.
local function shapes_of(row)
  if op_shapes[row.name] then return op_shapes[row.name] end
  if row.family == "elementwise" then
    local tensors = 0
    for word in gmatch(match(row.signature, "^[^;%-]*"), "[^,]+") do
      tensors = tensors + (find(word, ":", 1, true) and 0 or 1)
    end
    return tensors > 1 and broadcast or like_x
  end
  if row.family == "reduce" then return find(row.signature, "dim?", 1, true) and
    reduced .. "; without dim the result is 0-d" or reduced end
  return family_shapes[row.family] or "as the description says"
end

-- Arguments of an example by their names, then by their types.
local samples = {
  shape = "{ 2, -1 }", dims = "{ 2, 1 }", second = "2", classes = "10", start = "1", position = "1", first = "1",
    size = "1",
  dim = "-1", int = "2", ints = "2", number = "0.5", dtype = "\"float16\"", ["xs..."] = "{ x, y }",
}
local examples = { -- where the rule gives what would not run
  einsum = "local y = gb.einsum(\"ij,kj->ik\", x, x)", quantile = "local y = x:quantile(0.5, -1)",
  nanquantile = "local y = x:nanquantile(0.5, -1)",
  searchsorted = "local indices = gb.searchsorted(gb.tensor({ 0.2, 0.5 }), x)",
  isin = "local y = gb.isin(x, { values = 2 })", scatter = "local y = x:scatter(2, index, 0.5)",
  renorm = "local y = x:renorm(2, 1, 5)", roll = "local y = x:roll(1, 2)", histc = "local counts = x:histc(10, -1, 1)",
  scatter_reduce = "local y = x:scatter_reduce(2, index, source, \"amax\")",
  index_reduce = "local y = gb.zeros(3, 2):index_reduce(1, gb.tensor({ 0, 0 }), gb.rand(2, 2), \"mean\")",
  slice_scatter = "local y = gb.zeros(3, 5):slice_scatter(gb.ones(3, 2), 2, 1, 2)",
  diagonal_scatter = "local y = gb.zeros(3, 3):diagonal_scatter(gb.ones(3))",
  put = "local y = gb.zeros(3, 3):put(gb.tensor({ 0, 8 }), gb.ones(2))",
  repeat_interleave = "local y = x:repeat_interleave(2, 1)",
  irfft = "local y = x:rfft():irfft()", stft = "local y = gb.stft(gb.randn(400), 64, 16)",
  istft = "local y = gb.istft(gb.stft(gb.randn(400), 64, 16), 64, 16)",
  clamp = "local y = x:clamp(0, 1)", expand = "local y = x:expand({ 4, 4 })",
    layer_norm = "local y = F.layer_norm(x, { 4 })",
  rms_norm = "local y = F.rms_norm(x, { 4 })",
  add_layer_norm = "local y, sum = F.add_layer_norm(x, gb.rand(4, 4), { 4 })",
  batch_norm = "local y = F.batch_norm(gb.rand(8, 4), nil, nil, nil, nil, { training = true })",
  polygamma = "local y = x:polygamma(1)", pad = "local y = F.pad(x, { 1, 1 })",
  col2im = "local y = F.col2im(gb.rand(1, 4, 9), 4, 2)",
  interpolate = "local y = F.interpolate(gb.rand(1, 1, 4, 4), { scale_factor = 2 })",
  affine_grid = "local grid = F.affine_grid(gb.rand(2, 2, 3), { 2, 1, 4, 4 })",
  broadcast_to = "local y = gb.broadcast_to(gb.ones(4), { 2, 4 })",
  max = "local value = x:max() local values, indices = x:max(-1)",
    min = "local value = x:min() local values, indices = x:min(-1)",
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
  for i = 0, #row.aliases do
    for letter in gmatch(row.where, "%a") do
      calls[#calls + 1] = format(spellings[letter], row.aliases[i] or row.name)
    end
  end
  return calls
end

local function op_entry(row)
  local arguments, outputs = parts_of(row.signature)
  local errors = "arguments of another type, unknown options, and shapes or dtypes that do not fit"
  if row.autocast == "banned" then errors = errors .. "; any call under autocast" end
  if row.derivative == "once" then errors = errors .. "; a second derivative" end
  return {
    name = row.name, signature = format("%s(%s) -> %s", row.name, arguments, outputs), doc = row.doc,
      calls = calls_of(row),
    shapes = shapes_of(row), dtypes = dtypes[row.autocast],
    autocast = row.autocast, derivative = row.derivative, errors = errors,
      example = example_of(row, arguments, outputs),
  }
end

local rows -- public ops by their names

local function op_rows()
  if rows then return rows end
  rows = {}
  for _, row in ipairs(native.ops()) do
    if row.public then rows[row.name] = row end
    for _, name in ipairs(row.aliases) do rows[name] = row end
  end
  return rows
end

-- ====}

-- {==== records ====

local texts, levels, n_read = {}, {}, 0 -- by name: the text of its record, and the strictest sandbox that has it
local level_names = { [0] = "none", "files", "strict" }

-- Take in the records that came since they were looked at last.
local function read_records()
  native.load_all()
  local list = native.records()
  for i = n_read + 1, #list, 2 do
    local name = match(list[i], "^[%w_.:]+")
    texts[name], levels[name] = list[i], level_names[list[i + 1]]
  end
  n_read = #list
end

-- Cut "name(arguments) -> result: doc. Errors: e. Example: code" apart; nil where there is no record of that name.
local function text_entry(name)
  local text = texts[name]
  if not text then return nil end
  local path, rest = match(text, "^([%w_.:]+)(.*)$")
  local arguments, after = match(rest, "^(%b())(.*)$")
  if not arguments then arguments, after = "", rest end
  local result, said = match(after, "^ %-> ([^:]+): (.*)$")
  said = said or match(after, "^: (.*)$") or ""
  local before, example = match(said, "^(.-)%s*Example: (.*)$")
  before = before or said
  local doc, errors = match(before, "^(.-)%s*Errors: (.-)%.?$")
  return {
    name = path, signature = path .. arguments .. (result and " -> " .. result or ""), doc = doc or
      before, errors = errors,
    example = example, level = levels[name],
  }
end

-- ====}

-- {==== names ====

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

-- Functions of a class that it does not share with the one it extends; what Lua and Module call stays unsaid where a
-- layer has no record of its own for it.
local silent = { init = true, forward = true, extra = true, describe = true }

local function add_class(list, name, class, is_layer)
  for _, key in ipairs(sorted(class)) do
    if type(class[key]) == "function" and not find(key, "^_") and
      not (is_layer and silent[key] and not texts[name .. ":" .. key]) then
      list[#list + 1] = { name = name .. ":" .. key, value = class[key] }
    end
  end
end

local function add_module(list, path, module)
  local has_ops = path == "gb" or path == "gb.nn.functional"
  for _, key in ipairs(sorted(module)) do
    local value = rawget(module, key)
    local called = type(value) == "table" and texts[path .. "." .. key] -- a table that is called, as gb.plot
    if type(value) == "function" or called or is_class(value) or key == "version" or key == "_VERSION" then
      list[#list + 1] = { name = path .. "." .. key, value = value, op = has_ops and op_of(key) or nil }
      if is_class(value) and value ~= gb.nn.Module then add_class(list, key, value, true) end
    end
  end
end

-- Kinds of native objects that the Lua half keeps to itself; recipes can hold all others.
local inner = { append = true, audit = true, batches = true, canvas = true, capture = true, decoded = true,
  events = true, json = true, json_writer = true, lines = true, names = true, optimizer = true, profile = true,
  recompute = true, safetensors = true, shards = true, zip = true }

-- The modules of gb and the kinds of objects that records are of, each as a sorted list. The functional form of ops has
-- no records.
local function parts()
  local modules, kinds = { ["nn.functional"] = true }, {}
  for name in pairs(texts) do
    local module, kind = match(name, "^gb%.([%w_.]+)%.[%w_]+$"), match(name, "^([%w_]+):")
    if module then modules[module] = true end
    if kind then kinds[kind] = true end
  end
  for kind in pairs(native.classes) do kinds[kind] = true end
  for kind in pairs(native.kinds()) do -- a kind without a record shows too
    if not inner[kind] then kinds[kind == "scaler" and "GradScaler" or kind] = true end
  end
  return sorted(modules), sorted(kinds)
end

local native_names = { GradScaler = "scaler" } -- of kinds of userdata, where the reference has another

-- Every public name: a list of { name, value, op }, sorted. It is what can be reached, so that a name without a record
-- shows.
function native.late.public_names()
  read_records()
  local list, modules, kinds = {}, parts()
  add_module(list, "gb", gb)
  for _, path in ipairs(modules) do
    local module = gb
    for key in gmatch(path, "[%w_]+") do module = module and rawget(module, key) end
    if module then add_module(list, "gb." .. path, module) end
  end
  for key, value in pairs(native.methods("gibbous.tensor")) do
    local field = type(value) ~= "function"
    list[#list + 1] = { name = (field and "tensor." or "tensor:") .. key, value = not field and value or nil,
      op = not field and op_of(key) or nil }
  end
  add_class(list, "Module", gb.nn.Module)
  for _, kind in ipairs(kinds) do
    local class = native.classes[kind]
    if not class and kind ~= "tensor" and kind ~= "Module" and not rawget(gb.nn, kind) then
      class = native.methods("gibbous." .. (native_names[kind] or kind))
    end
    if class then add_class(list, kind, class, is_class(class)) end
  end
  table.sort(list, function(a, b) return a.name < b.name end)
  return list
end

-- ====}

-- {==== asking ====

local function named(name) return text_entry(name) or op_rows()[name] and op_entry(op_rows()[name]) end

-- What people leave out of a name.
local prefixes = { "gb.", "gb.nn.", "tensor:", "tensor.", "Module:", "gb.optim.", "gb.optim.lr.", "gb.amp.", "gb.data.",
  "gb.io.", "gb.nn.init.",
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

-- "gb.nn.LSTM is not built into this version", where what is such a name in any of its spellings; else nil.
local function planned(what)
  local bare = gsub(gsub(gsub(what, "^F%.", "nn.functional."), "^gb%.", ""), "^gb$", "")
  local module, name = match(bare, "^(.-)%.?([%w_]+)$")
  for path, names in pairs(native.later) do
    if name and names[name] and (module == "" or path == "gb." .. module) then
      return format("; %s.%s is not built into this version", path, name)
    end
  end
  return nil
end

-- What help(what) shows: what is a name in any of its spellings, a function, a class, or a module. nil and "; did you
-- mean ...?" for what has none.
function native.late.help_entry(what)
  read_records()
  if type(what) == "string" then
    local entry, why = by_name(what), planned(what)
    if entry then return entry end
    if why then return nil, why end
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
