-- nn/rare.lua - layers and losses that few recipes need, made of others: randomised and two-dimensional activations,
-- losses by a distance of one's own, the heads of large vocabularies, fractional pooling.

local gb, native = ...
local fail, define = native.fail, native.define -- fail raises with the recipe's line
local nn = gb.nn
local check_tensor = native.check_tensor
local F, layer, method, refuse = nn.functional, native.layer, native.layer_method, native.refuse_more
local format, rep, concat, floor, ipairs, type = string.format, string.rep, table.concat, math.floor, ipairs, type

-- {==== activations ====

-- In training the slope of each element is drawn; else it is the middle.
local function rrelu(x, lower, upper, training)
  if not (lower <= upper and lower > -math.huge and upper < math.huge) then
    fail(format("rrelu: lower is %g and upper %g; they are finite, and lower is not the larger", lower, upper))
  end
  if not training then return F.leaky_relu(x, (lower + upper) / 2) end
  local slopes = gb.rand_like(x:detach()) * (upper - lower) + lower
  return gb.where(x:gt(0), x, x * slopes)
end
local rrelu_record = "(x: tensor, lower: number = 0.125, upper: number = 0.3333333333333333, training: bool = false) \z
  -> tensor: x where positive, else times a slope: in training one drawn from lower .. upper for each element, else \z
  the middle (Xu et al. 2015). Errors: a lower above upper. Example: local y = "
F.rrelu = define("gb.nn.functional.rrelu" .. rrelu_record .. "gb.nn.functional.rrelu(x, 0.1, 0.3, true)", "strict",
  rrelu)
gb.rrelu = define("gb.rrelu" .. rrelu_record .. "gb.rrelu(x)", "strict", rrelu)

local RReLU = layer("gb.nn.RReLU(lower: number = 0.125, upper: number = 0.3333333333333333;) -> module: x where \z
  positive, else times a slope: in training one drawn from lower .. upper for each element, else the middle. Example: \z
  local y = gb.nn.RReLU()(x)", function(self, lower, upper)
    self.lower, self.upper = lower, upper
  end)
function RReLU:forward(x, more)
  if more ~= nil then refuse(self, "x") end
  return F.rrelu(x, self.lower, self.upper, self.training)
end
function RReLU:extra() return format("lower = %g, upper = %g", self.lower, self.upper) end

local Softmax2d = layer("gb.nn.Softmax2d() -> module: softmax over the channels of x [n, c, h, w] or [c, h, w]. \z
  Example: local y = gb.nn.Softmax2d()(gb.rand(1, 3, 2, 2))", function() end)
function Softmax2d:forward(x, more)
  if more ~= nil then refuse(self, "x") end
  check_tensor("Softmax2d", x)
  if x.ndim ~= 3 and x.ndim ~= 4 then fail(format("Softmax2d expects 3 or 4 dimensions, got %d", x.ndim)) end
  return F.softmax(x, -3)
end

-- ====}

-- {==== losses ====

-- Losses by what `reduction` says.
local function reduced(losses, reduction)
  if reduction == "none" then return losses end
  return reduction == "sum" and losses:sum() or losses:mean()
end

local function check_margin(who, margin)
  if not (margin > 0) then fail(format("%s: margin is %g; it is above 0", who, margin)) end
end

-- What a distance function gave, or an error.
local function distance(fn, a, b)
  local d = fn(a, b)
  if not gb.is_tensor(d) then
    fail("triplet_margin_with_distance_loss: distance_function gives a tensor, got " .. type(d))
  end
  return d
end

F.triplet_margin_with_distance_loss = define("gb.nn.functional.triplet_margin_with_distance_loss(anchor: tensor, \z
  positive: tensor, negative: tensor; distance_function?: function, margin: number = 1, swap: bool = false, \z
  reduction: \"none\"|\"mean\"|\"sum\" = \"mean\") -> tensor: max(0, margin + d(anchor, positive) - d(anchor, \z
  negative)), d the function that is given, or pairwise_distance. swap: d(positive, negative) where that is smaller \z
  than d(anchor, negative). Errors: a margin that is not above 0, tensors of different numbers of dimensions. \z
  Example: local loss = gb.nn.functional.triplet_margin_with_distance_loss(x, x * 2, x * 3, { distance_function = \z
  function(a, b) return (a - b):abs():amax(-1) end })", "strict", function(anchor, positive, negative, o)
    check_margin("triplet_margin_with_distance_loss", o.margin)
    if anchor.ndim ~= positive.ndim or anchor.ndim ~= negative.ndim then
      fail(format("triplet_margin_with_distance_loss: anchor has %d dimensions, positive %d and negative %d; they \z
        need as many each", anchor.ndim, positive.ndim, negative.ndim))
    end
    local fn = o.distance_function or F.pairwise_distance
    local near, far = distance(fn, anchor, positive), distance(fn, anchor, negative)
    if o.swap then far = gb.minimum(far, distance(fn, positive, negative)) end
    return reduced((near - far + o.margin):clamp(0), o.reduction)
  end)

local Triplet = layer("gb.nn.TripletMarginWithDistanceLoss(; distance_function?: function, margin: number = 1, swap: \z
  bool = false, reduction: string = \"mean\") -> module: F.triplet_margin_with_distance_loss of anchor, positive and \z
  negative. Errors: a margin that is not above 0. Example: local loss = gb.nn.TripletMarginWithDistanceLoss { margin \z
  = 0.5 }(x, x * 2, x * 3)", function(self, o)
    check_margin("TripletMarginWithDistanceLoss", o.margin)
    self.options = setmetatable(o, {})
  end)
function Triplet:forward(anchor, positive, negative, more)
  if more ~= nil then refuse(self, "anchor, positive and negative") end
  return F.triplet_margin_with_distance_loss(anchor, positive, negative, self.options)
end
function Triplet:extra() return format("margin = %g", self.options.margin) end

-- ====}

-- {==== heads of large vocabularies ====

local LinearCrossEntropyLoss = layer("gb.nn.LinearCrossEntropyLoss(in_features: size, num_classes: size; \z
  out_features?: ints, bias: bool = false, weight?: tensor, reduction: string = \"mean\", ignore_index: int = -100, \z
  label_smoothing: number = 0, dtype?: dtype) -> module: cross_entropy of what a linear layer makes of x [n, \z
  in_features], in chunks that never hold all logits where no option forbids it (F.linear_cross_entropy). \z
  out_features: sizes of the places that each sample has a target for: [n, out_features...]. weight: what each class \z
  counts. Example: local loss = gb.nn.LinearCrossEntropyLoss(4, 10)(x, gb.arange(4))",
  function(self, in_features, num_classes, o)
    local places = 1
    self.num_classes = num_classes
    self.out_features = setmetatable(type(o.out_features) == "table" and o.out_features or { o.out_features }, {})
    for i, size in ipairs(self.out_features) do
      if size < 1 then fail(format("LinearCrossEntropyLoss: size %d of out_features is %d; it is above 0", i, size)) end
      places = places * size
    end
    if o.weight and (o.weight.ndim ~= 1 or o.weight:size(1) ~= num_classes) then
      fail(format("LinearCrossEntropyLoss: weight has shape [%s]; there are %d classes", concat(o.weight.shape, ", "),
        num_classes))
    end
    self.linear = nn.Linear(in_features, num_classes * places, { bias = o.bias, dtype = o.dtype })
    if o.weight then self:register_buffer("weight", o.weight) end
    self.options = setmetatable({ reduction = o.reduction, ignore_index = o.ignore_index,
      label_smoothing = o.label_smoothing }, {})
  end, true)

function LinearCrossEntropyLoss:forward(x, target, more)
  if more ~= nil then refuse(self, "x and target") end
  check_tensor("LinearCrossEntropyLoss", x)
  check_tensor("LinearCrossEntropyLoss", target)
  local places = self.out_features
  if #places == 0 and x.ndim == 2 then
    return F.linear_cross_entropy(x, self.linear.weight, target, self.linear.bias, self.weight, self.options)
  end
  local logits = self.linear(x)
  if #places > 0 then
    if x.ndim ~= 2 then fail(format("LinearCrossEntropyLoss: x has %d dimensions; it is [n, in_features]", x.ndim)) end
    logits = logits:unflatten(2, { self.num_classes, table.unpack(places) })
  end
  return F.cross_entropy(logits, target, self.weight, self.options)
end
function LinearCrossEntropyLoss:extra() return format("%d classes, %s", self.num_classes, self.options.reduction) end

local Adaptive = layer("gb.nn.AdaptiveLogSoftmaxWithLoss(in_features: size, n_classes: size, cutoffs: ints; \z
  div_value: number = 4, head_bias: bool = false, dtype?: dtype) -> module: The logarithms of the targets' \z
  probabilities and their mean loss, where rare classes stand in clusters with features of their own, fewer by \z
  div_value for each (Grave et al. 2017). Classes are sorted by how frequent they are, the most frequent first; \z
  cutoffs say where the clusters begin. Errors: cutoffs that do not rise within the classes, a cluster without \z
  features. Example: local y, loss = gb.nn.AdaptiveLogSoftmaxWithLoss(16, 20, { 5, 10 })(gb.rand(3, 16), gb.tensor \z
  { 1, 7, 19 })",
  function(self, in_features, n_classes, cutoffs, o)
    local list = setmetatable({}, {})
    for i, at in ipairs(type(cutoffs) == "table" and cutoffs or { cutoffs }) do
      if at <= (list[i - 1] or 0) or at >= n_classes then
        fail(format("AdaptiveLogSoftmaxWithLoss: cutoff %d is %d; they rise from 1 up to %d", i, at, n_classes - 1))
      end
      list[i] = at
    end
    if #list == 0 then fail("AdaptiveLogSoftmaxWithLoss: there is no cutoff") end
    self.in_features, self.n_classes = in_features, n_classes
    self.shortlist_size, self.n_clusters = list[1], #list
    list[#list + 1] = n_classes
    self.cutoffs = list
    self.head = nn.Linear(in_features, list[1] + #list - 1, { bias = o.head_bias, dtype = o.dtype })
    self.tail = nn.ModuleList()
    for i = 1, self.n_clusters do
      local features = o.div_value > 0 and floor(in_features / o.div_value ^ i) or 0
      if features < 1 or features > 1 << 40 then
        fail(format("AdaptiveLogSoftmaxWithLoss: div_value %g leaves cluster %d without features, of %d",
        o.div_value, i,
          in_features))
      end
      local plain = { bias = false, dtype = o.dtype }
      self.tail:append(nn.Sequential(nn.Linear(in_features, features, plain),
        nn.Linear(features, list[i + 1] - list[i], plain)))
    end
  end, true)

-- One sample as a batch of one.
local function batched(self, x, target)
  check_tensor("AdaptiveLogSoftmaxWithLoss", x)
  if x.ndim ~= (target and target.ndim + 1 or x.ndim) or x.ndim < 1 or x.ndim > 2 or x:size(-1) ~= self.in_features then
    fail(format("AdaptiveLogSoftmaxWithLoss expects x [n, %d] and a target [n], or one sample, got x [%s]%s",
      self.in_features, concat(x.shape, ", "), target and " and a target [" .. concat(target.shape, ", ") .. "]" or ""))
  end
  if x.ndim == 2 then
    if target and target:size(1) ~= x:size(1) then
      fail(format("AdaptiveLogSoftmaxWithLoss: x has %d samples, target %d", x:size(1), target:size(1)))
    end
    return x, target
  end
  return x:unsqueeze(1), target and target:unsqueeze(1)
end

function Adaptive:forward(input, targets, more)
  if more ~= nil then refuse(self, "x and target") end
  check_tensor("AdaptiveLogSoftmaxWithLoss", targets)
  local x, target = batched(self, input, targets)
  if target:numel() > 0 and target:lt(0):logical_or(target:ge(self.n_classes)):any():item() then
    fail(format("AdaptiveLogSoftmaxWithLoss: a target lies outside of 0 .. %d", self.n_classes - 1))
  end
  -- the place of each target in the head: its own, or its cluster's
  local at, parts, rows = target:long(), {}, {}
  for i = 1, self.n_clusters do
    local low, high = self.cutoffs[i], self.cutoffs[i + 1]
    local inside = target:ge(low):logical_and(target:lt(high))
    local index = inside:nonzero():squeeze(2)
    if index:numel() > 0 then
      local logs = F.log_softmax(self.tail[i](x:index_select(1, index)), 2)
      parts[#parts + 1] = logs:gather(2, (target:index_select(1, index) - low):long():unsqueeze(2)):squeeze(2)
      rows[#rows + 1] = index
      at = at:masked_fill(inside, self.shortlist_size + i - 1)
    end
  end
  local output = F.log_softmax(self.head(x), 2):gather(2, at:unsqueeze(2)):squeeze(2)
  if #parts > 0 then
    local more_logs = gb.cat(parts)
    output = output:index_add(1, gb.cat(rows), more_logs:to(output.dtype))
  end
  local loss = -output:mean()
  return input.ndim == 1 and output:squeeze(1) or output, loss
end

-- The logarithms of all probabilities.
local function log_prob(self, x)
  local head = F.log_softmax(self.head(x), 2)
  local parts = { head:narrow(2, 1, self.shortlist_size) }
  for i = 1, self.n_clusters do
    local logs = F.log_softmax(self.tail[i](x), 2)
    parts[i + 1] = logs + head:narrow(2, self.shortlist_size + i, 1)
  end
  return gb.cat(parts, 2)
end

method(Adaptive, "AdaptiveLogSoftmaxWithLoss:log_prob(x: tensor) -> tensor: The logarithms of the probabilities of \z
  all classes [n, n_classes]. Example: local y = gb.nn.AdaptiveLogSoftmaxWithLoss(8, 20, { 5 }):log_prob(gb.rand(3, \z
  8))",
  function(self, x)
    if x.ndim ~= 2 then batched(self, x, x) end -- its error
    return log_prob(self, (batched(self, x)))
  end)

method(Adaptive, "AdaptiveLogSoftmaxWithLoss:predict(x: tensor) -> tensor: The most likely class of each sample, from \z
  0. Example: local y = gb.nn.AdaptiveLogSoftmaxWithLoss(8, 20, { 5 }):predict(gb.rand(3, 8))", function(self, x)
    local logs = log_prob(self, (batched(self, x)))
    local best = logs:argmax(2)
    return x.ndim == 1 and best:squeeze(1) or best
  end)

function Adaptive:extra() return format("%d -> %d, cutoffs %s", self.in_features, self.n_classes,
  concat(self.cutoffs, ", ")) end

-- ====}

-- {==== fractional pooling ====

-- As many whole numbers as an argument of `places` takes, of one or a list.
local function sizes_of(who, name, given, places)
  local list = {}
  for i = 1, places do list[i] = type(given) == "table" and given[i] or type(given) ~= "table" and given or nil end
  if #list ~= places or type(given) == "table" and #given ~= places then
    fail(format("%s: %s takes 1 or %d numbers", who, name, places))
  end
  return list
end

-- Where the windows begin along a dim of n elements: at floor((i + u) step) - floor(u step), the last one at the end.
local function starts_of(u, n, count, window)
  local i = gb.arange(0, count, 1, { dtype = u.dtype, device = u.device })
  local step = count > 1 and (n - window) / (count - 1) or 0
  local from = (u.ndim > 2 and u or u:unsqueeze(-1)) -- [n, c, 1]
  local starts = ((from + i) * step):floor() - (from * step):floor()
  return starts:long():masked_fill(i:eq(count - 1), n - window)
end

-- The largest elements of windows at random places, [n, c, ...] with `places` dims behind the channels.
local function fractional(who, x, kernel, o, places)
  local batch = x.ndim == places + 2
  if not batch and x.ndim ~= places + 1 then
    fail(format("%s expects %d dimensions, or %d without a batch, got %d", who, places + 2, places + 1, x.ndim))
  end
  if not x:is_floating_point() then fail(format("%s: x is %s; convert it with x:float()", who, x.dtype)) end
  if (o.output_size == nil) == (o.output_ratio == nil) then
    fail(who .. " takes either output_size or output_ratio")
  end
  if not batch then x = x:unsqueeze(1) end
  kernel = sizes_of(who, "kernel_size", kernel, places)
  local shape, wanted = x.shape, sizes_of(who, "output_size", o.output_size or 1, places)
  local ratios = o.output_ratio and sizes_of(who, "output_ratio", o.output_ratio, places)
  for d = 1, places do
    local n = shape[d + 2]
    if ratios then
      if type(ratios[d]) ~= "number" or not (ratios[d] > 0 and ratios[d] < 1) then
        fail(format("%s: output_ratio lies between 0 and 1, got %s", who, native.shown(ratios[d])))
      end
      wanted[d] = floor(n * ratios[d])
    end
    if kernel[d] < 1 or wanted[d] < 1 or kernel[d] + wanted[d] - 1 > n then
      fail(format("%s: %d windows of %d do not fit into %d elements of dimension %d: windows + size - 1 is that at \z
        most",
        who, wanted[d], kernel[d], n, d + 2))
    end
  end
  local u = o.random_samples
  if u then
    if concat(u.shape, "x") ~= format("%dx%dx%d", shape[1], shape[2], places) then
      fail(format("%s: random_samples has shape [%s]; it is [%d, %d, %d], from 0 to 1", who, concat(u.shape, ", "),
        shape[1], shape[2], places))
    end
    if u:numel() > 0 and not u:ge(0):logical_and(u:le(1)):all():item() then
      fail(who .. ": random_samples lie between 0 and 1")
    end
  end
  local computed = x.dtype == "float64" and "float64" or "float32"
  u = u and u:detach():to(computed) or gb.rand({ shape[1], shape[2], places }, { dtype = computed, device = x.device })
  -- the flat place of each window's first element [n, c, ...], then of each of its elements behind it
  local first, offsets, stride = nil, gb.zeros({ 1 }, { dtype = "int64", device = x.device }), 1
  for d = places, 1, -1 do
    -- the numbers of an image are for its columns, then for its rows; those of a volume stand in its order
    local draw = places == 2 and places + 1 - d or d
    local starts = starts_of(u:narrow(3, draw, 1), shape[d + 2], wanted[d], kernel[d]) * stride
    for _ = 1, d - 1 do starts = starts:unsqueeze(3) end
    for _ = d + 1, places do starts = starts:unsqueeze(-1) end
    first = first and first + starts or starts
    local steps = gb.arange(0, kernel[d], 1, { device = x.device }) * stride
    offsets = (steps:unsqueeze(2) + offsets:unsqueeze(1)):reshape(-1)
    stride = stride * shape[d + 2]
  end
  local whole = { shape[1], shape[2], table.unpack(wanted) }
  local at = (first:expand(whole):flatten(3):unsqueeze(-1) + offsets):flatten(3)
  local values, which = x:flatten(3):gather(3, at):unflatten(3, { -1, offsets:numel() }):max(-1)
  values = values:reshape(whole)
  local indices = o.return_indices
    and at:unflatten(3, { -1, offsets:numel() }):gather(4, which:unsqueeze(-1)):reshape(whole) or nil
  if batch then return values, indices end
  return values:squeeze(1), indices and indices:squeeze(1)
end

for places, shapes in ipairs { false, "[n, c, h, w]", "[n, c, d, h, w]" } do
  if shapes then
    local name, class_name = format("fractional_max_pool%dd", places), format("FractionalMaxPool%dd", places)
    local sample = format("gb.rand(1, 2%s)", rep(", 6", places))
    local example = sample .. ", 2, { output_size = 3 }"
    F[name] = define(format("gb.nn.functional.%s(x: tensor, kernel_size: ints; output_size?: ints, output_ratio?: \z
      number|list, return_indices: bool = false, random_samples?: tensor) -> tensor, tensor: The largest elements of \z
      windows of x %s that begin at random places, as many as output_size says, or a share of x's size (Graham 2014). \z
      return_indices: also where they were (from 0). random_samples [n, c, %d]: in place of numbers that are drawn. \z
      Errors: windows that do not fit. Example: local y = gb.nn.functional.%s(%s)", name, shapes, places, name,
      example), "strict", function(x, kernel, o) return fractional(name, x, kernel, o, places) end)
    local class = layer(format("gb.nn.%s(kernel_size: ints; output_size?: ints, output_ratio?: number|list, \z
      return_indices: bool = false, random_samples?: tensor) -> module: F.%s: the largest elements of windows at \z
      random places. Example: local y = gb.nn.%s(2, { output_ratio = 0.5 })(%s)", class_name, name, class_name, sample),
      function(self, kernel, o)
        if (o.output_size == nil) == (o.output_ratio == nil) then
          fail(class_name .. " takes either output_size or output_ratio")
        end
        self.kernel_size = setmetatable(type(kernel) == "table" and kernel or { kernel }, {})
        self.options = setmetatable(o, {})
      end)
    local op = F[name]
    function class:forward(x, more)
      if more ~= nil then refuse(self, "x") end
      local kernel = self.kernel_size
      return op(x, #kernel == 1 and kernel[1] or kernel, self.options)
    end
    function class:extra() return concat(self.kernel_size, "x") end
  end
end

-- ====}
