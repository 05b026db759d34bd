-- test_operands.lua - every row of the op table by the kind of its operands: integers, Lua numbers, 0-d tensors of
-- another dtype, mixed dtypes, NaN, integers beyond 2^53 and numbers beyond the range of a dtype.
--
-- References are PyTorch's (tests/golden/operands/, made by operands.py): an error must be an error, integers must
-- be those integers in that dtype, floats lie within a few spacings of their dtype, and float64 gradients within as few
-- of float64. Mixed dtypes need no reference: float32 and float16 beside float64 must give what float64 gives. Where
-- ours differs from PyTorch's on purpose, `deviations` says why; docs/numbers.md explains it. A row that has no case of
-- a kind must be in `without`, or be excused by its signature, so that a new op cannot be forgotten.

local gb = require "gibbous"
local describe, it = gb.test.describe, gb.test.it
local cases = dofile("tests/lua/cases.lua")

local records = dofile("tests/lua/goldens.lua").read("operands")

-- {==== reading records ====

-- A value is written as text: an integer keeps its bits.
local function value(text) return math.tointeger(text) or (text == "nan" and 0 / 0) or
  (text:find("inf") and (text:sub(1, 1) == "-" and -math.huge or math.huge)) or tonumber(text) end

local function values(t)
  local list = {}
  for word in t.values:gmatch("%S+") do list[#list + 1] = value(word) end
  return list
end

local function tensor(t)
  if t["nil"] then return nil end
  local list = values(t)
  if t.dtype == "bool" then for i, v in ipairs(list) do list[i] = v ~= 0 end end
  if #list == 0 then return gb.zeros(t.shape, { dtype = t.dtype }) end
  return gb.tensor(list, { dtype = t.dtype }):reshape(t.shape)
end

local function argument(a, inputs)
  if type(a) ~= "table" then return a end
  if a["in"] then return inputs[a["in"]] end
  if a["nil"] then return nil end
  if a.number then return a.float and (value(a.number) + 0.0) or value(a.number) end
  local list = {}
  for key, v in pairs(a.options or a) do list[key] = argument(v, inputs) end
  return list
end

-- What ours makes of a record: the results, and the gradient if it asks for one.
local function run(record)
  local inputs, arguments = {}, {}
  for i, t in ipairs(record.inputs) do inputs[i - 1] = tensor(t) end
  if record.grad then inputs[record.grad.by]:requires_grad_() end
  for i = 1, #record.args do arguments[i] = argument(record.args[i], inputs) end
  local out = { cases.op(record.op)(table.unpack(arguments, 1, #record.args)) }
  for _, y in ipairs(out) do y:reshape(-1):tolist() end -- waits: a device tells of a division by zero only then
  if not record.grad then return out end
  local total
  for _, y in ipairs(out) do
    if y.requires_grad then total = total and total + y:sum() or y:sum() end
  end
  return out, gb.grad(total, inputs[record.grad.by])
end

-- ====}

-- {==== comparing ====

local function flat(t)
  local list = t:detach():reshape(-1):tolist()
  for i, v in ipairs(list) do if type(v) == "boolean" then list[i] = v and 1 or 0 end end
  return list
end

-- Sums are as exact as their terms, so the spacing is that of the element plus a quarter of the largest one.
local function same(what, got, want, growth)
  local dtype = want.dtype
  if got.dtype ~= dtype then error(("%s is %s, expected %s"):format(what, got.dtype, dtype), 0) end
  if table.concat(got.shape, "x") ~= table.concat(want.shape, "x") then
    error(("%s has shape %s, expected %s"):format(what, table.concat(got.shape, "x"), table.concat(want.shape, "x")), 0)
  end
  local a, b, largest = flat(got), values(want), 0
  for _, v in ipairs(b) do
    if v == v and math.abs(v) < math.huge then largest = math.max(largest, math.abs(v)) end
  end
  for i, v in ipairs(b) do
    local exact = math.type(a[i]) == "integer" and a[i] == v or a[i] ~= a[i] and v ~= v or a[i] == v
    local near = cases.epsilon[dtype] and
      math.abs(a[i] - v) <= growth * cases.epsilon[dtype] * (math.abs(v) + largest / 4)
    if not exact and not near then error(("%s, element %d: %s, expected %s"):format(what, i, a[i], v), 0) end
  end
end

-- ====}

-- Where ours is not PyTorch's: the ops ("*": all), kinds of operand ("*"), a pattern in the call as it is shown, what
-- differs ("allowed": PyTorch refuses it; "refused": ours does; "other": the result), and why.
local deviations = {
  { "addcmul", "integer number beyond 2^53", "0%.5", "other", "a fraction makes the result float32; PyTorch cuts it \z
    to 0" },
  { "addcmul", "nan", "nan", "allowed", "NaN is a float, as above" },
  { "addcdiv", "*", "int", "allowed", "as division: integers give float32" },
  { "addcdiv", "0-d", "float32 0%-d", "other", "PyTorch divides by the float32 operand in float32" },
  { "addcmul", "out of range", "300", "allowed", "the number is not wrapped to the tensor's dtype first; only the \z
    result is" },
  { "masked_fill pad", "*", "%.5", "refused", "a fraction is not cut in silence" },
  { "index_put", "number", "0%.5", "refused", "a fraction is not cut in silence" },
  { "local_response_norm rotary_embedding dropout matmul mm mv bmm dot addmm baddbmm linear mlp l1_loss embedding \z
    conv2d max_pool2d avg_pool2d "
      .. "max_pool1d max_pool3d avg_pool1d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool3d adaptive_max_pool1d "
      .. "adaptive_max_pool2d adaptive_max_pool3d lp_pool1d lp_pool2d lp_pool3d max_unpool1d max_unpool2d max_unpool3d "
      .. "conv1d conv3d conv_transpose1d conv_transpose2d conv_transpose3d cov corrcoef tensordot inner vdot addmv \z
        addbmm", "integer beyond 2^53", "int", "refused",
    "floating tensors only: the message says x:float()" },
  { "relu6 hardtanh hardsigmoid threshold", "integer beyond 2^53", "int", "refused",
    "floating tensors only: the message says x:float()" },
  { "hinge_embedding_loss margin_ranking_loss triplet_margin_loss cosine_embedding_loss poisson_nll_loss \z
    gaussian_nll_loss dice_loss "
      .. "pairwise_distance bilinear", "integer beyond 2^53", "int", "refused",
        "floating tensors only: the message says x:float()" },
  { "triplet_margin_loss dice_loss pairwise_distance normalize", "nan", "nan", "refused",
    "an option that is NaN is a mistake, and said to be one" },
  { "multi_margin_loss", "nan", "nan", "other", "a margin of NaN gives NaN; PyTorch takes it for one that is kept" },
  { "topk", "integer beyond 2^53", "int", "other", "of equal elements, which index is given is not fixed" },
  { "bitwise_left_shift bitwise_right_shift", "out of range", "1099511627776", "other", "the number is not wrapped to \z
    the tensor's dtype first; only the result is" },
  { "gcd lcm", "*", "int", "other", "the magnitude of the smallest integer; PyTorch's overflows on the way" },
  { "pow", "out of range", "%-5", "allowed", "a negative power is the reciprocal without its fraction" },
  { "pow", "out of range", "of u?int", "allowed", "the number is not wrapped to the tensor's dtype first; only the \z
    result is" },
  { "maximum minimum", "out of range", "of u?int", "refused", "a number that would be the result and does not fit; \z
    PyTorch takes no numbers here" },
  { "maximum minimum", "out of range", "of u?int", "other", "a number that is no bound; PyTorch takes no numbers \z
    here, and wraps a 0-d tensor" },
  { "lt le gt ge", "out of range", "of u?int", "other", "the number is compared as it is; PyTorch wraps it to the \z
    tensor's dtype first" },
  { "atan2", "0-d", "float64, float32 0%-d", "other", "PyTorch squares the float32 operand in float32" },
  { "heaviside", "0-d", "0%-d", "allowed", "as other ops of two operands; PyTorch wants one dtype" },
  { "copysign", "nan", "nan", "other", "the sign of a NaN is the processor's" },
  { "celu", "number", "0%.3", "other", "PyTorch divides by alpha in float32" },
  { "logit", "nan", "nan", "other", "a bound that is NaN leaves nothing else, as in clamp" },
  { "hardtanh", "nan", "nan", "refused", "a bound that is NaN is a mistake, and said to be one" },
  { "trapezoid", "beyond 2^53", "int64, int64", "other", "integers count as float32" },
  { "index_fill scatter", "*", "%.5", "refused", "a fraction is not cut in silence" },
  { "norm layer_norm rms_norm add_layer_norm cross_entropy batch_norm group_norm dist", "nan", "nan", "refused",
    "an option that is NaN is a mistake, and said to be one" },
}

local function describe_call(record)
  local parts = {}
  for i, t in ipairs(record.inputs) do parts[i] = t["nil"] and "nil" or t.dtype .. (#t.shape == 0 and " 0-d" or "") end
  local function show(a)
    if type(a) ~= "table" then return tostring(a) end
    if a.number then return a.number end
    if a["in"] then return "x" .. a["in"] end
    if a["nil"] then return "nil" end
    local list, names = {}, {}
    for key in pairs(a.options or a) do names[#names + 1] = key end
    table.sort(names, function(x, y) return tostring(x) < tostring(y) end)
    for _, key in ipairs(names) do
      list[#list + 1] = (a.options and key .. " = " or "") .. show((a.options or a)[key])
    end
    return "{" .. table.concat(list, ", ") .. "}"
  end
  local args = {}
  for i, a in ipairs(record.args) do args[i] = show(a) end
  return ("%s(%s) of %s"):format(record.op, table.concat(args, ", "), table.concat(parts, ", "))
end

local function excused(record, what)
  local call = describe_call(record)
  for _, row in ipairs(deviations) do
    if (row[1] == "*" or (" " .. row[1] .. " "):find(" " .. record.op .. " ", 1, true)) and
      (row[2] == "*" or row[2]:find(record.kind, 1, true)) and call:find(row[3]) and row[4]:find(what, 1, true) then
      row.used = true
      return true
    end
  end
end

local covered = {}
local function covers(op, kind)
  covered[op] = covered[op] or {}
  covered[op][kind] = true
end

local floats_only = {} -- rows that refuse integers

local function check(record)
  local ok, out, gradient = pcall(run, record)
  if record.error then
    if not ok and tostring(out):find("float", 1, true) then floats_only[record.op] = true end
    if ok and not excused(record, "allowed") then error("PyTorch refuses it; ours gives " .. tostring(out[1]), 0) end
    return
  end
  if not ok then
    if tostring(out):find("must be a floating tensor", 1, true) then floats_only[record.op] = true end
    if not excused(record, "refused") then error(out, 0) end
    return
  end
  local alike, why = pcall(function()
    for i, want in ipairs(record.out) do if out[i] then same("result " .. i, out[i], want, 16) end end
    if record.grad then same("the gradient", gradient, record.grad.value, 64) end
  end)
  if not alike and not excused(record, "other") then error(why, 0) end
end

describe("as PyTorch", function()
  for _, record in ipairs(records) do
    covers(record.op, record.kind)
    it(record.kind .. ": " .. describe_call(record), function() check(record) end)
  end
end)

-- {==== mixed dtypes: one floating input narrower than the others, which are float64 ====

-- Rows that want one dtype and say so, and rows whose parts are computed by themselves.
local one_dtype = {
  conv1d = "refused: as conv2d", conv3d = "refused: as conv2d", conv_transpose1d = "refused: as conv2d",
  conv_transpose2d = "refused: as conv2d", conv_transpose3d = "refused: as conv2d",
  conv2d = "refused: convert one, or use autocast", linear_cross_entropy = "refused: convert one, or use autocast",
  layer_norm = "the result has the dtype of x", rms_norm = "the result has the dtype of x",
    batch_norm = "the result has the dtype of x, or what x and residual promote to",
  group_norm = "the result has the dtype of x", instance_norm = "the result has the dtype of x",
  cross_entropy = "the loss has the dtype of x", nll_loss = "the loss has the dtype of x",
    scatter_add = "the result has the dtype of x",
  rotary_embedding = "the result has the dtype of x",
  index_copy = "the result has the dtype of x", scatter = "the result has the dtype of x",
  select_scatter = "the result has the dtype of x", quantile = "the result has the dtype of x",
  index_add = "the result has the dtype of x", index_put = "the result has the dtype of x",
    masked_scatter = "the result has the dtype of x",
  scatter_reduce = "the result has the dtype of x", index_reduce = "the result has the dtype of x",
  slice_scatter = "the result has the dtype of x", diagonal_scatter = "the result has the dtype of x",
  put = "the result has the dtype of x", cov = "the result has the dtype of x",
}
local refused = {} -- those of them that a case has met

-- The gradients of a case, of float64 results.
local function both(case, inputs)
  local out = cases.run(case, inputs)
  return out, cases.gradients(case, inputs, out)
end

local function near(what, a, b, dtype, growth)
  local ok, why = cases.within(a, b, dtype, growth)
  if not ok then error(what .. ": " .. why, 0) end
end

local function check_mixed(case, k, narrow)
  local mixed, wide = cases.inputs(case, "float64"), cases.inputs(case, "float64")
  mixed[k] = mixed[k]:detach():to(narrow)
  if case.differentiable[k] then mixed[k]:requires_grad_() end
  local want, want_grads = both(case, wide)
  local got, got_grads = both(case, mixed)
  for i, y in ipairs(want) do
    if y:is_floating_point() then
      if got[i].dtype ~= "float64" then error(("result %d is %s"):format(i, got[i].dtype), 0) end
      near("result " .. i, got[i], y, "float64", case.growth)
    end
  end
  for i, g in pairs(want_grads) do
    near("gradient " .. i, got_grads[i], g, i == k and narrow or "float64", 2 * case.growth)
  end
end

describe("mixed dtypes", function()
  for _, case in ipairs(cases.list) do
    local floats = {}
    local inputs = cases.inputs(case, "float64", { grad = false })
    for i = 0, case.inputs - 1 do
      if inputs[i] and inputs[i]:is_floating_point() then floats[#floats + 1] = i end
    end
    for _, k in ipairs(#floats > 1 and floats or {}) do
      for _, narrow in ipairs { "float32", "float16" } do
        covers(case.op, "mixed")
        it(("%s, input %d in %s"):format(case.name, k, narrow), function()
          local ok, why = pcall(check_mixed, case, k, narrow)
          if ok then return end
          if not one_dtype[case.op] then error(why, 0) end
          refused[case.op] = true
        end)
      end
    end
  end
end)

-- ====}

-- {==== NaN: where the result is NaN, so is the gradient ====

-- Rows whose slope does not depend on the value, or is PyTorch's at NaN.
local steady = {
  relu = "PyTorch passes the gradient on", leaky_relu = "PyTorch takes NaN for negative",
    abs = "PyTorch's sign of NaN is 0",
  clamp = "PyTorch's gradient is 0 where x is not inside", maximum = "both get the gradient, as in PyTorch",
    minimum = "as maximum",
  add = "the slope is 1", sub = "the slope is 1", neg = "the slope is -1", remainder = "the slope is 1",
    mul = "the slope is the other operand",
  div = "the slope is 1 over the other operand", lerp = "the slope is the weight", addcmul = "the slope is 1",
    addcdiv = "the slope is 1",
  where = "the slope is 1 or 0", masked_fill = "the slope is 1 or 0", tril = "the slope is 1 or 0",
    triu = "the slope is 1 or 0",
  dropout = "the slope is a constant", sign = "the slope is 0", floor = "the slope is 0", ceil = "the slope is 0",
    round = "the slope is 0",
  trunc = "the slope is 0", fmod = "the slope is 1", frac = "the slope is 1", positive = "the slope is 1",
    copysign = "the slope is a sign",
  deg2rad = "the slope is a constant", rad2deg = "the slope is a constant", hardshrink = "the slope is 1 or 0",
    softshrink = "the slope is 1 or 0",
  threshold = "the slope is 1 or 0", relu6 = "the slope is 1 or 0", hardtanh = "the slope is 1 or 0",
    hardsigmoid = "the slope is 1 / 6 or 0",
  hardswish = "PyTorch takes NaN for large", xlogy = "the slope is the other logarithm",
    xlog1py = "the slope is the other logarithm",
}

local function check_nan(case, i)
  local inputs = cases.inputs(case, "float64")
  local spoilt = inputs[i]:detach():clone()
  spoilt:reshape(-1)[1] = 0 / 0
  inputs[i] = spoilt:requires_grad_()
  local out = cases.run(case, inputs)
  if not out[1]:isnan():any():item() then return end
  local gradient = gb.grad(out[1]:sum(), inputs[i])
  if gradient:reshape(-1)[1]:isnan():item() == false then
    error("the result is NaN, its gradient is " .. gradient:reshape(-1)[1]:item(), 0)
  end
end

local families = {}
for _, row in ipairs(gb.test.ops()) do families[row.name] = row.family end

describe("NaN in, NaN in the gradient", function()
  for _, case in ipairs(cases.list) do
    if families[case.op] == "elementwise" and case.tag ~= "empty" then
      for i = 0, case.inputs - 1 do
        if case.differentiable[i] then
          covers(case.op, "nan")
          if not steady[case.op] then it(case.name .. " by input " .. i, function() check_nan(case, i) end) end
        end
      end
    end
  end
end)

-- ====}

-- {==== every row has a case of every kind, or a reason ====

-- How many tensors a row takes that must be there.
local function tensors_of(row)
  local count = 0
  for word in row.signature:match("^[^;%->]*"):gmatch("[^,]+") do
    if not word:find("[:?]") then count = count + 1 end
  end
  return count
end

local elements = "NaN as an element: test_special_values.lua"
-- What a row's signature, or its refusal of integers, says by itself.
local excuses = {
  ["integer"] = function() end,
  ["0-d"] = function(row)
    return row.family ~= "elementwise" and "its operands do not broadcast; 0-d tensors: test_sizes.lua" or
      tensors_of(row) < 2 and "one tensor"
  end,
  ["number"] = function(row) return not row.signature:find("number") and "takes no number" end,
  ["mixed"] = function(row) return (tensors_of(row) < 2 or row.derivative == "no") and "one tensor, or a test" end,
  ["nan"] = function(row) return (not row.signature:find("number") or row.derivative == "no") and elements or
    steady[row.name] end,
  ["beyond 2^53"] = function(row) return floats_only[row.name] and "refuses integers" end,
  ["out of range"] = function(row) return (not row.signature:find("number") or floats_only[row.name]) and
    "no number meets integers" end,
}

-- Rows without a case of a kind that is not excused so.
local random = "draws: test_random.lua"
local float_result = "integers are floats before the number meets them"
local floating = "one floating tensor"
local moves = "moves and compares elements: tests/lua/test_arrange.lua"
local counted = "its integers are positions in the result"
local whole_channels = { ["out of range"] = "a probability",
  number = "a probability: test_vision.lua", nan = "a probability: test_vision.lua" }
local without = {
  lp_pool1d = { number = "the exponent of a norm", nan = "an exponent that is NaN is refused" },
  lp_pool2d = { number = "the exponent of a norm", nan = "an exponent that is NaN is refused" },
  lp_pool3d = { number = "the exponent of a norm", nan = "an exponent that is NaN is refused" },
  linear_cross_entropy = { number = "a share: test_made.lua", nan = "a share: test_made.lua" },
  embedding_bag = { number = "a bound: test_made.lua", nan = "a bound: test_made.lua" },
  index_add = { number = "a factor: test_made.lua", nan = "a factor: test_made.lua",
    ["out of range"] = "a factor: test_made.lua" },
  max_unpool1d = { mixed = floating }, max_unpool2d = { mixed = floating }, max_unpool3d = { mixed = floating },
  pad = { number = "test_vision.lua", nan = "test_vision.lua", ["out of range"] = "test_vision.lua" },
  interpolate = { number = "a scale: test_vision.lua", nan = "a scale: test_vision.lua" },
  instance_norm = { number = "constants of its formula", nan = "constants of its formula" },
  local_response_norm = { number = "constants of its formula", nan = "constants of its formula" },
  dropout1d = whole_channels, dropout2d = whole_channels, dropout3d = whole_channels, alpha_dropout = whole_channels,
  feature_alpha_dropout = whole_channels,
  addcdiv = { ["out of range"] = float_result }, polygamma = { ["out of range"] = float_result },
  logit = { ["out of range"] = float_result }, nan_to_num = { ["out of range"] = "integers have nothing to replace" },
  isclose = { ["out of range"] = "its tolerances are floats" },
    dropout = { number = "a probability: its draws are tested in test_random.lua" },
  masked_fill = { mixed = floating }, gather = { mixed = floating },
    index_select = { mixed = floating },
  embedding = { mixed = floating, number = "a bound: test_made.lua", nan = "a bound: test_made.lua" },
  masked_select = { mixed = floating }, one_hot = { ["beyond 2^53"] = "its integers are positions in a row" },
  multilabel_margin_loss = { mixed = floating }, ctc_loss = { mixed = floating },
  repeat_interleave = { mixed = floating, number = "a count: test_scatter.lua", nan = "a count",
    ["out of range"] = "a count" },
  take = { mixed = floating }, take_along_dim = { mixed = floating }, index_fill = { mixed = floating },
  nanquantile = { mixed = "as quantile" },
  trapezoid = { ["out of range"] = "integers count as float32" },
  renorm = { number = "its golden case has two", nan = "a bound is compared with it" },
  searchsorted = { number = moves, ["out of range"] = moves }, bucketize = { number = moves, ["out of range"] = moves },
  isin = { number = moves, ["out of range"] = moves, ["beyond 2^53"] = moves },
  bincount = { ["beyond 2^53"] = counted }, histc = { number = "its golden case has two" },
  nextafter = { integer = "test_small_ops.lua", ["0-d"] = "test_small_ops.lua",
    ["beyond 2^53"] = "float32 and float64 only" },
  unique = { ["beyond 2^53"] = moves }, unique_consecutive = { ["beyond 2^53"] = moves },
  cov = { number = "its golden case has one", nan = "every element is NaN then" },
  bernoulli = { integer = random, ["beyond 2^53"] = random, number = random, ["out of range"] = random },
    multinomial = { integer = random, ["beyond 2^53"] = random },
}

describe("every row", function()
  for _, row in ipairs(gb.test.ops()) do
    if row.public then
      for kind, excuse in pairs(excuses) do
        local listed = without[row.name] and without[row.name][kind]
        it(("%s has a case: %s"):format(row.name, kind), function()
          local has = covered[row.name] and covered[row.name][kind]
          if not has and not excuse(row) and not listed then error("it has none, and no reason is listed", 0) end
          if has and listed then error("it has one, and a reason why not is listed", 0) end
        end)
      end
    end
  end
end)

describe("rows of one dtype", function()
  for op in pairs(one_dtype) do
    it(op, function() if not refused[op] then error("no case needs this reason", 0) end end)
  end
end)

describe("deviations", function()
  for _, row in ipairs(deviations) do
    it(row[1] .. ", " .. row[2] .. ", " .. row[3], function() if not row.used then
      error("no call is meant by it", 0) end end)
  end
end)

-- ====}

gb.test.finish()
