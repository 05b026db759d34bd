-- schedules.lua - learning rate schedules, which set the groups' lr from a step number. Each is one call of schedule() at the end: its record,
-- and its factor on the initial lr.
--
-- A schedule counts steps that happened: call schedule:step() after opt:step() or scaler:step(opt). With warmup = n any schedule first
-- rises linearly from lr / n over n steps. state_dict and load_state_dict resume it.

local gb, native = ...
local fail = native.fail -- raises with the recipe's line
local define, own, private = native.define, native.own, native.private
local format, unpack, min, cos, sqrt, pi = string.format, table.unpack, math.min, math.cos, math.sqrt, math.pi

local lr = {}
gb.optim.lr = lr

-- What is private of a schedule: optimizer, options, shape (its factor by the step after warmup), warmup, count (steps that happened), base (the
-- initial rates).
local Schedule = { __name = "gb.optim.lr.Schedule" }
Schedule.__index = Schedule
native.classes.Schedule = Schedule
Schedule.__tostring = function(self)
  local mine = private(self, "schedule")
  return mine and format("%s (step %d)", mine.name, mine.count) or "schedule"
end

local function factor_at(mine, t)
  if t < mine.warmup then return (t + 1) / mine.warmup end
  local factor = mine.shape(t - mine.warmup, mine.options)
  if type(factor) ~= "number" then fail(format("lr.%s: the factor is a number, got %s", mine.name, type(factor))) end
  return factor
end

local function apply(mine)
  local factor, opt = factor_at(mine, mine.count), private(mine.optimizer, "optimizer")
  for i = 1, #opt.groups do
    mine.base[i] = mine.base[i] or opt.native:get(i, "lr") -- a group that was added later
    opt.native:set(i, "lr", mine.base[i] * factor)
  end
end

Schedule.factor = define("Schedule:factor(t: int) -> number: The factor on the initial lr at step t (from 0): warmup first, then the schedule's \z
  own. Example: print(schedule:factor(0))", "strict", function(self, t) return factor_at(private(self, "schedule"), t) end)

Schedule.step = define("Schedule:step(): One more step happened: the groups get their new lr. Example: schedule:step()", "strict", function(self)
  local mine = private(self, "schedule")
  mine.count = mine.count + 1
  apply(mine)
end)

Schedule.get_last_lr = define("Schedule:get_last_lr() -> list: The rates in force, one per group. Example: print(schedule:get_last_lr()[1])",
  "strict", function(self)
    local opt, rates = private(private(self, "schedule").optimizer, "optimizer"), {}
    for i = 1, #opt.groups do rates[i] = opt.native:get(i, "lr") end
    return rates
  end)

Schedule.state_dict = define("Schedule:state_dict() -> table: The step it stands at and the initial rates. Example: local state = \z
  schedule:state_dict()", "strict", function(self)
  local mine = private(self, "schedule")
  return { count = mine.count, base = { unpack(mine.base) } }
end)

Schedule.load_state_dict = define("Schedule:load_state_dict(state: tree): Go on from what state_dict gave. Errors: a state without a count. \z
  Example: schedule:load_state_dict(schedule:state_dict())", "strict", function(self, state)
  local mine = private(self, "schedule")
  local count, base = math.type(state.count) == "integer" and state.count, state.base or {}
  if not count or count < 0 then fail("schedule: the state has no count of steps") end
  if type(base) ~= "table" then fail("schedule: base, the learning rates of the state, is no list") end
  for i = 1, #mine.base do
    local rate = base[i]
    if rate ~= nil and not (type(rate) == "number" and rate >= 0 and rate < math.huge) then
      fail(format("schedule: the learning rate of group %d of the state is %s; it is a number from 0", i, tostring(rate)))
    end
  end
  mine.count = count
  for i = 1, #mine.base do mine.base[i] = base[i] or mine.base[i] end
  apply(mine)
end)

-- A kind of schedule: its record, its factor as a function of the step after warmup and of the options, and perhaps what settles the options.
local function schedule(name, text, shape, settle)
  lr[name] = define(text, "strict", function(opt, options)
    if options.steps and not (options.steps > 0) then fail(format("lr.%s: 'steps' must be above 0, got %s", name, tostring(options.steps))) end
    if options.warmup < 0 then fail(format("lr.%s: 'warmup' is a number of steps from 0, got %s", name, tostring(options.warmup))) end
    if settle then settle(options) end
    local mine = { name = name, optimizer = opt, options = options, shape = shape, warmup = options.warmup, count = 0, base = {} }
    local self = own(setmetatable({ optimizer = opt }, Schedule), "schedule", mine)
    apply(mine)
    return self
  end)
end

schedule("Constant", "gb.optim.lr.Constant(optimizer: optimizer; warmup: number = 0) -> schedule: The initial lr, after a warmup: in that many \z
  steps the rate rises from lr / warmup; every schedule has it. Example: local schedule = gb.optim.lr.Constant(opt, { warmup = 10 })",
  function() return 1 end)

schedule("Linear", "gb.optim.lr.Linear(optimizer: optimizer; steps: number, first: number = 1, last: number = 0, warmup: number = 0) -> \z
  schedule: From factor first to factor last over steps steps. Example: local schedule = gb.optim.lr.Linear(opt, { steps = 100 })",
  function(t, o) return o.first + (o.last - o.first) * min(t / o.steps, 1) end)

schedule("Cosine", "gb.optim.lr.Cosine(optimizer: optimizer; steps: number, last: number = 0, warmup: number = 0) -> schedule: Half a cosine \z
  from 1 to factor last over steps steps (Loshchilov, Hutter 2017, without restarts); warmup comes first, outside steps. Example: local \z
  schedule = gb.optim.lr.Cosine(opt, { steps = 100, warmup = 10 })",
  function(t, o) return o.last + (1 - o.last) * 0.5 * (1 + cos(pi * min(t / o.steps, 1))) end)

schedule("Lambda", "gb.optim.lr.Lambda(optimizer: optimizer; fn: function, warmup: number = 0) -> schedule: fn(step) is the factor. Example: \z
  local schedule = gb.optim.lr.Lambda(opt, { fn = function(t) return 0.9 ^ t end })",
  function(t, o) return o.fn(t) end)

-- The three stages of Hu et al. 2024 (MiniCPM, arXiv:2404.06395, section 4). The shapes of the decay are those of get_wsd_schedule in Hugging Face
-- Transformers; "1-sqrt" is of Hägele et al. 2024 (arXiv:2405.18392).
local decays = {
  linear = function(share) return 1 - share end,
  cosine = function(share) return 0.5 * (1 + cos(pi * share)) end,
  ["1-sqrt"] = function(share) return 1 - sqrt(share) end,
}
schedule("WarmupStableDecay", "gb.optim.lr.WarmupStableDecay(optimizer: optimizer; steps: number, decay_steps?: number, last: number = 0, \z
  shape: \"linear\"|\"cosine\"|\"1-sqrt\" = \"linear\", warmup: number = 0) -> schedule: The initial lr, and in the last decay_steps of steps \z
  steps down to factor last (MiniCPM, Hu et al. 2024); decay_steps is a tenth of steps unless given, and warmup comes first, outside steps. \z
  Errors: decay_steps above steps. Example: local schedule = gb.optim.lr.WarmupStableDecay(opt, { steps = 100, warmup = 10, shape = \"1-sqrt\" })",
  function(t, o)
    local share = (t - (o.steps - o.decay_steps)) / o.decay_steps
    return share <= 0 and 1 or o.last + (1 - o.last) * decays[o.shape](min(share, 1))
  end,
  function(o)
    o.decay_steps = o.decay_steps or o.steps / 10
    if not (o.decay_steps > 0 and o.decay_steps <= o.steps) then
      fail(format("lr.WarmupStableDecay: 'decay_steps' must be above 0 and at most steps = %s, got %s", tostring(o.steps), tostring(o.decay_steps)))
    end
  end)
