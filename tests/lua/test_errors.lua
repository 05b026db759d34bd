-- test_errors.lua - every public function called with what it is not made for: too few and too many arguments, values
-- of every type, numbers at every edge, unknown options, tensors of odd shapes and dtypes. It may work or raise; what
-- it raises is a string that begins with the recipe's line and, for an op, says which op. Nothing crashes, and nothing
-- of ours shows through ("attempt to index ...").
--
-- Every call runs in a coroutine of its own, so that scopes it opens go with it.

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
local nn, F, optim, amp, data = gb.nn, gb.nn.functional, gb.optim, gb.amp, gb.data

math.randomseed(20)
gb.manual_seed(20)

-- {==== calling ====

-- true and results, or false and the error; the traceback of the coroutine is not of interest.
local function attempt(fn, ...)
  local arguments = table.pack(...)
  local co = coroutine.create(function()
    local results = table.pack(fn(table.unpack(arguments, 1, arguments.n))) -- this is the recipe's line
    return table.unpack(results, 1, results.n)
  end)
  local results = table.pack(coroutine.resume(co))
  coroutine.close(co)
  return table.unpack(results, 1, results.n)
end

local function text_of(arguments)
  local list = {}
  for i = 1, arguments.n do
    local a = arguments[i]
    list[i] = gb.is_tensor(a) and ("tensor(%s %s)"):format(a.dtype, table.concat(a.shape, "x")) or
      type(a) == "table" and "{...}" or tostring(a)
  end
  return table.concat(list, ", ")
end

-- Call, and complain about an error that a recipe could do nothing with. must: it has to fail. name: what the text has
-- to contain.
local function check(what, fn, must, name, ...)
  local ok, why = attempt(fn, ...)
  if ok and not must then return end
  local call = ("%s(%s)"):format(what, text_of(table.pack(...)))
  if ok then error(call .. " was accepted", 0) end
  if type(why) ~= "string" then error(("%s raised a %s"):format(call, type(why)), 0) end
  if not why:find("^tests/lua/test_errors%.lua:%d+: ") then
    error(("%s does not name the recipe's line: %s"):format(call, why), 0)
  end
  if why:find("attempt to") or why:find("bad argument #%d+ to 'for iterator'") then
    error(("%s shows its inside: %s"):format(call, why), 0)
  end
  if name and not why:find(name, 1, true) then error(("%s does not say '%s': %s"):format(call, name, why), 0) end
end

-- ====}

-- {==== values that do not belong ====

local freed = gb.ones(2)
freed:free()

-- No tensors, no numbers.
local function nothing() end
local function strangers() return { true, "/nowhere/junk", {}, { 1, "a" }, { nonsense = 1 }, nothing, io.stdout,
  coroutine.create(nothing), freed, n = 9 } end

local numbers = { 0, 1, -1, 3, 2.5, -0.5, 1e300, -1e300, 0 / 0, math.huge, math.mininteger, math.maxinteger, 100 }

local shapes = { {}, { 0 }, { 1 }, { 3 }, { 2, 3 }, { 3, 2 }, { 0, 3 }, { 1, 1 }, { 2, 3, 4 }, { 1, 2, 4, 4 },
  { 2, 0, 3, 3 }, { 1, 1, 1, 1, 1, 1, 1, 2 } }
local dtypes = { "float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool" }

local function random_tensor()
  local shape, dtype = shapes[math.random(#shapes)], dtypes[math.random(#dtypes)]
  local t = gb.randint(0, 3, shape):to(math.random(3) == 1 and dtype or (math.random(2) == 1 and "float32" or "int64"))
  if t:is_floating_point() and math.random(3) == 1 then t:requires_grad_() end
  if t.ndim >= 2 and math.random(4) == 1 then t = t:transpose(1, -1) end
  return t
end

local function random_value()
  local kind = math.random(12)
  if kind <= 7 then return random_tensor() end
  if kind <= 9 then return numbers[math.random(#numbers)] end
  if kind == 10 then return { math.random(-1, 4), math.random(-1, 4) } end
  if kind == 11 then return nil end
  local list = strangers()
  return list[math.random(list.n)]
end

local function random_arguments()
  local arguments = { n = math.random(0, 5) }
  for i = 1, arguments.n do arguments[i] = random_value() end
  return arguments
end

-- ====}

-- {==== ops ====

-- Every way to call the row: gb.name, F.name, x:name, x:name_.
local function callers(row)
  local list = {}
  local function add(text, fn) list[#list + 1] = { text, fn } end
  if type(rawget(gb, row.name)) == "function" then add("gb." .. row.name, gb[row.name]) end
  if rawget(F, row.name) then add("F." .. row.name, F[row.name]) end
  local x = gb.ones(2, 2)
  local method, in_place = select(2, pcall(function() return x[row.name] end)),
    select(2, pcall(function() return x[row.name .. "_"] end))
  if type(method) == "function" then add("x:" .. row.name, method) end
  if type(in_place) == "function" then add("x:" .. row.name .. "_", in_place) end
  return list
end

describe("ops", function()
  for _, row in ipairs(gb.test.ops()) do
    for _, caller in ipairs(callers(row)) do
      local text, fn = caller[1], caller[2]
      it(text, function()
        local x, values = gb.ones(2, 3), strangers()
        check(text, fn, true, row.name)
        check(text, fn, true, row.name, nil)
        for i = 1, values.n do
          check(text, fn, true, row.name, values[i])
          check(text, fn, false, row.name, x, values[i])
        end
        check(text, fn, true, row.name, x, { nonsense_key = 1 })
        check(text, fn, true, row.name, x, x, x, x, x, { nonsense_key = 1 })
        if not row.signature:find("...", 1, true) then
          check(text, fn, true, row.name, x, x, x, x, x, x, x, x, x, x, x, x, x, x)
          check(text, fn, true, row.name, x, "a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k")
        end
      end)
    end
  end
end)

describe("ops with random arguments", function()
  for _, row in ipairs(gb.test.ops()) do
    for _, caller in ipairs(callers(row)) do
      it(caller[1], function()
        for _ = 1, 60 do
          local arguments = random_arguments()
          check(caller[1], caller[2], false, row.name, table.unpack(arguments, 1, arguments.n))
        end
      end)
    end
  end
end)

-- Right kinds of arguments, wrong sizes: what each says is about the shapes.
describe("shapes that do not fit", function()
  local a, b, v = gb.ones(2, 3), gb.ones(4, 5), gb.ones(7)
  local image, index = gb.ones(1, 3, 8, 8), gb.tensor { 0, 1 }
  local calls = {
    { "add", "2x3", "4x5", function() return a + b end }, { "matmul", "2x3", "4x5", function() return a:matmul(b) end },
    { "mm", "2", "7", function() return gb.mm(a, v) end }, { "bmm", "3", "2", function() return gb.bmm(a, b) end },
    { "mv", "2x3", "7", function() return gb.mv(a, v) end },
      { "dot", "7", "2", function() return gb.dot(v, gb.ones(2)) end },
    { "addmm", "2x3", "4x5", function() return gb.addmm(a, a, b) end },
      { "linear", "2x3", "4x5", function() return F.linear(a, b) end },
    { "mlp", "3", "5", function() return F.mlp(a, b, nil, b) end },
    { "conv2d", "3 ", "4", function() return F.conv2d(image, gb.ones(2, 4, 3, 3)) end },
      { "conv2d", "2x3", "4", function() return F.conv2d(a, gb.ones(2, 3, 3, 3)) end },
    { "conv2d", "bias", "7", function() return F.conv2d(image, gb.ones(2, 3, 3, 3), v) end },
      { "conv2d", "9", "8", function() return F.conv2d(image, gb.ones(2, 3, 9, 9)) end },
    { "conv2d", "stride", "0", function() return F.conv2d(image, gb.ones(2, 3, 3, 3), nil, { stride = 0 }) end },
    { "max_pool2d", "8", "9", function() return F.max_pool2d(image, 9) end },
      { "avg_pool2d", "kernel_size", "0", function() return F.avg_pool2d(image, 0) end },
    { "layer_norm", "3", "4", function() return F.layer_norm(a, { 4 }) end },
      { "layer_norm", "weight", "7", function() return F.layer_norm(a, { 3 }, v) end },
    { "group_norm", "3", "2", function() return F.group_norm(a, 2) end },
    { "group_norm", "weight", "7", function() return F.group_norm(a, 3, v) end },
    { "rms_norm", "3", "7", function() return F.rms_norm(a, { 3 }, v) end },
      { "add_layer_norm", "2x3", "4x5", function() return F.add_layer_norm(a, b, { 3 }) end },
    { "batch_norm", "3", "7", function() return F.batch_norm(image, v, v) end },
      { "batch_norm", "residual", "7",
        function() return F.batch_norm(image, { residual = v, training = true }) end },
      { "cross_entropy", "2", "7", function() return F.cross_entropy(a, gb.zeros(7, { dtype = "int64" })) end },
    { "nll_loss", "2", "7", function() return F.nll_loss(a, gb.zeros(7, { dtype = "int64" })) end },
      { "mse_loss", "2x3", "4x5", function() return F.mse_loss(a, b) end },
    { "scaled_dot_product_attention", "8", "4",
      function() return F.scaled_dot_product_attention(image, gb.ones(1, 3, 8, 4), image) end },
    { "cat", "3", "5", function() return gb.cat { a, b } end },
      { "stack", "2x3", "4x5", function() return gb.stack { a, b } end },
    { "gather", "2", "1", function() return a:gather(1, index) end },
      { "view", "2x3", "5", function() return a:view(5) end },
    { "expand", "2x3", "4", function() return a:expand(4, 3) end },
      { "masked_fill", "2x3", "7", function() return a:masked_fill(v:gt(0), 0) end },
    { "where", "2x3", "7", function() return gb.where(a:gt(0), a, v) end },
      { "topk", "k", "9", function() return a:topk(9) end },
  }
  for _, row in ipairs(calls) do
    it(row[1] .. " of " .. row[2] .. " and " .. row[3], function()
      check(row[1], row[4], true, row[1])
      check(row[1], row[4], true, row[2])
      check(row[1], row[4], true, row[3])
    end)
  end
end)

-- Bounds and counts stand in the rows of the ops, and every op says them in the same words.
describe("options out of their bounds", function()
  local a, image, kernel, huge = gb.ones(2, 3), gb.ones(1, 3, 8, 8), gb.ones(2, 3, 3, 3), 1 << 31
  local heads, target = gb.ones(1, 1, 2, 4), gb.tensor { 0, 1 }
  local function conv(options) return function() return F.conv2d(image, kernel, nil, options) end end
  local function pool(name, ...)
    local given = { ... }
    return function() return F[name](image, table.unpack(given)) end
  end
  local from_0, from_1 = "at least 0 and at most 1073741824", "at least 1 and at most 1073741824"
  local calls = {
    { "'stride' is 0", from_1, conv { stride = 0 } },
    { "'stride' is -2", from_1, conv { stride = { 1, -2 } } },
    { "'stride' has 3 values", "it takes 1 or 2", conv { stride = { 1, 1, 1 } } },
    { "'dilation' has 0 values", "it takes 1 or 2", conv { dilation = {} } },
    { "'dilation' is 0", from_1, conv { dilation = { 0, 1 } } },
    { "'padding' is -1", from_0, conv { padding = -1 } },
    { "'padding' is 2147483648", from_0, conv { padding = huge } },
    { "'groups' is 0", from_1, conv { groups = 0 } },
    { "'kernel_size' is 0", from_1, pool("max_pool2d", { 2, 0 }) },
    { "'stride' is 0", from_1, pool("max_pool2d", 2, { stride = 0 }) },
    { "'padding' is -1", from_0, pool("avg_pool2d", 2, { padding = -1 }) },
    { "'kernel_size' has 3 values", "it takes 1 or 2", pool("avg_pool2d", { 2, 2, 2 }) },
    { "'size' is 0", from_1, pool("adaptive_avg_pool2d", { 0, 1 }) },
    { "'step' is 0", "at least 1", function() return a:slice(1, 1, 2, 0) end },
    { "'classes' is 0", "at least 1", function() return target:one_hot(0) end },
    { "'k' is -1", "at least 0", function() return a:topk(-1) end },
    { "'repeats' is -1", "at least 0", function() return a:repeat_interleave(-1) end },
    { "'beta' is -1", "at least 0", function() return F.smooth_l1_loss(a, a, { beta = -1 }) end },
    { "'label_smoothing' is 2", "at least 0 and at most 1",
      function() return F.cross_entropy(a, target, { label_smoothing = 2 }) end },
    { "'dropout_p' is 1.5", "at least 0 and at most 1",
      function() return F.scaled_dot_product_attention(heads, heads, heads, { dropout_p = 1.5 }) end },
  }
  for _, row in ipairs(calls) do
    it(row[1] .. ": " .. row[2], function()
      expect(row[3]):to_fail(row[1])
      expect(row[3]):to_fail(row[2])
    end)
  end
  it("takes one number for a pair", function()
    local pairs_of_both = F.conv2d(image, kernel, nil, { stride = { 2, 2 }, padding = { 1, 1 } })
    expect(F.conv2d(image, kernel, nil, { stride = { 2 }, padding = 1 })):to_equal_bits(pairs_of_both)
    local windows = F.max_pool2d(image, { 2, 2 }, { stride = { 1, 1 } })
    expect(F.max_pool2d(image, 2, { stride = 1 })):to_equal_bits(windows)
  end)
end)

-- What lies in a tensor can be wrong too.
describe("data that does not fit", function()
  local x = gb.ones(2, 3)
  for _, bad in ipairs { 3, -1, math.mininteger, math.maxinteger } do
    local index = gb.tensor { 0, bad }
    for name, fn in pairs {
      cross_entropy = function() return F.cross_entropy(x, index) end,
        nll_loss = function() return F.nll_loss(x, index) end,
      linear_cross_entropy = function() return F.linear_cross_entropy(x, gb.ones(3, 3), index) end,
        embedding = function() return F.embedding(index, x:t():contiguous()) end,
      gather = function() return x:gather(2, index:unsqueeze(1)) end,
        index_select = function() return x:index_select(2, index) end,
        one_hot = function() return F.one_hot(index, 3) end,
      index_add = function() return x:index_add(2, index, gb.ones(2, 2)) end,
        scatter_add = function() return x:scatter_add(2, index:unsqueeze(1), gb.ones(1, 2)) end,
      index_put = function() return x:t():contiguous():index_put(index, 0) end,
    } do
      it(("%s with index %d"):format(name, bad), function()
        check(name, fn, true, name)
        check(name, fn, true, tostring(bad))
        check(name, fn, true, "0 .. 2")
      end)
    end
  end
end)

-- ====}

-- {==== everything else ====

local function sorted(module)
  local names = {}
  for name in pairs(module) do
    if type(name) == "string" then names[#names + 1] = name end
  end
  table.sort(names)
  return names
end

local function is_callable(value)
  local meta = getmetatable(value)
  return type(value) == "function" or type(value) == "table" and type(meta) == "table" and meta.__call ~= nil
end

-- fn with every kind of wrong value in the first places, and at random.
local function pester(what, fn, self)
  local function try(...)
    if self ~= nil then check(what, fn, false, nil, self, ...) else check(what, fn, false, nil, ...) end
  end
  local values = strangers()
  try()
  try(nil, nil, nil)
  for i = 1, values.n do
    try(values[i])
    try(gb.ones(2, 2), values[i])
    try(values[i], values[i], values[i])
    try({ gb.ones(2) }, values[i])
    try(3, values[i])
    try("nowhere/x", values[i])
  end
  for _, number in ipairs(numbers) do
    try(number)
    try(number, number)
    try(gb.ones(2, 2), number)
    try({ number, number })
  end
  for _ = 1, 40 do
    local arguments = random_arguments()
    try(table.unpack(arguments, 1, arguments.n))
  end
end

local called = dofile("tests/lua/called.lua")
for path, module in pairs(called.modules) do
  describe(path, function()
    for _, name in ipairs(sorted(module)) do
      if is_callable(module[name]) and not called.apart[name] then
        it(name, function() pester(path .. "." .. name, module[name]) end)
      end
    end
  end)
end

describe("methods of a tensor", function()
  for _, name in ipairs(called.methods) do
    it(name, function()
      pester("x:" .. name, gb.ones(1)[name], gb.randn(2, 3))
      pester("x:" .. name, gb.ones(1)[name], gb.tensor(3))
      pester("x." .. name, gb.ones(1)[name])
    end)
  end
end)

describe("layers and losses, called", function()
  for _, name in ipairs(called.layers) do
    it(name, function()
      local module = called.layer(name)
      pester(name, module)
      pester(name .. ":forward", module.forward, module)
    end)
  end
end)

-- Objects, and the names of their methods.
local function objects()
  local net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
  local optimizer = optim.AdamW(net:parameters(), { lr = 0.1 })
  local set = data.TensorDataset(gb.ones(4, 2):cpu(), gb.arange(4):cpu())
  return {
    module = { net, { "parameters", "named_parameters", "buffers", "named_buffers", "modules", "named_modules",
      "children", "apply", "train", "eval", "to", "zero_grad", "requires_grad_",
                      "register_parameter", "register_buffer", "register_forward_hook",
                      "register_forward_pre_hook", "share", "state_dict",
                        "load_state_dict", "append" } },
    optimizer = { optimizer, { "step", "zero_grad", "state_dict", "load_state_dict", "add_param_group" } },
    schedule = { optim.lr.Cosine(optimizer, { steps = 5 }),
      { "step", "get_last_lr", "state_dict", "load_state_dict" } },
    scaler = { amp.GradScaler(), { "scale", "unscale_", "step", "update", "get_scale", "is_enabled", "stats", "report",
      "state_dict", "load_state_dict", "get_growth_factor",
                                   "get_backoff_factor", "get_growth_interval", "set_growth_factor",
                                     "set_backoff_factor", "set_growth_interval" } },
    dataset = { set, { "get", "subset" } },
    loader = { data.DataLoader(set, { batch_size = 2 }), { "iter", "state_dict", "load_state_dict" } },
  }
end

describe("methods of objects", function()
  for kind, row in pairs(objects()) do
    for _, name in ipairs(row[2]) do
      it(kind .. ":" .. name, function()
        local method = row[1][name]
        pester(kind .. ":" .. name, method, row[1])
        if type(row[1]) == "userdata" then pester(kind .. "." .. name, method) end
      end)
    end
  end
  it("a closed object says so", function()
    local set = data.TensorDataset(gb.ones(4):cpu())
    set:close()
    set:close()
    check("get", set.get, true, "closed", set, 1)
  end)
end)

-- ====}

-- {==== tables that lie ====

-- A table of the recipe's may say anything of itself, by a metamethod or by fields that are ours. Memory goes by what
-- is really there.
describe("tables that lie", function()
  local long = setmetatable({ 1, 2 }, { __len = function() return 1 << 61 end, __index = function() return 1 end })

  it("a list of positions is as long as it is", function()
    expect(#data.TensorDataset(gb.ones(4):cpu()):subset(long)):to_be(2)
  end)
  it("a dataset cannot be shuffled beyond memory", function()
    local dataset = { get = function(_, i) return gb.ones(i) end }
    for length, text in pairs { [1 << 61] = "cannot be shuffled", [math.maxinteger] = "cannot be shuffled",
      [-7] = "a whole number, got -7", [2.5] = "got 2.5", x = "got x" } do
      setmetatable(dataset, { __len = function() return length end })
      local loader = data.DataLoader(dataset, { shuffle = true })
      check("DataLoader:iter", loader:iter(), true, text)
    end
  end)
  it("a batch larger than any dataset holds all of it", function()
    local loader = data.DataLoader({ 7, 8, 9, get = function(self, i) return self[i] end },
      { batch_size = math.maxinteger })
    expect(#loader):to_be(1)
    for x in loader:iter() do expect(x):to_be_close { 7, 8, 9 } end
  end)
  it("the context of a gb.Function is looked at before it is read", function()
    local ctx
    gb.Function { forward = function(c, x) ctx = c return x * 1 end,
      backward = function(_, g) return g end }(gb.ones(1))
    for _, fields in ipairs { { "text", {}, 3 }, { {}, 12345, 3 }, { nil, {}, 1 }, { {}, {}, -1 },
      { {}, {}, math.maxinteger } } do
      check("saved_tensors", ctx.saved_tensors, true, "saved_tensors",
        { _saved = fields[1], _versions = fields[2], _count = fields[3] })
    end
    check("saved_tensors", ctx.saved_tensors, true, "context of a gb.Function",
      { _saved = {}, _versions = {}, _count = 1 << 29 })
  end)
end)

-- ====}

-- {==== options ====

-- What is wrong with an option is said where the option is given, with its name, what it takes and what it got.
describe("options of the wrong kind", function()
  local function wrong(text, fn, ...)
    local arguments = table.pack(...)
    it(text, function() check(text, fn, true, text, table.unpack(arguments, 1, arguments.n)) end)
  end
  wrong("Linear: 'bias' must be true or false, got 0", nn.Linear, 4, 2, { bias = 0 })
  wrong("Linear: 'activation' must be a string, got 1", nn.Linear, 4, 2, { activation = 1 })
  wrong("Conv2d: 'stride' must be an integer or a list of integers, got string '2'", nn.Conv2d, 1, 2, 3,
    { stride = "2" })
  wrong("LayerNorm: 'affine' must be true or false, got a tensor", nn.LayerNorm, 4, { affine = gb.ones(1) })
  wrong("BatchNorm1d: 'track_running_stats' must be true or false, got string", nn.BatchNorm1d, 4,
    { track_running_stats = "no" })
  wrong("MSELoss: 'reduction' must be a string, got boolean", nn.MSELoss, { reduction = true })
  wrong("Softmax: 'dim' must be a dimension (from 1; -1 is the last), got string 'last'", nn.Softmax, "last")
  wrong("ReLU: too many arguments: it takes 0", nn.ReLU, true)
  wrong("GradScaler: 'init_scale' must be a number, got string", amp.GradScaler, nil, { init_scale = "large" })
  wrong("GradScaler: 'precision' must be a precision", amp.GradScaler, { init_scale = 2 }, { growth_factor = 3 })
  wrong("betas' must be a list of two numbers, but [2] is nil", optim.Adam, nn.Linear(1, 1):parameters(),
    { betas = { 0.9 } })
  wrong("DataLoader: 'batches' must be a whole number from 1, got 0", data.DataLoader,
    data.TensorDataset(gb.ones(2):cpu()), { batches = 0 })
  wrong("plot: 'height' must be a whole number from 1, got inf", gb.plot, { 1, 2 },
    { height = math.huge, quiet = true })
  wrong("plot: 'width' must be a whole number from 1, got string 'wide'", gb.plot, { 1, 2 },
    { width = "wide", quiet = true })
  wrong("progress: 'interval' must be a number, got string 'long'", gb.progress, 3, "epoch", { interval = "long" })
  wrong("update: 'n' must be an integer, got string 'one'", function() gb.progress(3):update("one") end)
  wrong("DataLoader: 'batches' must be a whole number from 1, got string '2'", data.DataLoader,
    data.TensorDataset(gb.ones(2):cpu()), { batches = "2" })
  wrong("plot: points must be numbers, but [2] is nil", gb.plot, { 1, nil, 3 }, { quiet = true })
  wrong("args: the command line is a list of strings, but [1] is a number", gb.args, { { "lr", 0.1 } }, { 7 })
  wrong("calculate_gain: 'slope' must be a number, got string 'steep'", nn.init.calculate_gain, "leaky_relu", "steep")
  wrong("unknown dtype 'flaot16'; did you mean 'float16'?", function() return gb.ones(1):to("flaot16") end)
  wrong("no 'CosineAnnealingLR'; did you mean 'Cosine'?", function() return gb.optim.lr.CosineAnnealingLR end)
  wrong("no 'RandomResizedCrop'; it is resized_crop(size) here",
    function() return gb.data.transforms.RandomResizedCrop end)
  wrong("'sizes' are integers, got nil as argument 1", function() return gb.zeros(nil, 3) end)
  wrong("'sizes' are integers, got string as argument 2", function() return gb.zeros(2, "3") end)
  wrong("zeros: 'sizes' must be integers, such as 2, 3 or { 2, 3 }, got nan", gb.zeros, 2, 0 / 0)
  wrong("reshape: 'shape' must be an integer or a list of integers, got nan", gb.reshape, gb.ones(2), { 0 / 0 })
  -- 0 / 0 has the sign bit on x86, and C prints it
  for _, nan in ipairs { 0 / 0, -(0 / 0) } do
    wrong("dropout: 'p' is nan, it must be at least 0 and at most 1", F.dropout, gb.ones(2), nan)
    wrong("arange: cannot go from 1 to nan in steps of 1", gb.arange, 1, nan)
    wrong("optimizer: 'lr' must be 0 or more, got nan", optim.SGD, { nn.Parameter(gb.ones(2)) }, { lr = nan })
    wrong("GradScaler: init_scale is nan;", amp.GradScaler, { init_scale = nan })
    wrong("Dropout: p lies between 0 and 1, got nan", nn.Dropout, nan)
    it("nan in other texts", function()
      expect(function() expect(nan):to_be_near(0) end):to_fail("expected 0 within 1e-06, got nan")
      local _, why = gb.EarlyStopping({ monitor = "loss", check_finite = true }):check { loss = nan }
      expect(why):to_be("loss is nan, which is not finite")
    end)
  end
  wrong("unknown option '-nan'", optim.SGD, { nn.Parameter(gb.ones(2)) }, { ["-nan"] = 1 }) -- a name stays
  -- integers in full
  wrong("dropout: 'p' is 4611686018427387904, it must be", F.dropout, gb.ones(2), 1 << 62)
  wrong("avg_pool1d: 'kernel_size' is 4611686018427387904, it must be", F.avg_pool1d, gb.ones(1, 1, 4), 1 << 62)
  wrong("Linear: 'inputs' must be a whole number from 1, got -4611686018427387904", nn.Linear, -(1 << 62), 3)
  wrong("optimizer: 'lr' must be 0 or more, got -4611686018427387904", optim.SGD, { nn.Parameter(gb.ones(2)) },
    { lr = -(1 << 62) })
  wrong("recompute: 'fn' must be a function, got 4611686018427387904", gb.recompute, 1 << 62)
  wrong("Linear: 'inputs' must be a whole number from 1, got -4611686018427387904", nn.Linear, -2 ^ 62, 3)
  wrong("dropout: 'p' is 4611686018427387904, it must be", F.dropout, gb.ones(2), 2 ^ 62)
  wrong("Dropout: p lies between 0 and 1, got 4611686018427387904", nn.Dropout, 2 ^ 62)
  wrong("Dropout: p lies between 0 and 1, got 1e+300", nn.Dropout, 1e300)
  wrong("position 3 is out of range: dimension 1 has size 2 (positions 1 .. 2, or -1 for the last). To loop, use \z
    `for i = 1, #t`",
        function() for _ in ipairs(gb.ones(2)) do end end)
  -- an op says its own name, also where it fails in an op that it is made of
  wrong("repeat_interleave: the shape has more elements than can be counted", gb.repeat_interleave, gb.ones(3, 4),
    2 ^ 62, 1)
  wrong("repeat_interleave: out of memory", gb.repeat_interleave, gb.ones(3, 4), 1e14, 1)
  for _, name in ipairs { "binary_cross_entropy", "binary_cross_entropy_with_logits" } do
    for _, shape in ipairs { { 5 }, { 2, 3, 4 } } do
      wrong(("%s: 'weight' has shape %s, which does not broadcast to the shape of x, 3x4"):format(name,
        table.concat(shape, "x")), F[name],
            gb.rand(3, 4), gb.rand(3, 4), gb.rand(shape))
    end
  end
  -- a number that an integer tensor cannot hold is refused, a fraction is cut, both as in PyTorch
  for _, case in ipairs { { "int64", 0 / 0, "nan" }, { "int64", math.huge, "inf" }, { "int64", -1e19, "-1e+19" },
    { "int32", 2 ^ 31, "2147483648" },
                          { "int16", -32769, "-32769" }, { "int8", 128, "128" }, { "uint8", 256, "256" },
                          { "uint8", -math.huge, "-inf" } } do
    local said = ("the value %s does not fit into %s"):format(case[3], case[1])
    wrong("fill: " .. said, function() gb.zeros(2, { dtype = case[1] }):fill_(case[2]) end)
    wrong(said, gb.full, { 2 }, case[2], { dtype = case[1] })
    wrong(said, function() gb.zeros(2, { dtype = case[1] })[1] = case[2] end)
  end
  it("a whole part fits", function()
    for _, case in ipairs { { "int64", -2.5, -2 }, { "int64", math.mininteger, math.mininteger },
      { "int32", 2 ^ 31 - 0.5, 2 ^ 31 - 1 },
                            { "int16", -32768, -32768 }, { "int8", -128.5, -128 }, { "uint8", 255.9, 255 } } do
      expect(gb.zeros(1, { dtype = case[1] }):fill_(case[2]):item()):to_be(math.tointeger(case[3]))
    end
    expect(gb.zeros(1, { dtype = "bool" }):fill_(0 / 0):item()):to_be(true)
  end)
  wrong("a hook returned a gradient of shape 3 for one of shape 2", function()
    local x = gb.ones(2, { requires_grad = true })
    x:register_hook(function() return gb.ones(3) end)
    x:sum():backward()
  end)
  it("a scaler without a precision takes its options all the same", function()
    expect(amp.GradScaler(nil, { init_scale = 4 }):get_scale()):to_be(4.0)
    expect(amp.GradScaler(nil, { enabled = false }):is_enabled()):to_be(false)
  end)
end)

-- ====}

-- Names go to C, where a text ends at its first NUL: "float64\0x" would be float64.
describe("a name that goes on behind a NUL", function()
  local x, model = gb.ones(2, 2), nn.Linear(2, 2)
  local function sgd(options) return optim.SGD({ nn.Parameter(gb.ones(2)) }, options) end
  local calls = {
    ["a dtype"] = function() gb.ones(2, { dtype = "float64\0x" }) end,
    ["a dtype of an op"] = function() x:sum({ dtype = "float64\0x" }) end,
    ["a dtype to convert to"] = function() x:to("float64\0x") end,
    ["a dtype of a module"] = function() model:to("float64\0x") end,
    ["the default dtype"] = function() gb.set_default_dtype("float64\0x") end,
    ["a device"] = function() gb.ones(2, { device = "cpu\0x" }) end,
    ["a device to go to"] = function() model:to("cpu\0x") end,
    ["the default device"] = function() gb.set_default_device("cpu\0x") end,
    ["the dtype of a scope"] = function() amp.autocast("bfloat16\0x", function() end) end,
    ["an option of a scope"] = function() amp.autocast({ ["dtype\0x"] = "bfloat16" }, function() end) end,
    ["a precision"] = function() model:precision("float16\0x") end,
    ["a choice"] = function() gb.linalg.qr(x, { mode = "r\0x" }) end,
    ["a choice among numbers"] = function() nn.Conv2d(1, 2, 3, { padding = "same\0x" }) end,
    ["an option"] = function() gb.linalg.vector_norm(x, 2, 1, { ["keepdim\0x"] = true }) end,
    ["an option of an op"] = function() x:sum(1, { ["keepdim\0x"] = true }) end,
    ["an option of an optimizer"] = function() sgd { ["lr\0x"] = 1 } end,
    ["an option of a group"] = function()
      optim.SGD({ { params = { nn.Parameter(gb.ones(2)) }, ["lr\0x"] = 1 } }, { lr = 0.1 })
    end,
    ["the name of a parameter"] = function()
      local module = nn.Identity()
      module["a\0b"] = nn.Parameter(gb.ones(2))
      optim.SGD(module:parameters(), { lr = 0.1 })
    end,
  }
  for name, call in pairs(calls) do
    it(name .. " is refused", function() expect(call):to_fail("NUL") end)
  end
  it("changes nothing", function()
    expect(gb.get_default_dtype()):to_be("float32")
    expect(model.weight.dtype):to_be("float32")
  end)
end)

describe("after all that", function()
  it("the library works as before", function()
    expect(gb.is_grad_enabled()):to_be(true)
    expect(amp.is_enabled()):to_be(false)
    expect((gb.ones(2, 2):matmul(gb.ones(2, 2)) + 1):sum():item()):to_be(12.0)
    expect(gb.get_default_dtype()):to_be("float32")
  end)
end)

gb.test.finish()
