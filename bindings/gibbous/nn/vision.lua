-- nn/vision.lua - modules over images, volumes and signals: padding, resampling, shuffles, windows, norms of one image
-- and what drops whole channels; bags of embeddings. Options and defaults are PyTorch's.

local gb, native = ...
local fail = native.fail -- raises with the recipe's line
local check_tensor = native.check_tensor
local nn = gb.nn
local F, init, layer = nn.functional, nn.init, native.layer
local format, rep, type, tostring, concat = string.format, string.rep, type, tostring, table.concat

-- forward(x) of one argument, and what the module says of itself.
local function forward(class, fn, extra)
  function class:forward(x, more)
    if more ~= nil then fail(self.__name .. " takes x; there is one argument more") end
    return fn(self, x)
  end
  class.extra = extra or function() return "" end
end

-- A list that is one value of a module, not a table of modules.
local function list_of(value) return setmetatable(type(value) == "table" and value or { value }, {}) end

-- The number of dims a layer of this name takes: with a batch, or without.
local function check_dims(name, x, batched)
  check_tensor(name, x)
  if x.ndim ~= batched and x.ndim ~= batched - 1 then
    fail(format("%s expects %d dimensions, or %d without a batch, got %d", name, batched, batched - 1, x.ndim))
  end
end

-- {==== padding ====

local words = { "one dimension", "two dimensions", "three dimensions" }

-- The pad of all places, of one number or of a pair for each.
local function pairs_of(padding, places, name)
  local list = list_of(type(padding) == "number" and {} or padding)
  if type(padding) == "number" then
    for i = 1, 2 * places do list[i] = padding end
  end
  if #list ~= 2 * places then
    fail(format("%s: padding is a number or a list of %d, got a list of %d", name, 2 * places, #list))
  end
  return list
end

local function padding(kind, mode, places, text, value)
  local name = format("%s%dd", kind, places)
  local class = layer(format("gb.nn.%s(padding: ints%s) -> module: %s around the last %s: one number, or {before, \z
    after} of the last dimension, then of the one before it. Example: local y = gb.nn.%s(1%s)(gb.rand(1, 2%s))", name,
    value and ", value: number" or "", text, words[places], name,
    value and ", 0.5" or "", rep(", 4", places)), function(self, pad, number)
    self.padding, self.value = pairs_of(pad, places, name), value and number or 0
  end)
  forward(class, function(self, x)
    check_dims(name, x, places + 2)
    return F.pad(x, self.padding, mode, self.value)
  end, function(self) return concat(self.padding, ", ") end)
end
for places = 1, 3 do
  padding("ZeroPad", "constant", places, "Zeros")
  padding("ConstantPad", "constant", places, "A value", true)
  padding("ReflectionPad", "reflect", places, "The elements mirrored at each edge,")
  padding("ReplicationPad", "replicate", places, "The outermost elements repeated")
  padding("CircularPad", "circular", places, "The elements of the other side")
end

-- ====}

-- {==== resampling, shuffles, windows ====

local Upsample = layer("gb.nn.Upsample(size?: ints, scale_factor?: number, mode: string = \"nearest\", align_corners: \z
  bool = false; recompute_scale_factor: bool = false) -> module: Places of x [n, c, ...] resampled to size, or to \z
  scale_factor times as many, by the modes of F.interpolate. Example: local y = gb.nn.Upsample({ scale_factor = 2 \z
  })(gb.rand(1, 2, 4, 4))",
  function(self, size, scale_factor, mode, align_corners, o)
    if (size == nil) == (scale_factor == nil) then fail("Upsample takes either size or scale_factor") end
    self.size = size and list_of(size)
    self.options = setmetatable({ scale_factor = scale_factor, mode = mode, align_corners = align_corners,
      recompute_scale_factor = o.recompute_scale_factor }, {})
  end)
forward(Upsample, function(self, x) return F.interpolate(x, self.size, self.options) end,
  function(self) return self.options.mode end)

local function shuffle(name, op, argument, shapes, example)
  local class = layer(format("gb.nn.%s(%s: size) -> module: %s. Example: local y = gb.nn.%s(2)(%s)", name, argument,
    shapes, name, example),
    function(self, n) self[argument] = n end)
  forward(class, function(self, x) return op(x, self[argument]) end, function(self) return tostring(self[argument]) end)
end
shuffle("PixelShuffle", F.pixel_shuffle, "factor", "x [..., c * factor^2, h, w] as [..., c, h * factor, w * factor]",
  "gb.rand(1, 4, 2, 2)")
shuffle("PixelUnshuffle", F.pixel_unshuffle, "factor",
  "x [..., c, h * factor, w * factor] as [..., c * factor^2, h, w]",
  "gb.rand(1, 1, 4, 4)")
shuffle("ChannelShuffle", F.channel_shuffle, "groups", "The channels of x in another order: the first of each \z
  group, then the second of each",
  "gb.rand(1, 4, 2, 2)")

local Unfold = layer("gb.nn.Unfold(kernel: ints; dilation: ints = 1, padding: ints = 0, stride: ints = 1) -> \z
  module: The windows of x [n, c, h, w] as columns. Example: local y = gb.nn.Unfold(2)(gb.rand(1, 2, 4, 4))",
  function(self, kernel, o)
  self.kernel, self.options = list_of(kernel), setmetatable(o, {})
end)
forward(Unfold, function(self, x) return F.im2col(x, self.kernel, self.options) end,
  function(self) return concat(self.kernel, "x") end)

local Fold = layer("gb.nn.Fold(size: ints, kernel: ints; dilation: ints = 1, padding: ints = 0, stride: ints = 1) \z
  -> module: The image of this size whose windows are the columns of x. Example: local y = gb.nn.Fold(3, \z
  2)(gb.rand(1, 4, 4))", function(self, size, kernel, o)
  self.size, self.kernel, self.options = list_of(size), list_of(kernel), setmetatable(o, {})
end)
forward(Fold, function(self, x) return F.col2im(x, self.size, self.kernel, self.options) end,
  function(self) return concat(self.size, "x") end)

local Unflatten = layer("gb.nn.Unflatten(dim: dim, shape: ints) -> module: One dimension split into several; one \z
  size may be -1. Example: local y = gb.nn.Unflatten(2, { 2, 2 })(gb.rand(3, 4))", function(self, dim, shape) self.dim,
  self.shape = dim, list_of(shape) end)
forward(Unflatten, function(self, x)
  check_tensor("Unflatten", x)
  return x:unflatten(self.dim, self.shape)
end,
  function(self) return concat(self.shape, "x") end)

-- ====}

-- {==== norms, dropout ====

local function instance_norm(places, shapes, example)
  local name = format("InstanceNorm%dd", places)
  local class = layer(format("gb.nn.%s(features: size; eps: number = 1e-5, momentum: number = 0.1, affine: bool = \z
    false, bias: bool = true, track_running_stats: bool = false) -> module: Normalise each channel of each image of x \z
    %s; if affine, scale and, with bias, shift it. Example: local y = gb.nn.%s(2)(%s)", name, shapes, name, example),
    native.channel_statistics)
  forward(class, function(self, x)
    check_dims(name, x, places + 2)
    local single = x.ndim == places + 1
    local tracks = self.running_mean ~= nil
    if single then x = x:unsqueeze(1) end
    if x:size(2) ~= self.num_features then
      fail(format("%s has %d features, x has %d channels", name, self.num_features, x:size(2)))
    end
    local y = F.instance_norm(x, self.running_mean, self.running_var, self.weight, self.bias,
      { use_input_stats = self.training or not tracks, momentum = self.momentum, eps = self.eps })
    return single and y:squeeze(1) or y
  end, function(self) return tostring(self.num_features) end)
end
instance_norm(1, "[n, c, l]", "gb.rand(1, 2, 4)")
instance_norm(2, "[n, c, h, w]", "gb.rand(1, 2, 4, 4)")
instance_norm(3, "[n, c, d, h, w]", "gb.rand(1, 2, 2, 4, 4)")

local LocalResponseNorm = layer("gb.nn.LocalResponseNorm(size: size; alpha: number = 1e-4, beta: number = 0.75, k: \z
  number = 1) -> module: x / (k + alpha * m)^beta, m the mean of the squares of size channels around each. Example: \z
  local y = gb.nn.LocalResponseNorm(3)(gb.rand(1, 4, 2, 2))",
  function(self, size, o) self.size, self.options = size, setmetatable(o, {}) end)
forward(LocalResponseNorm, function(self, x) return F.local_response_norm(x, self.size, self.options) end,
  function(self) return tostring(self.size) end)

local function dropout(name, op, text, example)
  local class = layer(format("gb.nn.%s(p: number = 0.5) -> module: In training, %s. Errors: p outside 0 .. 1. \z
    Example: local y = gb.nn.%s(0.1)(%s)",
    name, text, name, example), function(self, p)
    if not (p >= 0 and p <= 1) then fail(format("%s: p lies between 0 and 1, got %s", name, native.shown(p))) end
    self.p = p
  end)
  forward(class, function(self, x)
    if not self.training or self.p == 0 then return x end
    return op(x, self.p, true)
  end, function(self) return format("p = %g", self.p) end)
end
dropout("Dropout1d", F.dropout1d, "zero whole channels of x [n, c, l] with probability p and scale the rest by 1 / \z
  (1 - p)", "gb.rand(1, 2, 4)")
dropout("Dropout2d", F.dropout2d, "zero whole channels of x [n, c, h, w] with probability p and scale the rest by 1 \z
  / (1 - p)",
  "gb.rand(1, 2, 4, 4)")
dropout("Dropout3d", F.dropout3d, "zero whole channels of x [n, c, d, h, w] with probability p and scale the rest \z
  by 1 / (1 - p)",
  "gb.rand(1, 2, 2, 4, 4)")
dropout("AlphaDropout", F.alpha_dropout, "dropout that keeps the mean and variance that selu gives", "x")
dropout("FeatureAlphaDropout", F.feature_alpha_dropout, "AlphaDropout of whole channels of x [n, c, ...]",
  "gb.rand(1, 2, 4)")

-- ====}

-- {==== bags of embeddings ====

local EmbeddingBag = layer("gb.nn.EmbeddingBag(rows: size, size: size; mode: \"sum\"|\"mean\"|\"max\" = \"mean\", \z
  include_last_offset: bool = false, padding_idx?: int, max_norm?: number, norm_type: number = 2, scale_grad_by_freq: \z
  bool = false, dtype?: dtype) -> module: The sum, mean or maximum of rows of a trained table by bags of integers \z
  from 0; the options as F.embedding_bag has them; called as module(index, offsets, per_sample_weights). Example: \z
  local y = gb.nn.EmbeddingBag(10, 4)(gb.arange(6):reshape(2, 3))", function(self, rows, size, o)
  if o.padding_idx and not (o.padding_idx >= 0 and o.padding_idx < rows) then
    fail(format("EmbeddingBag: padding_idx is an id from 0 to %d, got %d", rows - 1, o.padding_idx))
  end
  self.weight = init.normal_(nn.Parameter(gb.empty({ rows, size }, { dtype = o.dtype })))
  if o.padding_idx then gb.no_grad(function() self.weight[o.padding_idx + 1] = 0 end) end
  o.dtype = nil
  self.options = setmetatable(o, {})
end)
function EmbeddingBag:forward(index, offsets, weights, more)
  if more ~= nil then fail("EmbeddingBag takes index, offsets and per_sample_weights; there is one argument more") end
  return F.embedding_bag(index, self.weight, offsets, weights, self.options)
end
function EmbeddingBag:extra() return format("%d x %d, %s", self.weight:size(1), self.weight:size(2),
  self.options.mode) end

-- ====}
