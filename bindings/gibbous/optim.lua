-- optim.lua - the optimizer classes over the native ones, and learning rate schedules, which set the groups' lr from a step number.
--
-- A schedule counts steps that happened: call schedule:step() after opt:step() or scaler:step(opt). With warmup = n any schedule first
-- rises linearly from lr / n over n steps. state_dict and load_state_dict resume it.

local gb, native = ...
local fail = native.fail -- raises with the recipe's line

-- {==== optimizers ====

local Optimizer = {}
Optimizer.__index = Optimizer
Optimizer.__name = "gb.optim.Optimizer"
native.classes.Optimizer = Optimizer
Optimizer.__tostring = function(self) return ("%s (%d groups)"):format(self.kind, #self.param_groups) end

-- A group as recipes see it: hyperparameters are read from and written to the native optimizer.
local function group_of(self, index, params)
  return setmetatable({}, {
    __index = function(_, name)
      if name == "params" then return params end
      return self._native:get(index, name)
    end,
    __newindex = function(_, name, value) self._native:set(index, name, value) end,
  })
end

-- Optimizer:add_param_group(group: table): One more group { params = list, names = list or nil, and hyperparameters of its own }. Errors: parameters
-- that another group has. Example: opt:add_param_group { params = gb.nn.Linear(2, 2):parameters(), lr = 1e-4 }
function Optimizer:add_param_group(group)
  if type(group) ~= "table" then fail(("optimizer: a group is a table with params, got %s"):format(type(group))) end
  local options = {}
  for key, value in pairs(self.defaults) do options[key] = value end
  for key, value in pairs(group) do
    if key ~= "params" and key ~= "names" then options[key] = value end
  end
  local params = group.params
  if gb.is_tensor(params) then params = { params } end
  if gb.nn.is_module(params) then fail("optimizer: params is a list of tensors; give model:parameters(), not the model") end
  if type(params) ~= "table" then fail("optimizer: a group needs params, a list of tensors") end
  local meta = getmetatable(params)
  local names = group.names or type(meta) == "table" and meta.names or nil
  local first = {}
  for i, p in ipairs(params) do
    if first[p] then fail(("optimizer: parameters %d and %d of the list are the same tensor; list it once"):format(first[p], i)) end
    if gb.is_tensor(p) then first[p] = i end
  end
  self._native:add_group(params, names, options)
  self.param_groups[#self.param_groups + 1] = group_of(self, self._native:groups(), params)
end

-- Optimizer:step(): Change the parameters by their gradients; those without a gradient stay as they are. Example: loss:backward() opt:step()
function Optimizer:step() self._native:step() end
-- Optimizer:zero_grad(): Forget the gradients of all parameters. Example: opt:zero_grad()
function Optimizer:zero_grad() self._native:zero_grad() end

local hyperparameters = { "lr", "betas", "eps", "weight_decay", "momentum", "dampening", "nesterov", "maximize" }

-- The hyperparameters of every group.
local function groups_of(self)
  local groups = {}
  for g, group in ipairs(self.param_groups) do
    groups[g] = {}
    for _, name in ipairs(hyperparameters) do groups[g][name] = group[name] end
  end
  return groups
end

-- Optimizer:state_dict() -> table: State by parameter, in order of adoption (copies), and the hyperparameters of every group. Example: local state =
-- opt:state_dict()
function Optimizer:state_dict()
  local state = { kind = self.kind, state = {}, groups = {} }
  for i, entry in ipairs(self._native:params()) do
    local tensors, steps = self._native:state(i)
    local copy = { steps = steps, name = entry.name }
    for name, t in pairs(tensors) do copy[name] = t:clone() end
    state.state[i] = copy
  end
  state.groups = groups_of(self)
  return state
end

-- The hyperparameters of every group from a state: all of them, or none and an error.
local function set_groups(self, groups)
  local before = groups_of(self)
  local function set(values)
    for g, group in ipairs(self.param_groups) do
      if type(values[g]) ~= "table" then fail(("load_state_dict: group %d of the state is no table"):format(g)) end
      for _, name in ipairs(hyperparameters) do
        if group[name] ~= nil and values[g][name] ~= nil then group[name] = values[g][name] end
      end
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
  if not steps or steps < 0 then fail(("load_state_dict: the state of parameter %d has no number of steps"):format(i)) end
  for _, name in ipairs { "exp_avg", "exp_avg_sq", "momentum_buffer", "master" } do
    local own, given = tensors[name], saved[name]
    if own and not gb.is_tensor(given) then fail(("load_state_dict: the state of parameter %d has no %s"):format(i, name)) end
    if own and table.concat(own.shape, "x") ~= table.concat(given.shape, "x") then
      fail(("load_state_dict: %s of parameter %d has shape %s in the state, %s in the optimizer"):format(name, i, table.concat(given.shape, "x"),
        table.concat(own.shape, "x")))
    end
  end
end

-- Optimizer:load_state_dict(state: table): Go on from what state_dict gave; everything is checked before anything is changed. Errors: a state of
-- another kind, or of other parameters. Example: opt:load_state_dict(opt:state_dict())
function Optimizer:load_state_dict(state)
  if type(state) ~= "table" or type(state.state) ~= "table" or type(state.groups) ~= "table" then
    fail("load_state_dict takes what an optimizer's state_dict gave")
  end
  if state.kind ~= self.kind then fail(("load_state_dict: the state is of %s, the optimizer is %s"):format(tostring(state.kind), self.kind)) end
  local params = self._native:params()
  if #state.state ~= #params or #state.groups ~= #self.param_groups then
    fail(("load_state_dict: the state has %d parameters in %d groups, the optimizer %d in %d"):format(#state.state, #state.groups, #params,
      #self.param_groups))
  end
  for i = 1, #params do check_saved(i, state.state[i], (self._native:state(i))) end
  set_groups(self, state.groups)
  gb.no_grad(function()
    for i = 1, #params do
      local saved, tensors = state.state[i], self._native:state(i)
      for name, t in pairs(tensors) do t:copy_(saved[name]) end
      self._native:set_steps(i, saved.steps)
    end
  end)
end

-- params: a list of tensors (as model:parameters() gives), or a list of groups { params =, lr =, ... }.
-- gb.optim.SGD(params: list, options?: table) -> optimizer: Stochastic gradient descent over a list of tensors, or of groups { params =, lr =, ... }.
-- options: lr = 1e-3, momentum = 0, dampening = 0, weight_decay = 0, nesterov = false, maximize = false. Example: local opt =
-- gb.optim.SGD(gb.nn.Linear(2, 2):parameters(), { lr = 0.1, momentum = 0.9 })
-- gb.optim.Adam(params: list, options?: table) -> optimizer: Adam (Kingma, Ba 2015). options: lr = 1e-3, betas = { 0.9, 0.999 }, eps = 1e-8,
-- weight_decay = 0, maximize = false. Example: local opt = gb.optim.Adam(gb.nn.Linear(2, 2):parameters(), { lr = 1e-3 })
-- gb.optim.AdamW(params: list, options?: table) -> optimizer: Adam with decoupled weight decay (Loshchilov, Hutter 2019). options: lr = 1e-3, betas
-- = { 0.9, 0.999 }, eps = 1e-8, weight_decay = 0.01, maximize = false. Example: local opt = gb.optim.AdamW(gb.nn.Linear(2, 2):parameters(), { lr =
-- 3e-4 })
for _, kind in ipairs { "SGD", "Adam", "AdamW" } do
  gb.optim[kind] = function(params, options)
    if options ~= nil and type(options) ~= "table" then fail(("%s takes its options in a table, got %s"):format(kind, type(options))) end
    local self = setmetatable({ kind = kind, defaults = options or {}, param_groups = {}, _native = native.optimizer(kind) }, Optimizer)
    if type(params) == "table" and type(params[1]) == "table" and params[1].params then
      for _, group in ipairs(params) do self:add_param_group(group) end
    else
      self:add_param_group { params = params }
    end
    return self
  end
end

-- ====}

local lr = {}
gb.optim.lr = lr

local Schedule = {}
Schedule.__index = Schedule
native.classes.Schedule = Schedule

-- Schedule:factor(t: int) -> number: The factor on the initial lr at step t (from 0): warmup first, then the schedule's own. Example:
-- print(schedule:factor(0))
function Schedule:factor(t)
  if t < self.warmup then return (t + 1) / self.warmup end
  return self.shape(t - self.warmup, self.options)
end

local function apply(self)
  local factor = self:factor(self.count)
  for i, group in ipairs(self.optimizer.param_groups) do
    self.base[i] = self.base[i] or group.lr -- a group that was added later
    group.lr = self.base[i] * factor
  end
end

-- Schedule:step(): One more step happened: the groups get their new lr. Example: schedule:step()
function Schedule:step()
  self.count = self.count + 1
  apply(self)
end

-- Schedule:get_last_lr() -> list: The rates in force, one per group. Example: print(schedule:get_last_lr()[1])
function Schedule:get_last_lr()
  local rates = {}
  for i, group in ipairs(self.optimizer.param_groups) do rates[i] = group.lr end
  return rates
end

-- Schedule:state_dict() -> table: The step it stands at and the initial rates. Example: local state = schedule:state_dict()
function Schedule:state_dict() return { count = self.count, base = { table.unpack(self.base) } } end

-- Schedule:load_state_dict(state: table): Go on from what state_dict gave. Errors: a state without a count. Example:
-- schedule:load_state_dict(schedule:state_dict())
function Schedule:load_state_dict(state)
  if type(state) ~= "table" then fail(("schedule: load_state_dict takes what state_dict gave, got %s"):format(type(state))) end
  local count, base = math.type(state.count) == "integer" and state.count, state.base or {}
  if not count or count < 0 then fail("schedule: the state has no count of steps") end
  if type(base) ~= "table" then fail("schedule: base, the learning rates of the state, is no list") end
  for i = 1, #self.base do
    local rate = base[i]
    if rate ~= nil and not (type(rate) == "number" and rate >= 0 and rate < math.huge) then
      fail(("schedule: the learning rate of group %d of the state is %s; it is a number from 0"):format(i, tostring(rate)))
    end
  end
  self.count = count
  for i = 1, #self.base do self.base[i] = base[i] or self.base[i] end
  apply(self)
end

-- A kind of schedule: its factor as a function of the step after warmup, and its options with defaults (false: required).
local function schedule(name, known, shape)
  lr[name] = function(optimizer, options)
    options = options or {}
    if type(options) ~= "table" then fail(("lr.%s takes its options in a table, got %s"):format(name, type(options))) end
    if getmetatable(optimizer) ~= Optimizer then fail(("lr.%s takes an optimizer, got %s"):format(name, type(optimizer))) end
    for key in pairs(options) do
      if known[key] == nil and key ~= "warmup" then
        fail(("lr.%s has no option '%s'%s"):format(name, tostring(key), native.nearest(tostring(key), known)))
      end
    end
    local all = {}
    for key, default in pairs(known) do
      all[key] = options[key]
      if all[key] == nil then all[key] = default end
      if all[key] == false then fail(("lr.%s needs the option '%s'"):format(name, key)) end
      local wanted = key == "fn" and "function" or "number"
      if type(all[key]) ~= wanted then fail(("lr.%s: '%s' must be a %s, got %s"):format(name, key, wanted, type(all[key]))) end
    end
    if all.steps and not (all.steps > 0) then fail(("lr.%s: 'steps' must be above 0, got %s"):format(name, tostring(all.steps))) end
    local warmup = options.warmup or 0
    if type(warmup) ~= "number" or warmup < 0 then fail(("lr.%s: 'warmup' is a number of steps from 0, got %s"):format(name, tostring(warmup))) end
    local self = setmetatable({ optimizer = optimizer, options = all, shape = shape, warmup = warmup, count = 0, base = {} }, Schedule)
    for i, group in ipairs(optimizer.param_groups) do self.base[i] = group.lr end
    apply(self)
    return self
  end
end

-- gb.optim.lr.Constant(optimizer: optimizer, options?: table) -> schedule: The initial lr, after a warmup. options of every schedule: warmup = n,
-- steps in which the rate rises from lr / n. Example: local schedule = gb.optim.lr.Constant(opt, { warmup = 10 })
schedule("Constant", {}, function() return 1 end)

-- gb.optim.lr.Linear(optimizer: optimizer, options: table) -> schedule: From factor first to factor last over steps steps. options: steps, first =
-- 1, last = 0, warmup. Example: local schedule = gb.optim.lr.Linear(opt, { steps = 100 })
schedule("Linear", { steps = false, first = 1, last = 0 }, function(t, o)
  return o.first + (o.last - o.first) * math.min(t / o.steps, 1)
end)

-- gb.optim.lr.Cosine(optimizer: optimizer, options: table) -> schedule: Half a cosine from 1 to factor last over steps steps (Loshchilov, Hutter
-- 2017, without restarts); warmup comes first, outside steps. options: steps, last = 0, warmup. Example: local schedule = gb.optim.lr.Cosine(opt, {
-- steps = 100, warmup = 10 })
schedule("Cosine", { steps = false, last = 0 }, function(t, o)
  return o.last + (1 - o.last) * 0.5 * (1 + math.cos(math.pi * math.min(t / o.steps, 1)))
end)

-- gb.optim.lr.Lambda(optimizer: optimizer, options: table) -> schedule: fn(step) is the factor. options: fn, warmup. Example: local schedule =
-- gb.optim.lr.Lambda(opt, { fn = function(t) return 0.9 ^ t end })
schedule("Lambda", { fn = false }, function(t, o) return o.fn(t) end)
