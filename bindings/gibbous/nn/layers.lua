-- nn/layers.lua - a module for every layer. Constructors take sizes in PyTorch's order, then a table of options;
-- default initialisation is PyTorch's, layer by layer.

local gb, native = ...
local fail, define = native.fail, native.define -- fail raises with the recipe's line
local check_tensor = native.check_tensor
local nn = gb.nn
local F, init = nn.functional, nn.init
local rawget, rawequal, type, ipairs, is_module = rawget, rawequal, type, ipairs, nn.is_module
local select, tostring, getmetatable, is_tensor = select, tostring, getmetatable, gb.is_tensor
local format, concat, unpack, sqrt, sort, match = string.format, table.concat, table.unpack, math.sqrt, table.sort,
  string.match
local values_of, class_of = native.values_of, native.class_of
-- an intermediate result's handle, as soon as the next layer has read it; the graph keeps what backward needs
local drop = native.drop

-- A class of the library: its record describes what the constructor takes; fn(self, ...) initialises a module.
local function layer(record, fn, calls)
  local class = native.library_class(match(record, "^gb%.nn%.([%w_]+)"), calls)
  class.init = define(record, "strict", fn, true)
  return class
end

-- A method of a layer that recipes call.
local function method(class, record, fn) class[match(record, ":([%w_]+)")] = define(record, "strict", fn) end

-- Raise where a layer is called with more arguments than it takes.
local function refuse(self, most)
  fail(format("%s takes %s; there is one argument more", class_of(self).__name, most))
end

local function parameter(options, ...) return nn.Parameter(gb.empty({ ... }, { dtype = options.dtype })) end

native.layer, native.layer_method, native.empty_parameter, native.refuse_more = layer, method, parameter, refuse

-- Can nothing but its caller hold what goes into module and comes out of it? A layer of the library without hooks, made
-- of such.
local function keeps_nothing(module)
  if rawget(module, "forward") ~= nil then return false end
  if module._plain then return true end
  local values = values_of(module)
  if values._library ~= "calls" or values._hooks or rawget(values, "forward") then return false end
  local order = values._order
  for i = 1, #order do
    local part = rawget(values, order[i])
    if type(part) == "table" and is_module(part) and not keeps_nothing(part) then return false end
  end
  return true
end
native.keeps_nothing = keeps_nothing

-- {==== linear ====

local Linear = layer("gb.nn.Linear(inputs: size, outputs: size; bias: bool = true, activation: string = \"none\", \z
  dtype?: dtype) -> module: y = x @ weight^T + bias over the last dimension; weight [outputs, inputs]. Example: \z
  local y = gb.nn.Linear(4, 2)(x)", function(self, inputs, outputs, o)
  self.weight = parameter(o, outputs, inputs)
  self.in_features, self.out_features, self.activation = inputs, outputs, o.activation
  local bound = 1 / sqrt(inputs)
  init.uniform_(self.weight, -bound, bound)
  if o.bias then self.bias = init.uniform_(parameter(o, outputs), -bound, bound) end
end)

function Linear:forward(x, more)
  if more ~= nil then refuse(self, "x") end
  local activation = self.activation
  if activation == "none" then return F.linear(x, self.weight, self.bias) end
  return F.linear(x, self.weight, self.bias, { activation = activation })
end

function Linear:extra()
  local shape = self.weight.shape
  local activation = self.activation ~= "none" and ", " .. self.activation or ""
  return format("%d -> %d%s%s", shape[2], shape[1], self.bias and "" or ", no bias", activation)
end

local MLP = layer("gb.nn.MLP(inputs: size, hidden: size; outputs?: size, bias: bool = true, activation: string = \z
  \"gelu_tanh\", recompute: bool = false, dtype?: dtype) -> module: linear, activation, linear in one op; outputs is \z
  inputs unless given. recompute: as F.mlp has it. Example: local y = gb.nn.MLP(4, 16)(x)",
  function(self, inputs, hidden, o)
    self.fc1 = nn.Linear(inputs, hidden, { bias = o.bias, dtype = o.dtype })
    self.fc2 = nn.Linear(hidden, o.outputs or inputs, { bias = o.bias, dtype = o.dtype })
    self.activation, self.recompute = o.activation, o.recompute
  end)

function MLP:forward(x, more)
  if more ~= nil then refuse(self, "x") end
  return F.mlp(x, self.fc1.weight, self.fc1.bias, self.fc2.weight, self.fc2.bias,
    { activation = self.activation, recompute = self.recompute })
end

function MLP:extra() return self.activation end

-- ====}

-- {==== norms ====

-- The last dimensions that a norm covers.
local function shape_list(shape, who)
  local list = setmetatable({}, {})
  for i, size in ipairs(type(shape) == "table" and shape or { shape }) do
    if size < 1 then fail(format("%s: the shape must be a whole number from 1, got %d", who, size)) end
    list[i] = size
  end
  if #list == 0 then fail(format("%s needs the sizes of the dimensions it covers", who)) end
  return list
end

local LayerNorm = layer("gb.nn.LayerNorm(shape: ints; eps: number = 1e-5, affine: bool = true, bias: bool = true, \z
  out: \"float32\"|\"autocast\" = \"float32\", dtype?: dtype) -> module: Normalise the last dimensions, of these \z
  sizes, then scale and shift. out: the dtype of the result under autocast, float32 or the scope's. Example: local y \z
  = gb.nn.LayerNorm(4)(x)", function(self, shape, o)
  self.shape, self.eps, self.out = shape_list(shape, "LayerNorm"), o.eps, o.out
  if o.affine then
    self.weight = init.ones_(parameter(o, unpack(self.shape)))
    if o.bias then self.bias = init.zeros_(parameter(o, unpack(self.shape))) end
  end
end)

function LayerNorm:forward(x, more)
  if more ~= nil then refuse(self, "x") end
  return F.layer_norm(x, self.shape, self.weight, self.bias, { eps = self.eps, out = self.out })
end

local function add_norm(self, x, residual)
  return F.add_layer_norm(x, residual, self.shape, self.weight, self.bias, { eps = self.eps, out = self.out })
end

method(LayerNorm, "LayerNorm:add(x: tensor, residual: tensor) -> tensor, tensor: x + residual and its norm in one \z
  pass: returns the norm, then the sum. Example: local y, sum = gb.nn.LayerNorm(4):add(x, x)",
  function(self, x, residual) return native.pinned(self, add_norm, x, residual) end)
function LayerNorm:extra() return concat(self.shape, "x") end

local RMSNorm = layer("gb.nn.RMSNorm(shape: ints; eps: number = 1e-6, affine: bool = true, out: \z
  \"float32\"|\"autocast\" = \"float32\", dtype?: dtype) -> module: Divide the last dimensions, of these sizes, by \z
  their root mean square, then scale. out: as in LayerNorm. Example: local y = gb.nn.RMSNorm(4)(x)",
  function(self, shape, o)
  self.shape, self.eps, self.out = shape_list(shape, "RMSNorm"), o.eps, o.out
  if o.affine then self.weight = init.ones_(parameter(o, unpack(self.shape))) end
end)

function RMSNorm:forward(x, more)
  if more ~= nil then refuse(self, "x") end
  return F.rms_norm(x, self.shape, self.weight, { eps = self.eps, out = self.out })
end
function RMSNorm:extra() return concat(self.shape, "x") end

local GroupNorm = layer("gb.nn.GroupNorm(groups: size, channels: size; eps: number = 1e-5, affine: bool = true, \z
  bias: bool = true, out: \"float32\"|\"autocast\" = \"float32\", dtype?: dtype) -> module: Normalise groups of the \z
  channels (dim 2) of each image, then scale and, with bias, shift by channel. out: as in LayerNorm. Errors: channels \z
  that groups does not divide. Example: local y = gb.nn.GroupNorm(2, 4)(gb.ones(1, 4, 3))",
  function(self, groups, channels, o)
  if channels % groups ~= 0 then
    fail(format("GroupNorm: %d channels cannot be put into %d groups of one size", channels, groups))
  end
  self.groups, self.channels, self.eps, self.out = groups, channels, o.eps, o.out
  if o.affine then
    self.weight = init.ones_(parameter(o, channels))
    if o.bias then self.bias = init.zeros_(parameter(o, channels)) end
  end
end)

function GroupNorm:forward(x, more)
  if more ~= nil then refuse(self, "x") end
  return F.group_norm(x, self.groups, self.weight, self.bias, { eps = self.eps, out = self.out })
end
function GroupNorm:extra() return format("%d groups of %d channels", self.groups, self.channels) end

-- What a norm of channels is made of: its options, a weight and perhaps a bias if affine, running statistics if they
-- are kept.
local function channel_statistics(self, features, o)
  self.num_features, self.eps, self.momentum, self.activation = features, o.eps, o.momentum, o.activation
  if o.affine then
    self.weight = init.ones_(parameter(o, features))
    if o.bias then self.bias = init.zeros_(parameter(o, features)) end
  end
  if o.track_running_stats then
    self:register_buffer("running_mean", gb.zeros(features))
    self:register_buffer("running_var", gb.ones(features))
    self:register_buffer("num_batches_tracked", gb.zeros({}, { dtype = "int64" }))
  end
end
native.channel_statistics = channel_statistics

local function batch_norm(name, shapes, example, ndim_low, ndim_high)
  local class = layer(format("gb.nn.%s(features: size; eps: number = 1e-5, momentum: number = 0.1, affine: bool = \z
    true, bias: bool = true, track_running_stats: bool = true, activation: \"none\"|\"relu\" = \"none\") -> module: \z
    Normalise each channel of x %s over the batch; by the running statistics when not training; then, if affine, \z
    scale and, with bias, shift it. Called with a second tensor of x's shape, a residual, it adds that; then comes \z
    activation; all of it in one pass. Example: local y = %s", name, shapes, example), channel_statistics)
  function class:forward(x, residual, more)
    if more ~= nil then refuse(self, "x and residual") end
    check_tensor(name, x)
    if residual ~= nil then check_tensor(name, residual) end
    if x.ndim < ndim_low or x.ndim > ndim_high then
      fail(format("%s expects x %s, got [%s]", name, shapes, table.concat(x.shape, ", ")))
    end
    if self.training and self.num_batches_tracked and not gb.is_recomputing() then
      gb.no_grad(function() self.num_batches_tracked:add_(1) end)
    end
    return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, residual, {
      training = self.training or self.running_mean == nil, momentum = self.momentum, eps = self.eps,
      activation = self.activation,
    })
  end
  function class:extra()
    return self.activation == "none" and tostring(self.num_features) or
      format("%d, %s", self.num_features, self.activation)
  end
end
batch_norm("BatchNorm1d", "[n, c] or [n, c, l]", "gb.nn.BatchNorm1d(4)(x)", 2, 3)
batch_norm("BatchNorm2d", "[n, c, h, w]", "gb.nn.BatchNorm2d(1)(gb.rand(2, 1, 8, 8))", 4, 4)
batch_norm("BatchNorm3d", "[n, c, d, h, w]", "gb.nn.BatchNorm3d(1)(gb.rand(2, 1, 2, 4, 4))", 5, 5)

-- ====}

-- {==== embedding, dropout, shapes ====

local Embedding = layer("gb.nn.Embedding(rows: size, size: size; padding_idx?: int, max_norm?: number, norm_type: \z
  number = 2, scale_grad_by_freq: bool = false, dtype?: dtype) -> module: Rows of a trained table picked by integers \z
  from 0. padding_idx: a token id, from 0, whose row is zero and gets no gradient. max_norm: rows that are picked are \z
  first scaled down to that norm, in place. scale_grad_by_freq: gradients are divided by how often the index names a \z
  row. Example: local y = gb.nn.Embedding(10, 4)(gb.arange(3))", function(self, rows, size, o)
  self.num_embeddings, self.embedding_dim, self.padding_idx = rows, size, o.padding_idx
  if self.padding_idx and not (self.padding_idx >= 0 and self.padding_idx < rows) then
    fail(format("Embedding: padding_idx is a token id from 0 to %d, got %d", rows - 1, self.padding_idx))
  end
  self.max_norm, self.norm_type, self.scale_grad_by_freq = o.max_norm, o.norm_type, o.scale_grad_by_freq
  self.weight = init.normal_(parameter(o, rows, size))
  if self.padding_idx then gb.no_grad(function() self.weight[self.padding_idx + 1] = 0 end) end
end)

function Embedding:forward(index, more)
  if more ~= nil then refuse(self, "index") end
  return F.embedding(index, self.weight, { padding_idx = self.padding_idx, max_norm = self.max_norm,
    norm_type = self.norm_type, scale_grad_by_freq = self.scale_grad_by_freq })
end
function Embedding:extra() return format("%d x %d", self.weight:size(1), self.weight:size(2)) end

local Dropout = layer("gb.nn.Dropout(p: number = 0.5) -> module: In training, zero each element with probability p \z
  and scale the rest by 1 / (1 - p). Errors: p outside 0 .. 1. Example: local y = gb.nn.Dropout(0.1)(x)",
  function(self, p)
  if not (p >= 0 and p <= 1) then fail(format("Dropout: p lies between 0 and 1, got %s", native.shown(p))) end
  self.p = p
end)
function Dropout:forward(x, more)
  if more ~= nil then refuse(self, "x") end
  if not self.training or self.p == 0 then return x end
  return F.dropout(x, self.p, true)
end
function Dropout:extra() return format("p = %g", self.p) end

local Flatten = layer("gb.nn.Flatten(first: dim = 2, last: dim = -1) -> module: The dimensions first .. last made \z
  one; the batch, dimension 1, stays unless told otherwise. Example: local y = gb.nn.Flatten()(gb.rand(2, 1, 8, 8))",
  function(self, first, last) self.first, self.last = first, last end)
function Flatten:forward(x, more)
  if more ~= nil then refuse(self, "x") end
  check_tensor("Flatten", x)
  return x:flatten(self.first, self.last)
end

local Identity = layer("gb.nn.Identity() -> module: Its input. Example: local y = gb.nn.Identity()(x)", function() end)
function Identity:forward(x, more)
  if more ~= nil then refuse(self, "x") end
  return x
end

-- ====}

-- {==== activations ====

F.gumbel_softmax = define("gb.nn.functional.gumbel_softmax(x: tensor, tau: number = 1, hard: bool = false, dim: dim \z
  = -1;) -> tensor: softmax along dim of (x + Gumbel noise) / tau: a draw that has a gradient. hard: 1 at the \z
  largest element, 0 elsewhere, with the gradient of the soft one. Errors: tau that is not above 0. Example: local y \z
  = F.gumbel_softmax(x)", "strict", function(x, tau, hard, dim)
  if not (tau > 0) then fail(format("gumbel_softmax: tau must be above 0, got %s", native.shown(tau))) end
  local noise = gb.rand_like(x):log():neg():log():neg()
  local y = F.softmax((x + noise) / tau, dim)
  if not hard then return y end
  local at = y:argmax(dim, { keepdim = true })
  local chosen = gb.zeros_like(y):scatter_add(dim, at, gb.ones(at.shape, { dtype = y.dtype, device = y.device }))
  return chosen - y:detach() + y
end)

-- A module that applies fn(x, ...) with up to two arguments of these names, given as they are or in a table of options.
local function activation(record, fn, first, second)
  local class = layer(record, function(self, a, b)
    if first then self[first] = a end
    if second then self[second] = b end
  end)
  function class:forward(x, more)
    if more ~= nil then refuse(self, "x") end
    if second then return fn(x, self[first], self[second]) end
    if first then return fn(x, self[first]) end
    return fn(x)
  end
  function class:extra()
    if second then return format("%s = %s, %s = %s", first, tostring(self[first]), second, tostring(self[second])) end
    return first and format("%s = %s", first, tostring(self[first])) or ""
  end
end
activation("gb.nn.ReLU() -> module: max(x, 0). Example: local y = gb.nn.ReLU()(x)", F.relu)
activation("gb.nn.Tanh() -> module: The hyperbolic tangent. Example: local y = gb.nn.Tanh()(x)", F.tanh)
activation("gb.nn.Sigmoid() -> module: 1 / (1 + exp(-x)). Example: local y = gb.nn.Sigmoid()(x)", F.sigmoid)
activation("gb.nn.SiLU() -> module: x * sigmoid(x). Example: local y = gb.nn.SiLU()(x)", F.silu)
activation("gb.nn.LeakyReLU(slope: number = 0.01;) -> module: x where positive, else slope * x. Example: local y = \z
  gb.nn.LeakyReLU(0.1)(x)",
  F.leaky_relu, "slope")
activation("gb.nn.ELU(alpha: number = 1;) -> module: x where positive, else alpha * (exp(x) - 1). Example: local y \z
  = gb.nn.ELU()(x)", F.elu, "alpha")
activation("gb.nn.GELU(approximate: \"none\"|\"tanh\" = \"none\";) -> module: x * Phi(x), by erf, or by tanh with \z
  approximate = \"tanh\". Example: local y = gb.nn.GELU(\"tanh\")(x)",
  function(x, approximate) return F.gelu(x, { approximate = approximate }) end, "approximate")
activation("gb.nn.Softplus(beta: number = 1, threshold: number = 20;) -> module: log(1 + exp(beta * x)) / beta; x \z
  itself where beta * x exceeds threshold. Example: local y = gb.nn.Softplus()(x)",
  function(x, beta, threshold) return F.softplus(x, { beta = beta, threshold = threshold }) end, "beta", "threshold")
activation("gb.nn.ReLU6() -> module: x limited to 0 .. 6. Example: local y = gb.nn.ReLU6()(x)", F.relu6)
activation("gb.nn.SELU() -> module: 1.0507 times ELU with alpha 1.6733, which keeps mean 0 and deviation 1. \z
  Example: local y = gb.nn.SELU()(x)", F.selu)
activation("gb.nn.CELU(alpha: number = 1;) -> module: x where positive, else alpha * (exp(x / alpha) - 1). Example: \z
  local y = gb.nn.CELU()(x)", F.celu,
  "alpha")
activation("gb.nn.Mish() -> module: x * tanh(softplus(x)). Example: local y = gb.nn.Mish()(x)", F.mish)
activation("gb.nn.Softsign() -> module: x / (1 + abs(x)). Example: local y = gb.nn.Softsign()(x)", F.softsign)
activation("gb.nn.Hardtanh(min_val: number = -1, max_val: number = 1;) -> module: x limited to min_val .. max_val. \z
  Example: local y = gb.nn.Hardtanh(-2, 2)(x)", F.hardtanh, "min_val", "max_val")
activation("gb.nn.Hardsigmoid() -> module: x / 6 + 1 / 2 limited to 0 .. 1. Example: local y = gb.nn.Hardsigmoid()(x)",
  F.hardsigmoid)
activation("gb.nn.Hardswish() -> module: x * hardsigmoid(x). Example: local y = gb.nn.Hardswish()(x)", F.hardswish)
activation("gb.nn.LogSigmoid() -> module: log(sigmoid(x)), without overflow. Example: local y = gb.nn.LogSigmoid()(x)",
  F.logsigmoid)
activation("gb.nn.Threshold(threshold: number, value: number;) -> module: x where it exceeds threshold, else value. \z
  Example: local y = gb.nn.Threshold(0.1, 0)(x)", F.threshold, "threshold", "value")
activation("gb.nn.Softshrink(lambd: number = 0.5;) -> module: x moved towards 0 by lambd, and 0 where it is no \z
  farther away. Example: local y = gb.nn.Softshrink()(x)", F.softshrink, "lambd")
activation("gb.nn.Hardshrink(lambd: number = 0.5;) -> module: x, and 0 where it lies in -lambd .. lambd. Example: \z
  local y = gb.nn.Hardshrink()(x)",
  F.hardshrink, "lambd")
activation("gb.nn.Tanhshrink() -> module: x - tanh(x). Example: local y = gb.nn.Tanhshrink()(x)", F.tanhshrink)
activation("gb.nn.GLU(dim: dim = -1;) -> module: The first half of dim times the sigmoid of the second. Example: \z
  local y = gb.nn.GLU()(x)", F.glu, "dim")
activation("gb.nn.Softmin(dim: dim = -1;) -> module: softmax(-x) along dim. Example: local y = gb.nn.Softmin(-1)(x)",
  F.softmin, "dim")
activation("gb.nn.Softmax(dim: dim = -1;) -> module: exp(x) / sum(exp(x)) along dim. Example: local y = \z
  gb.nn.Softmax(-1)(x)", F.softmax, "dim")
activation("gb.nn.LogSoftmax(dim: dim = -1;) -> module: x - log(sum(exp(x))) along dim. Example: local y = \z
  gb.nn.LogSoftmax(-1)(x)", F.log_softmax,
  "dim")

local PReLU = layer("gb.nn.PReLU(channels: size = 1; init: number = 0.25, dtype?: dtype) -> module: x where \z
  positive, else weight * x; a trained weight for all, or for each channel (dimension 2). Example: local y = \z
  gb.nn.PReLU()(x)", function(self, channels, o)
  self.weight = init.constant_(parameter(o, channels), o.init)
end)
function PReLU:forward(x, more)
  if more ~= nil then refuse(self, "x") end
  return F.prelu(x, self.weight)
end
function PReLU:extra() return tostring(self.weight:size(1)) end

-- ====}

-- {==== losses ====

-- A module over a loss of F: options are the loss's own; tensors among them (weight, pos_weight) are buffers.
-- reduction: "mean" unless given.
local function loss(name, fn, options, text, reduction)
  local record = format("gb.nn.%s(; %sreduction: string = \"%s\") -> module: %s", name,
    options ~= "" and options .. ", " or "", reduction or "mean", text)
  local class = layer(record, function(self, o)
    if o.weight then self:register_buffer("weight", o.weight) end
    o.weight = nil
    if is_tensor(o.pos_weight) then
      self:register_buffer("pos_weight", o.pos_weight)
      o.pos_weight = nil
    end
    self.options = setmetatable(o, {})
  end)
  function class:forward(x, target, more)
    if more ~= nil then refuse(self, "x and target") end
    if self.pos_weight then return fn(x, target, self.weight, self.pos_weight, self.options) end
    if self.weight then return fn(x, target, self.weight, self.options) end
    return fn(x, target, self.options)
  end
  function class:extra() return self.options.reduction end
end

-- The same over a function of F of some tensors, which `takes` names, and options; `extra` names the option that the
-- module's line shows.
local function over(name, fn, count, takes, options, text, extra)
  local class = layer(format("gb.nn.%s(; %s) -> module: %s", name, options, text),
    function(self, o) self.options = setmetatable(o, {}) end)
  function class:forward(...)
    if select("#", ...) > count then refuse(self, takes) end
    local given = { ... }
    given[count + 1] = self.options
    return fn(unpack(given, 1, count + 1))
  end
  function class:extra() return tostring(self.options[extra]) end
end
loss("CrossEntropyLoss", F.cross_entropy, "weight?: tensor, ignore_index: int = -100, label_smoothing: number = 0",
  "-log softmax(x)[target] of logits x [n, classes, ...]; targets are class indices from 0. Example: local loss = \z
  gb.nn.CrossEntropyLoss()(x, gb.zeros(4, { dtype = \"int64\" }))")
loss("NLLLoss", F.nll_loss, "weight?: tensor, ignore_index: int = -100", "-x[target] of log-probabilities. Example: \z
  local loss = gb.nn.NLLLoss()(x:log_softmax(-1), gb.zeros(4, { dtype = \"int64\" }))")
loss("MSELoss", F.mse_loss, "", "(x - target)^2. Example: local loss = gb.nn.MSELoss()(x, gb.zeros_like(x))")
loss("L1Loss", F.l1_loss, "", "|x - target|. Example: local loss = gb.nn.L1Loss()(x, gb.zeros_like(x))")
loss("SmoothL1Loss", F.smooth_l1_loss, "beta: number = 1", "Squared below beta, absolute above. Example: local loss \z
  = gb.nn.SmoothL1Loss()(x, gb.zeros_like(x))")
loss("BCELoss", F.binary_cross_entropy, "weight?: tensor", "-(y log x + (1 - y) log(1 - x)) of probabilities. \z
  Errors: inside an autocast scope; BCEWithLogitsLoss is safe there. Example: local loss = \z
  gb.nn.BCELoss()(x:sigmoid(), gb.zeros_like(x))")
loss("BCEWithLogitsLoss", F.binary_cross_entropy_with_logits, "weight?: tensor, pos_weight?: number|tensor",
  "Binary cross-entropy of logits, without overflow; pos_weight weighs targets of 1. Example: local loss = \z
  gb.nn.BCEWithLogitsLoss()(x, gb.zeros_like(x))")
loss("KLDivLoss", F.kl_div, "log_target: bool = false", "target * (log target - x) for log-probabilities x; \z
  reduction may be \"batchmean\" too. Example: local loss = gb.nn.KLDivLoss()(x:log_softmax(-1), x:softmax(-1))")
loss("HuberLoss", F.huber_loss, "delta: number = 1", "Squared up to delta, absolute beyond. Example: local loss = \z
  gb.nn.HuberLoss()(x, gb.zeros_like(x))")
loss("SoftMarginLoss", F.soft_margin_loss, "", "log(1 + exp(-target * x)), target 1 or -1. Example: local loss = \z
  gb.nn.SoftMarginLoss()(x, gb.ones_like(x))")
loss("HingeEmbeddingLoss", F.hinge_embedding_loss, "margin: number = 1", "Of distances x: x where target is 1, \z
  max(0, margin - x) where it is -1. Example: local loss = gb.nn.HingeEmbeddingLoss()(x, gb.ones_like(x))")
loss("PoissonNLLLoss", F.poisson_nll_loss, "log_input: bool = true, full: bool = false, eps: number = 1e-8",
  "exp(x) - target * x, or x - target * log(x + eps) without log_input; full adds Stirling's formula. Example: \z
  local loss = gb.nn.PoissonNLLLoss()(x, gb.ones_like(x))")
loss("MultiLabelMarginLoss", F.multilabel_margin_loss, "", "max(0, 1 - x[j] + x[i]) over classes j of the target \z
  and others i, per class; a target's classes, from 0, are ended by -1. Example: local loss = \z
  gb.nn.MultiLabelMarginLoss()(x, gb.zeros(x.shape, { dtype = \"int64\" }))")
loss("MultiLabelSoftMarginLoss", F.multilabel_soft_margin_loss, "weight?: tensor", "Binary cross-entropy of logits, \z
  averaged over the classes. Example: local loss = gb.nn.MultiLabelSoftMarginLoss()(x, gb.zeros_like(x))")
loss("MultiMarginLoss", F.multi_margin_loss, "weight?: tensor, p: int = 1, margin: number = 1",
  "The mean over the classes of max(0, margin - x[target] + x[i])^p. Example: local loss = \z
  gb.nn.MultiMarginLoss()(x, gb.zeros(4, { dtype = \"int64\" }))")
loss("SigmoidFocalLoss", F.sigmoid_focal_loss, "alpha: number = 0.25, gamma: number = 2",
  "Binary cross-entropy of logits times (1 - p)^gamma, p the probability of the target. Example: local loss = \z
  gb.nn.SigmoidFocalLoss()(x, gb.zeros_like(x))", "none")
loss("DiceLoss", F.dice_loss, "smooth: number = 1", "1 - (2 sum(x * target) + smooth) / (sum(x) + sum(target) + \z
  smooth) per sample, of probabilities. Example: local loss = gb.nn.DiceLoss()(x:sigmoid(), gb.zeros_like(x))")
over("GaussianNLLLoss", F.gaussian_nll_loss, 3, "x, target and var", "full: bool = false, eps: number = 1e-6, \z
  reduction: string = \"mean\"",
  "0.5 (log var + (x - target)^2 / var), var at least eps. Example: local loss = gb.nn.GaussianNLLLoss()(x, \z
    gb.zeros_like(x), gb.ones_like(x))",
  "reduction")
over("MarginRankingLoss", F.margin_ranking_loss, 3, "x1, x2 and target", "margin: number = 0, reduction: string = \z
  \"mean\"", "max(0, margin - target * (x1 - x2)). Example: local loss = gb.nn.MarginRankingLoss()(x, \z
  gb.zeros_like(x), gb.ones_like(x))", "reduction")
over("TripletMarginLoss", F.triplet_margin_loss, 3, "anchor, positive and negative",
  "margin: number = 1, p: number = 2, eps: number = 1e-6, swap: bool = false, reduction: string = \"mean\"",
  "max(0, margin + d(anchor, positive) - d(anchor, negative)), d the p-norm of a difference. Example: local loss = \z
  gb.nn.TripletMarginLoss()(x, x * 2, x * 3)", "reduction")
over("CosineEmbeddingLoss", F.cosine_embedding_loss, 3, "x1, x2 and target", "margin: number = 0, reduction: string \z
  = \"mean\"", "1 - cosine where target is 1, max(0, cosine - margin) where it is -1. Example: local loss = \z
  gb.nn.CosineEmbeddingLoss()(x, x, gb.ones(4))", "reduction")
over("CTCLoss", F.ctc_loss, 4, "log_probs, targets, input_lengths and target_lengths",
  "blank: int = 0, reduction: string = \"mean\", zero_infinity: bool = false",
  "-log of the probability of all alignments of the targets: log_probs [time, n, classes], targets [n, length], \z
  lengths [n]. Example: local loss = gb.nn.CTCLoss()(gb.randn(4, 1, 3):log_softmax(-1), gb.tensor { { 1, 2 } }, \z
  gb.tensor { 4 }, gb.tensor { 2 })", "reduction")

-- ====}

-- {==== distances ====

over("CosineSimilarity", F.cosine_similarity, 2, "x1 and x2", "dim: dim = 2, eps: number = 1e-8",
  "The inner product of x1 and x2 along dim, each divided by its norm. Example: local y = \z
  gb.nn.CosineSimilarity()(x, x)", "dim")
over("PairwiseDistance", F.pairwise_distance, 2, "x1 and x2",
  "p: number = 2, eps: number = 1e-6, keepdim: bool = false",
  "The p-norm of x1 - x2 + eps over the last dimension. Example: local y = gb.nn.PairwiseDistance()(x, \z
  gb.zeros_like(x))", "p")

local Bilinear = layer("gb.nn.Bilinear(inputs1: size, inputs2: size, outputs: size; bias: bool = true, dtype?: \z
  dtype) -> module: x1^T weight[k] x2 + bias[k] for each output k; weight [outputs, inputs1, inputs2]. Example: \z
  local y = gb.nn.Bilinear(4, 4, 2)(x, x)",
  function(self, inputs1, inputs2, outputs, o)
    local bound = 1 / sqrt(inputs1)
    self.weight = init.uniform_(parameter(o, outputs, inputs1, inputs2), -bound, bound)
    if o.bias then self.bias = init.uniform_(parameter(o, outputs), -bound, bound) end
  end)

function Bilinear:forward(x1, x2, more)
  if more ~= nil then refuse(self, "x1 and x2") end
  return F.bilinear(x1, x2, self.weight, self.bias)
end

function Bilinear:extra()
  local s = self.weight.shape
  return format("%d, %d -> %d%s", s[2], s[3], s[1], self.bias and "" or ", no bias")
end

-- ====}

-- {==== containers ====

-- One more module at the end.
local function append(self, module)
  self[#self + 1] = module
  return self
end

local Sequential = layer("gb.nn.Sequential(modules...: module) -> module: Modules one after another. Example: local \z
  model = gb.nn.Sequential(gb.nn.Linear(4, 8), gb.nn.ReLU(), gb.nn.Linear(8, 2))", function(self, ...)
  for i = 1, select("#", ...) do append(self, (select(i, ...))) end
end, true)

method(Sequential, "Sequential:append(module: module) -> module: One more module at the end. Errors: what is not a \z
  module. Example: gb.nn.Sequential():append(gb.nn.ReLU())", append)

-- The results between two layers that keep nothing are dropped at once: nothing else can hold their handles.
function Sequential:forward(x, more)
  local meta = getmetatable(self)
  if type(meta) ~= "table" or not meta.__module then
    fail("Sequential.forward is a method: call model(x) or model:forward(x)")
  end
  if more ~= nil then refuse(self, "x") end
  if x == nil then
    fail("Sequential: x is missing; its modules are gone through by: for i, module in ipairs(model) do")
  end
  local values, mine = meta.__index, false -- mine: x was made here, and nobody else has seen it
  for i = 1, #values do
    local module = values[i]
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

local ModuleList = layer("gb.nn.ModuleList(list?: list) -> module: A list of modules, list[i] from 1; it has no \z
  forward of its own. Example: local list = gb.nn.ModuleList { gb.nn.Linear(4, 4), gb.nn.Linear(4, 2) }",
  function(self, list)
  for _, module in ipairs(list or {}) do self:append(module) end
end, true)
method(ModuleList, "ModuleList:append(module: module) -> module: One more module at the end. Example: \z
  gb.nn.ModuleList():append(gb.nn.ReLU())",
  append)

-- The methods keys and items of a dict, of what it holds by name in order of first assignment.
local function listing(is_item)
  local function keys_of(self)
    local values, keys = values_of(self), {}
    for _, key in ipairs(values._order) do
      if is_item(rawget(values, key)) then keys[#keys + 1] = key end
    end
    return keys
  end
  return keys_of, function(self)
    local values, keys, i = values_of(self), keys_of(self), 0
    return function()
      i = i + 1
      return keys[i], keys[i] and rawget(values, keys[i])
    end
  end
end

local module_keys, module_items = listing(is_module)

local ModuleDict = layer("gb.nn.ModuleDict(dict?: table) -> module: Modules by name, dict.name; it has no forward \z
  of its own. Example: local dict = gb.nn.ModuleDict { first = gb.nn.Linear(4, 4) }", function(self, dict)
  local keys = {}
  for key, module in next, dict or {} do
    if type(key) ~= "string" or not is_module(module) then fail("ModuleDict takes a table of modules by name") end
    keys[#keys + 1] = key
  end
  sort(keys)
  for _, key in ipairs(keys) do self[key] = dict[key] end
end, true)
ModuleDict.__pairs = module_items

method(ModuleDict, "ModuleDict:keys() -> list: The names, in order of first assignment (sorted, for those the \z
  constructor got). Example: for _, name in ipairs(gb.nn.ModuleDict({ a = gb.nn.ReLU() }):keys()) do print(name) end",
  module_keys)
method(ModuleDict, "ModuleDict:items() -> function: An iterator of name, module, in the order of keys; so does \z
  pairs(dict). Example: for name, module in gb.nn.ModuleDict({ a = gb.nn.ReLU() }):items() do print(name, module) \z
  end", module_items)

-- A tensor as what a module finds and an optimizer trains.
local function as_parameter(who, tensor)
  if not is_tensor(tensor) then fail(format("%s takes tensors, got %s", who, native.type_name(tensor))) end
  return native.is_parameter(tensor) and tensor or nn.Parameter(tensor)
end

-- One more parameter at the end.
local function append_parameter(self, tensor)
  self[#self + 1] = as_parameter("ParameterList", tensor)
  return self
end

local ParameterList = layer("gb.nn.ParameterList(list?: list) -> module: A list of parameters, list[i] from 1, made \z
  of tensors; it has no forward. Example: local list = gb.nn.ParameterList { gb.zeros(2), gb.ones(3) }",
  function(self, list)
    for _, tensor in ipairs(list or {}) do append_parameter(self, tensor) end
  end)
method(ParameterList, "ParameterList:append(tensor: tensor) -> module: One more parameter at the end. Example: \z
  gb.nn.ParameterList():append(gb.zeros(2))", append_parameter)
function ParameterList:extra() return format("%d parameters", #self) end

local parameter_keys, parameter_items = listing(native.is_parameter)

local ParameterDict = layer("gb.nn.ParameterDict(dict?: table) -> module: Parameters by name, dict.name, made of \z
  tensors; it has no forward. Example: local dict = gb.nn.ParameterDict { scale = gb.ones(2) }", function(self, dict)
  local keys = {}
  for key in next, dict or {} do
    if type(key) ~= "string" then fail("ParameterDict takes a table of tensors by name") end
    keys[#keys + 1] = key
  end
  sort(keys)
  for _, key in ipairs(keys) do self[key] = as_parameter("ParameterDict", dict[key]) end
end)
ParameterDict.__pairs = parameter_items
method(ParameterDict, "ParameterDict:keys() -> list: The names, in order of first assignment (sorted, for those the \z
  constructor got). Example: print(#gb.nn.ParameterDict({ scale = gb.ones(2) }):keys())", parameter_keys)
method(ParameterDict, "ParameterDict:items() -> function: An iterator of name, parameter, in the order of keys; so \z
  does pairs(dict). Example: for name, p in gb.nn.ParameterDict({ scale = gb.ones(2) }):items() do print(name, p) end",
  parameter_items)
function ParameterDict:extra() return format("%d parameters", #parameter_keys(self)) end

-- ====}
