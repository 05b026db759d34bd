-- early_stopping.lua - gb.EarlyStopping: when a measure of a run has stopped getting better. The Trainer uses it, and a
-- loop written by hand can: if stopper:check(loss) then break end.

local gb, native = ...
local fail = native.fail -- raises with the recipe's line
local define, own, private = native.define, native.own, native.private
local format, huge = string.format, math.huge

-- What is private of one: its options, best, wait (checks since the best), checks (how many there were), stopped (the
-- check that stopped, or nil) and reason.
local EarlyStopping = { __name = "gb.EarlyStopping" }
native.classes.EarlyStopping = EarlyStopping

local shown = { best = true, wait = true, checks = true, stopped = true, reason = true, monitor = true, mode = true,
  patience = true }
EarlyStopping.__index = function(self, key)
  local mine = shown[key] and private(self, "early_stopping")
  if mine then return mine[key] end
  return EarlyStopping[key]
end
EarlyStopping.__tostring = function(self)
  local mine = private(self, "early_stopping")
  return mine and format("EarlyStopping (%s, best %g, %d of %d checks without a better one)", mine.monitor, mine.best,
    mine.wait, mine.patience) or "EarlyStopping"
end

-- Is a better than b?
local function better(mine, a, b)
  if mine.mode == "min" then return a < b end
  return a > b
end

-- Why the run should end at this value, or nil. The order is that of PyTorch Lightning.
local function verdict(mine, value)
  if mine.check_finite and not (value > -huge and value < huge) then
    return native.plain_nan(format("%s is %g, which is not finite", mine.monitor, value))
  end
  local reached, diverged = mine.stopping_threshold, mine.divergence_threshold
  if reached and better(mine, value, reached) then
    return format("%s is %g, better than the threshold %g", mine.monitor, value, reached)
  end
  if diverged and better(mine, diverged, value) then
    return format("%s is %g, worse than the threshold %g", mine.monitor, value, diverged)
  end
  local margin = mine.mode == "min" and mine.min_delta or -mine.min_delta
  if better(mine, value + margin, mine.best) then
    mine.best, mine.wait = value, 0
    return nil
  end
  mine.wait = mine.wait + 1
  if mine.wait < mine.patience then return nil end
  return format("%s was not better than %g in %d checks", mine.monitor, mine.best, mine.wait)
end

-- The number that is watched, of what was given; nil where it is missing and may be.
local function watched(mine, values)
  local value = values
  if type(values) == "table" then value = values[mine.monitor] end
  if value == nil then
    if not mine.strict then return nil end
    fail(format("EarlyStopping: there is no value '%s'%s; strict = false lets it be missing", mine.monitor,
      native.nearest(mine.monitor, values)))
  end
  if gb.is_tensor(value) then value = value:item() end
  if type(value) ~= "number" then
    fail(format("EarlyStopping: '%s' must be a number, got a %s", mine.monitor, type(value)))
  end
  return value
end

EarlyStopping.check = define("EarlyStopping:check(values: number|tensor|table) -> bool, string: One more measure, or \z
  a table of values by name that has it. True where the run should stop, and why: not finite, past a threshold, or \z
  patience checks without a better one. Errors: a table without the value, unless strict is false. Example: \z
  print(gb.EarlyStopping({ patience = 2 }):check(0.5))", "strict", function(self, values)
  local mine = private(self, "early_stopping")
  local value = watched(mine, values)
  if value == nil then return false end
  mine.checks = mine.checks + 1
  local reason = verdict(mine, value)
  if not reason then return false end
  mine.stopped, mine.reason = mine.stopped or mine.checks, reason
  return true, reason
end)

EarlyStopping.state_dict = define("EarlyStopping:state_dict() -> table: The best, the wait, and whether it stopped \z
  and why. Example: local state = gb.EarlyStopping():state_dict()", "strict", function(self)
  local mine = private(self, "early_stopping")
  return { best = mine.best, wait = mine.wait, checks = mine.checks, stopped = mine.stopped, reason = mine.reason,
    patience = mine.patience }
end)

EarlyStopping.load_state_dict = define("EarlyStopping:load_state_dict(state: table): Go on from what state_dict gave; \z
  the patience stays that of this one. Errors: a state of another form. Example: local stopper = gb.EarlyStopping() \z
  stopper:load_state_dict(stopper:state_dict())", "strict", function(self, state)
  local mine = private(self, "early_stopping")
  local function is_count(value) return math.type(value) == "integer" and value >= 0 end
  if type(state.best) ~= "number" or not is_count(state.wait) or not is_count(state.checks) or
    not (state.stopped == nil or is_count(state.stopped)) or not (state.reason == nil or type(state.reason) == "string")
  then
    fail("EarlyStopping: load_state_dict takes what state_dict gave: best, wait and checks")
  end
  mine.best, mine.wait, mine.checks = state.best, state.wait, state.checks
  mine.stopped, mine.reason = state.stopped, state.reason
end)

gb.EarlyStopping = define("gb.EarlyStopping(; monitor: string = \"val_loss\", min_delta: number = 0, patience: size = \z
  3, mode: \"min\"|\"max\" = \"min\", strict: bool = true, check_finite: bool = true, stopping_threshold?: number, \z
  divergence_threshold?: number) -> early_stopping: Says when a measure has stopped getting better: after patience \z
  checks in a row that were not better than the best by more than min_delta; at once where it is not finite, better \z
  than stopping_threshold or worse than divergence_threshold. best, wait, checks, stopped and reason can be read. \z
  Errors: a min_delta below 0. Example: local stopper = gb.EarlyStopping({ patience = 2 }) for _, loss in ipairs({ 2, \z
  1, 1, 1 }) do if stopper:check(loss) then print(stopper.reason) end end", "strict", function(options)
  if not (options.min_delta >= 0 and options.min_delta < huge) then
    fail(format("EarlyStopping: 'min_delta' must be a number from 0, got %g; mode says which way is better",
      options.min_delta))
  end
  for _, name in ipairs { "stopping_threshold", "divergence_threshold" } do
    if options[name] and options[name] ~= options[name] then fail(format("EarlyStopping: '%s' is NaN", name)) end
  end
  options.best, options.wait, options.checks = options.mode == "min" and huge or -huge, 0, 0
  return own(setmetatable({}, EarlyStopping), "early_stopping", options)
end)
