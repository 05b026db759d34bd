-- metrics.lua - gb.Metrics: measures over many batches that are exact whatever the sizes of the batches are.
--
-- What a batch adds is kept as sums of numerators and of denominators (accuracy, F1, IoU, ...), as merged moments (R2),
-- or as the scores themselves (AUC; or as bins, with a bound on the error). A mean of means is taken nowhere.

local gb, native = ...
local fail = native.fail -- raises with the recipe's line
local define, own, private, copy = native.define, native.own, native.private, native.copy
local format, concat, exp, sort, sqrt = string.format, table.concat, math.exp, table.sort, math.sqrt
local math_type, huge, pack = math.type, math.huge, table.pack
local is_tensor, F = gb.is_tensor, gb.nn.functional

local NAN = 0 / 0

local function ratio(a, b) return b == 0 and NAN or a / b end

-- {==== what an output says of its target ====

local function shape_of(t) return "(" .. concat(t.shape, ", ") .. ")" end

-- The shape without one dimension, as text.
local function without(t, at)
  local sizes = t.shape
  table.remove(sizes, at)
  return concat(sizes, "x")
end

-- The scores as [n, classes], or as [n] of a single score each, and the targets as [n]. The classes lie in dimension
-- dim, unless given in the second as cross_entropy has them, or in the last where only that fits.
local function rows_of(o, output, target)
  output, target = output:detach(), target:detach()
  if output.ndim == target.ndim + 1 and output.ndim > 1 then
    local rest = concat(target.shape, "x")
    local at = o.dim or (without(output, 2) == rest and 2 or output.ndim)
    if at < 0 then at = output.ndim + 1 + at end
    if at >= 1 and at <= output.ndim and without(output, at) == rest then
      local classes = output:size(at)
      local scores = output:movedim(at, -1):reshape(-1, classes)
      return classes == 1 and scores:reshape(-1) or scores, target:reshape(-1)
    end
  end
  if concat(output.shape, "x") ~= concat(target.shape, "x") then
    fail(format("metrics: the output %s does not fit the target %s: it has the target's shape, or one dimension more, \z
      for classes", shape_of(output), shape_of(target)))
  end
  return output:reshape(-1), target:reshape(-1)
end

-- Those rows whose target is not ignore_index.
local function kept_rows(o, output, target)
  local scores, labels = rows_of(o, output, target)
  if labels.dtype ~= "int64" then labels = labels:long() end
  local kept = labels:ne(o.ignore_index)
  if kept:all():item() then return scores, labels end
  local places = kept:nonzero():reshape(-1)
  return scores:index_select(1, places), labels:index_select(1, places)
end

-- How many classes the scores tell apart; every label must be one of them.
local function classes_of(scores, labels)
  local classes = scores.ndim == 2 and scores:size(2) or 2
  if labels:numel() > 0 then
    local low, high = labels:min():item(), labels:max():item()
    if low < 0 or high >= classes then
      fail(format("metrics: a target is %d; classes are 0 to %d, by the output", low < 0 and low or high, classes - 1))
    end
  end
  return classes
end

local function predicted(o, scores)
  if scores.ndim == 2 then return scores:argmax(-1) end
  return scores:gt(o.threshold):long()
end

-- ====}

-- {==== measures ====
-- A row has its options with their defaults (nil is spelled false), begin() -> state, which is plain numbers and lists,
-- add(state, options, output, target), merge(state, other) where that is no sum, fits(state, options) where the form of
-- a state hangs on them, and value(state, options) -> number, and perhaps a second one by its suffix.

local labelled = { dim = false, ignore_index = -100, threshold = 0 }

local function with(more)
  local options = copy(labelled)
  for name, value in next, more do options[name] = value end
  return options
end

local measures = {}

local function no_counts() return { sum = 0, count = 0 } end
local function mean_value(state) return ratio(state.sum, state.count) end

measures.accuracy = { options = labelled, begin = no_counts, value = mean_value,
  add = function(state, o, output, target)
    local scores, labels = kept_rows(o, output, target)
    if labels:numel() > 0 then state.sum = state.sum + predicted(o, scores):eq(labels):sum():item() end
    state.count = state.count + labels:numel()
  end }

-- A target is hit where fewer than k classes come before it: those with a greater score, and of equal ones the first.
measures.top_k = { options = with { k = 5 }, begin = no_counts, value = mean_value,
  add = function(state, o, output, target)
    local scores, labels = kept_rows(o, output, target)
    if scores.ndim ~= 2 then fail(format("metrics: top_k needs an output with classes, got %s", shape_of(output))) end
    local classes = classes_of(scores, labels)
    if labels:numel() == 0 then return end
    local column = labels:unsqueeze(2)
    local own_score = scores:take_along_dim(column, 2)
    local places = gb.arange(classes, { device = scores.device })
    local before = scores:le(own_score):logical_not():logical_or(scores:eq(own_score):logical_and(places:lt(column)))
    state.sum = state.sum + before:sum(2):lt(o.k):sum():item()
    state.count = state.count + labels:numel()
  end }

-- By class: how often it was right, predicted, and there.
local function add_classes(state, o, output, target)
  local scores, labels = kept_rows(o, output, target)
  local classes = classes_of(scores, labels)
  state.single = scores.ndim == 1
  for c = #state.right + 1, classes do state.right[c], state.said[c], state.there[c] = 0, 0, 0 end
  if labels:numel() == 0 then return end
  local guess = predicted(o, scores)
  local hits = guess:eq(labels)
  local counts = { right = labels:masked_select(hits), said = guess, there = labels }
  for name, list in next, counts do
    local found = list:bincount({ minlength = classes }):tolist()
    for c = 1, classes do state[name][c] = state[name][c] + found[c] end
  end
end
local function no_classes() return { right = {}, said = {}, there = {}, single = false } end

-- A share of each class, f(right, said, there), averaged: over the classes that occur ("macro"), of all counts together
-- ("micro"), weighted by how often a class is there, or of class 1 alone ("binary", and where there is one score).
local function averaged(f)
  return function(state, o)
    local average = o.average or (state.single and "binary" or "macro")
    local sum, weight, right, said, there = 0, 0, 0, 0, 0
    for c = 1, #state.right do
      local r, s, t = state.right[c], state.said[c], state.there[c]
      if average == "binary" and c == 2 then return f(r, s, t) end
      local w = average == "weighted" and t or (s + t > 0 and 1 or 0)
      if w > 0 then sum, weight = sum + w * f(r, s, t), weight + w end
      right, said, there = right + r, said + s, there + t
    end
    if average == "micro" then return f(right, said, there) end
    return average == "binary" and NAN or ratio(sum, weight)
  end
end
local function harmonic(r, s, t) return ratio(2 * r, s + t) end
local function overlap(r, s, t) return ratio(r, s + t - r) end

local by_class = with { average = false }
measures.f1 = { options = by_class, begin = no_classes, add = add_classes, value = averaged(harmonic) }
measures.dice = measures.f1
measures.iou = { options = by_class, begin = no_classes, add = add_classes, value = averaged(overlap) }

measures.perplexity = { options = labelled, begin = no_counts,
  add = function(state, o, output, target)
    local scores, labels = kept_rows(o, output, target)
    if scores.ndim ~= 2 then
      fail(format("metrics: perplexity needs an output with classes, got %s", shape_of(output)))
    end
    classes_of(scores, labels)
    if labels:numel() == 0 then return end
    state.sum = state.sum + F.cross_entropy(scores:double(), labels, { reduction = "sum" }):item()
    state.count = state.count + labels:numel()
  end,
  value = function(state) return exp(mean_value(state)) end }

-- The differences and the targets of a regression, in float64.
local function differences(output, target)
  output, target = output:detach():double(), target:detach():double()
  if output:numel() ~= target:numel() then
    fail(format("metrics: the output %s does not fit the target %s", shape_of(output), shape_of(target)))
  end
  target = target:reshape(-1)
  return output:reshape(-1) - target, target
end

local function error_measure(f, last)
  return { options = {}, begin = no_counts,
    add = function(state, _, output, target)
      local d = differences(output, target)
      state.sum, state.count = state.sum + f(d):sum():item(), state.count + d:numel()
    end,
    value = function(state) return last(mean_value(state)) end }
end
local function same(x) return x end
measures.mae = error_measure(function(d) return d:abs() end, same)
measures.mse = error_measure(function(d) return d:square() end, same)
measures.rmse = error_measure(function(d) return d:square() end, sqrt)

-- The moments of two parts together (Chan, Golub, LeVeque 1979).
local function add_moments(state, other)
  local n, all = other.count, state.count + other.count
  if n == 0 then return end
  local delta = other.mean - state.mean
  state.square = state.square + other.square + delta * delta * state.count * n / all
  state.mean, state.count = state.mean + delta * (n / all), all
  state.error = state.error + other.error
end

measures.r2 = { options = {}, begin = function() return { count = 0, mean = 0.0, square = 0.0, error = 0.0 } end,
  add = function(state, _, output, target)
    local d, t = differences(output, target)
    local n = t:numel()
    if n == 0 then return end
    local mean = t:mean():item()
    add_moments(state, { count = n, mean = mean, square = (t - mean):square():sum():item(),
      error = d:square():sum():item() })
  end,
  merge = add_moments,
  value = function(state) return state.square == 0 and NAN or 1 - state.error / state.square end }

-- The score of class 1 alone.
local function single_scores(o, output, target)
  local scores, labels = kept_rows(o, output, target)
  if scores.ndim == 2 and scores:size(2) ~= 2 then
    fail(format("metrics: auc is of two classes; the output %s has %d", shape_of(output), scores:size(2)))
  end
  classes_of(scores, labels)
  if scores.ndim == 2 then scores = scores:select(2, 2):float() - scores:select(2, 1):float() end
  return scores:float(), labels
end

-- The area under the ROC curve: how often a positive has a greater score than a negative, equal ones counted half. With
-- bins, scores that share one count as equal; auc_error bounds what that can change. A score that is NaN has no place
-- in the order: then the area is NaN. With bins these have one of their own, behind the others.
measures.auc = { options = with { bins = 0 },
  begin = function() return { positive = {}, negative = {} } end,
  add = function(state, o, output, target)
    local scores, labels = single_scores(o, output, target)
    for name, label in next, { positive = 1, negative = 0 } do
      local part, list = scores:masked_select(labels:eq(label)), state[name]
      if o.bins == 0 then
        if part:numel() > 0 then list[#list + 1] = part:cpu() end
      else
        local bins = (part:sigmoid() * o.bins):floor():clamp(0, o.bins - 1)
        bins = bins:masked_fill(part:isnan(), o.bins):long()
        local found = bins:bincount({ minlength = o.bins + 1 }):tolist()
        for b = 1, o.bins + 1 do list[b] = (list[b] or 0) + found[b] end
      end
    end
  end,
  fits = function(state, o)
    for _, list in next, { state.positive, state.negative } do
      for i = 1, #list do
        if is_tensor(list[i]) ~= (o.bins == 0) then return false end
      end
      if o.bins > 0 and #list > 0 and #list ~= o.bins + 1 then return false end
    end
    return true
  end,
  value = function(state, o)
    if o.bins > 0 then
      local below, wins, ties, positives = 0, 0, 0, 0
      for _, list in next, state do
        if (list[o.bins + 1] or 0) > 0 then return NAN, "_error", NAN end
      end
      for b = 1, math.min(#state.positive, o.bins) do
        local p, n = state.positive[b], state.negative[b]
        wins, ties, below, positives = wins + p * below, ties + p * n, below + n, positives + p
      end
      return ratio(wins + ties / 2, positives * below), "_error", ratio(ties / 2, positives * below)
    end
    if #state.positive == 0 or #state.negative == 0 then return NAN end
    local positive, negative = gb.cat(state.positive), (gb.cat(state.negative):sort())
    if gb.cat({ positive, negative }):isnan():any():item() then return NAN end
    local lower = gb.searchsorted(negative, positive):sum():item()
    local upper = gb.searchsorted(negative, positive, { right = true }):sum():item()
    return (lower + upper) / (2 * positive:numel() * negative:numel())
  end }

-- A recipe's own: a function of output and target that gives a numerator, and a denominator or 1.
local called = { options = {}, begin = no_counts, value = mean_value,
  add = function(state, o, ...)
    local results = pack(o.fn(...))
    for i = 1, 2 do
      local value = results[i]
      if i == 2 and value == nil then value = 1 end
      if is_tensor(value) then value = value:detach():double():sum():item() end
      if type(value) ~= "number" then
        fail(format("metrics: the function gave a %s; it gives a numerator, and a denominator or nothing", type(value)))
      end
      local name = i == 1 and "sum" or "count"
      state[name] = state[name] + value
    end
  end }

-- ====}

-- {==== the object ====

-- What is private of one: names in order, rows by name: { measure, options, state }.
local Metrics = { __name = "gb.Metrics" }
Metrics.__index = Metrics
native.classes.Metrics = Metrics
Metrics.__tostring = function(self)
  local mine = private(self, "metrics")
  return mine and format("Metrics (%s)", concat(mine.names, ", ")) or "Metrics"
end

local averages = { macro = true, micro = true, weighted = true, binary = true }

-- An option of a measure, if it can be what was given.
local function checked_option(name, option, value)
  local must
  if option == "average" then must = not averages[value] and "macro, micro, weighted or binary"
  elseif option == "dim" then must = (math_type(value) ~= "integer" or value == 0) and "a dimension, from 1 or -1"
  elseif option == "k" then must = not (math_type(value) == "integer" and value >= 1) and "a whole number from 1"
  elseif option == "bins" then
    must = not (math_type(value) == "integer" and value >= 0 and value <= 1 << 20) and "a whole number from 0 to 2^20"
  elseif option == "ignore_index" then must = math_type(value) ~= "integer" and "a whole number"
  else must = not (type(value) == "number" and value > -huge and value < huge) and "a number" end
  if must then fail(format("Metrics: '%s' of %s must be %s, got %s", option, name, must, tostring(value))) end
  return value
end

-- A row of what a spec says: a name, { name, option = value }, or a function.
local function row_of(name, spec)
  if type(spec) == "function" then return { measure = called, options = { fn = spec } } end
  local given = type(spec) == "table" and spec or { spec }
  local measure = type(given[1]) == "string" and measures[given[1]]
  if not measure then
    fail(format("Metrics: there is no measure '%s'%s", tostring(given[1]), type(given[1]) == "string" and
      native.nearest(given[1], measures) or "; give a name, { name, option = value } or a function"))
  end
  local options = {}
  for option, default in next, measure.options do options[option] = default end
  for option, value in next, given do
    if option ~= 1 then
      if options[option] == nil then
        fail(format("Metrics: %s has no option '%s'%s", name, tostring(option), type(option) == "string" and
          native.nearest(option, options) or ""))
      end
      options[option] = checked_option(name, option, value)
    end
  end
  return { measure = measure, options = options }
end

Metrics.update = define("Metrics:update(output: tensor, target: tensor): One more batch. An output of classes has one \z
  dimension more than its target, for their scores; of a single score it has the target's shape. Errors: shapes that \z
  do not fit, targets that are no class. Example: local metrics = gb.Metrics({ \"accuracy\" }) \z
  metrics:update(gb.rand(4, 3), gb.tensor({ 0, 1, 2, 0 }))", "strict", function(self, output, target)
  local mine = private(self, "metrics")
  gb.no_grad(function()
    for _, name in ipairs(mine.names) do
      local row = mine.rows[name]
      row.measure.add(row.state, row.options, output, target)
    end
  end)
end)

-- Is it a state of the form of a fresh one? What lists hold are numbers and tensors.
local function is_like(fresh, state)
  for key, value in next, fresh do
    local given = type(state) == "table" and state[key]
    if type(given) ~= type(value) then return false end
    for _, entry in ipairs(type(given) == "table" and given or {}) do
      if not (math_type(entry) or is_tensor(entry)) then return false end
    end
  end
  return true
end

-- Refuse what is no state of these measures.
local function check_like(mine, state, who)
  for _, name in ipairs(mine.names) do
    local row = mine.rows[name]
    local measure = row.measure
    if not is_like(measure.begin(), state[name]) or measure.fits and not measure.fits(state[name], row.options) then
      fail(format("Metrics: %s: the state has no '%s', or that of a measure with other options", who, name))
    end
  end
end

-- What two states count together: numbers are added, lists of numbers each by each, lists of tensors one after another.
local function add_counts(state, other)
  for key, value in next, other do
    if type(value) == "table" then
      local list = state[key]
      for i = 1, #value do
        if is_tensor(value[i]) then list[#list + 1] = value[i] else list[i] = (list[i] or 0) + value[i] end
      end
    elseif type(value) == "boolean" then state[key] = state[key] or value
    else state[key] = state[key] + value end
  end
end

Metrics.merge = define("Metrics:merge(state: tree): Add what metrics of the same measures have seen elsewhere, as \z
  their state_dict() tells it: the measures are then those of all batches together. Merged one after another, states \z
  of one batch each give the bits of metrics that saw all of them in that order. Errors: a state of other measures. \z
  Example: local a, b = gb.Metrics({ \"mae\" }), gb.Metrics({ \"mae\" }) a:merge(b:state_dict())", "strict",
    function(self, state)
  local mine = private(self, "metrics")
  check_like(mine, state, "merge")
  for _, name in ipairs(mine.names) do
    local row = mine.rows[name]
    local merge = row.measure.merge or add_counts
    merge(row.state, state[name])
  end
end)

Metrics.compute = define("Metrics:compute() -> table: The measures by name, of all batches since the last reset; NaN \z
  where nothing was measured. Example: local metrics = gb.Metrics({ \"mae\" }) metrics:update(gb.rand(4), gb.rand(4)) \z
  print(metrics:compute().mae)", "strict", function(self)
  local mine, values = private(self, "metrics"), {}
  for _, name in ipairs(mine.names) do
    local row = mine.rows[name]
    local value, suffix, second = row.measure.value(row.state, row.options)
    values[name] = value
    if suffix then values[name .. suffix] = second end
  end
  return values
end)

local function reset(mine)
  for _, name in ipairs(mine.names) do mine.rows[name].state = mine.rows[name].measure.begin() end
end

Metrics.reset = define("Metrics:reset(): Begin anew, as for the next epoch. Example: gb.Metrics({ \"mae\" }):reset()",
  "strict", function(self) reset(private(self, "metrics")) end)

Metrics.state_dict = define("Metrics:state_dict() -> table: What was summed so far. Example: local state = \z
  gb.Metrics({ \"mae\" }):state_dict()", "strict", function(self)
  local mine, state = private(self, "metrics"), {}
  for _, name in ipairs(mine.names) do state[name] = copy(mine.rows[name].state, true) end
  return state
end)

Metrics.load_state_dict = define("Metrics:load_state_dict(state: tree): Go on from what state_dict gave. Errors: a \z
  state of other measures. Example: local metrics = gb.Metrics({ \"mae\" }) \z
  metrics:load_state_dict(metrics:state_dict())", "strict", function(self, state)
  local mine = private(self, "metrics")
  check_like(mine, state, "load_state_dict")
  for _, name in ipairs(mine.names) do mine.rows[name].state = state[name] end
end)

-- Metrics of the same measures, empty.
function native.metrics_like(metrics) return gb.Metrics(private(metrics, "metrics").spec) end

gb.Metrics = define("gb.Metrics(measures: tree) -> metrics: Measures of outputs beside targets, exact for batches of \z
  any sizes: accuracy, top_k { k = 5 }, f1, iou and dice { average = \"macro\", \"micro\", \"weighted\" or \"binary\" \z
  }, auc { bins = 0: every score is kept; else an auc_error says how far off it may be }, perplexity, mae, mse, rmse, \z
  r2; or a function that gives a numerator and a denominator. A list of names, or name = { measure, option = value }. \z
  Those of classes take dim (of the classes), ignore_index (-100) and threshold (0, of a single score: a logit). \z
  Errors: an unknown measure or option. Example: local metrics = gb.Metrics({ \"accuracy\", top3 = { \"top_k\", k = 3 \z
  } })", "strict", function(spec)
  local mine = { names = {}, rows = {}, spec = spec }
  for key, value in next, spec do
    local name = key
    if math_type(key) == "integer" then name = type(value) == "table" and value[1] or value end
    if type(name) ~= "string" then
      fail(format("Metrics: entry %s has no name; write name = %s", tostring(key), type(value)))
    end
    if mine.rows[name] then fail(format("Metrics: '%s' is there twice; give one another name", name)) end
    mine.rows[name] = row_of(name, value)
    mine.names[#mine.names + 1] = name
  end
  if #mine.names == 0 then fail("Metrics: there is no measure; give some, such as { \"accuracy\" }") end
  sort(mine.names)
  reset(mine)
  return own(setmetatable({}, Metrics), "metrics", mine)
end)

-- ====}
