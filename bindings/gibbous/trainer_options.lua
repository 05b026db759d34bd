-- trainer_options.lua - gb.Trainer itself: its options, and the objects that are made of them.

local gb, native = ...
local fail = native.fail -- raises with the recipe's line
local define, own, private, copy = native.define, native.own, native.private, native.copy
local format, find = string.format, string.find
local math_type, huge = math.type, math.huge
local min, ceil = math.min, math.ceil
local amp, is_tensor, Module = gb.amp, gb.is_tensor, gb.nn.Module
local Checkpoints, EarlyStopping, Metrics = gb.Checkpoints, gb.EarlyStopping, gb.Metrics
local trainer, Trainer = native.trainer, native.classes.Trainer

-- {==== options ====

local function is_whole(value) return math_type(value) == "integer" and value >= 1 end
local function is_count(value) return math_type(value) == "integer" and value >= 0 end
local function is_positive(value) return type(value) == "number" and value > 0 and value < huge end
local function is_bool(value) return type(value) == "boolean" end
local function is_text(value) return type(value) == "string" end
local function is_table(value) return type(value) == "table" end
local function is_limit(value)
  return is_count(value) or math_type(value) == "float" and value >= 0 and value <= 1
end
local is_function = native.is_callable
local function is_any(value) return value ~= nil end
local function is_time(value) return is_text(value) or is_positive(value) end

-- What each option can be: { check, words, default }.
local known = {
  model = { gb.nn.is_module, "a module of gb.nn" },
  optimizer = { is_any, "an optimizer, or { name, lr = ... }" },
  loss = { is_function, "a function of output and target" },
  compute = { is_function, "a function of the model and a batch that gives loss, output and target" },
  precision = { is_any, "a precision", "32-true" }, device = { is_text, "the name of a device" },
  epochs = { is_whole, "a whole number from 1" }, steps = { is_whole, "a whole number from 1" },
  time = { is_time, "seconds or \"DD:HH:MM:SS\"" },
  accumulate = { is_whole, "a whole number from 1", 1 },
  count = { is_function, "a function of a batch that gives how many elements its loss is the mean of" },
  ignore_index = { function(v) return math_type(v) == "integer" end, "a whole number", -100 },
  clip = { is_positive, "a number above 0" }, clip_value = { is_positive, "a number above 0" },
  scaler = { function(v) return native.scale_of(v) ~= nil end, "a GradScaler" },
  schedule = { is_any, "a schedule, a function of the optimizer, or { name, option = ... }" },
  schedule_every = { function(v) return v == "step" or v == "epoch" or v == "check" end, "step, epoch or check" },
  validate_every = { function(v) return is_whole(v) or is_text(v) or is_positive(v) and v <= 1 end,
    "a share of an epoch up to 1.0, a whole number of steps, or a time such as \"00:30:00\"", 1.0 },
  validate_epochs = { is_whole, "a whole number from 1", 1 }, sanity = { is_count, "a whole number from 0", 2 },
  metrics = { is_table, "gb.Metrics, or what it takes" }, train_metrics = { is_bool, "true or false", false },
  log = { is_table, "a logger or a list of loggers" }, log_every = { is_whole, "a whole number from 1", 50 },
  progress = { is_bool, "true or false", true },
  stop = { is_table, "gb.EarlyStopping, or its options" },
  checkpoint = { function(v) return is_table(v) or is_text(v) end, "gb.Checkpoints, a folder, or { folder, ... }" },
  save_on_error = { is_bool, "true or false", false },
  resume = { function(v) return is_bool(v) or is_text(v) end, "true, or the path of a checkpoint", false },
  average = { function(v) return is_table(v) or v == "ema" or v == "swa" end,
    "\"ema\", \"swa\", an average or options" },
  on = { is_table, "a table of functions by event, or a list of such" },
  seed = { function(v) return math_type(v) == "integer" end, "a whole number" },
  shards = { function(v) return v == false or is_whole(v) end, "a power of two, or false to train alone" },
  recompute = { is_text, "a pattern of the names of modules" },
  limit = { is_table, "a table with train, validate and predict" }, overfit = { is_whole, "a whole number from 1" },
  fast_dev_run = { function(v) return is_bool(v) or is_whole(v) end, "true, or a number of batches", false },
  anomaly = { is_bool, "true or false", false },
  nonfinite = { function(v) return v == "skip" or v == "stop" end, "skip or stop", "skip" },
  spikes = { function(v) return is_bool(v) or is_table(v) end, "true, or { window, warmup, tolerance }", false },
  peak_flops = { is_positive, "operations a second that the device can do" },
  profile = { is_whole, "the number of the step to profile" }, summary = { is_bool, "true or false", false },
  grace = { is_positive, "seconds", 60 },
}

-- The options, checked, with their defaults.
local function checked(given)
  local options = {}
  for name, value in next, given do
    local row = type(name) == "string" and known[name]
    if not row then
      fail(format("Trainer: there is no option '%s'%s", native.shown(name), type(name) == "string" and
        native.nearest(name, known) or ""))
    end
    if not row[1](value) then
      local is_shown = type(value) == "number" or type(value) == "string" or type(value) == "boolean"
      fail(format("Trainer: '%s' must be %s, got %s", name, row[2], is_shown and native.shown(value) or
        "a " .. type(value)))
    end
    options[name] = value
  end
  for name, row in next, known do
    if options[name] == nil then options[name] = row[3] end
  end
  if not options.model then fail("Trainer: give the model, a module of gb.nn") end
  if not options.optimizer then fail("Trainer: give the optimizer, or { \"AdamW\", lr = 1e-3 }") end
  if options.save_on_error and not options.checkpoint then fail("Trainer: 'save_on_error' needs checkpoint") end
  if options.train_metrics and not options.metrics then fail("Trainer: 'train_metrics' needs metrics") end
  if options.loss and options.compute then fail("Trainer: give loss or compute, not both") end
  return options
end

-- How many steps the run has, as far as that is known.
local function total_steps(mine, batches)
  local per_epoch = ceil(batches / mine.accumulate)
  local steps = mine.epochs and mine.epochs * per_epoch
  return min(steps or huge, mine.steps or huge)
end

trainer.total_steps = total_steps

local events = { start = true, epoch = true, batch = true, backward = true, step = true, skip = true, validate = true,
  improve = true, save = true, load = true, stop = true, finish = true, state = true, restore = true }

-- The tables of callbacks, as a list; each name is an event.
local function callbacks_of(on)
  local list = on == nil and {} or rawget(on, 1) ~= nil and copy(on) or { copy(on) }
  for i, hooks in ipairs(list) do
    if type(hooks) ~= "table" then fail(format("Trainer: 'on' [%d] is a %s, not a table", i, type(hooks))) end
    list[i] = copy(hooks)
    for name, fn in next, list[i] do
      if not events[name] then
        fail(format("Trainer: 'on' has no event '%s'%s", native.shown(name), type(name) == "string" and
          native.nearest(name, events) or ""))
      end
      if not is_function(fn) then fail(format("Trainer: 'on.%s' is a %s, no function", name, type(fn))) end
    end
  end
  return list
end

-- The loggers: anything with log and close.
local function loggers_of(log)
  local is_none = log == nil or getmetatable(log) == nil and next(log) == nil
  local list = is_none and {} or rawget(log, 1) ~= nil and copy(log) or { log }
  for i, logger in ipairs(list) do
    local is_object = type(logger) == "table" or type(logger) == "userdata" and not is_tensor(logger)
    if not (is_object and logger.log and logger.close) then
      fail(format("Trainer: 'log' [%d] is no logger; gb.Logger.jsonl(path) makes one", i))
    end
  end
  return list
end

-- ====}

-- {==== making one ====

-- The objects that options stand for: given ones, or made of a table of options.
local function make_parts(mine, options)
  local stop, files, metrics = options.stop, options.checkpoint, options.metrics
  mine.stopping = stop and (private(stop, "early_stopping") and stop or EarlyStopping(stop))
  if type(files) == "string" then files = { files } end
  if files and not private(files, "checkpoints") then
    local folder, rest = rawget(files, 1) or rawget(files, "folder"), copy(files)
    rest[1], rest.folder = nil, nil
    if type(folder) ~= "string" then fail("Trainer: 'checkpoint' needs a folder: { \"runs/a\", keep = 2 }") end
    files = Checkpoints(folder, rest)
  end
  mine.checkpoint = files
  mine.metrics = metrics and (private(metrics, "metrics") and metrics or Metrics(metrics))
  mine.tally = mine.metrics and options.train_metrics and native.metrics_like(mine.metrics) or nil
  mine.loggers, mine.callbacks = loggers_of(options.log), callbacks_of(options.on)
  if mine.rank > 0 then mine.loggers = {} end
end

-- The model in its place and precision, before an optimizer that is made here sees it.
local function place_model(mine)
  local wanted = gb.device(mine.device)
  if private(mine.optimizer_spec, "optimizer") then
    for _, p in ipairs(Module.parameters(mine.model)) do
      if gb.device(p.device) ~= wanted then
        fail(format("Trainer: the model lies on %s, device is %s; move it before its optimizer is made", p.device,
          mine.device))
      end
    end
  end
  Module.to(mine.model, mine.device, mine.precision)
end

-- A measure that is watched must be one that the run has: that is better known now than after an epoch.
function trainer.check_monitors(mine)
  local measured = { loss = true, train_loss = true, lr = true, norm = true, scale = true, skipped = true, step = true,
    epoch = true, samples_per_second = true, data_wait = true, mfu = mine.peak_flops, val_loss = mine.validation }
  for name in next, mine.metrics and mine.metrics:compute() or {} do
    measured["val_" .. name], measured["train_" .. name] = mine.validation, mine.tally
  end
  for part, watching in next, { stop = mine.stopping, checkpoint = mine.checkpoint } do
    local name, may_be_missing = watching.monitor, part == "stop" and not private(watching, "early_stopping").strict
    if name and not measured[name] and not may_be_missing then
      fail(format("Trainer: '%s' watches '%s', and the run has none%s%s", part, name, native.nearest(name, measured),
        find(name, "^val_") and not mine.validation and "; give fit something to validate on" or ""))
    end
  end
  for _, field in ipairs(mine.checkpoint and native.fields_of(mine.checkpoint) or {}) do
    if not measured[field] then
      fail(format("Trainer: the names of 'checkpoint' have a field {%s}, and the run has no such value%s", field,
        native.nearest(field, measured)))
    end
  end
end

gb.Trainer = define("gb.Trainer(options: table) -> trainer: The loop around training: fit, validate, predict, \z
  find_batch and find_lr. Of the options, model and optimizer (an optimizer, or { \"AdamW\", lr =, weight_decay = }: \z
  none on biases and norms) are needed, and as a rule loss, a function of output and target, or compute(model, x, \z
  ...) -> loss, output, target. How long: epochs, steps, time. How: precision, device, accumulate, count or \z
  ignore_index (what the loss is a mean of), clip, clip_value, scaler, schedule (or { \"Cosine\", warmup = 0.1 }), \z
  schedule_every, average (\"ema\", \"swa\" or options), shards (virtual shards, of which many processes have 8), \z
  recompute (modules by name), seed, nonfinite (\"skip\" or \"stop\"), anomaly, spikes. What is watched: metrics, \z
  train_metrics, validate_every (1.0: each epoch; 500: steps; \"01:00:00\"), validate_epochs, sanity, log, log_every, \z
  progress, on (functions by event), peak_flops, profile, summary. What is kept, and when it ends: checkpoint, \z
  save_on_error, resume, stop, grace. For trying: limit, overfit, fast_dev_run. docs/training.md describes each. \z
  Errors: options that are unknown or of another kind. Example: local trainer = gb.Trainer({ model = gb.nn.Linear(4, \z
  2), optimizer = { \"AdamW\", lr = 1e-3 }, loss = gb.nn.functional.cross_entropy, epochs = 1 })",
  "strict", function(given)
  local mine = checked(given)
  local options = copy(mine)
  local dry = mine.fast_dev_run
  if dry then
    options.checkpoint, options.stop, options.log = nil, nil, nil
    mine.epochs, mine.resume = 1, false
  end
  if mine.seed then gb.manual_seed(mine.seed) end
  mine.device = mine.device and gb.device(mine.device) or gb.best_device()
  mine.precision = amp.precision(mine.precision)
  mine.optimizer_spec, mine.schedule_spec, mine.schedule = mine.optimizer, mine.schedule, nil
  place_model(mine)
  trainer.join(mine)
  mine.optimizer = gb.optim.named(mine.optimizer_spec, mine.model)
  mine.parameters = {}
  for i, entry in ipairs(private(mine.optimizer, "optimizer").native:params()) do mine.parameters[i] = entry.param end
  -- a static scale of 1 changes no bit, and skips steps whose gradients are not finite
  mine.scaler = mine.scaler or mine.precision.scaler and amp.GradScaler(mine.precision) or amp.GradScaler({ scale = 1 })
  make_parts(mine, options)
  local average = mine.average
  mine.average = nil
  trainer.make_average(mine, average)
  trainer.try_schedule(mine)
  mine.seconds = mine.time and native.seconds_of("Trainer: 'time'", mine.time)
  mine.validate_seconds = type(mine.validate_every) == "string" and
    native.seconds_of("Trainer: 'validate_every'", mine.validate_every)
  mine.limit = mine.limit and copy(mine.limit) or {}
  for name, value in next, mine.limit do
    if not (name == "train" or name == "validate" or name == "predict") or not is_limit(value) then
      fail(format("Trainer: 'limit' has train, validate and predict, each a number of batches or a share up to 1.0; \z
        got %s = %s", native.shown(name), native.shown(value)))
    end
  end
  mine.spikes = trainer.spike_options(mine.spikes)
  if mine.recompute then gb.nn.utils.recompute(mine.model, mine.recompute) end
  mine.epoch, mine.batch, mine.inner, mine.step, mine.skipped = 0, 0, 0, 0, 0
  mine.sums, mine.values, mine.window, mine.spikes_found, mine.reports = { loss = 0.0, count = 0 }, {}, {}, {}, 0
  local self = own(setmetatable({}, Trainer), "trainer", mine)
  mine.self = self
  return self
end)

-- ====}
