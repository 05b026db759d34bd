-- nn/utils.lua - parameters as one vector, and clipping by a norm that is known. optim.c has the clipping that
-- measures.

local gb, native = ...
local fail = native.fail -- raises with the recipe's line
local define = native.define
local format, huge, is_tensor = string.format, math.huge, gb.is_tensor
local utils, nn_parameter = gb.nn.utils, gb.nn.Parameter

utils.parameters_to_vector = define("gb.nn.utils.parameters_to_vector(parameters: tensors) -> tensor: All elements \z
  in one row, in order; gradients flow through it. Errors: an empty list. Example: \z
  print(gb.nn.utils.parameters_to_vector(model:parameters()).shape[1])", "strict", function(parameters)
  local rows = is_tensor(parameters) and { parameters } or parameters
  if #rows == 0 then fail("parameters_to_vector: the list is empty; give model:parameters()") end
  for i = 1, #rows do rows[i] = rows[i]:reshape(-1) end
  return gb.cat(rows)
end)

utils.vector_to_parameters = define("gb.nn.utils.vector_to_parameters(vector: tensor, parameters: tensors): Write \z
  the elements of a vector into the parameters, in order, each in its own dtype. Errors: a vector of another length \z
  than they have together. Example: \z
  gb.nn.utils.vector_to_parameters(gb.nn.utils.parameters_to_vector(model:parameters()), \z
  model:parameters())", "strict", function(vector, parameters)
  local list, total = is_tensor(parameters) and { parameters } or parameters, 0
  for i = 1, #list do total = total + list[i]:numel() end
  if vector.ndim ~= 1 or vector:numel() ~= total then
    fail(format("vector_to_parameters: the parameters have %d elements together, the vector has the shape %s", total,
      vector.ndim == 0 and "of a single number" or table.concat(vector.shape, "x")))
  end
  gb.no_grad(function()
    local values = vector:detach():clone() -- it may be a view of the parameters
    local at = 1
    for i = 1, #list do
      local n = list[i]:numel()
      list[i]:copy_(values:narrow(1, at, n):reshape(list[i].shape))
      at = at + n
    end
  end)
end)

-- The norm of one tensor as a tensor; 16 bits would overflow.
local function norm_of(t, kind)
  t = t:detach()
  if t.dtype == "float16" or t.dtype == "bfloat16" then t = t:to("float32") end
  return t:norm(kind)
end

utils.get_total_norm = define("gb.nn.utils.get_total_norm(tensors: tensors, norm_type: number = 2, \z
  error_if_nonfinite: bool = false) -> tensor: The norm of all elements together, of gradients as a rule; 0 of an \z
  empty list. norm_type is above 0, math.huge for the largest element. Gradients that gb.optim.Sharded shares out are \z
  brought together for it, so every process calls it with the same ones. Errors: a norm that is inf or NaN, where \z
  error_if_nonfinite is true. Example: loss:backward() local norm = gb.nn.utils.get_total_norm({ \z
  model:parameters()[1].grad })", "strict",
  function(tensors, norm_type, error_if_nonfinite)
    if not (norm_type > 0) then
      fail(format("get_total_norm: norm_type is %s; it must be above 0 (2, or math.huge for the largest element)",
        native.shown(norm_type)))
    end
    if is_tensor(tensors) then tensors = { tensors } end
    native.check_scales("get_total_norm", tensors)
    local norms = native.whole_gradients(tensors)
    if #norms == 0 then return gb.tensor(0.0) end
    local device = norms[1].device
    for i = 1, #norms do
      if not norms[i]:is_floating_point() then
        fail(format("get_total_norm: tensor %d is of %s; gradients are of a floating dtype", i, norms[i].dtype))
      end
      norms[i] = norm_of(norms[i], norm_type):to(device)
      if norms[i].dtype ~= norms[1].dtype then
        for k = 1, i do norms[k] = norms[k]:to("float64") end
      end
    end
    local total = gb.stack(norms):norm(norm_type)
    if error_if_nonfinite and not total:isfinite():item() then
      fail(format("get_total_norm: the norm is %s; look for inf or NaN in the loss, or leave error_if_nonfinite out",
        native.shown(total:item())))
    end
    return total
  end)

utils.clip_grads_with_norm_ = define("gb.nn.utils.clip_grads_with_norm_(parameters: tensors, max_norm: number, \z
  total_norm: tensor|number): Scale the gradients by max_norm / total_norm where that is below 1; total_norm is what \z
  get_total_norm gave, perhaps of more tensors than these, and the same on every process. Errors: a max_norm below 0. \z
  Example: \z
  gb.nn.utils.clip_grads_with_norm_(model:parameters(), 1.0, \z
  2.5)", "strict", function(parameters, max_norm, total_norm)
  if not (max_norm >= 0) then
    fail(format("clip_grads_with_norm_: max_norm is %s; it must be 0 or more", native.shown(max_norm)))
  end
  if is_tensor(total_norm) and total_norm:numel() ~= 1 then
    fail(format("clip_grads_with_norm_: total_norm has %d elements; it is one number, as get_total_norm gives",
      total_norm:numel()))
  end
  local list, seen = is_tensor(parameters) and { parameters } or parameters, {}
  gb.no_grad(function()
    local norm = is_tensor(total_norm) and total_norm:detach():reshape({}) or gb.tensor(total_norm,
      { dtype = "float64" })
    local share = (norm:add(1e-6):reciprocal() * max_norm):clamp(-huge, 1)
    for i = 1, #list do
      local grad = not seen[list[i]] and list[i].grad
      seen[list[i]] = true
      if grad then
        native.check_scales("clip_grads_with_norm_", { grad })
        grad:mul_(share:to(grad.device))
      end
    end
  end)
end)

utils.recompute = define("gb.nn.utils.recompute(model: module, pattern: string) -> count: Keep only the inputs of the \z
  modules whose names match a pattern of Lua, and run them again in backward, as gb.recompute does. Returns how many \z
  there are. Errors: a pattern that no name matches. Example: local model = \z
  gb.nn.Sequential(gb.nn.Linear(4, 4), gb.nn.GELU()) print(gb.nn.utils.recompute(model, \"[01]\"))", "strict",
  function(model, pattern)
    local count = 0
    for name, module in gb.nn.Module.named_modules(model) do
      if name ~= "" and string.find(name, "^" .. pattern .. "$") then
        local forward = module.forward
        local function run(...) return forward(module, ...) end
        native.replace_forward(module, function(_, ...)
          if not gb.is_grad_enabled() then return run(...) end
          return gb.recompute(run, ...)
        end)
        count = count + 1
      end
    end
    if count == 0 then
      fail(format("recompute: no module's name matches '%s'; amp.plan(model) lists them", pattern))
    end
    return count
  end)

-- {==== a batch norm within the layer before it ====

-- weight and bias of a layer whose results, channel by channel, a batch norm would change. dim: of the channels.
local function fused(who, weight, bias, mean, var, eps, scale, shift, dim)
  local channels = mean:numel()
  if weight.ndim < 2 or weight:size(dim) ~= channels then
    fail(format("%s: the weight has shape [%s] and the norm %d channels; its dimension %d counts them", who,
      table.concat(weight.shape, ", "), channels, dim))
  end
  if not (eps >= 0) then fail(format("%s: eps is %g; it is 0 or more", who, eps)) end
  return gb.no_grad(function()
    local factor = (var + eps):rsqrt()
    local shape = {}
    for d = 1, weight.ndim do shape[d] = d == dim and channels or 1 end
    local whole = scale and factor * scale or factor
    local moved = ((bias and bias - mean or -mean) * factor) * (scale or 1)
    if shift then moved = moved + shift end
    return nn_parameter((weight * whole:reshape(shape)):to(weight.dtype)),
      nn_parameter(moved:to(bias and bias.dtype or weight.dtype))
  end)
end

local fused_doc = " -> tensor, tensor: The weight and the bias of a layer that gives what a batch norm makes of the \z
  results of a layer of conv_w and conv_b, by its running statistics. "

utils.fuse_conv_bn_weights = define("gb.nn.utils.fuse_conv_bn_weights(conv_w: tensor, conv_b?: tensor, bn_rm: tensor, \z
  bn_rv: tensor, bn_eps: number, bn_w?: tensor, bn_b?: tensor, transpose: bool = false)" .. fused_doc .. "transpose: \z
  the channels are dimension 2 of conv_w, as in a transposed convolution. Errors: channels that do not fit. Example: \z
  local w, b = gb.nn.utils.fuse_conv_bn_weights(gb.ones(2, 3, 1, 1), nil, gb.zeros(2), gb.ones(2), 1e-5)", "strict",
  function(w, b, mean, var, eps, scale, shift, transpose)
    return fused("fuse_conv_bn_weights", w, b, mean, var, eps, scale, shift, transpose and 2 or 1)
  end)

utils.fuse_linear_bn_weights = define("gb.nn.utils.fuse_linear_bn_weights(linear_w: tensor, linear_b?: tensor, bn_rm: \z
  tensor, bn_rv: tensor, bn_eps: number, bn_w?: tensor, bn_b?: tensor) -> tensor, tensor: As fuse_conv_bn_weights, of \z
  a linear layer. Errors: features that do not fit. Example: local w, b = \z
  gb.nn.utils.fuse_linear_bn_weights(gb.ones(2, 3), nil, gb.zeros(2), gb.ones(2), 1e-5)", "strict",
  function(w, b, mean, var, eps, scale, shift)
    return fused("fuse_linear_bn_weights", w, b, mean, var, eps, scale, shift, 1)
  end)

-- A layer like this one with a batch norm in its weights.
local function fuse(who, module, norm, dim)
  local activation = module.activation or type(module.options) == "table" and module.options.activation
  if module.training or norm.training then fail(who .. ": it is for evaluation; call eval() on both first") end
  if not is_tensor(norm.running_mean) then fail(who .. ": the norm keeps no running statistics") end
  if not native.is_parameter(module.weight) then fail(who .. ": the layer has no parameter 'weight'") end
  if activation and activation ~= "none" then
    fail(format("%s: the layer's activation, %s, comes before the norm", who, activation))
  end
  if (norm.activation or "none") ~= "none" then
    fail(format("%s: the norm's activation, %s, would be lost; set norm.activation to \"none\" and put it behind", who,
      norm.activation))
  end
  local made = native.twin(module)
  made.weight, made.bias = fused(who, module.weight, module.bias, norm.running_mean, norm.running_var, norm.eps,
    norm.weight, norm.bias, dim)
  return made
end

utils.fuse_conv_bn_eval = define("gb.nn.utils.fuse_conv_bn_eval(conv: module, bn: module, transpose: bool = false) -> \z
  module: A convolution that gives what the batch norm makes of this one's results, both in evaluation. transpose: it \z
  is a transposed one. Errors: training; a norm without running statistics. Example: local conv, bn = gb.nn.Conv2d(2, \z
  3, 1):eval(), gb.nn.BatchNorm2d(3):eval() local both = gb.nn.utils.fuse_conv_bn_eval(conv, bn)", "strict",
  function(conv, bn, transpose) return fuse("fuse_conv_bn_eval", conv, bn, transpose and 2 or 1) end)

utils.fuse_linear_bn_eval = define("gb.nn.utils.fuse_linear_bn_eval(linear: module, bn: module) -> module: The same \z
  of a linear layer. Errors: as fuse_conv_bn_eval. Example: local linear, bn = gb.nn.Linear(2, 3):eval(), \z
  gb.nn.BatchNorm1d(3):eval() local both = gb.nn.utils.fuse_linear_bn_eval(linear, bn)", "strict",
  function(linear, bn) return fuse("fuse_linear_bn_eval", linear, bn, 1) end)

-- ====}

-- {==== samples of different lengths ====

utils.rnn.pad_sequence = define("gb.nn.utils.rnn.pad_sequence(sequences: tensors, batch_first: bool = false, \z
  padding_value: number = 0; padding_side: \"left\"|\"right\" = \"right\") -> tensor: Samples [length, ...] of \z
  different lengths in one tensor [longest, n, ...] (batch_first: [n, longest, ...]), filled up with padding_value. \z
  Errors: no samples, samples that differ in other sizes. Example: local x = \z
  gb.nn.utils.rnn.pad_sequence({ gb.ones(2, 3), gb.ones(4, 3) })", "strict",
  function(sequences, batch_first, padding_value, options)
    local longest, padded = 0, {}
    if #sequences == 0 then fail("pad_sequence: there are no samples") end
    for i = 1, #sequences do
      if sequences[i].ndim < 1 then fail(format("pad_sequence: sample %d has no length", i)) end
      longest = math.max(longest, sequences[i]:size(1))
    end
    for i = 1, #sequences do
      local x = sequences[i]
      local shape = x.shape
      shape[1] = longest - x:size(1)
      local rest = gb.full(shape, padding_value, { dtype = x.dtype, device = x.device })
      padded[i] = gb.cat(options.padding_side == "left" and { rest, x } or { x, rest }, 1)
    end
    return gb.stack(padded, batch_first and 1 or 2)
  end)

utils.rnn.unpad_sequence = define("gb.nn.utils.rnn.unpad_sequence(padded: tensor, lengths: tensor, \z
  batch_first: bool = false) -> list: The samples of what pad_sequence gave, as views of their lengths. Errors: \z
  lengths that do not fit. Example: local list = gb.nn.utils.rnn.unpad_sequence(gb.ones(4, 2, 3), \z
  gb.tensor({ 2, 4 }))", "strict", function(padded, lengths, batch_first)
  local list, sizes = {}, lengths:reshape(-1):tolist()
  local batch, time = batch_first and 1 or 2, batch_first and 2 or 1
  if padded.ndim < 2 or padded:size(batch) ~= #sizes then
    fail(format("unpad_sequence: %d lengths do not fit a tensor of %s", #sizes, table.concat(padded.shape, "x")))
  end
  for i, n in ipairs(sizes) do
    if math.type(n) ~= "integer" or n < 0 or n > padded:size(time) then
      fail(format("unpad_sequence: length %d is %s; it is 0 .. %d", i, native.shown(n), padded:size(time)))
    end
    list[i] = padded:select(batch, i):narrow(1, 1, n)
  end
  return list
end)

-- ====}
