-- nn/layers.lua - a module for every layer. Constructors take sizes in PyTorch's order, then a table of options; default initialisation
-- is PyTorch's, layer by layer.

local gb, native = ...
local fail = native.fail -- raises with the recipe's line
local nn = gb.nn
local F, init = nn.functional, nn.init
local rawget, rawequal, type, is_module = rawget, rawequal, type, nn.is_module
local drop = native.drop -- an intermediate result's handle, as soon as the next layer has read it; the graph keeps what backward needs

local kinds = { boolean = "true or false", number = "a number", string = "a string" } -- of options, by the types of their defaults

-- Check an options table against a layer's options and their defaults. Where a number is taken, the op may take one for each dimension too.
local function options_of(given, known, layer)
  given = given or {}
  if type(given) ~= "table" then fail(("%s takes its options in a table, got %s"):format(layer, type(given))) end
  for key, value in pairs(given) do
    local kind = type(known[key])
    if kind == "nil" then fail(("%s has no option '%s'%s"):format(layer, tostring(key), native.nearest(tostring(key), known))) end
    if kinds[kind] and type(value) ~= kind and not (kind == "number" and type(value) == "table") then
      fail(("%s: '%s' must be %s, got %s"):format(layer, key, kinds[kind], gb.is_tensor(value) and "a tensor" or type(value)))
    end
  end
  local all = {}
  for key, value in pairs(known) do
    all[key] = given[key]
    if all[key] == nil then all[key] = value end
  end
  return all
end

-- A size: a whole number from 1.
local function size_of(value, layer, name)
  local n = type(value) == "number" and math.tointeger(value)
  if not n or n < 1 then fail(("%s: %s must be a whole number from 1, got %s"):format(layer, name, tostring(value))) end
  return n
end

local none = {} -- the default of an option that has none, so that its name is known

local function given(value) if value ~= none then return value end end

local function parameter(options, ...)
  return nn.Parameter(gb.empty({ ... }, { dtype = given(options.dtype) }))
end

-- Can nothing but its caller hold what goes into module and comes out of it? A layer of the library without hooks, made of such.
local function keeps_nothing(module)
  local kind = module._library
  if not kind or module._hooks then return false end
  if kind == "layer" then return true end
  local order = rawget(module, "_order")
  for i = 1, #order do
    local part = rawget(module, order[i])
    if type(part) == "table" and is_module(part) and not keeps_nothing(part) then return false end
  end
  return true
end

-- {==== linear ====

local Linear = nn.library_class("Linear")

-- gb.nn.Linear(inputs: int, outputs: int, options?: table) -> module: y = x @ weight^T + bias over the last dimension; weight [outputs, inputs].
-- options: bias = true, activation = "none", dtype. Example: local y = gb.nn.Linear(4, 2)(x)
function Linear:init(inputs, outputs, options)
  local o = options_of(options, { bias = true, activation = "none", dtype = none }, "Linear")
  inputs, outputs = size_of(inputs, "Linear", "inputs"), size_of(outputs, "Linear", "outputs")
  self.weight = parameter(o, outputs, inputs)
  self.activation = o.activation
  local bound = 1 / math.sqrt(inputs)
  init.uniform_(self.weight, -bound, bound)
  if o.bias then self.bias = init.uniform_(parameter(o, outputs), -bound, bound) end
end

function Linear:forward(x)
  local activation = self.activation
  if activation == "none" then return F.linear(x, self.weight, self.bias) end
  return F.linear(x, self.weight, self.bias, { activation = activation })
end

function Linear:extra()
  local shape = self.weight.shape
  local activation = self.activation ~= "none" and ", " .. self.activation or ""
  return ("%d -> %d%s%s"):format(shape[2], shape[1], self.bias and "" or ", no bias", activation)
end

local MLP = nn.library_class("MLP")

-- gb.nn.MLP(inputs: int, hidden: int, options?: table) -> module: linear, activation, linear in one op. options: outputs (= inputs), bias = true,
-- activation = "gelu_tanh", dtype. Example: local y = gb.nn.MLP(4, 16)(x)
function MLP:init(inputs, hidden, options)
  local o = options_of(options, { outputs = inputs, bias = true, activation = "gelu_tanh", dtype = none }, "MLP")
  self.fc1 = nn.Linear(inputs, hidden, { bias = o.bias, dtype = given(o.dtype) })
  self.fc2 = nn.Linear(hidden, o.outputs, { bias = o.bias, dtype = given(o.dtype) })
  self.activation = o.activation
end

function MLP:forward(x)
  return F.mlp(x, self.fc1.weight, self.fc1.bias, self.fc2.weight, self.fc2.bias, { activation = self.activation })
end

function MLP:extra() return self.activation end

-- ====}

-- {==== convolution and pooling ====

local function pair(value, layer, name)
  if type(value) == "number" then value = { value, value } end
  if type(value) == "table" and #value == 2 then return { size_of(value[1], layer, name), size_of(value[2], layer, name) } end
  fail(("%s: %s is a number or a list of two"):format(layer, name))
end

local Conv2d = nn.library_class("Conv2d")

-- gb.nn.Conv2d(inputs: int, outputs: int, kernel, options?: table) -> module: 2-D convolution of x [n, inputs, h, w]. options: stride = 1, padding =
-- 0, dilation = 1, groups = 1, bias = true, activation = "none" (or "relu"), dtype. Errors: groups that do not divide the channels. Example: local y
-- = gb.nn.Conv2d(1, 8, 3, { padding = 1 })(gb.rand(2, 1, 8, 8))
function Conv2d:init(inputs, outputs, kernel, options)
  local o = options_of(options, { stride = 1, padding = 0, dilation = 1, groups = 1, bias = true, activation = "none", dtype = none }, "Conv2d")
  kernel = pair(kernel, "Conv2d", "the kernel size")
  inputs, outputs, o.groups = size_of(inputs, "Conv2d", "inputs"), size_of(outputs, "Conv2d", "outputs"), size_of(o.groups, "Conv2d", "groups")
  if inputs % o.groups ~= 0 or outputs % o.groups ~= 0 then
    fail(("Conv2d: groups (%d) must divide the channels, %d in and %d out"):format(o.groups, inputs, outputs))
  end
  self.weight = nn.Parameter(native.channels_last(gb.empty({ outputs, inputs // o.groups, kernel[1], kernel[2] }, { dtype = given(o.dtype) })))
  local bound = 1 / math.sqrt(inputs // o.groups * kernel[1] * kernel[2])
  init.uniform_(self.weight, -bound, bound)
  if o.bias then self.bias = init.uniform_(parameter(o, outputs), -bound, bound) end
  self.options = setmetatable({ stride = o.stride, padding = o.padding, dilation = o.dilation, groups = o.groups, activation = o.activation }, {})
end

function Conv2d:forward(x) return F.conv2d(x, self.weight, self.bias, self.options) end

function Conv2d:extra()
  local s, o = self.weight.shape, self.options
  local text = ("%d -> %d, %dx%d"):format(s[2] * o.groups, s[1], s[3], s[4])
  if o.activation ~= "none" then text = text .. ", " .. o.activation end
  return text .. (self.bias and "" or ", no bias")
end

local function pooling(name, op)
  local class = nn.library_class(name)
  function class:init(kernel, options)
    local o = options_of(options, { stride = none, padding = 0 }, name)
    self.kernel = setmetatable(pair(kernel, name, "the kernel size"), {})
    self.options = setmetatable({ stride = given(o.stride), padding = o.padding }, {})
  end
  function class:forward(x) return op(x, self.kernel, self.options) end
  function class:extra() return ("%dx%d"):format(self.kernel[1], self.kernel[2]) end
end
-- gb.nn.MaxPool2d(kernel, options?: table) -> module: The largest element of each window of x [n, c, h, w]. options: stride (= kernel), padding = 0.
-- Example: local y = gb.nn.MaxPool2d(2)(gb.rand(2, 1, 8, 8))
pooling("MaxPool2d", F.max_pool2d)
-- gb.nn.AvgPool2d(kernel, options?: table) -> module: The mean of each window of x [n, c, h, w]. options: stride (= kernel), padding = 0. Example:
-- local y = gb.nn.AvgPool2d(2)(gb.rand(2, 1, 8, 8))
pooling("AvgPool2d", F.avg_pool2d)

local AdaptiveAvgPool2d = nn.library_class("AdaptiveAvgPool2d")
-- gb.nn.AdaptiveAvgPool2d(size) -> module: Means over windows chosen so that the result has this size. Example: local y =
-- gb.nn.AdaptiveAvgPool2d(1)(gb.rand(2, 1, 8, 8))
function AdaptiveAvgPool2d:init(size) self.size = setmetatable(pair(size, "AdaptiveAvgPool2d", "the size"), {}) end
function AdaptiveAvgPool2d:forward(x) return F.adaptive_avg_pool2d(x, self.size) end
function AdaptiveAvgPool2d:extra() return ("%dx%d"):format(self.size[1], self.size[2]) end

-- ====}

-- {==== norms ====

-- The last dimensions that a norm covers.
local function shape_list(shape, layer)
  local list = setmetatable({}, {})
  for i, size in ipairs(type(shape) == "table" and shape or { shape }) do list[i] = size_of(size, layer, "the shape") end
  if #list == 0 then fail(("%s needs the sizes of the dimensions it covers"):format(layer)) end
  return list
end

-- The option `out` of a norm.
local function check_out(value, layer)
  if value == "float32" or value == "autocast" then return value end
  fail(("%s: out is \"float32\" or \"autocast\", not %s"):format(layer, tostring(value)))
end

local LayerNorm = nn.library_class("LayerNorm")

-- gb.nn.LayerNorm(shape, options?: table) -> module: Normalise the last dimensions, of these sizes, then scale and shift. options: eps = 1e-5,
-- affine = true, bias = true, out = "float32": the dtype of the result under autocast; "autocast": the scope's; dtype. Example: local y =
-- gb.nn.LayerNorm(4)(x)
function LayerNorm:init(shape, options)
  local o = options_of(options, { eps = 1e-5, affine = true, bias = true, out = "float32", dtype = none }, "LayerNorm")
  self.shape, self.eps, self.out = shape_list(shape, "LayerNorm"), o.eps, check_out(o.out, "LayerNorm")
  if o.affine then
    self.weight = init.ones_(parameter(o, table.unpack(self.shape)))
    if o.bias then self.bias = init.zeros_(parameter(o, table.unpack(self.shape))) end
  end
end

function LayerNorm:forward(x) return F.layer_norm(x, self.shape, self.weight, self.bias, { eps = self.eps, out = self.out }) end

local function add_norm(self, x, residual)
  return F.add_layer_norm(x, residual, self.shape, self.weight, self.bias, { eps = self.eps, out = self.out })
end

-- LayerNorm:add(x: tensor, residual: tensor) -> tensor, tensor: x + residual and its norm in one pass: returns the norm, then the sum. Example:
-- local y, sum = gb.nn.LayerNorm(4):add(x, x)
function LayerNorm:add(x, residual) return native.pinned(self, add_norm, x, residual) end
function LayerNorm:extra() return table.concat(self.shape, "x") end

local RMSNorm = nn.library_class("RMSNorm")

-- gb.nn.RMSNorm(shape, options?: table) -> module: Divide the last dimensions, of these sizes, by their root mean square, then scale. options: eps =
-- 1e-6, affine = true, out = "float32", as in LayerNorm; dtype. Example: local y = gb.nn.RMSNorm(4)(x)
function RMSNorm:init(shape, options)
  local o = options_of(options, { eps = 1e-6, affine = true, out = "float32", dtype = none }, "RMSNorm")
  self.shape, self.eps, self.out = shape_list(shape, "RMSNorm"), o.eps, check_out(o.out, "RMSNorm")
  if o.affine then self.weight = init.ones_(parameter(o, table.unpack(self.shape))) end
end

function RMSNorm:forward(x) return F.rms_norm(x, self.shape, self.weight, { eps = self.eps, out = self.out }) end
function RMSNorm:extra() return table.concat(self.shape, "x") end

-- options: eps = 1e-5, momentum = 0.1, affine = true, track_running_stats = true.
local function batch_norm(name, ndim_low, ndim_high)
  local class = nn.library_class(name)
  function class:init(features, options)
    local o = options_of(options, { eps = 1e-5, momentum = 0.1, affine = true, track_running_stats = true }, name)
    self.features, self.eps, self.momentum = size_of(features, name, "features"), o.eps, o.momentum
    if o.affine then
      self.weight = init.ones_(parameter(o, features))
      self.bias = init.zeros_(parameter(o, features))
    end
    if o.track_running_stats then
      self:register_buffer("running_mean", gb.zeros(features))
      self:register_buffer("running_var", gb.ones(features))
      self:register_buffer("num_batches_tracked", gb.zeros({}, { dtype = "int64" }))
    end
  end
  function class:forward(x)
    if x.ndim < ndim_low or x.ndim > ndim_high then
      fail(("%s expects %d to %d dimensions, got %d"):format(name, ndim_low, ndim_high, x.ndim))
    end
    if self.training and self.num_batches_tracked and not gb.is_recomputing() then gb.no_grad(function() self.num_batches_tracked:add_(1) end) end
    return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias,
      { training = self.training or self.running_mean == nil, momentum = self.momentum, eps = self.eps })
  end
  function class:extra() return tostring(self.features) end
end
-- gb.nn.BatchNorm1d(features: int, options?: table) -> module: Normalise each channel of x [n, c] or [n, c, l] over the batch; by the running
-- statistics when not training. options: eps = 1e-5, momentum = 0.1, affine = true, track_running_stats = true. Example: local y =
-- gb.nn.BatchNorm1d(4)(x)
batch_norm("BatchNorm1d", 2, 3)
-- gb.nn.BatchNorm2d(features: int, options?: table) -> module: Normalise each channel of x [n, c, h, w]; options as BatchNorm1d's. Example: local y
-- = gb.nn.BatchNorm2d(1)(gb.rand(2, 1, 8, 8))
batch_norm("BatchNorm2d", 4, 4)

-- ====}

-- {==== embedding, dropout, shapes ====

local Embedding = nn.library_class("Embedding")

-- gb.nn.Embedding(rows: int, size: int, options?: table) -> module: Rows of a trained table picked by integers from 0. options: padding_idx (a token
-- id, from 0), whose row is zero and gets no gradient; dtype. Example: local y = gb.nn.Embedding(10, 4)(gb.arange(3))
function Embedding:init(rows, size, options)
  local o = options_of(options, { padding_idx = none, dtype = none }, "Embedding")
  rows, size = size_of(rows, "Embedding", "rows"), size_of(size, "Embedding", "size")
  self.padding_idx = given(o.padding_idx)
  if self.padding_idx and not (math.type(self.padding_idx) == "integer" and self.padding_idx >= 0 and self.padding_idx < rows) then
    fail(("Embedding: padding_idx is a token id from 0 to %d, got %s"):format(rows - 1, tostring(self.padding_idx)))
  end
  self.weight = init.normal_(parameter(o, rows, size))
  if self.padding_idx then gb.no_grad(function() self.weight[self.padding_idx + 1] = 0 end) end
end

function Embedding:forward(index) return F.embedding(index, self.weight, { padding_idx = self.padding_idx }) end
function Embedding:extra() return ("%d x %d"):format(self.weight:size(1), self.weight:size(2)) end

local Dropout = nn.library_class("Dropout")
-- gb.nn.Dropout(p?: number) -> module: In training, zero each element with probability p (0.5 unless given) and scale the rest by 1 / (1 - p).
-- Errors: p outside 0 .. 1. Example: local y = gb.nn.Dropout(0.1)(x)
function Dropout:init(p)
  self.p = p or 0.5
  if type(self.p) ~= "number" or not (self.p >= 0 and self.p <= 1) then fail(("Dropout: p lies between 0 and 1, got %s"):format(tostring(p))) end
end
function Dropout:forward(x)
  if not self.training or self.p == 0 then return x end
  return F.dropout(x, self.p, true)
end
function Dropout:extra() return ("p = %g"):format(self.p) end

local Flatten = nn.library_class("Flatten")
-- gb.nn.Flatten(first?: dim, last?: dim) -> module: The dimensions first .. last made one; the batch, dimension 1, stays unless told otherwise.
-- Example: local y = gb.nn.Flatten()(gb.rand(2, 1, 8, 8))
function Flatten:init(first, last) self.first, self.last = first or 2, last or -1 end
function Flatten:forward(x) return x:flatten(self.first, self.last) end

local Identity = nn.library_class("Identity")
-- gb.nn.Identity() -> module: Its input. Example: local y = gb.nn.Identity()(x)
function Identity:forward(x) return x end

-- ====}

-- {==== activations ====

-- A module that applies fn(x), or fn(x, argument) with an argument of this name, given as it is or in a table of options.
local function activation(name, fn, argument, default)
  local class = nn.library_class(name)
  function class:init(value)
    if argument and type(value) ~= "table" then value = { [argument] = value } end
    value = options_of(value, argument and { [argument] = default } or {}, name)
    if argument then self[argument] = value[argument] end
  end
  function class:forward(x)
    if argument then return fn(x, self[argument]) end
    return fn(x)
  end
  function class:extra() return argument and ("%s = %s"):format(argument, tostring(self[argument])) or "" end
end
-- gb.nn.ReLU() -> module: max(x, 0). Example: local y = gb.nn.ReLU()(x)
activation("ReLU", F.relu)
-- gb.nn.Tanh() -> module: The hyperbolic tangent. Example: local y = gb.nn.Tanh()(x)
activation("Tanh", F.tanh)
-- gb.nn.Sigmoid() -> module: 1 / (1 + exp(-x)). Example: local y = gb.nn.Sigmoid()(x)
activation("Sigmoid", F.sigmoid)
-- gb.nn.SiLU() -> module: x * sigmoid(x). Example: local y = gb.nn.SiLU()(x)
activation("SiLU", F.silu)
-- gb.nn.LeakyReLU(slope?: number) -> module: x where positive, else slope * x; slope 0.01 unless given. Example: local y = gb.nn.LeakyReLU(0.1)(x)
activation("LeakyReLU", F.leaky_relu, "slope", 0.01)
-- gb.nn.ELU(alpha?: number) -> module: x where positive, else alpha * (exp(x) - 1); alpha 1 unless given. Example: local y = gb.nn.ELU()(x)
activation("ELU", F.elu, "alpha", 1)
-- gb.nn.GELU(approximate?: string) -> module: x * Phi(x), by erf, or by tanh with approximate = "tanh". Example: local y = gb.nn.GELU("tanh")(x)
activation("GELU", function(x, approximate) return F.gelu(x, { approximate = approximate }) end, "approximate", "none")
-- gb.nn.Softplus(beta?: number) -> module: log(1 + exp(beta * x)) / beta; beta 1 unless given. Example: local y = gb.nn.Softplus()(x)
activation("Softplus", function(x, beta) return F.softplus(x, { beta = beta }) end, "beta", 1)
-- gb.nn.Softmax(dim?: dim) -> module: exp(x) / sum(exp(x)) along dim, the last unless given. Example: local y = gb.nn.Softmax(-1)(x)
activation("Softmax", F.softmax, "dim", -1)
-- gb.nn.LogSoftmax(dim?: dim) -> module: x - log(sum(exp(x))) along dim, the last unless given. Example: local y = gb.nn.LogSoftmax(-1)(x)
activation("LogSoftmax", F.log_softmax, "dim", -1)

-- ====}

-- {==== losses ====

-- A module over a loss of F: options are the loss's own; tensors among them (weight) are buffers.
local function loss(name, fn, known)
  local class = nn.library_class(name)
  known.reduction = "mean"
  function class:init(options)
    local o = options_of(options, known, name)
    if given(o.weight) and not gb.is_tensor(o.weight) then fail(("%s: weight is a tensor, got %s"):format(name, type(o.weight))) end
    if gb.is_tensor(o.weight) then self:register_buffer("weight", o.weight) end
    o.weight = nil
    for key, value in pairs(o) do o[key] = given(value) end
    self.options = setmetatable(o, {})
  end
  function class:forward(x, target)
    if self.weight then return fn(x, target, self.weight, self.options) end
    return fn(x, target, self.options)
  end
  function class:extra() return self.options.reduction end
end
-- gb.nn.CrossEntropyLoss(options?: table) -> module: -log softmax(x)[target] of logits x [n, classes, ...]; targets are class indices from 0.
-- options: weight, ignore_index = -100, label_smoothing = 0, reduction = "mean". Example: local loss = gb.nn.CrossEntropyLoss()(x, gb.zeros(4, {
-- dtype = "int64" }))
loss("CrossEntropyLoss", F.cross_entropy, { weight = none, ignore_index = -100, label_smoothing = 0 })
-- gb.nn.NLLLoss(options?: table) -> module: -x[target] of log-probabilities. options: weight, ignore_index = -100, reduction = "mean". Example:
-- local loss = gb.nn.NLLLoss()(x:log_softmax(-1), gb.zeros(4, { dtype = "int64" }))
loss("NLLLoss", F.nll_loss, { weight = none, ignore_index = -100 })
-- gb.nn.MSELoss(options?: table) -> module: (x - target)^2. options: reduction = "mean". Example: local loss = gb.nn.MSELoss()(x, gb.zeros_like(x))
loss("MSELoss", F.mse_loss, {})
-- gb.nn.L1Loss(options?: table) -> module: |x - target|. options: reduction = "mean". Example: local loss = gb.nn.L1Loss()(x, gb.zeros_like(x))
loss("L1Loss", F.l1_loss, {})
-- gb.nn.SmoothL1Loss(options?: table) -> module: Squared below beta, absolute above. options: beta = 1, reduction = "mean". Example: local loss =
-- gb.nn.SmoothL1Loss()(x, gb.zeros_like(x))
loss("SmoothL1Loss", F.smooth_l1_loss, { beta = 1 })
-- gb.nn.BCELoss(options?: table) -> module: -(y log x + (1 - y) log(1 - x)) of probabilities. options: weight, reduction = "mean". Errors: inside an
-- autocast scope; BCEWithLogitsLoss is safe there. Example: local loss = gb.nn.BCELoss()(x:sigmoid(), gb.zeros_like(x))
loss("BCELoss", F.binary_cross_entropy, { weight = none })
-- gb.nn.BCEWithLogitsLoss(options?: table) -> module: Binary cross-entropy of logits, without overflow. options: weight, pos_weight, reduction =
-- "mean". Example: local loss = gb.nn.BCEWithLogitsLoss()(x, gb.zeros_like(x))
loss("BCEWithLogitsLoss", F.binary_cross_entropy_with_logits, { weight = none, pos_weight = none })
-- gb.nn.KLDivLoss(options?: table) -> module: target * (log target - x) for log-probabilities x. options: log_target = false, reduction = "mean"
-- (also "batchmean"). Example: local loss = gb.nn.KLDivLoss()(x:log_softmax(-1), x:softmax(-1))
loss("KLDivLoss", F.kl_div, { log_target = false })

-- ====}

-- {==== containers ====

local Sequential = nn.library_class("Sequential", true)
-- gb.nn.Sequential(modules...: module) -> module: Modules one after another. Example: local model = gb.nn.Sequential(gb.nn.Linear(4, 8),
-- gb.nn.ReLU(), gb.nn.Linear(8, 2))
function Sequential:init(...)
  for i = 1, select("#", ...) do self:append((select(i, ...))) end
end

-- Sequential:append(module: module) -> module: One more module at the end. Errors: what is not a module. Example:
-- gb.nn.Sequential():append(gb.nn.ReLU())
-- ModuleList:append(module: module) -> module: One more module at the end. Example: gb.nn.ModuleList():append(gb.nn.ReLU())
function Sequential:append(module)
  if not nn.is_module(module) then fail(("%s holds modules, got %s"):format(getmetatable(self).__name, type(module))) end
  self[#self + 1] = module
  return self
end

-- The results between two layers that keep nothing are dropped at once: nothing else can hold their handles.
function Sequential:forward(x)
  local mine = false -- x was made here, and nobody else has seen it
  for i = 1, #self do
    local module = self[i]
    local y = module(x)
    if not keeps_nothing(module) then mine = false
    elseif not rawequal(x, y) then
      if mine then drop(x) end
      mine = true
    end
    x = y
  end
  return x
end

local ModuleList = nn.library_class("ModuleList")
ModuleList.append = Sequential.append
-- gb.nn.ModuleList(list?: list) -> module: A list of modules, list[i] from 1; it has no forward of its own. Example: local list = gb.nn.ModuleList {
-- gb.nn.Linear(4, 4), gb.nn.Linear(4, 2) }
function ModuleList:init(list)
  if list ~= nil and type(list) ~= "table" then fail(("ModuleList takes a list of modules, got %s"):format(type(list))) end
  for _, module in ipairs(list or {}) do self:append(module) end
end

local ModuleDict = nn.library_class("ModuleDict")
-- gb.nn.ModuleDict(dict?: table) -> module: Modules by name, dict.name; it has no forward of its own. Example: local dict = gb.nn.ModuleDict { first
-- = gb.nn.Linear(4, 4) }
function ModuleDict:init(dict)
  local keys = {}
  if dict ~= nil and type(dict) ~= "table" then fail(("ModuleDict takes a table of modules by name, got %s"):format(type(dict))) end
  for key, module in pairs(dict or {}) do
    if type(key) ~= "string" or not nn.is_module(module) then fail("ModuleDict takes a table of modules by name") end
    keys[#keys + 1] = key
  end
  table.sort(keys)
  for _, key in ipairs(keys) do self[key] = dict[key] end
end

-- ModuleDict:keys() -> list: The names, in order of first assignment (sorted, for those the constructor got).
-- Example: for _, name in ipairs(gb.nn.ModuleDict({ a = gb.nn.ReLU() }):keys()) do print(name) end
function ModuleDict:keys()
  local keys = {}
  for _, key in ipairs(rawget(self, "_order")) do
    if nn.is_module(rawget(self, key)) then keys[#keys + 1] = key end
  end
  return keys
end

-- ModuleDict:items() -> function: An iterator of name, module, in the order of keys; so does pairs(dict).
-- Example: for name, module in gb.nn.ModuleDict({ a = gb.nn.ReLU() }):items() do print(name, module) end
function ModuleDict:items()
  local keys, i = self:keys(), 0
  return function()
    i = i + 1
    return keys[i], keys[i] and rawget(self, keys[i])
  end
end

function ModuleDict.__instance:__pairs() return self:items() end

-- ====}

-- {==== attention ====

local MultiheadAttention = nn.library_class("MultiheadAttention", true)

-- gb.nn.MultiheadAttention(size: int, heads: int, options?: table) -> module: Self attention over x [batch, time, size]: one projection to query,
-- key and value, heads, one projection back; called as module(x, mask). options: bias = true, dropout = 0, is_causal = false, dtype. Errors: heads
-- that do not divide the size. Example: local y = gb.nn.MultiheadAttention(8, 2, { is_causal = true })(gb.rand(1, 5, 8))
function MultiheadAttention:init(size, heads, options)
  local o = options_of(options, { bias = true, dropout = 0, is_causal = false, dtype = none }, "MultiheadAttention")
  size, heads = size_of(size, "MultiheadAttention", "size"), size_of(heads, "MultiheadAttention", "heads")
  if size % heads ~= 0 then fail(("MultiheadAttention: %d heads do not divide the size %d"):format(heads, size)) end
  self.heads, self.dropout, self.is_causal = heads, o.dropout, o.is_causal
  self.qkv = nn.Linear(size, 3 * size, { bias = o.bias, dtype = given(o.dtype) })
  self.proj = nn.Linear(size, size, { bias = o.bias, dtype = given(o.dtype) })
  gb.no_grad(function() -- PyTorch's: Xavier over all three for the projection in (Linear's draw, within another bound), no biases
    self.qkv.weight:mul_(math.sqrt(6 / (4 * size)) * math.sqrt(size))
    if o.bias then
      self.qkv.bias:zero_()
      self.proj.bias:zero_()
    end
  end)
end

-- mask: bool [.., time, time] (true: may look) or float (added).
function MultiheadAttention:forward(x, mask)
  if x.ndim ~= 3 then fail(("MultiheadAttention expects x [batch, time, size], got %d dimensions"):format(x.ndim)) end
  local batch, time, size = x:size(1), x:size(2), x:size(3)
  local packed = self.qkv(x)
  local heads = packed:view(batch, time, 3, self.heads, size // self.heads)
  if keeps_nothing(self.qkv) then drop(packed) end
  local function part(i) -- [batch, heads, time, head_dim]; chosen before it is turned: gradients are put together in packed's own layout
    local chosen = heads:select(3, i)
    local turned = chosen:transpose(2, 3)
    drop(chosen)
    return turned
  end
  local q, k, v = part(1), part(2), part(3)
  drop(heads)
  local y = F.scaled_dot_product_attention(q, k, v, mask,
    { is_causal = self.is_causal, dropout_p = self.training and self.dropout or 0 })
  drop(q) drop(k) drop(v)
  local turned = y:transpose(2, 3)
  drop(y)
  local joined = turned:reshape(batch, time, size)
  drop(turned)
  local result = self.proj(joined)
  if keeps_nothing(self.proj) then drop(joined) end
  return result
end

function MultiheadAttention:extra() return ("%d heads%s"):format(self.heads, self.is_causal and ", causal" or "") end

-- ====}
