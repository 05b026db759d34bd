-- optim.lua - the optimizer classes over the native ones. schedules.lua has the learning rate schedules.

local gb, native = ...
local fail = native.fail -- raises with the recipe's line
local define, own, private, copy = native.define, native.own, native.private, native.copy
local format, concat, find = string.format, table.concat, string.find

-- The class; its step and zero_grad are native. What is private of an optimizer: native (the native object), groups
-- (what a recipe's param_groups was made with), initial (the lr of each group that schedules start from, once there was
-- one).
local Optimizer = native.Optimizer
Optimizer.__index = Optimizer
Optimizer.__name = "gb.optim.Optimizer"
native.classes.Optimizer = Optimizer
Optimizer.__tostring = function(self)
  local mine = private(self, "optimizer")
  return mine and format("%s (%d groups)", mine.name, #mine.groups) or "optimizer"
end

-- A group as recipes see it: hyperparameters are read from and written to the native optimizer.
local function group_of(mine, index, params)
  return setmetatable({}, {
    __index = function(_, name)
      if name == "params" then return params end
      return mine.native:get(index, name)
    end,
    __newindex = function(_, name, value)
      mine.native:set(index, name, value)
      if name == "lr" then mine.initial[index] = nil end -- what is written by hand is where the next schedule starts
    end,
  })
end

-- The parameters of a group as a list of our own, with the names that Module:parameters() gave them; each is listed
-- once.
local function parameters_of(given, names)
  if gb.is_tensor(given) then return { given }, names end
  if gb.nn.is_module(given) then
    fail("optimizer: params is a list of tensors; give model:parameters(), not the model")
  end
  if type(given) ~= "table" then
    fail(format("optimizer: params is a list of tensors, as model:parameters() gives, got a %s", type(given)))
  end
  local meta = getmetatable(given)
  if names == nil and type(meta) == "table" then names = rawget(meta, "names") end
  local params, first = copy(given), {}
  for i = 1, #params do
    local p = params[i]
    if first[p] then
      fail(format("optimizer: parameters %d and %d of the list are the same tensor; list it once", first[p], i))
    end
    if gb.is_tensor(p) then first[p] = i end
  end
  return params, type(names) == "table" and copy(names) or nil
end

-- group: a table without a metatable.
local function add_group(self, group)
  local mine, options = private(self, "optimizer"), {}
  for key, value in next, mine.defaults do options[key] = value end
  for key, value in next, group do
    if key ~= "params" and key ~= "names" then options[key] = value end
  end
  local params, names = parameters_of(group.params, group.names)
  mine.native:add_group(params, names, options)
  local index = mine.native:groups()
  mine.groups[index] = group_of(mine, index, copy(params))
  self.param_groups[index] = mine.groups[index]
end

Optimizer.add_param_group = define("Optimizer:add_param_group(group: table): One more group { params = list, names \z
  = list or nil, and hyperparameters of its own }. Errors: parameters that another optimizer has. Example: \z
  opt:add_param_group { params = gb.nn.Linear(2, 2):parameters(), lr = 1e-4 }", "strict", add_group)

Optimizer.close = define("Optimizer:close(): Let go of the optimizer and of its state now, not when it is \z
  collected; its parameters stay, and another optimizer can take them. Example: gb.optim.SGD(gb.nn.Linear(2, \z
  2):parameters()):close()", "strict",
  function(self) private(self, "optimizer").native:close() end)

-- The hyperparameters of every group.
local function groups_of(mine)
  local groups = {}
  for g = 1, #mine.groups do
    groups[g] = mine.native:get(g)
    groups[g].initial_lr = mine.initial[g]
  end
  return groups
end

-- Run fn(...) with all states in this process, also where they are shared out (gb.optim.Sharded).
local function with_states(mine, fn, ...)
  local was_shared <const> = native.join(mine.native)
  local function share() native.shard(mine.native, mine.shares_gradients, mine.narrows) end
  local _ <close> = was_shared and setmetatable({}, { __close = share }) or nil
  return (function(...) return ... end)(fn(...))
end

-- All states as a table.
local function states_of(mine)
  local state = { kind = mine.name, state = {}, groups = groups_of(mine) }
  for i, entry in ipairs(mine.native:params()) do
    local tensors, steps = mine.native:state(i)
    local saved = { steps = steps, name = entry.name }
    for name, t in next, tensors do saved[name] = t:clone() end
    state.state[i] = saved
  end
  return state
end

Optimizer.state_dict = define("Optimizer:state_dict() -> table: State by parameter, in order of adoption (copies), \z
  and the hyperparameters of every group. Of a sharded optimizer every process calls it, and gets all states. \z
  Example: local state = opt:state_dict()", "strict", function(self)
  local mine = private(self, "optimizer")
  return with_states(mine, states_of, mine)
end)

-- The hyperparameters of every group from a state: all of them, or none and an error.
local function set_groups(mine, groups)
  local before = groups_of(mine)
  local function set(values)
    for g = 1, #mine.groups do
      if type(values[g]) ~= "table" then fail(format("load_state_dict: group %d of the state is no table", g)) end
      local initial = values[g].initial_lr
      if initial ~= nil and not (type(initial) == "number" and initial >= 0 and initial < math.huge) then
        fail(format("load_state_dict: initial_lr of group %d of the state is %s; it is a number from 0", g,
          native.shown(initial)))
      end
      for name in next, before[g] do
        if name ~= "initial_lr" and values[g][name] ~= nil then mine.native:set(g, name, values[g][name]) end
      end
      mine.initial[g] = initial
    end
  end
  local ok, why = pcall(set, groups)
  if not ok then
    set(before)
    error(why, 0)
  end
end

-- The saved state of parameter i must have the tensors that the optimizer has, in their shapes.
local function check_saved(i, saved, tensors)
  local steps = type(saved) == "table" and math.type(saved.steps) and math.tointeger(saved.steps)
  if not steps or steps < 0 or steps > 1 << 53 then -- as many as a double counts
    fail(format("load_state_dict: the state of parameter %d has no number of steps from 0 to 2^53", i))
  end
  for name, t in next, tensors do
    local given = saved[name]
    if not gb.is_tensor(given) then fail(format("load_state_dict: the state of parameter %d has no %s", i, name)) end
    if concat(t.shape, "x") ~= concat(given.shape, "x") then
      fail(format("load_state_dict: %s of parameter %d has shape %s in the state, %s in the optimizer", name, i,
        concat(given.shape, "x"),
        concat(t.shape, "x")))
    end
  end
end

-- Check a state, and put it in.
local function load_states(mine, state)
  if type(state.state) ~= "table" or type(state.groups) ~= "table" then
    fail("load_state_dict takes what an optimizer's state_dict gave")
  end
  if state.kind ~= mine.name then
    fail(format("load_state_dict: the state is of %s, the optimizer is %s", native.shown(state.kind), mine.name))
  end
  local params = mine.native:params()
  if #state.state ~= #params or #state.groups ~= #mine.groups then
    fail(format("load_state_dict: the state has %d parameters in %d groups, the optimizer %d in %d", #state.state,
      #state.groups, #params,
      #mine.groups))
  end
  for i = 1, #params do check_saved(i, state.state[i], (mine.native:state(i))) end
  set_groups(mine, state.groups)
  gb.no_grad(function()
    for i = 1, #params do
      local saved, tensors = state.state[i], mine.native:state(i)
      for name, t in next, tensors do t:copy_(saved[name]) end
      mine.native:set_steps(i, saved.steps)
    end
  end)
end

Optimizer.load_state_dict = define("Optimizer:load_state_dict(state: tree): Go on from what state_dict gave; \z
  everything is checked before anything is changed. Of a sharded optimizer every process loads all states. Errors: a \z
  state of another kind, or of other parameters. Example: opt:load_state_dict(opt:state_dict())", "strict",
  function(self, state)
    local mine = private(self, "optimizer")
    with_states(mine, load_states, mine, state)
  end)

Optimizer.gather = define("Optimizer:gather(): Bring the float32 weights of a sharded optimizer together, where its \z
  steps do so in 16 bits alone: before they are read in another way than in training, or saved. Every process calls \z
  it; state_dict does it too. Elsewhere it does nothing. Example: local opt = gb.optim.SGD(gb.nn.Linear(2, \z
  2):parameters()) opt:gather()", "strict",
  function(self) native.gather(private(self, "optimizer").native) end)

gb.optim.Sharded = define("gb.optim.Sharded(optimizer: optimizer|lbfgs; gradients: \"parts\"|\"whole\" = \"parts\", \z
  weights: \"whole\"|\"needed\" = \"whole\") -> optimizer: The optimizer itself, whose states (moments, float32 \z
  masters) are shared out from now between the processes of the job: each has, and steps, a part of the elements, \z
  and gets the weights of the others after the step. gradients: DataParallel brings each process those of its part \z
  alone, so that a gradient is 0 elsewhere, and half as many bytes of them are sent; clipping and scalers join what \z
  each has measured, so that every process clips and unscales; whole: they are the same on all. weights: all of them \z
  in their dtype, after every step; needed: those that the first two steps have read in 16 bits alone, under \z
  autocast, are brought together in 16 bits from then on, and in float32 by Optimizer:gather(), without which they \z
  cannot be read and are lost with the optimizer. The bits are those of the \z
  whole optimizer. Every process makes every step, state_dict and load_state_dict; a state does not know how many \z
  there were. In a job of one nothing changes. Muon and Adafactor step whole matrices: each process those that are \z
  its share of the work, and gradients stay whole. LAMB and LARS, which measure each parameter first, send a message \z
  more in a step. Of parameters on a GPU a step waits for it. Errors: LBFGS, which looks at all parameters together. \z
  Example: \z
  local opt = gb.optim.Sharded(gb.optim.AdamW(gb.nn.Linear(2, 2):parameters()))",
  "strict", function(optimizer, options)
  local mine = private(optimizer, "optimizer")
  if not mine then
    fail("Sharded: LBFGS looks at all parameters together, and its history is of whole vectors; use it unsharded, or \z
      an optimizer that steps each element or parameter by itself (SGD, AdamW, LAMB, Muon, ...)")
  end
  mine.shares_gradients, mine.narrows = options.gradients == "parts", options.weights == "needed"
  native.shard(mine.native, mine.shares_gradients, mine.narrows)
  return optimizer
end)

-- The options that were given, as they were: what was not is a group's own default.
local function new_optimizer(kind, params, options)
  local mine = { native = native.optimizer(kind), name = kind, defaults = options, groups = {}, initial = {} }
  local self = own(setmetatable({ kind = kind, defaults = copy(options), param_groups = {} }, Optimizer), "optimizer",
    mine)
  local first = type(params) == "table" and rawget(params, 1)
  if type(params) == "table" and not first and rawget(params, "params") ~= nil then
    fail(format("%s: that is one group; a list of groups is wanted: { { params = ... } }", kind))
  end
  if type(first) == "table" and not gb.nn.is_module(first) and rawget(first, "params") ~= nil then
    local groups = copy(params)
    for i = 1, #groups do
      if type(groups[i]) ~= "table" then
        fail(format("%s: group %d is a %s; a group is a table with params", kind, i, type(groups[i])))
      end
      add_group(self, copy(groups[i]))
    end
  else
    add_group(self, { params = params })
  end
  return self
end

-- A class per kind that the engine declares. params: a list of tensors (as model:parameters() gives), or a list of
-- groups { params =, lr =, ... }.
for _, kind in ipairs(native.optimizer_kinds()) do
  gb.optim[kind.name] = define(kind.record, "strict",
    function(params, options) return new_optimizer(kind.name, params, options) end)
end

-- {==== groups without decay ====

-- Does a name hold one of the texts?
local function is_excluded(name, exclude)
  for i = 1, #exclude do
    if find(name, exclude[i], 1, true) then return true end
  end
  return false
end

-- The parameters of a model's norms, of any shape, as keys.
local function of_norms(model)
  local found = {}
  for _, module in ipairs(gb.nn.Module.modules(model)) do
    if find(native.library_name(module), "Norm", 1, true) then
      for _, p in ipairs(gb.nn.Module.parameters(module)) do found[p] = true end
    end
  end
  return found
end

gb.optim.groups = define("gb.optim.groups(model: module; weight_decay: number = 0.01, exclude?: list) -> list: The \z
  parameters as two groups for an optimizer: with weight_decay, and without, which are biases, all other tensors of \z
  rank 1 or 0, the parameters of norms, and those whose names hold a text of exclude. A group of none is left out. \z
  Errors: a model without parameters. Example: local opt = gb.optim.AdamW(gb.optim.groups(gb.nn.Linear(2, 2), { \z
  weight_decay = 0.1 }), { lr = 1e-3 })", "strict", function(model, options)
  local decayed = { params = {}, names = {}, weight_decay = options.weight_decay }
  local plain = { params = {}, names = {}, weight_decay = 0 }
  if not (options.weight_decay >= 0 and options.weight_decay < math.huge) then
    fail(format("groups: 'weight_decay' must be 0 or more, got %s", native.shown(options.weight_decay)))
  end
  local exclude = options.exclude or {}
  for i = 1, #exclude do
    if type(exclude[i]) ~= "string" or exclude[i] == "" then
      fail(format("groups: 'exclude' must hold parts of names, such as 'embedding', but [%d] is %s", i,
        exclude[i] == "" and "empty" or "a " .. type(exclude[i])))
    end
  end
  local norms, list = of_norms(model), {}
  for name, p in gb.nn.Module.named_parameters(model) do
    local group = (p.ndim < 2 or norms[p] or is_excluded(name, exclude)) and plain or decayed
    group.params[#group.params + 1], group.names[#group.names + 1] = p, name
  end
  if #decayed.params > 0 then list[#list + 1] = decayed end
  if #plain.params > 0 then list[#list + 1] = plain end
  if #list == 0 then fail("groups: the model has no parameters") end
  return list
end)

-- ====}
