-- average.lua - averages of a model's weights over training: stochastic weight averaging and exponential moving
-- averages, as torch.optim.swa_utils has them, and the statistics of batch norms for weights that were averaged.
--
-- An average is a list of tensors by the names of the model's parameters, not a second model: apply() and copy_to()
-- put it into one. Averages of 16-bit weights are kept in float32, where small steps are not lost.

local gb, native = ...
local fail = native.fail -- raises with the recipe's line
local define, own, private = native.define, native.own, native.private
local format, concat, find = string.format, table.concat, string.find
local Module, is_tensor = gb.nn.Module, gb.is_tensor

-- What is private of an average: model, options, n (how many times it was updated), list (what is averaged, in order:
-- { name =, value = the average }), applied (are the averages in the model's place?).
local Average = { __name = "gb.optim.Average" }
native.classes.Average = Average

-- n_averaged is PyTorch's name for the count.
Average.__index = function(self, key)
  if key ~= "n_averaged" then return Average[key] end
  local mine = private(self, "average")
  return mine and mine.n
end
Average.__tostring = function(self)
  local mine = private(self, "average")
  return mine and format("%s (%d tensors, %d updates)", mine.name, #mine.list, mine.n) or "average"
end

-- What is averaged of a model: a list of { name, tensor }.
local function tensors_of(model, use_buffers)
  local list = {}
  for name, p in Module.named_parameters(model) do list[#list + 1] = { name, p } end
  if use_buffers then
    for name, b in Module.named_buffers(model) do list[#list + 1] = { name, b } end
  end
  return list
end

-- The tensors of a model that has what is averaged, under the same names and in the same shapes.
local function matching(mine, model, who)
  local found = tensors_of(model or mine.model, mine.options.use_buffers)
  if #found ~= #mine.list then
    fail(format("%s: %d tensors are averaged, the model has %d; give the model that the average was made for", who,
      #mine.list, #found))
  end
  for i = 1, #found do
    local name, tensor, entry = found[i][1], found[i][2], mine.list[i]
    local mine_shape, shape = concat(entry.value.shape, "x"), concat(tensor.shape, "x")
    if name ~= entry.name or shape ~= mine_shape then
      fail(format("%s: the model has %s (%s) where %s (%s) is averaged", who, name, shape, entry.name, mine_shape))
    end
    found[i] = tensor
  end
  return found
end

-- The model's tensor as the average is kept.
local function like(value, tensor) return tensor:detach():to(value.device):to(value.dtype) end

-- How far a weight of the average goes towards the model's: by 1 / (n + 1), so that all updates count the same, or by
-- 1 - decay. With a warmup the decay is smaller at first, so that the beginning is forgotten soon.
local function share_of(mine)
  local n, o = mine.n, mine.options
  if o.mode ~= "ema" then return 1 / (n + 1) end
  return 1 - (o.warmup and math.min(o.decay, (1 + n) / (10 + n)) or o.decay)
end

-- Take the model's tensors into the averages, in place; the first update takes the model's. Integers, such as counts of
-- batches, are the model's.
local function update(mine, tensors)
  local share = share_of(mine)
  for i = 1, #tensors do
    local value = mine.list[i].value
    if mine.n == 0 or not value:is_floating_point() then value:copy_(tensors[i])
    else value:lerp_(like(value, tensors[i]), share) end
  end
end

-- What avg_fn gives for one average. It gets handles of its own, which it may free.
local function called(mine, entry, current)
  local result = mine.options.avg_fn(entry.value:detach(), current, mine.n)
  if not is_tensor(result) then
    local kind = type(result)
    fail(format("Average: avg_fn must give a tensor, got a %s", kind == "userdata" and "tensor that was freed" or kind))
  end
  local shape, wanted = concat(result.shape, "x"), concat(entry.value.shape, "x")
  if shape ~= wanted then fail(format("Average: avg_fn gave the shape %s for %s (%s)", shape, entry.name, wanted)) end
  return result:detach()
end

-- The averages by avg_fn: all of them, before any is changed.
local function called_for_all(mine, tensors)
  local values = {}
  for i = 1, #tensors do
    local entry = mine.list[i]
    local current = like(entry.value, tensors[i])
    values[i] = entry.value:is_floating_point() and called(mine, entry, current) or current
  end
  return values
end

-- The averages by multi_avg_fn, which changes copies of all of them at once. It may free
-- them; another tensor in the place of one is an error.
local function changed_together(mine, tensors)
  local values, floats, given, current = {}, {}, {}, {}
  for i = 1, #tensors do
    local value = mine.list[i].value
    local weight = like(value, tensors[i])
    if value:is_floating_point() then
      local n = #floats + 1
      floats[n], given[n], current[n] = i, value:clone(), weight
      values[i] = given[n]:detach()
    else values[i] = weight
    end
  end
  local before = native.copy(given)
  mine.options.multi_avg_fn(given, current, mine.n)
  for n = 1, #before do
    if not rawequal(rawget(given, n), before[n]) then
      fail(format("Average: multi_avg_fn put something else in the place of average %d; change the averages in place, \z
        as in averages[i]:lerp_(weights[i], 0.1)", n))
    end
  end
  return values
end

-- Write values into tensors, one by one.
local function write(tensors, values)
  gb.no_grad(function()
    for i = 1, #tensors do tensors[i]:copy_(values[i]) end
  end)
end

-- The averages, or the tensors that hold them.
local function values_of(mine)
  local values = {}
  for i = 1, #mine.list do values[i] = mine.list[i].value end
  return values
end

local function refuse_applied(mine, who)
  if mine.applied then fail(format("%s: the averages are in the model's place; wait until apply returns", who)) end
end

Average.update_parameters = define("Average:update_parameters(model?: module): Take the weights of the model, after \z
  a step of training, into the average. average.n_averaged counts the updates. Errors: a model of other parameters; \z
  inside apply. Example: gb.optim.EMA(model):update_parameters()", "strict", function(self, model)
  local mine = private(self, "average")
  refuse_applied(mine, "update_parameters")
  local tensors = matching(mine, model, "update_parameters")
  gb.no_grad(function()
    local o = mine.options
    if mine.n == 0 or not (o.avg_fn or o.multi_avg_fn) then return update(mine, tensors) end
    write(values_of(mine), o.multi_avg_fn and changed_together(mine, tensors) or called_for_all(mine, tensors))
  end)
  mine.n = mine.n + 1
end)

Average.copy_to = define("Average:copy_to(model?: module): Write the averages into the model, or into another of the \z
  same parameters. Errors: a model of other parameters. Example: \z
  gb.optim.EMA(model):copy_to()", "strict", function(self, model)
  local mine = private(self, "average")
  refuse_applied(mine, "copy_to")
  write(matching(mine, model, "copy_to"), values_of(mine))
end)

Average.apply = define("Average:apply(fn: function, arguments...: any) -> any: Run fn(...) with the averages in the \z
  model's place, to evaluate them; the model's own weights come back after it, also where it fails. Errors: apply \z
  inside apply. Example: local y = gb.optim.EMA(model):apply(function() return model(x):detach() end)", "strict",
  function(self, fn, ...)
    local mine = private(self, "average")
    refuse_applied(mine, "apply")
    local tensors, saved = matching(mine, nil, "apply"), {}
    for i = 1, #tensors do saved[i] = tensors[i]:detach():clone() end
    mine.applied = true
    local _ <close> = setmetatable({}, { __close = function()
      mine.applied = false
      write(tensors, saved)
    end })
    write(tensors, values_of(mine))
    return fn(...)
  end)

Average.state_dict = define("Average:state_dict() -> table: How many updates there were, and the averages by name \z
  (copies). Example: local state = gb.optim.EMA(model):state_dict()", "strict", function(self)
  local mine, averages = private(self, "average"), {}
  for _, entry in ipairs(mine.list) do averages[entry.name] = entry.value:clone() end
  return { n_averaged = mine.n, averages = averages }
end)

Average.load_state_dict = define("Average:load_state_dict(state: tree): Go on from what state_dict gave; everything \z
  is checked before anything is changed. Errors: a state of other parameters. Example: local average = \z
  gb.optim.EMA(model) average:load_state_dict(average:state_dict())", "strict", function(self, state)
  local mine, given, values = private(self, "average"), state.averages, {}
  refuse_applied(mine, "load_state_dict")
  if math.type(state.n_averaged) ~= "integer" or state.n_averaged < 0 or type(given) ~= "table" then
    fail("load_state_dict takes what an average's state_dict gave: n_averaged and averages")
  end
  for i, entry in ipairs(mine.list) do
    local value, shape = given[entry.name], concat(entry.value.shape, "x")
    if not is_tensor(value) then fail(format("load_state_dict: the state has no average of %s", entry.name)) end
    if concat(value.shape, "x") ~= shape then
      fail(format("load_state_dict: the average of %s has shape %s in the state, %s here", entry.name,
        concat(value.shape, "x"), shape))
    end
    values[i] = value
  end
  write(values_of(mine), values)
  mine.n = state.n_averaged
end)

Average.as_model = define("Average:as_model() -> table: The model as a part of a checkpoint, with the averages for \z
  its weights, which is what others read from the file. Loading it does nothing: save the model itself under another \z
  name too. Example: local average = gb.optim.EMA(model) local path = os.tmpname() gb.io.save_checkpoint(path, { \z
  model = average:as_model(), live = model, average = average }) os.remove(path)", "strict", function(self)
  local mine = private(self, "average")
  local function state_dict()
    local state = Module.state_dict(mine.model)
    for _, entry in ipairs(mine.list) do
      local name, value = entry.name, entry.value
      if state[name] then state[name] = value:to(state[name].dtype) end
    end
    return state
  end
  return { state_dict = state_dict, load_state_dict = function() end }
end)

-- An average of the model as it is now, not yet updated.
local function new_average(name, model, options)
  if options.avg_fn and options.multi_avg_fn then
    fail(name .. ": avg_fn takes one average at a time and multi_avg_fn all of them; give one of the two")
  end
  if not (options.decay >= 0 and options.decay <= 1) then
    fail(format("%s: 'decay' must be from 0 to 1, got %s; 0.999 is usual", name, native.shown(options.decay)))
  end
  local mine = { name = name, model = model, options = options, n = 0, list = {}, applied = false }
  for i, entry in ipairs(tensors_of(model, options.use_buffers)) do
    local value = entry[2]:detach():clone()
    if value.dtype == "float16" or value.dtype == "bfloat16" then value = value:to("float32") end
    if options.device then value = value:to(options.device) end
    mine.list[i] = { name = entry[1], value = value }
  end
  if #mine.list == 0 then fail(format("%s: the model has no parameters", name)) end
  return own(setmetatable({ model = model }, Average), "average", mine)
end

gb.optim.Average = define("gb.optim.Average(model: module; mode: \"swa\"|\"ema\" = \"swa\", decay: number = 0.999, \z
  warmup: bool = false, avg_fn?: function, multi_avg_fn?: function, use_buffers: bool = false, device?: device) -> \z
  average: An average of the model's weights, which update_parameters() goes on with after a step: the mean of all \z
  updates (\"swa\", Izmailov et al. 2018), or one that forgets by decay (\"ema\"), or avg_fn(average, weights, n), or \z
  what multi_avg_fn(averages, weights, n) makes of the averages in its list, in place. warmup: the decay is at most \z
  (1 + n) / (10 + n) at update n. use_buffers: of running statistics too; integers among them are the model's. \z
  device: where the averages lie, with the weights unless given. Errors: a model without parameters. Example: local \z
  average = gb.optim.Average(model) average:update_parameters()", "strict",
  function(model, options) return new_average("Average", model, options) end)

gb.optim.EMA = define("gb.optim.EMA(model: module; decay: number = 0.999, warmup: bool = false, use_buffers: bool = \z
  false, device?: device) -> average: gb.optim.Average with mode = \"ema\": decay * average + (1 - decay) * weights. \z
  Example: local average = gb.optim.EMA(model, { decay = 0.99 }) average:update_parameters()", "strict",
  function(model, options)
  options.mode = "ema"
  return new_average("EMA", model, options)
end)

-- {==== statistics of batch norms ====

-- The name of the library's class that the module is of or descends from.
local function library_name(module)
  local class = native.class_of(module)
  while class and not rawget(class, "_library") do
    local meta = getmetatable(class)
    class = meta and meta.__index
  end
  return class and class.__name or ""
end
native.library_name = library_name

-- The batch norms of a model that keep running statistics.
local function batch_norms(model)
  local list = {}
  for _, module in ipairs(Module.modules(model)) do
    if find(library_name(module), "BatchNorm", 1,
      true) and is_tensor(module.running_mean) then list[#list + 1] = module end
  end
  return list
end

-- An iterator of inputs over what was given: a loader, a list of inputs or of { input, ... }, or an iterator.
local function inputs_of(loader, device)
  if private(loader, "loader") then return loader:iter(device) end
  if type(loader) == "function" then return loader end
  local i = 0
  return function()
    i = i + 1
    local batch = loader[i]
    return type(batch) == "table" and batch[1] or batch
  end
end

-- The mean over batches: the k-th goes into it with 1 / k.
local function follow(norms, k)
  for _, norm in ipairs(norms) do norm.momentum = 1 / k end
end

gb.optim.update_bn = define("gb.optim.update_bn(loader: loader|function|list, model: module; device?: device) -> \z
  count: Make the running statistics of all batch norms anew, as the mean over the batches of a loader (of a list of \z
  inputs, or of an iterator), for weights that were averaged. Returns how many batches there were. Errors: a batch \z
  that is no tensor. Example: gb.optim.update_bn({ x }, model)", "strict", function(loader, model, options)
  local norms, momenta, k = batch_norms(model), {}, 0
  if #norms == 0 then return 0 end
  for i, norm in ipairs(norms) do momenta[i] = norm.momentum end
  local modes = {}
  for _, module in ipairs(Module.modules(model)) do modes[#modes + 1] = { module, module.training } end
  local _ <close> = setmetatable({}, { __close = function()
    for i, norm in ipairs(norms) do norm.momentum = momenta[i] end
    for _, pair in ipairs(modes) do pair[1].training = pair[2] end
  end })
  gb.no_grad(function()
    for _, norm in ipairs(norms) do
      norm.running_mean:zero_()
      norm.running_var:fill_(1)
      if norm.num_batches_tracked then norm.num_batches_tracked:zero_() end
    end
    Module.train(model)
    for input in inputs_of(loader, options.device) do
      k = k + 1
      if not is_tensor(input) then
        fail(format("update_bn: batch %d is a %s; its first value is the input, a tensor", k, type(input)))
      end
      follow(norms, k)
      model(options.device and input:to(options.device) or input)
    end
  end)
  return k
end)

-- ====}
