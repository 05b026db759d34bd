-- trainer_report.lua - how fast a Trainer is, and what it says where numbers go wrong: losses and gradients that are
-- not finite, and spikes, with the step, the batches, the parameter, the op and the line. The op is found by running
-- the batch once more under gb.amp.audit, with the random numbers it had; nothing of the run is changed by it.

local gb, native = ...
local fail = native.fail -- raises with the recipe's line
local private, copy, trainer = native.private, native.copy, native.trainer
local format, concat, huge, math_type = string.format, table.concat, math.huge, math.type
local max, min, clock = math.max, math.min, native.clock
local Module, amp = gb.nn.Module, gb.amp

local MOST_AUDITS = 3 -- of a run: they cost what a step under the audit costs

-- Run fn; what it reads from the loader, and the random numbers it draws, are given back.
function trainer.untouched(_, loader, fn)
  local seed, offset = native.get_rng()
  local state, mine = loader:state_dict(), private(loader, "loader")
  local loaded = mine and mine.loaded
  local _ <close> = setmetatable({}, { __close = function()
    native.set_rng(seed, offset)
    loader:load_state_dict(state)
    if mine then mine.loaded = loaded end
  end })
  return fn()
end

-- Copies of tensors, and what writes them back.
function trainer.kept(list)
  local copies = {}
  for i, t in ipairs(list) do copies[i] = t:detach():clone() end
  return function()
    gb.no_grad(function()
      for i, t in ipairs(list) do t:copy_(copies[i]) end
    end)
  end
end

local function buffers_of(mine)
  local list = {}
  for _, b in Module.named_buffers(mine.model) do list[#list + 1] = b end
  return list
end

-- The audit of a batch as it was computed, forward and backward, or nil where that fails. The gradients are lost.
local function audited(mine, batch)
  local seed, offset = native.get_rng()
  local restore = trainer.kept(buffers_of(mine))
  native.set_rng(batch.seed or seed, batch.offset or offset)
  mine.optimizer:zero_grad() -- those of the step were unscaled
  local ok, report = pcall(amp.audit, mine.model, function()
    mine.scaler:scale((native.loss_of(mine, batch))):backward()
  end, { print = false })
  mine.optimizer:zero_grad()
  native.set_rng(seed, offset)
  restore()
  return ok and report or nil
end

-- "linear in head (train.lua:12), backward": what made the first value that is not finite in a batch, or nil.
local function culprit_in(mine, batch)
  local report = audited(mine, batch)
  local first = report and report.first_nonfinite
  if not first then return nil end
  return format("%s%s%s made the first value that is not finite%s", first.op, first.module and
    " in " .. first.module or "", first.line and " (" .. first.line .. ")" or "",
    first.phase == "backward" and ", in backward" or "")
end

-- The first of the batches of a step, in whatever process it was.
local function culprit(mine, group)
  if mine.reports >= MOST_AUDITS then return nil end
  mine.reports = mine.reports + 1
  local found
  for _, batch in ipairs(group) do
    for _, piece in ipairs(batch.pieces or { batch }) do found = found or culprit_in(mine, piece) end
  end
  if mine.size == 1 then return found end
  for _, other in ipairs(gb.dist.all_gather_object(found or false)) do
    if other then return other end
  end
end

-- "step 12, epoch 1, batches 23 to 24"
local function place_of(mine, group)
  local first, last = group[1].number, group[#group].number
  return format("step %d, epoch %d, %s", mine.step, mine.epoch + 1, first == last and format("batch %d", first) or
    format("batches %d to %d", first, last))
end

local function is_finite(value) return value == value and value < huge and value > -huge end

-- {==== how fast it is ====

local SPEED_STEPS = 100 -- that the numbers are means of

-- Nothing was measured yet.
function trainer.begin_speed(mine)
  mine.speed, mine.window_of_waits = gb.throughput({ window = SPEED_STEPS }), {}
  mine.waits, mine.lasts, mine.measured = 0.0, 0.0, 0
  mine.epoch_waits, mine.epoch_lasts, mine.limits_before = 0.0, 0.0, nil
end

local function waited_of(mine) return (private(mine.train, "loader").waited) end

-- A step begins: its time counts from here, before its batches are there.
function trainer.begin_step(mine) mine.step_began, mine.waited_before = clock(), waited_of(mine) end

-- A step of so many samples is over: samples_per_second, and data_wait, the share of the time of the steps in which
-- they waited for their batches. What is done between steps (validation, saving) is no part of it.
function trainer.measure_speed(mine, samples)
  local values, window, n = mine.values, mine.window_of_waits, mine.measured + 1
  local waits, lasts = waited_of(mine) - mine.waited_before, clock() - mine.step_began
  local old = window[n - SPEED_STEPS]
  mine.measured, window[n], window[n - SPEED_STEPS] = n, { waits, lasts }, nil
  mine.waits, mine.lasts = mine.waits + waits - (old and old[1] or 0), mine.lasts + lasts - (old and old[2] or 0)
  mine.epoch_waits, mine.epoch_lasts = mine.epoch_waits + waits, mine.epoch_lasts + lasts
  values.samples_per_second = mine.speed(samples) or values.samples_per_second
  values.data_wait = mine.lasts > 0 and max(0.0, min(1.0, mine.waits / mine.lasts)) or nil
  trainer.mind_limits(mine)
  if mine.sample_operations and values.samples_per_second then
    values.mfu = values.samples_per_second * mine.sample_operations / (mine.peak_flops * mine.size)
  end
end

-- What a checkpoint leaves out, since it is of the machine and not of the run.
function trainer.forget_speed(values) values.samples_per_second, values.data_wait, values.mfu = nil, nil, nil end

-- The last line of an epoch.
function trainer.text_of_epoch(mine)
  local text = native.text_of({ loss = mine.values.train_loss or mine.values.loss })
  local share = mine.epoch_lasts > 0 and mine.epoch_waits / mine.epoch_lasts
  mine.epoch_waits, mine.epoch_lasts = 0.0, 0.0
  return share and format("waits for data %.1f %%  %s", 100 * share, text) or text
end

-- ====}

-- {==== steps that are not finite ====

local function tell_skip(mine, text)
  trainer.tell(mine, "skip", { step = mine.step, report = text, loss = mine.values.loss, scale = mine.values.scale })
end

local function report_nonfinite(mine, group, skipped)
  local loss = mine.values.loss
  local names, cause = mine.scaler:report()
  local parts = { place_of(mine, group) .. ": the loss is " .. (loss == loss and format("%g", loss) or "nan") }
  if skipped and names ~= "" then parts[#parts + 1] = names end
  -- a float16 scale that is too large for one step is how the scaler works, and no mistake
  local is_routine = is_finite(loss) and mine.precision.scaler
  local op = not is_routine and skipped and culprit(mine, group) or cause
  if op then parts[#parts + 1] = op end
  parts[#parts + 1] = skipped and "the step was skipped" or "the gradients are finite, and the step was made"
  local text = concat(parts, "; ")
  if skipped then tell_skip(mine, text) end
  if is_routine or mine.quiet then return end
  if mine.nonfinite == "stop" then fail(text) end
  trainer.say(mine, text)
end

-- A step whose labels are all ignored, or whose count is 0, is no mistake of the numbers, and ends no run.
local function report_empty(mine, group)
  local text = place_of(mine, group) .. ": nothing in it counts for the loss (labels that are ignore_index, or a \z
    count of 0); the step was skipped"
  tell_skip(mine, text)
  if not mine.quiet then trainer.say(mine, text) end
end

-- ====}

-- {==== spikes ====

-- The options of spikes: nil where they are not watched.
function trainer.spike_options(given)
  if not given then return nil end
  local options = { window = 10, warmup = 1, tolerance = 2.0 }
  for name, value in next, type(given) == "table" and copy(given) or {} do
    local is_count = name ~= "tolerance" and math_type(value) == "integer" and value >= 1
    local is_tolerance = name == "tolerance" and type(value) == "number" and value > 0 and value < huge
    if options[name] == nil or not (is_count or is_tolerance) then
      fail(format("Trainer: 'spikes' has window and warmup, whole numbers from 1, and tolerance, above 0; got %s = %s",
        tostring(name), tostring(value)))
    end
    options[name] = value
  end
  return options
end

-- The parameter with the largest gradient, and its norm: of all processes, also where gradients are shared out.
local function largest_gradient(mine)
  local at, most, names, grads = nil, -1, {}, {}
  for name, p in Module.named_parameters(mine.model) do
    if p.grad then names[#names + 1], grads[#grads + 1] = name, p.grad end
  end
  for i, grad in ipairs(native.whole_gradients(grads)) do
    local norm = grad:double():norm():item()
    if norm > most or norm ~= norm then at, most = names[i], norm end
  end
  return at, most
end

-- A loss that lies above the mean of the last ones by more than tolerance times that mean is a spike: the step's
-- batches and those of the step before are listed.
local function report_spike(mine, group)
  local options, window, loss = mine.spikes, mine.window, mine.values.loss
  local sum = 0
  for _, value in ipairs(window) do sum = sum + value end
  local mean = #window > 0 and sum / #window
  if #window >= options.warmup and is_finite(loss) and loss - mean >= options.tolerance * math.abs(mean) then
    local name, norm = largest_gradient(mine)
    mine.spikes_found[#mine.spikes_found + 1] = { step = mine.step, epoch = mine.epoch + 1,
      first = mine.before_first or group[1].number, last = group[#group].number, loss = loss }
    trainer.say(mine, format("%s: the loss is %g, the mean of the last %d was %g; the largest gradient is that of %s, \z
      of norm %.3g", place_of(mine, group), loss, #window, mean, tostring(name), norm))
  end
  mine.before_first = group[1].number
  if not is_finite(loss) then return end
  window[#window + 1] = loss
  if #window > options.window then table.remove(window, 1) end
end

-- What a checkpoint says of both, as far as it can be true.
function trainer.checked_window(given)
  local window = {}
  for i, value in ipairs(type(given) == "table" and given or {}) do
    window[i] = type(value) == "number" and value or fail("Trainer: the checkpoint has a window of no numbers")
  end
  return window
end

function trainer.checked_found(given)
  local found = {}
  for i, entry in ipairs(type(given) == "table" and given or {}) do
    found[i] = type(entry) == "table" and copy(entry) or fail("Trainer: the checkpoint has a spike that is no table")
  end
  return found
end

-- ====}

-- Said after each step.
function trainer.report_step(mine, group, skipped, is_empty)
  if is_empty then return report_empty(mine, group) end
  if mine.spikes then report_spike(mine, group) end
  if skipped or not is_finite(mine.values.loss) then report_nonfinite(mine, group, skipped) end
end

-- Around each step: the first one measures how many operations a sample takes, and one may be profiled.
function trainer.watch_step(mine, group, step)
  if mine.summary and mine.step == 0 and mine.rank == 0 then gb.summary(mine.model, group[1][1]) end
  if mine.peak_flops and not mine.sample_operations then
    local report = audited(mine, group[1])
    mine.sample_operations = report and report.operations / math.max(native.rows_of(group[1]), 1) or 0
  end
  if mine.profile == mine.step + 1 and mine.rank == 0 then return gb.profile(step) end
  return step()
end
