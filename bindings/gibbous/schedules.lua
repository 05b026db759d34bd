-- schedules.lua - learning rate schedules, which set the groups' lr, and of some the momentum, from a step number.
-- Each is one call of schedule() or schedule_of_rates(): its record, and its factor on the initial lr or its rate.
--
-- A schedule counts steps that happened: call schedule:step() after opt:step() or scaler:step(opt). With warmup = n
-- any schedule first rises linearly over n steps. state_dict and load_state_dict resume it.
--
-- Where a schedule stands is a table that is never changed: a step makes the next one, computes the rates of all
-- groups from it, and only then sets them. So a callback or a metric that fails leaves everything as it was.

local gb, native = ...
local fail = native.fail -- raises with the recipe's line
local define, own, private, copy = native.define, native.own, native.private, native.copy
local format, unpack, math_type, huge = string.format, table.unpack, math.type, math.huge
local min, max, floor, cos, sqrt, pi = math.min, math.max, math.floor, math.cos, math.sqrt, math.pi

local lr = gb.optim.lr

-- What is private of a schedule: name, optimizer, options, form (what schedule_of_rates was given), warmup, base (the
-- initial rates), parts (the schedules it is made of), depth (of parts in parts), owner (the name of the one it is a
-- part of), and at, where it stands: { count = steps that happened, state = numbers by name or nil, parts = where the
-- parts stand or nil }.
local Schedule = { __name = "gb.optim.lr.Schedule" }
native.classes.Schedule = Schedule

-- last_epoch is PyTorch's name for the count.
Schedule.__index = function(self, key)
  if key ~= "last_epoch" then return Schedule[key] end
  local mine = private(self, "schedule")
  return mine and mine.at.count
end
Schedule.__tostring = function(self)
  local mine = private(self, "schedule")
  return mine and format("%s (step %d)", mine.name, mine.at.count) or "schedule"
end

local LAST_EPOCH = -1 -- PyTorch's: the step before the first
local MOST_DEPTH = 20 -- of schedules in schedules: their state is a tree, and checkpoints end somewhere
local MOST_STEPS = 1 << 53 -- that happened: more are no exact number

-- Raise unless the option is what it must be.
local function must(mine, name, is_so, what)
  if not is_so then
    fail(format("lr.%s: '%s' must be %s, got %s", mine.name, name, what, native.shown(mine.options[name])))
  end
end

-- {==== rates ====

-- The initial rates, of the parts too. A group that was added later gets one when it is first seen. They are kept with
-- the optimizer, so that a second schedule does not take the rate of the first for the initial one.
local function bases(mine)
  local opt = private(mine.optimizer, "optimizer")
  for i = 1, #opt.groups do
    if not mine.base[i] then
      opt.initial[i] = opt.initial[i] or opt.native:get(i, "lr")
      mine.base[i] = mine.form.from_now and opt.native:get(i, "lr") or opt.initial[i]
    end
  end
  for k = 1, #mine.parts do bases(mine.parts[k]) end
  return opt
end

-- The rate of group i at step t, where `at` is where the schedule stands: warmup first, then the schedule's own.
local function rate_at(mine, at, t, i)
  local rate, warm = mine.form.rate, mine.warmup
  if t >= warm then return rate(t - warm, mine.options, mine.base[i], i, mine, at) end
  local top = mine.form.sets and rate(0, mine.options, mine.base[i], i, mine, at) or mine.base[i]
  return top * (t + 1) / warm
end

-- The momentum of group i, or nil where the schedule leaves it alone.
local function momentum_at(mine, at, t, i)
  local momentum = mine.form.momentum
  return momentum and momentum(max(t - mine.warmup, 0), mine.options, i, mine, at)
end

local function check_rate(mine, rate, t, i)
  if type(rate) == "number" and rate >= 0 and rate < huge then return rate end
  fail(format("lr.%s: the rate of group %d at step %d is %s; it must be a number from 0: look at the options and \z
    functions it is made of", mine.name, i, t, native.shown(rate)))
end

-- Momentum is an option of its own, or the first of the betas.
local function set_momentum(opt, i, value)
  if opt.native:get(i, "momentum") ~= nil then return opt.native:set(i, "momentum", value) end
  local betas = opt.native:get(i, "betas")
  opt.native:set(i, "betas", { value, betas[2] })
end

-- The schedule and its parts stand at `at` from now on.
local function stand(mine, at)
  mine.at = at
  for k = 1, #mine.parts do stand(mine.parts[k], at.parts[k]) end
end

-- Compute what every group gets at `at`, set it, and stand there.
local function go(mine, at)
  local opt, rates, momenta = bases(mine), {}, {}
  for i = 1, #opt.groups do
    rates[i] = check_rate(mine, rate_at(mine, at, at.count, i), at.count, i)
    momenta[i] = momentum_at(mine, at, at.count, i)
  end
  for i = 1, #rates do
    opt.native:set(i, "lr", rates[i])
    if momenta[i] then set_momentum(opt, i, momenta[i]) end
  end
  stand(mine, at)
end

-- Where the schedule stands at the beginning.
local function start_of(mine, count)
  local at = { count = count, state = mine.form.begin and mine.form.begin(mine) }
  if mine.form.advance_parts then
    at.parts = {}
    for k = 1, #mine.parts do at.parts[k] = start_of(mine.parts[k], 0) end
  end
  return at
end

-- Where it stands a step after `at`. The warmup is outside of what a kind counts.
local function next_of(mine, at, metric)
  local after, kind = { count = at.count + 1, state = at.state, parts = at.parts }, mine.form
  local t = after.count - mine.warmup
  if t > 0 and kind.advance then after.state = kind.advance(mine, at.state, t, metric) end
  if t > 0 and kind.advance_parts then after.parts = kind.advance_parts(mine, { unpack(at.parts) }, t, metric) end
  return after
end

-- ====}

-- {==== methods ====

Schedule.factor = define("Schedule:factor(t: int, group: size = 1) -> number: The factor on the initial lr of a \z
  group at step t (from 0): warmup first, then the schedule's own. Errors: another step than the one it stands at, \z
  of a schedule that hangs on metrics or on its last rate; an initial lr of 0, of one that sets rates. Example: \z
  print(schedule:factor(0))", "strict", function(self, t, group)
  local mine = private(self, "schedule")
  bases(mine)
  local base, factor = mine.base[group], mine.form.factor
  if t < 0 then fail(format("factor: 't' is a step from 0, got %d", t)) end
  if not base then fail(format("factor: there is no group %d, the optimizer has %d", group, #mine.base)) end
  if t >= mine.warmup and factor then return factor(t - mine.warmup, mine.options, group, mine) end
  if t < mine.warmup and not mine.form.sets then return (t + 1) / mine.warmup end
  if base == 0 then fail(format("factor: the initial lr of group %d is 0; get_last_lr() has the rate", group)) end
  return rate_at(mine, mine.at, t, group) / base
end)

-- Does the schedule, or a part of it, go by a metric?
local function takes_metric(mine)
  if mine.form.by_metric then return true end
  for k = 1, #mine.parts do
    if takes_metric(mine.parts[k]) then return true end
  end
  return false
end

function native.takes_metric(schedule) return takes_metric(private(schedule, "schedule")) end

-- The number of a metric: an epoch's loss, or how much of it was right.
local function number_of(mine, metric)
  if metric == nil then return nil end
  if not takes_metric(mine) then
    fail(format("step: lr.%s takes no metric; only ReduceOnPlateau goes by one", mine.name))
  end
  if type(metric) ~= "number" then metric = metric:item() end
  if type(metric) ~= "number" or metric ~= metric then
    fail(format("step: the metric is %s; leave such an epoch out, or give math.huge or -math.huge, the worst there is",
      native.shown(metric)))
  end
  return metric
end

Schedule.step = define("Schedule:step(metric?: number|tensor): One more step happened: the groups get their new lr. \z
  ReduceOnPlateau takes what it watches, such as the epoch's loss. schedule.last_epoch counts the steps. Errors: a \z
  metric that is NaN, a part of Sequential or Chained, and more steps than OneCycle has. Example: \z
  schedule:step()", "strict",
  function(self, metric)
    local mine = private(self, "schedule")
    if mine.owner then fail(format("step: this schedule is a part of lr.%s; step that one", mine.owner)) end
    bases(mine)
    go(mine, next_of(mine, mine.at, number_of(mine, metric)))
  end)

Schedule.get_last_lr = define("Schedule:get_last_lr() -> list: The rates in force, one per group. Example: \z
  print(schedule:get_last_lr()[1])", "strict", function(self)
  local opt, rates = private(private(self, "schedule").optimizer, "optimizer"), {}
  for i = 1, #opt.groups do rates[i] = opt.native:get(i, "lr") end
  return rates
end)

local function state_of(mine)
  local state = { count = mine.at.count, base = { unpack(mine.base) } }
  if mine.at.state then state.state = copy(mine.at.state, true) end
  if #mine.parts > 0 then
    state.parts = {}
    for k = 1, #mine.parts do state.parts[k] = state_of(mine.parts[k]) end
  end
  return state
end

Schedule.state_dict = define("Schedule:state_dict() -> table: The step it stands at, the initial rates, and what \z
  else it goes by. Functions are not part of it. Example: local state = schedule:state_dict()", "strict",
  function(self) return state_of(private(self, "schedule")) end)

-- The initial rates of a state: where it has none, those of now.
local function base_of_state(mine, given)
  if type(given) ~= "table" then fail("schedule: base, the learning rates of the state, is no list") end
  local base = { unpack(mine.base) }
  for i = 1, #base do
    local rate = given[i]
    if rate ~= nil and not (type(rate) == "number" and rate >= 0 and rate < huge) then
      fail(format("schedule: the learning rate of group %d of the state is %s; it is a number from 0", i,
        native.shown(rate)))
    end
    base[i] = rate or base[i]
  end
  return base
end

-- The numbers of a state by the names that a fresh one has; a list of rates has as many as there are groups.
local function numbers_of_state(mine, fresh, given)
  if type(given) ~= "table" then fail(format("schedule: the state has no numbers of lr.%s", mine.name)) end
  local numbers = {}
  for name, value in next, fresh do
    local is_list = type(value) == "table"
    local list = is_list and given[name] or { given[name] }
    if type(list) ~= "table" then fail(format("schedule: %s of the state is no list", name)) end
    local n = is_list and #mine.base or 1
    for i = 1, n do
      local number = list[i]
      if type(number) ~= "number" or number ~= number or is_list and not (number >= 0 and number < huge) then
        fail(format("schedule: %s of the state is %s; it is a number%s", name, native.shown(number),
          is_list and " from 0" or ""))
      end
    end
    numbers[name] = is_list and { unpack(list, 1, n) } or list[1]
  end
  return numbers
end

-- What a state says: where to stand, and the initial rates of the schedule and its parts as a list of { schedule, base
-- }. Nothing is changed.
local function read_state(mine, state, found)
  if type(state) ~= "table" then fail("schedule: the state of a part is no table") end
  if math_type(state.count) ~= "integer" or state.count < 0 or state.count > MOST_STEPS then
    fail("schedule: the state has no count of steps")
  end
  local at, fresh = { count = state.count }, start_of(mine, 0)
  found[#found + 1] = { mine, base_of_state(mine, state.base or {}) }
  if fresh.state then at.state = numbers_of_state(mine, fresh.state, state.state) end
  if fresh.parts then
    at.parts = {}
    if type(state.parts) ~= "table" or #state.parts ~= #mine.parts then
      fail(format("schedule: the state is not of lr.%s with %d parts", mine.name, #mine.parts))
    end
    for k = 1, #mine.parts do at.parts[k] = read_state(mine.parts[k], state.parts[k], found) end
  end
  return at
end

Schedule.load_state_dict = define("Schedule:load_state_dict(state: tree): Go on from what state_dict gave; \z
  everything is checked before anything is changed. Errors: a state without a count, or of a schedule of another \z
  kind. Example: schedule:load_state_dict(schedule:state_dict())", "strict", function(self, state)
  local mine, found = private(self, "schedule"), {}
  if mine.owner then fail(format("load_state_dict: this schedule is a part of lr.%s; load that one", mine.owner)) end
  local at = read_state(mine, state, found)
  local function exchange()
    for _, pair in ipairs(found) do pair[1].base, pair[2] = pair[2], pair[1].base end
  end
  exchange()
  local ok, why = pcall(go, mine, at)
  if not ok then
    exchange()
    error(why, 0)
  end
end)

-- ====}

-- {==== kinds ====

-- A kind of schedule that says the rate of a group: its record, rate(t, options, base, i, schedule, at), and a table
-- of what else it has: settle(options, schedule) checks the options and fills in what hangs on others; momentum(t,
-- options, i); sets: rates do not come from the initial ones, so that a warmup rises to the first of them; from_now:
-- it starts at the rate in force; begin(schedule) -> state and advance(schedule, state, t, metric) -> state, of one
-- that remembers; advance_parts(schedule, places, t, metric) -> places; by_metric: step takes one.
local function schedule_of_rates(name, text, rate, kind)
  kind.rate = rate
  lr[name] = define(text, "strict", function(opt, options)
    local mine = { name = name, optimizer = opt, options = options, form = kind, base = {}, parts = {}, depth = 0 }
    mine.warmup = options.warmup or 0
    must(mine, "warmup", mine.warmup >= 0 and mine.warmup < huge, "a number of steps from 0")
    if options.steps then must(mine, "steps", options.steps > 0, "above 0") end
    local last = options.last_epoch or LAST_EPOCH
    local in_range = last >= LAST_EPOCH and last < MOST_STEPS
    must(mine, "last_epoch", in_range, "-1, or the number of the last step that happened")
    bases(mine)
    if kind.settle then kind.settle(options, mine) end
    local self = own(setmetatable({ optimizer = opt }, Schedule), "schedule", mine)
    go(mine, start_of(mine, last + 1))
    for k = 1, #mine.parts do mine.parts[k].owner = name end
    return self
  end)
end

-- A kind of schedule that is a factor on the initial lr: its record, factor(t, options, i), and perhaps settle.
local function schedule(name, text, factor, settle)
  local function rate(t, o, base, i) return base * factor(t, o, i) end
  schedule_of_rates(name, text, rate, { factor = factor, settle = settle })
end

schedule("Constant", "gb.optim.lr.Constant(optimizer: optimizer; factor: number = 1, total_iters: number = 5, \z
  warmup: number = 0, last_epoch: int = -1) -> schedule: The initial lr, by factor in the first total_iters steps. \z
  After a warmup: in that many steps the rate rises from lr / warmup; every schedule has it. last_epoch: the last \z
  step that happened, for a run that goes on; every schedule that remembers nothing has it. Example: local schedule \z
  = gb.optim.lr.Constant(opt, { warmup = 10 })",
  function(t, o) return t < o.total_iters and o.factor or 1 end,
  function(o, mine)
    must(mine, "factor", o.factor >= 0 and o.factor < huge, "a number from 0")
    must(mine, "total_iters", o.total_iters >= 0, "a number of steps from 0")
  end)

schedule("Linear", "gb.optim.lr.Linear(optimizer: optimizer; steps: number, first: number = 1, last: number = 0, \z
  warmup: number = 0, last_epoch: int = -1) -> schedule: From factor first to factor last over steps steps. Example: \z
  local schedule = gb.optim.lr.Linear(opt, { steps = 100 })",
  function(t, o) return o.first + (o.last - o.first) * min(t / o.steps, 1) end)

schedule("Step", "gb.optim.lr.Step(optimizer: optimizer; step_size: number, gamma: number = 0.1, warmup: number = 0, \z
  last_epoch: int = -1) -> schedule: The lr by gamma every step_size steps. Errors: a step_size that is not above 0. \z
  Example: local schedule = gb.optim.lr.Step(opt, { step_size = 30 })",
  function(t, o) return o.gamma ^ (t // o.step_size) end,
  function(o, mine)
    must(mine, "step_size", o.step_size > 0 and o.step_size < huge, "a number of steps above 0")
    must(mine, "gamma", o.gamma >= 0 and o.gamma < huge, "a number from 0")
  end)

-- A list of step numbers that rise.
local function check_milestones(mine, list, least)
  if #list < least then
    fail(format("lr.%s: 'milestones' is empty; give the steps at which the rate changes, such as { 30, 80 }",
      mine.name))
  end
  for k = 1, #list do
    local step, before = list[k], list[k - 1] or 0
    if math_type(step) ~= "integer" or step <= before then
      fail(format("lr.%s: 'milestones' must be whole numbers above 0 that rise, but [%d] is %s%s", mine.name, k,
        native.shown(step), k > 1 and format(" after %d", before) or ""))
    end
  end
end

-- How many numbers of a list that rises are at most t.
local function passed(list, t)
  local low, high = 0, #list
  while low < high do
    local middle = (low + high + 1) // 2
    if list[middle] <= t then low = middle else high = middle - 1 end
  end
  return low
end

schedule("MultiStep", "gb.optim.lr.MultiStep(optimizer: optimizer; milestones: list, gamma: number = 0.1, warmup: \z
  number = 0, last_epoch: int = -1) -> schedule: The lr by gamma at each of the steps in milestones, which rise. \z
  Errors: an empty list, steps that do not rise. Example: local schedule = gb.optim.lr.MultiStep(opt, { milestones = \z
  { 30, 80 } })",
  function(t, o) return o.gamma ^ passed(o.milestones, t) end,
  function(o, mine)
    check_milestones(mine, o.milestones, 1)
    must(mine, "gamma", o.gamma >= 0 and o.gamma < huge, "a number from 0")
  end)

schedule("Exponential", "gb.optim.lr.Exponential(optimizer: optimizer; gamma: number, warmup: number = 0, \z
  last_epoch: int = -1) -> schedule: The lr by gamma at every step. Example: local schedule = \z
  gb.optim.lr.Exponential(opt, { gamma = 0.99 })",
  function(t, o) return o.gamma ^ t end,
  function(o, mine) must(mine, "gamma", o.gamma >= 0 and o.gamma < huge, "a number from 0") end)

schedule("Polynomial", "gb.optim.lr.Polynomial(optimizer: optimizer; total_iters: number = 5, power: number = 1, \z
  warmup: number = 0, last_epoch: int = -1) -> schedule: From 1 to 0 over total_iters steps by (1 - t / total_iters) \z
  ^ power. Example: local schedule = gb.optim.lr.Polynomial(opt, { total_iters = 100, power = 2 })",
  function(t, o) return (1 - min(t / o.total_iters, 1)) ^ o.power end,
  function(o, mine)
    must(mine, "total_iters", o.total_iters > 0 and o.total_iters < huge, "a number of steps above 0")
    must(mine, "power", o.power >= 0 and o.power < huge, "a number from 0")
  end)

-- Noam's rule (Vaswani et al. 2017, section 5.3) as get_inverse_sqrt_schedule of Hugging Face Transformers has it.
schedule("InverseSqrt", "gb.optim.lr.InverseSqrt(optimizer: optimizer; timescale?: number, warmup: number = 0, \z
  last_epoch: int = -1) -> schedule: After the warmup the lr falls as sqrt(timescale / (t + timescale)). timescale \z
  is the warmup unless given, and 10000 without one. Example: local schedule = gb.optim.lr.InverseSqrt(opt, { warmup \z
  = 100 })",
  function(t, o) return sqrt(o.timescale / (t + o.timescale)) end,
  function(o, mine)
    o.timescale = o.timescale or (o.warmup > 0 and o.warmup or 10000)
    must(mine, "timescale", o.timescale > 0 and o.timescale < huge, "a number of steps above 0")
  end)

schedule("Cosine", "gb.optim.lr.Cosine(optimizer: optimizer; steps: number, last: number = 0, warmup: number = 0, \z
  last_epoch: int = -1) -> schedule: Half a cosine from 1 to factor last over steps steps (Loshchilov, Hutter 2017, \z
  without restarts); warmup comes first, outside steps. Example: local schedule = gb.optim.lr.Cosine(opt, { steps = \z
  100, warmup = 10 })",
  function(t, o) return o.last + (1 - o.last) * 0.5 * (1 + cos(pi * min(t / o.steps, 1))) end)

-- The length of the cycle that step t lies in, and how far into it.
local function cycle_of(t, first, times)
  if times == 1 then return first, t % first end
  local length = first + 0.0
  while t >= length do t, length = t - length, length * times end
  return length, t
end

schedule_of_rates("CosineWarmRestarts", "gb.optim.lr.CosineWarmRestarts(optimizer: optimizer; T_0: size, T_mult: \z
  size = 1, eta_min: number = 0, warmup: number = 0, last_epoch: int = -1) -> schedule: Half a cosine from the \z
  initial lr to the rate eta_min, again and again (Loshchilov, Hutter 2017): the first in T_0 steps, each T_mult \z
  times as long as the one before. Example: local schedule = gb.optim.lr.CosineWarmRestarts(opt, { T_0 = 10, T_mult \z
  = 2 })",
  function(t, o, base)
    local length, along = cycle_of(t, o.T_0, o.T_mult)
    return o.eta_min + (base - o.eta_min) * 0.5 * (1 + cos(pi * along / length))
  end,
  { settle = function(o, mine) must(mine, "eta_min", o.eta_min >= 0 and o.eta_min < huge, "a rate from 0") end })

-- The three stages of Hu et al. 2024 (MiniCPM, arXiv:2404.06395, section 4). The shapes of the decay are those of
-- get_wsd_schedule in Hugging Face Transformers; "1-sqrt" is of Hägele et al. 2024 (arXiv:2405.18392).
local decays = {
  linear = function(share) return 1 - share end,
  cosine = function(share) return 0.5 * (1 + cos(pi * share)) end,
  ["1-sqrt"] = function(share) return 1 - sqrt(share) end,
}
schedule("WarmupStableDecay", "gb.optim.lr.WarmupStableDecay(optimizer: optimizer; steps: number, decay_steps?: \z
  number, last: number = 0, shape: \"linear\"|\"cosine\"|\"1-sqrt\" = \"linear\", warmup: number = 0, last_epoch: \z
  int = -1) -> schedule: The initial lr, and in the last decay_steps of steps steps down to factor last (MiniCPM, Hu \z
  et al. 2024); decay_steps is a tenth of steps unless given, and warmup comes first, outside steps. Errors: \z
  decay_steps above steps. Example: local schedule = gb.optim.lr.WarmupStableDecay(opt, { steps = 100, warmup = 10, \z
  shape = \"1-sqrt\" })",
  function(t, o)
    local share = (t - (o.steps - o.decay_steps)) / o.decay_steps
    return share <= 0 and 1 or o.last + (1 - o.last) * decays[o.shape](min(share, 1))
  end,
  function(o, mine)
    o.decay_steps = o.decay_steps or o.steps / 10
    local in_range = o.decay_steps > 0 and o.decay_steps <= o.steps
    must(mine, "decay_steps", in_range, format("above 0 and at most steps = %s", native.shown(o.steps)))
  end)

-- ====}

-- {==== functions of the recipe ====

-- Raise: there are not as many functions as groups.
local function refuse_functions(mine)
  fail(format("lr.%s: 'fn' has %d functions, and the optimizer %d groups; give one for each", mine.name,
    #mine.options.fn, #mine.base))
end

-- A list of functions has one for each group. What can be called is one function, not a list.
local function check_functions(o, mine)
  mine.listed = type(o.fn) == "table" and not native.is_callable(o.fn)
  if not mine.listed then return end
  if #o.fn ~= #mine.base then refuse_functions(mine) end
  for i = 1, #o.fn do
    if type(o.fn[i]) ~= "function" then
      fail(format("lr.%s: 'fn' must hold functions, but [%d] is a %s", mine.name, i, type(o.fn[i])))
    end
  end
end

-- The factor that a function of the recipe gives.
local function called(mine, t, i)
  local fn = mine.options.fn
  if mine.listed then fn = fn[i] or refuse_functions(mine) end
  local factor = fn(t)
  if type(factor) ~= "number" then fail(format("lr.%s: the factor is a number, got %s", mine.name, type(factor))) end
  return factor
end

local function lambda_factor(t, _, i, mine) return called(mine, t, i) end
schedule_of_rates("Lambda", "gb.optim.lr.Lambda(optimizer: optimizer; fn: function|list, warmup: number = 0, \z
  last_epoch: int = -1) -> schedule: fn(step) is the factor on the initial lr; a list has a function for each group. \z
  Example: local schedule = gb.optim.lr.Lambda(opt, { fn = function(t) return 0.9 ^ t end })",
  function(t, _, base, i, mine) return base * called(mine, t, i) end,
  { factor = lambda_factor, settle = check_functions })

-- Raise where a schedule that remembers is asked for another step than the one it stands at.
local function only_now(mine, at, t)
  local now = max(at.count - mine.warmup, 0)
  if t ~= now then fail(format("lr.%s: only the rate at step %d, where it stands, is known", mine.name, at.count)) end
end

schedule_of_rates("Multiplicative", "gb.optim.lr.Multiplicative(optimizer: optimizer; fn: function|list, warmup: \z
  number = 0) -> schedule: Every step multiplies the lr by fn(step), from step 1 on; a list has a function for each \z
  group. Example: local schedule = gb.optim.lr.Multiplicative(opt, { fn = function() return 0.95 end })",
  function(t, _, base, i, mine, at)
    only_now(mine, at, t)
    return base * (at.state.products[i] or 1)
  end,
  {
    settle = check_functions,
    begin = function(mine)
      local products = {}
      for i = 1, #mine.base do products[i] = 1 end
      return { products = products }
    end,
    advance = function(mine, state, t)
      local products = {}
      for i = 1, #mine.base do products[i] = (state.products[i] or 1) * called(mine, t, i) end
      return { products = products }
    end,
  })

-- ====}

-- {==== cycles, of the momentum too ====

-- Raise: a list has not as many values as there are groups.
local function refuse_values(mine, name)
  fail(format("lr.%s: '%s' has %d values, and the optimizer %d groups; give a number, or a value for each group",
    mine.name, name, #mine.options[name], #mine.base))
end

-- The value of an option for group i: a number, or that group's of a list.
local function of_group(mine, name, i)
  local value = mine.options[name]
  if type(value) ~= "table" then return value end
  return value[i] or refuse_values(mine, name)
end

-- A rate or a momentum, or a list with one for each group; below: what it must be less than.
local function check_groups(mine, name, below)
  local value = mine.options[name]
  if type(value) == "table" and #value ~= #mine.base then refuse_values(mine, name) end
  for i = 1, #mine.base do
    local number = of_group(mine, name, i)
    if type(number) ~= "number" or not (number >= 0 and number < below) then
      local bound = below < huge and format(", below %g", below) or ""
      fail(format("lr.%s: '%s' must be a number from 0%s, got %s", mine.name, name, bound, native.shown(number)))
    end
  end
end

-- Momentum can be cycled: the optimizer has one, and both ends are in range.
local function check_momentum(o, mine)
  if not o.cycle_momentum then return end
  local opt = private(mine.optimizer, "optimizer")
  if opt.native:get(1, "momentum") == nil and opt.native:get(1, "betas") == nil then
    fail(format("lr.%s: %s has neither momentum nor betas; give cycle_momentum = false", mine.name, opt.name))
  end
  check_groups(mine, "base_momentum", 1)
  check_groups(mine, "max_momentum", 1)
end

local function along_cosine(from, to, share) return to + (from - to) * 0.5 * (1 + cos(pi * share)) end
local function along_line(from, to, share) return from + (to - from) * share end
local anneals = { cos = along_cosine, linear = along_line }

-- The phase of OneCycle that step t lies in, and how far into it, from 0 to 1. PyTorch's phases end at fractions of
-- steps. The step() after the last step of training is allowed there too, but leads beyond the end, to rates below 0;
-- here it stays.
local function phase_of(t, o)
  local n, ends = o.total_steps, { o.pct_start * o.total_steps - 1 }
  if o.three_phase then ends[2] = 2 * o.pct_start * n - 2 end
  ends[#ends + 1] = n - 1
  local start = 0
  for k = 1, #ends do
    if t <= ends[k] or k == #ends then return k, ends[k] == start and 1 or min((t - start) / (ends[k] - start), 1) end
    start = ends[k]
  end
end

-- From where to where each phase goes: the ends of rates, low at first, high, and the last; of momenta, which run
-- against them, in the same words.
local two_phases, three_phases = { "low", "high", "last" }, { "low", "high", "low", "last" }
local function one_cycle(t, o, ends)
  if t > o.total_steps then
    fail(format("lr.OneCycle: step %d is beyond total_steps = %d; give the number of all steps, or call step() no more",
      t, o.total_steps))
  end
  local phase, share = phase_of(t, o)
  local names = o.three_phase and three_phases or two_phases
  return anneals[o.anneal_strategy](ends[names[phase]], ends[names[phase + 1]], share)
end

schedule_of_rates("OneCycle", "gb.optim.lr.OneCycle(optimizer: optimizer; max_lr: number|list, total_steps?: size, \z
  epochs?: size, steps_per_epoch?: size, pct_start: number = 0.3, anneal_strategy: \"cos\"|\"linear\" = \"cos\", \z
  cycle_momentum: bool = true, base_momentum: number|list = 0.85, max_momentum: number|list = 0.95, div_factor: \z
  number = 25, final_div_factor: number = 10000, three_phase: bool = false, warmup: number = 0, last_epoch: int = \z
  -1) -> schedule: Up from max_lr / div_factor to max_lr in pct_start of all steps, and down to max_lr / div_factor \z
  / final_div_factor (Smith, Topin 2018); the momentum, or betas[1], runs the other way. total_steps, or epochs and \z
  steps_per_epoch, is needed. max_lr and momenta may be lists with a value for each group. Errors: an optimizer \z
  without momentum or betas, step() beyond total_steps. Example: local schedule = gb.optim.lr.OneCycle(opt, { max_lr \z
  = 0.1, total_steps = 100 })",
  function(t, o, _, i, mine)
    local top = of_group(mine, "max_lr", i)
    local low = top / o.div_factor
    return one_cycle(t, o, { low = low, high = top, last = low / o.final_div_factor })
  end,
  {
    sets = true,
    momentum = function(t, o, i, mine)
      if not o.cycle_momentum then return nil end
      local top = of_group(mine, "max_momentum", i)
      return one_cycle(t, o, { low = top, high = of_group(mine, "base_momentum", i), last = top })
    end,
    settle = function(o, mine)
      if not o.total_steps then
        if not (o.epochs and o.steps_per_epoch) then
          fail("lr.OneCycle: how many steps there are is missing; give total_steps, or epochs and steps_per_epoch")
        end
        o.total_steps = o.epochs * o.steps_per_epoch
        must(mine, "epochs", o.total_steps // o.epochs == o.steps_per_epoch,
          "a number that times steps_per_epoch can be counted")
      end
      must(mine, "pct_start", o.pct_start >= 0 and o.pct_start <= 1, "from 0 to 1")
      must(mine, "div_factor", o.div_factor > 0 and o.div_factor < huge, "a number above 0")
      must(mine, "final_div_factor", o.final_div_factor > 0 and o.final_div_factor < huge, "a number above 0")
      check_groups(mine, "max_lr", huge)
      check_momentum(o, mine)
    end,
  })

-- What the height of each cycle is multiplied by, and whether that goes by cycles or by steps.
local cyclic_modes = {
  triangular = { function() return 1 end, "cycle" },
  triangular2 = { function(cycle) return 0.5 ^ (cycle - 1) end, "cycle" },
  exp_range = { function(step, o) return o.gamma ^ step end, "iterations" },
}

-- How high step t of Cyclic lies: 0 at the ends of a cycle, 1 at its top, as PyTorch computes it; and the scale of it.
local function height_of(t, o)
  local total = o.step_size_up + o.step_size_down
  local ratio, cycle = o.step_size_up / total, floor(1 + t / total)
  local x = 1 + t / total - cycle
  local height = x <= ratio and x / ratio or (x - 1) / (ratio - 1)
  local scale = o.scale(o.scale_mode == "cycle" and cycle or t, o)
  if type(scale) ~= "number" or scale ~= scale then
    fail(format("lr.Cyclic: scale_fn gives a number, got %s", native.shown(scale)))
  end
  return height * scale
end

schedule_of_rates("Cyclic", "gb.optim.lr.Cyclic(optimizer: optimizer; base_lr: number|list, max_lr: number|list, \z
  step_size_up: number = 2000, step_size_down?: number, mode: \"triangular\"|\"triangular2\"|\"exp_range\" = \z
  \"triangular\", gamma: number = 1, scale_fn?: function, scale_mode: \"cycle\"|\"iterations\" = \"cycle\", \z
  cycle_momentum: bool = true, base_momentum: number|list = 0.8, max_momentum: number|list = 0.9, warmup: number = \z
  0, last_epoch: int = -1) -> schedule: From base_lr to max_lr in step_size_up steps, back in step_size_down (as \z
  many), again and again (Smith 2017): always as high, half as high after each cycle, or by gamma ^ step; \z
  scale_fn(cycle or step) instead of mode. The momentum, or betas[1], runs the other way. Errors: an optimizer \z
  without momentum or betas. Example: local schedule = gb.optim.lr.Cyclic(opt, { base_lr = 0.01, max_lr = 0.1, \z
  step_size_up = 100 })",
  function(t, o, _, i, mine)
    local low = of_group(mine, "base_lr", i)
    return low + (of_group(mine, "max_lr", i) - low) * height_of(t, o)
  end,
  {
    sets = true,
    momentum = function(t, o, i, mine)
      if not o.cycle_momentum then return nil end
      local top = of_group(mine, "max_momentum", i)
      return top - (top - of_group(mine, "base_momentum", i)) * height_of(t, o)
    end,
    settle = function(o, mine)
      o.step_size_down = o.step_size_down or o.step_size_up
      must(mine, "step_size_up", o.step_size_up > 0 and o.step_size_up < huge, "a number of steps above 0")
      must(mine, "step_size_down", o.step_size_down > 0 and o.step_size_down < huge, "a number of steps above 0")
      must(mine, "gamma", o.gamma >= 0 and o.gamma < huge, "a number from 0")
      check_groups(mine, "base_lr", huge)
      check_groups(mine, "max_lr", huge)
      check_momentum(o, mine)
      o.scale = o.scale_fn
      if not o.scale then o.scale, o.scale_mode = unpack(cyclic_modes[o.mode]) end
    end,
  })

-- ====}

-- {==== by a metric ====

-- Is the metric better than the best so far, by more than the threshold? Anything is better than the worst there is.
local function is_better(metric, best, o)
  local sign = o.mode == "min" and -1 or 1
  local bar = o.threshold_mode == "rel" and best * (1 + sign * o.threshold) or best + sign * o.threshold
  if best == huge or best == -huge then bar = best end
  if o.mode == "min" then return metric < bar end
  return metric > bar
end

-- The rates of all groups, each by factor but not below min_lr; one that would hardly change stays.
local function reduced(mine, rates)
  local o, list = mine.options, {}
  for i = 1, #mine.base do
    local old = rates[i] or mine.base[i]
    local new = max(old * o.factor, of_group(mine, "min_lr", i))
    list[i] = old - new > o.eps and new or old
  end
  return list
end

schedule_of_rates("ReduceOnPlateau", "gb.optim.lr.ReduceOnPlateau(optimizer: optimizer; mode: \"min\"|\"max\" = \z
  \"min\", factor: number = 0.1, patience: count = 10, threshold: number = 0.0001, threshold_mode: \"rel\"|\"abs\" = \z
  \"rel\", cooldown: count = 0, min_lr: number|list = 0, eps: number = 1e-8, warmup: number = 0) -> schedule: The lr \z
  by factor when the metric that schedule:step(metric) gets was not better for more than patience steps; then \z
  cooldown steps pass before bad ones count again. Better: by more than threshold, of the best or as it is. Errors: \z
  a factor that is not below 1. Example: local schedule = gb.optim.lr.ReduceOnPlateau(opt, { patience = 2 }) \z
  schedule:step(0.5)",
  function(t, _, base, i, mine, at)
    only_now(mine, at, t)
    return at.state.rates[i] or base
  end,
  {
    by_metric = true,
    settle = function(o, mine)
      must(mine, "factor", o.factor >= 0 and o.factor < 1, "from 0, below 1, since the lr is multiplied by it")
      must(mine, "threshold", o.threshold >= 0 and o.threshold < huge, "a number from 0")
      must(mine, "eps", o.eps >= 0 and o.eps < huge, "a number from 0")
      check_groups(mine, "min_lr", huge)
    end,
    begin = function(mine)
      return { best = mine.options.mode == "min" and huge or -huge, bad = 0, cooldown = 0,
        rates = { unpack(mine.base) } }
    end,
    advance = function(mine, state, _, metric)
      local o = mine.options
      if not metric then fail("step: the metric that ReduceOnPlateau goes by is missing; call schedule:step(loss)") end
      local better = is_better(metric, state.best, o)
      local after = { best = better and metric or state.best, bad = better and 0 or state.bad + 1,
        cooldown = state.cooldown, rates = state.rates }
      if after.cooldown > 0 then after.cooldown, after.bad = after.cooldown - 1, 0 end
      if after.bad > o.patience then
        after.rates, after.cooldown, after.bad = reduced(mine, state.rates), o.cooldown, 0
      end
      return after
    end,
  })

-- The rate goes from the one in force to swa_lr, where it stays while weights are averaged
-- (torch.optim.swa_utils.SWALR).
schedule_of_rates("SWA", "gb.optim.lr.SWA(optimizer: optimizer; swa_lr: number|list, anneal_epochs: count = 10, \z
  anneal_strategy: \"cos\"|\"linear\" = \"cos\", warmup: number = 0, last_epoch: int = -1) -> schedule: From the lr \z
  in force to swa_lr in anneal_epochs steps, for the stage in which gb.optim.Average averages weights (Izmailov et \z
  al. 2018). Example: local schedule = gb.optim.lr.SWA(opt, { swa_lr = 0.05 })",
  function(t, o, base, i, mine)
    return anneals[o.anneal_strategy](base, of_group(mine, "swa_lr", i), min(t / max(o.anneal_epochs, 1), 1))
  end,
  { from_now = true, settle = function(_, mine) check_groups(mine, "swa_lr", huge) end })

-- ====}

-- {==== schedules of schedules ====

-- The schedules of a list become parts: they are of this optimizer, each listed once, and no part of another one.
local function adopt(o, mine)
  if #o.schedules == 0 then
    fail(format("lr.%s: 'schedules' is empty; give a list of schedules of this optimizer", mine.name))
  end
  local listed = {}
  for k = 1, #o.schedules do
    local part = private(o.schedules[k], "schedule")
    if not part then
      fail(format("lr.%s: 'schedules' must hold schedules of gb.optim.lr, but [%d] is a %s", mine.name, k,
        type(o.schedules[k])))
    end
    if part.optimizer ~= mine.optimizer then
      fail(format("lr.%s: schedule %d is of another optimizer; make it for this one", mine.name, k))
    end
    if part.owner then
      fail(format("lr.%s: schedule %d is a part of lr.%s already; make another one", mine.name, k, part.owner))
    end
    if listed[part] then
      fail(format("lr.%s: schedules %d and %d are the same; make two", mine.name, listed[part], k))
    end
    listed[part], mine.parts[k] = k, part
    mine.depth = max(mine.depth, part.depth + 1)
  end
  if mine.depth > MOST_DEPTH then
    fail(format("lr.%s: schedules lie within each other more than %d deep; list them side by side", mine.name,
      MOST_DEPTH))
  end
end

-- The part of Sequential that runs at step t, and the step at which it begins.
local function part_at(o, t)
  local k = passed(o.milestones, t)
  return k + 1, o.milestones[k] or 0
end

schedule_of_rates("Sequential", "gb.optim.lr.Sequential(optimizer: optimizer; schedules: list, milestones: list, \z
  warmup: number = 0) -> schedule: One schedule after the other, each from its step 0 and from the initial lr: the \z
  second begins at step milestones[1], and so on. Call step() of this one alone. Errors: milestones that are not one \z
  fewer than schedules, schedules of another optimizer. Example: local a, b = gb.optim.lr.Constant(opt, { factor = \z
  0.1 }), gb.optim.lr.Exponential(opt, { gamma = 0.9 }) local schedule = gb.optim.lr.Sequential(opt, { schedules = { \z
  a, b }, milestones = { 10 } })",
  function(t, o, _, i, mine, at)
    local k, start = part_at(o, t)
    return rate_at(mine.parts[k], at.parts[k], t - start, i)
  end,
  {
    sets = true,
    momentum = function(t, o, i, mine, at)
      local k, start = part_at(o, t)
      return momentum_at(mine.parts[k], at.parts[k], t - start, i)
    end,
    advance_parts = function(mine, places, t, metric)
      local k, start = part_at(mine.options, t)
      if t > start then places[k] = next_of(mine.parts[k], places[k], metric) end
      return places
    end,
    settle = function(o, mine)
      adopt(o, mine)
      check_milestones(mine, o.milestones, 0)
      if #o.milestones ~= #o.schedules - 1 then
        fail(format("lr.Sequential: %d schedules need %d milestones, the steps at which the next one begins; got %d",
          #o.schedules, #o.schedules - 1, #o.milestones))
      end
    end,
  })

schedule_of_rates("Chained", "gb.optim.lr.Chained(optimizer: optimizer; schedules: list, warmup: number = 0) -> \z
  schedule: Several schedules at once: the initial lr by the factors of all of them. Call step() of this one alone. \z
  Errors: schedules of another optimizer. Example: local a, b = gb.optim.lr.Constant(opt, { factor = 0.1 }), \z
  gb.optim.lr.Exponential(opt, { gamma = 0.9 }) local schedule = gb.optim.lr.Chained(opt, { schedules = { a, b } })",
  function(t, _, base, i, mine, at)
    local rate = base
    for k = 1, #mine.parts do
      local part = mine.parts[k]
      local own_rate = rate_at(part, at.parts[k], t, i)
      if part.base[i] == 0 then return own_rate end
      rate = rate * (own_rate / part.base[i])
    end
    return rate
  end,
  {
    sets = true,
    momentum = function(t, _, i, mine, at)
      local momentum
      for k = 1, #mine.parts do momentum = momentum_at(mine.parts[k], at.parts[k], t, i) or momentum end
      return momentum
    end,
    advance_parts = function(mine, places, _, metric)
      for k = 1, #mine.parts do places[k] = next_of(mine.parts[k], places[k], metric) end
      return places
    end,
    settle = adopt,
  })

-- ====}
