-- trainer.lua - gb.Trainer: the loop around training, for those who do not want to write it. It does nothing that a
-- loop written by hand cannot do with the same parts: DataLoader, autocast, GradScaler, optimizers and schedules (by
-- name too), gb.optim.Average, gb.EarlyStopping, gb.Checkpoints, gb.Metrics, gb.evaluate, gb.progress.
-- tests/lua/test_trainer.lua compares the two bit by bit.
--
-- Inside a step: gradients are forgotten; for each micro-batch forward and scaled backward; unscale; clip; the
-- optimizer, unless a gradient is not finite; the scaler; then, if the step was not skipped, schedule and average; log,
-- validate, save, and only then may the run stop. So what a checkpoint holds is always a whole step.
-- trainer_options.lua has gb.Trainer itself, trainer_schedule.lua and trainer_average.lua its schedule and its average,
-- trainer_job.lua what it does on many processes, trainer_rescue.lua what is saved after an error, trainer_report.lua
-- says where numbers went wrong, trainer_search.lua has find_batch and find_lr.

local gb, native = ...
local fail = native.fail -- raises with the recipe's line
local define, private, copy = native.define, native.private, native.copy
local format = string.format
local concat, pack, math_type, huge = table.concat, table.pack, math.type, math.huge
local min, max, floor, ceil = math.min, math.max, math.floor, math.ceil
local is_tensor, clock, utils = gb.is_tensor, native.clock, gb.nn.utils
local loader_of, limited, to_next_epoch = native.loader_of, native.limited, native.to_next_epoch
local loss_of, rows_of, count_of = native.loss_of, native.rows_of, native.count_of

-- What is private of a trainer: its options, the objects made of them, and where the run stands: epoch (epochs that are
-- over), batch and inner (batches and steps of the epoch under way), step (steps that were attempted), skipped, sums
-- (of the epoch's losses), values (the last of each), best, reason (why it stopped, or nil), held (it runs inside
-- another one's step).
local Trainer = { __name = "gb.Trainer" }
native.classes.Trainer = Trainer
local trainer = {} -- what the files beside this one share
native.trainer = trainer

local shown = { model = true, optimizer = true, scaler = true, schedule = true, average = true, step = true,
  epoch = true, batch = true, skipped = true, values = true, best = true, reason = true, precision = true,
  device = true, checkpoint = true, stopping = true, spikes_found = true, shards = true }
Trainer.__index = function(self, key)
  local mine = shown[key] and private(self, "trainer")
  if not mine then return Trainer[key] end
  return key == "values" and copy(mine.values) or mine[key]
end
Trainer.__tostring = function(self)
  local mine = private(self, "trainer")
  return mine and format("Trainer (%s, step %d, epoch %d)", tostring(mine.precision), mine.step, mine.epoch) or
    "Trainer"
end

local function is_count(value) return math_type(value) == "integer" and value >= 0 end

-- {==== one step ====

-- Tell the callbacks of an event. One that returns false in a step ends the run after it.
local function tell(mine, event, values)
  for _, hooks in ipairs(mine.callbacks) do
    local fn = hooks[event]
    if fn and fn(mine.self, values) == false and (event == "batch" or event == "backward" or event == "step") then
      mine.reason = mine.reason or format("the callback '%s' returned false", event)
    end
  end
end
trainer.tell = tell

-- The part that batch k of a step has in the loss of the whole step: the mean is over the elements of all of them.
local function share_of(loss, counts, k, total)
  local n, equal = #counts, true
  if n == 1 then return loss end
  for i = 2, n do equal = equal and counts[i] == counts[1] end
  if equal then return loss / n end
  return loss * (counts[k] / total)
end

-- Gradients of the micro-batches of a step, summed; its loss, and of how many elements that is the mean. A batch of
-- which nothing counts is left out: the mean over nothing is NaN, which times 0 would still be NaN.
local function accumulate(mine, group)
  local counts, total, mean = {}, 0, nil
  for k, batch in ipairs(group) do
    counts[k] = count_of(mine, batch)
    total = total + counts[k]
  end
  mine.optimizer:zero_grad()
  for k, batch in ipairs(group) do
    batch.seed, batch.offset = native.get_rng()
    tell(mine, "batch", batch)
    if counts[k] > 0 then
      local loss, output, target = loss_of(mine, batch)
      if mine.tally and is_tensor(output) and is_tensor(target) then mine.tally:update(output, target) end
      loss = share_of(loss, counts, k, total)
      mine.scaler:scale(loss):backward()
      mean = mean and mean + loss:detach() or loss:detach()
    end
  end
  return mean, total
end

-- Limit the gradients; their norm before.
local function clip(mine)
  if mine.clip_value then utils.clip_grad_value_(mine.parameters, mine.clip_value) end
  return utils.clip_grad_norm_(mine.parameters, mine.clip or huge)
end

local function item(value) return is_tensor(value) and value:item() or value end

-- What a step leaves: schedule and average go on unless it was skipped.
local function advance(mine, skipped)
  if skipped then
    mine.skipped = mine.skipped + 1
    return
  end
  if mine.schedule and mine.schedule_every == "step" and not mine.swa_schedule then mine.schedule:step() end
  trainer.average_step(mine)
end

local function lr_of(mine) return private(mine.optimizer, "optimizer").native:get(1, "lr") end
trainer.lr_of = lr_of

-- Clip what was summed, and step. Gives the norm.
local function update(mine, group)
  mine.scaler:unscale_(mine.optimizer)
  tell(mine, "backward", group)
  local norm = clip(mine)
  mine.rescue = nil -- the step is no whole one until what follows is done
  mine.scaler:step(mine.optimizer)
  mine.scaler:update()
  return norm
end

-- One step of the optimizer on a group of micro-batches. Reading the loss and the scaler's flag waits for a device,
-- once and after all of the step was asked for. A step of which nothing counts is skipped: it has no gradient.
local function train_step(mine, group)
  local mean, total = (mine.ddp and trainer.accumulate_shards or accumulate)(mine, group)
  local is_empty = total == 0
  local norm = is_empty and 0.0 or update(mine, group)
  mine.step, mine.inner = mine.step + 1, mine.inner + 1
  local values = mine.values
  local lr = lr_of(mine)
  local skipped = is_empty or mine.scaler:is_enabled() and mine.scaler:stats().last_skipped
  advance(mine, skipped)
  mine.rescue = not mine.last
  values.loss, values.norm, values.lr = is_empty and 0 / 0 or item(mean), item(norm), lr
  values.scale, values.skipped, values.step, values.epoch = mine.scaler:get_scale(), mine.skipped, mine.step, mine.epoch
  trainer.report_step(mine, group, skipped, is_empty)
  if values.loss == values.loss and values.loss < huge and values.loss > -huge then
    mine.sums.loss, mine.sums.count = mine.sums.loss + values.loss * total, mine.sums.count + total
  end
  tell(mine, "step", values)
end
trainer.train_step = train_step

-- ====}

-- {==== what a checkpoint holds ====

local counters = { "epoch", "batch", "inner", "step", "skipped" }

-- Where the run itself stands, as a part.
local function progress_part(mine)
  return {
    state_dict = function()
      local state = { sums = copy(mine.sums), values = copy(mine.values), best = mine.best,
        window = copy(mine.window), hooks = {},
        stop = mine.stopping and mine.stopping:state_dict(), swa = mine.swa_schedule and mine.swa_schedule:state_dict(),
        tally = mine.tally and mine.tally:state_dict(), found = copy(mine.spikes_found, true), shards = mine.shards,
        owes = mine.owes }
      trainer.forget_speed(state.values) -- which hangs on the machine
      for _, name in ipairs(counters) do state[name] = mine[name] end
      for i, hooks in ipairs(mine.callbacks) do state.hooks[i] = hooks.state and { hooks.state(mine.self) } or {} end
      return state
    end,
    load_state_dict = function(_, state)
      for _, name in ipairs(counters) do
        if type(state) ~= "table" or not is_count(state[name]) then
          fail(format("Trainer: the checkpoint has no count '%s' of a run", name))
        end
      end
      local sums = state.sums
      local is_sums = type(sums) == "table" and type(sums.loss) == "number" and type(sums.count) == "number"
      if not is_sums or not (state.best == nil or type(state.best) == "number") then
        fail("Trainer: the checkpoint has no sums of a run")
      end
      trainer.check_shards(mine, state.shards)
      if mine.stopping then mine.stopping:load_state_dict(state.stop) end
      if mine.tally then mine.tally:load_state_dict(state.tally) end
      mine.waiting = nil
      trainer.load_swa(mine, state.swa)
      for _, name in ipairs(counters) do mine[name] = state[name] end
      for name, value in next, type(state.values) == "table" and state.values or {} do
        if type(name) == "string" and type(value) == "number" then mine.values[name] = value end
      end
      mine.sums, mine.best = { loss = sums.loss, count = sums.count }, state.best
      mine.owes = state.owes == true or nil
      mine.window, mine.spikes_found = trainer.checked_window(state.window), trainer.checked_found(state.found)
      for i, hooks in ipairs(mine.callbacks) do
        local kept = type(state.hooks) == "table" and state.hooks[i]
        if hooks.restore and type(kept) == "table" then hooks.restore(kept[1]) end
      end
    end,
  }
end

-- All of a run by name. The progress part comes last when they are loaded: its name is the last in the alphabet.
local function parts_of(mine)
  local parts = { model = mine.model, optimizer = mine.optimizer, scaler = mine.scaler, schedule = mine.schedule,
    loader = mine.train, validation = mine.validation, trainer = progress_part(mine) }
  if mine.average then parts.model, parts.live, parts.average = mine.average:as_model(), mine.model, mine.average end
  return parts
end
trainer.parts_of = parts_of

-- Save the run: where it is worth a file, or the last state alone. Gives the path of the file that was written.
local function save(mine, is_last)
  trainer.join_states(mine)
  local files, parts = mine.checkpoint, trainer.gathered(mine, parts_of(mine))
  local saved = trainer.once(mine, function()
    local path = is_last and files:save_last(parts) or files:save(parts, mine.values)
    return { path = path, state = files:state_dict() }
  end)
  if mine.rank > 0 then files:load_state_dict(saved.state) end
  mine.saved = mine.step
  for _, logger in ipairs(mine.loggers) do if logger.flush then logger:flush() end end
  tell(mine, "save", { path = saved.path })
  return saved.path
end

-- There is no last checkpoint in a folder that has others of a run: beginning anew would be a surprise.
local function refuse_lost(files, runs)
  local names = {}
  for i = 1, min(#runs, 5) do
    local is_damaged = runs[i].step < 0
    names[i] = format(is_damaged and "%s (it cannot be read)" or "%s (step %d)", runs[i].name, runs[i].step)
  end
  if #runs > 5 then names[6] = format("%d more", #runs - 5) end
  fail(format("Trainer: resume = true goes on from %s/last.safetensors, which is not there, but these files of a run \z
    are: %s. %s, or give another folder to begin anew", files.folder, concat(names, ", "), runs[1].step < 0 and
      "Bring one of them back" or format("Write resume = \"%s\" to go on from the newest of them", runs[1].path)))
end

-- Go on from the last checkpoint: its path, or nil where there is none. A run that was killed in its first save may
-- have left the file that is kept, which holds the same, without the last one.
local function resume_last(mine)
  local files, parts = mine.checkpoint, parts_of(mine)
  if not files then fail("Trainer: resume = true needs checkpoint, to know where the last one is") end
  local found = trainer.once(mine, function()
    return files.last and { last = files.last } or { runs = native.runs_of(files) }
  end)
  if found.last then
    files:load(parts)
    mine.saved = mine.step
    return found.last
  end
  local newest = found.runs[1]
  if not newest then return nil end
  if #found.runs > 1 or not newest.is_first then refuse_lost(files, found.runs) end
  parts.checkpoints = files
  gb.io.load_checkpoint(newest.path, parts)
  return newest.path
end

-- Go on from the last checkpoint if there is one, or from the one that is named.
local function resume(mine)
  local from = mine.resume
  mine.resume = false
  if from == true then from = resume_last(mine)
  else gb.io.load_checkpoint(from, parts_of(mine)) end
  if from then tell(mine, "load", { path = from }) end
  return from ~= nil
end

-- ====}

-- {==== between steps ====

local function log_values(mine, values)
  for _, logger in ipairs(mine.loggers) do logger:log(copy(values), mine.step) end
end

local logged = { "loss", "lr", "norm", "scale", "skipped", "epoch", "samples_per_second", "data_wait", "mfu" }

-- Log a step, show it, and tell the host.
local function show_step(mine, samples)
  local values = mine.values
  trainer.measure_speed(mine, samples)
  if mine.step % mine.log_every == 0 then
    local row = {}
    for _, name in ipairs(logged) do row[name] = values[name] end
    log_values(mine, row)
  end
  local text = { loss = values.loss, step = mine.step, scale = mine.scaler, norm = values.norm, lr = values.lr,
    data_wait = values.data_wait }
  if mine.bar then mine.bar:update(1, text)
  else native.tell("train", mine.step, mine.most_steps, values) end
end

-- After new measures: the schedule that goes by them, the best so far, and whether to stop early.
local function check(mine)
  local values = mine.values
  local name, mode = mine.monitor, mine.mode
  local value = values[name]
  if mine.schedule and mine.schedule_every == "check" and type(value) == "number" and value == value then
    mine.schedule:step(value)
  end
  local better = type(value) == "number" and value == value and
    (mine.best == nil or mode == "min" and value < mine.best or mode == "max" and value > mine.best)
  if better then
    mine.best = value
    tell(mine, "improve", { name = name, value = value })
  end
  if not mine.stopping then return end
  local stopped, why = mine.stopping:check(values)
  if stopped then mine.reason = mine.reason or why end
end

local function validate_now(mine)
  trainer.owe(mine)
  local values = native.evaluate(mine, mine.validation, mine.validation_batches)
  mine.owes, mine.rescue = nil, nil
  for name, value in next, values do mine.values[name] = value end
  mine.validated, mine.validated_at = clock(), mine.step
  log_values(mine, values)
  tell(mine, "validate", values)
  check(mine)
  mine.rescue = true
end

-- Is a validation due after a step? See wishes_of.
local function validation_due(mine, at)
  if not mine.validation then return false end
  local every = mine.validate_every
  if type(every) == "string" then return mine.rank == 0 and clock() - mine.validated >= mine.validate_seconds end
  if math_type(every) == "integer" then return at.step % every == 0 end
  if (at.epoch + (at.last and 0 or 1)) % mine.validate_epochs ~= 0 then return false end
  return at.inner % max(1, floor(mine.epoch_steps * every)) == 0
end

-- The end of an epoch: its means, and what goes by epochs.
local function end_epoch(mine)
  mine.epoch, mine.batch, mine.inner = mine.epoch + 1, 0, 0
  local values = { train_loss = mine.sums.count > 0 and mine.sums.loss / mine.sums.count or 0 / 0 }
  if mine.tally then
    trainer.join_states(mine)
    for name, value in next, mine.tally:compute() do values["train_" .. name] = value end
    mine.tally:reset()
  end
  mine.sums = { loss = 0.0, count = 0 }
  for name, value in next, values do mine.values[name] = value end
  mine.values.epoch = mine.epoch
  trainer.average_epoch(mine)
  if mine.schedule and mine.schedule_every == "epoch" and not mine.swa_schedule then mine.schedule:step() end
  log_values(mine, values)
  tell(mine, "epoch", values)
end

-- Why the run is over, or nil. in_time: what time it has is not over.
local function end_of_run(mine, in_time)
  if mine.stopping and mine.stopping.reason then return mine.stopping.reason end
  if mine.steps and mine.step >= mine.steps then return format("%d steps", mine.step) end
  if mine.epochs and mine.epoch >= mine.epochs then return format("%d epochs", mine.epoch) end
  if mine.seconds and not in_time then return format("%g seconds", mine.seconds) end
end

-- What this process asks for after a step: a validation, a save, an end. at: the step, epochs that are over then,
-- steps of the epoch (inner), and whether it is the epoch's last.
local function wishes_of(mine, at)
  local files, last, is_first = mine.checkpoint, at.last, mine.rank == 0
  local due, over = validation_due(mine, at), mine.seconds and clock() - mine.started >= mine.seconds
  local checked = due or last and not mine.validation
  local save_due = files and (files:due(at) or last and files:due(at, { kind = "epoch" }) or
    checked and files:due(at, { kind = "validation" }))
  return { validate = due, over = is_first and over, save = is_first and save_due, asked = native.save_asked(),
    reason = (mine.reason or mine.wanted) ~= nil, stop = native.stop_asked() }
end
trainer.wishes_of = wishes_of

-- All that follows a step: show, validate, save, stop. last: it was the epoch's last. A run inside a callback of
-- another leaves stops to that one, whose step is not whole yet.
local function after_step(mine, group, last)
  local samples, inner = 0, mine.inner
  for _, batch in ipairs(group) do samples = samples + (batch.total or rows_of(batch)) end
  show_step(mine, samples)
  if last then
    trainer.gather(mine)
    end_epoch(mine)
  end
  mine.rescue = true
  local agreed = trainer.agreed(mine) or
    wishes_of(mine, { step = mine.step, epoch = mine.epoch, inner = inner, last = last })
  local validates = mine.validation and (agreed.validate or agreed.over)
  if validates then trainer.gather(mine) end
  if validates then validate_now(mine) elseif last and not mine.validation then check(mine) end
  local saves = mine.checkpoint and (agreed.save or agreed.over)
  if saves then save(mine) end
  if agreed.asked and mine.checkpoint then
    trainer.say(mine, format("saved after step %d, in epoch %d: %s", mine.step, mine.epoch + 1, save(mine, true)))
  end
  if validates or saves or agreed.asked or last then -- whose callbacks may have ended the run
    local over = agreed.over
    agreed = trainer.agree(mine, { reason = (mine.reason or mine.wanted) ~= nil, stop = agreed.stop })
    agreed.over = over
  end
  mine.reason = mine.reason or end_of_run(mine, not agreed.over)
  if mine.held or mine.size > 1 and not agreed.stop then return end
  if agreed.stop then native.pass_on_stop() end
  native.offer_stop()
end

-- ====}

-- {==== the run ====

-- The micro-batches of the next step: fewer at the end of an epoch.
local function take(mine, source, n)
  local group = {}
  while #group < mine.accumulate and mine.batch < n do
    local batch = pack(source())
    if batch[1] == nil then fail("Trainer: the loader ended before the number of batches that it gave (#loader)") end
    mine.batch = mine.batch + 1
    batch.number = mine.batch
    if mine.ddp then batch.total = trainer.total_of(mine, mine.train, batch) end
    group[#group + 1] = batch
  end
  return group
end

local function run_epoch(mine)
  local n = limited(mine.limit.train, mine.train)
  if n == 0 then fail("Trainer: fit: the loader has no batches") end
  mine.epoch_steps = ceil(n / mine.accumulate)
  mine.most_steps = trainer.total_steps(mine, n)
  if mine.most_steps == huge then mine.most_steps = mine.step + mine.epoch_steps end
  if mine.progress then
    mine.bar = gb.progress(mine.epoch_steps - mine.inner, format("epoch %d", mine.epoch + 1))
  end
  if mine.batch >= n then
    fail(format("Trainer: fit: the run stands after batch %d of epoch %d, and an epoch has %d batches now; go on with \z
      the data, the batch size and the limits that it began with", mine.batch, mine.epoch + 1, n))
  end
  local source = trainer.source_of(mine, mine.train, mine.batch > 0)
  repeat
    trainer.begin_step(mine)
    trainer.remember(mine)
    local group = take(mine, source, n)
    local last = mine.batch >= n
    mine.last = last
    mine.ahead = { step = mine.step + 1, epoch = mine.epoch + (last and 1 or 0), inner = mine.inner + 1, last = last }
    if last then to_next_epoch(mine.train, source, n) end
    trainer.watch_step(mine, group, function() train_step(mine, group) end)
    after_step(mine, group, last)
  until last or mine.reason
  trainer.join_states(mine)
  if mine.bar then mine.bar:close(trainer.text_of_epoch(mine)) end
  mine.bar = nil
end

-- What a stop that was asked for does, between two steps: save, and say how to go on.
local function on_stop(mine, before)
  return function()
    local text = "nothing was saved: the Trainer has no checkpoint"
    if mine.checkpoint then
      text = format("%s holds all of it: run the same with resume = true to go on", save(mine, true))
    end
    for _, logger in ipairs(mine.loggers) do logger:close() end
    trainer.say(mine, format("stopped after step %d, in epoch %d; %s", mine.step, mine.epoch + 1, text))
    native.flush()
    if before.fn then before.fn() end
  end
end

-- A short validation at the beginning finds mistakes in it. It leaves no trace.
local function sanity_check(mine)
  local n = min(mine.sanity, mine.validation_batches)
  if n == 0 then return end
  trainer.untouched(mine, mine.validation, function() native.evaluate(mine, mine.validation, n) end)
end

-- Loaders, limits, schedule and state, before the first step.
local function prepare(mine, train, validation)
  local n = mine.fast_dev_run and (mine.fast_dev_run == true and 1 or mine.fast_dev_run) or mine.overfit
  mine.train = loader_of(train, "Trainer: fit")
  mine.validation = validation ~= nil and loader_of(validation, "Trainer: fit") or nil
  if n then
    local function first(loader) return gb.data.first_batches(loader, n, { device = mine.device }) end
    mine.train = first(mine.train)
    if mine.overfit then mine.validation = first(mine.train)
    elseif mine.validation then mine.validation = first(mine.validation) end
  end
  mine.validation_batches = mine.validation and limited(mine.limit.validate, mine.validation)
  if mine.validation_batches == 0 then mine.validation = nil end
  trainer.make_schedule(mine)
  local watches = mine.stopping or mine.checkpoint and mine.checkpoint.monitor and mine.checkpoint
  mine.monitor = watches and watches.monitor or mine.validation and "val_loss" or "train_loss"
  mine.mode = watches and watches.mode or "min"
  trainer.check_monitors(mine)
  mine.started, mine.validated, mine.reason, mine.wanted = clock(), clock(), nil, nil
  trainer.begin_speed(mine)
  trainer.find_late(mine)
  if mine.checkpoint then trainer.once(mine, function() mine.checkpoint:prepare() end) end
  trainer.align(mine, mine.train)
  trainer.align(mine, mine.validation)
  local resumed = mine.resume and resume(mine)
  if mine.validation and not resumed and mine.step == 0 then sanity_check(mine) end
end

Trainer.fit = define("Trainer:fit(train: any, validation?: any) -> table: Train on a DataLoader, or a list of \z
  batches, until the epochs, steps or time are over, or a callback or the early stopping says so; validate on the \z
  other. A second call goes on. Returns the last values by name: loss, train_loss, val_loss, lr, step, epoch, reason. \z
  Errors: a Trainer without epochs, steps and time. Example: local trainer = gb.Trainer({ model = gb.nn.Linear(4, 2), \z
  optimizer = { \"SGD\", lr = 0.1 }, loss = gb.nn.functional.cross_entropy, epochs = 1, progress = false }) \z
  trainer:fit({ { gb.rand(8, 4), gb.zeros(8, { dtype = \"int64\" }) } })", "strict", function(self, train,
  validation)
  local mine = private(self, "trainer")
  if mine.running then fail("Trainer: fit is running; a callback cannot call it") end
  if not (mine.epochs or mine.steps or mine.seconds) then
    fail("Trainer: fit needs to know when to end: give epochs, steps or time")
  end
  mine.running, mine.rescue = true, nil
  local before, held = native.stop_handler({}), native.hold_stop(true)
  local saving = native.take_saves(mine.checkpoint ~= nil)
  local _ <close> = setmetatable({}, { __close = function(_, why)
    if why ~= nil then trainer.save_what_is_whole(mine) end
    native.take_saves(saving)
    native.hold_stop(held)
    native.stop_handler(before)
    mine.running, mine.bar = false, nil
    if why ~= nil then mine.batch, mine.inner, mine.sums = 0, 0, { loss = 0.0, count = 0 } end -- the epoch begins anew
  end })
  native.stop_handler(mine.checkpoint and { fn = on_stop(mine, before), grace = mine.grace } or before)
  mine.held = held
  prepare(mine, train, validation)
  tell(mine, "start", mine.values)
  local _ <close> = mine.anomaly and gb.anomaly() or nil
  if mine.owes and mine.validation then
    validate_now(mine)
    if mine.checkpoint and mine.checkpoint:due({}, { kind = "validation" }) then save(mine) end
  end
  mine.reason = end_of_run(mine, true)
  while not mine.reason do run_epoch(mine) end
  if mine.checkpoint and mine.saved ~= mine.step and mine.step > 0 then save(mine, true) end
  trainer.gather(mine)
  tell(mine, "stop", { reason = mine.reason })
  trainer.adopt_average(mine)
  for _, logger in ipairs(mine.loggers) do
    if logger.flush then logger:flush() end
  end
  local values = copy(mine.values)
  values.reason = mine.reason
  tell(mine, "finish", values)
  return values
end)

Trainer.validate = define("Trainer:validate(loader: any) -> table: The loss and the metrics over a DataLoader or a \z
  list of batches, by names that begin with val_; in evaluation mode, with the average's weights if there is one. \z
  Example: local trainer = gb.Trainer({ model = gb.nn.Linear(4, 2), optimizer = \"SGD\", loss = \z
  gb.nn.functional.cross_entropy, progress = false }) print(trainer:validate({ { gb.rand(8, 4), gb.zeros(8, { dtype = \z
  \"int64\" }) } }).val_loss)", "strict", function(self, loader)
  local mine = private(self, "trainer")
  local source = loader_of(loader, "Trainer: validate")
  trainer.gather(mine)
  return native.evaluate(mine, source, limited(mine.limit.validate, source))
end)

Trainer.predict = define("Trainer:predict(loader: any) -> tensor: What the model gives for the first value of each \z
  batch, on the CPU: one tensor of all rows, or a list where the model gives no tensor. Errors: a loader without \z
  batches. Example: local trainer = gb.Trainer({ model = gb.nn.Linear(4, 2), optimizer = \"SGD\" }) \z
  print(trainer:predict({ { gb.rand(8, 4) } }).shape)", "strict", function(self, loader)
  local mine = private(self, "trainer")
  local source = loader_of(loader, "Trainer: predict")
  trainer.gather(mine)
  return native.predict(mine, source, limited(mine.limit.predict, source))
end)

Trainer.stop = define("Trainer:stop(reason: string = \"stop was called\"): End the run after the step that is under \z
  way; for callbacks. Example: gb.Trainer({ model = gb.nn.Linear(4, 2), optimizer = \"SGD\" }):stop()", "strict",
  function(self, reason)
    local mine = private(self, "trainer")
    mine.reason = mine.reason or reason
  end)

-- ====}
