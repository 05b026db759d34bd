-- trainer_average.lua - a Trainer's average of the weights: when it takes them, and when the model gets it.
--
-- An EMA takes them after each step that was not skipped. SWA takes them at the ends of epochs, from its start on, at a
-- rate of its own; in the end it gives batch norms statistics of its weights.
--
-- mine.average is the average or nil, mine.average_start the step from which an EMA takes weights, mine.swa what SWA
-- was asked for, mine.swa_schedule the schedule of its rate once it has begun.

local gb, native = ...
local fail = native.fail -- raises with the recipe's line
local private, copy, trainer = native.private, native.copy, native.trainer
local math_type, floor = math.type, math.floor

local function is_count(value) return math_type(value) == "integer" and value >= 0 end
local function is_share(value) return math_type(value) == "float" and value >= 0 and value <= 1 end

local function new_swa_schedule(mine)
  return gb.optim.lr.SWA(mine.optimizer, { swa_lr = mine.swa.lr or trainer.lr_of(mine),
    anneal_epochs = mine.swa.anneal })
end

-- What SWA was asked for, checked: it begins hours later.
local function swa_of(mine, options)
  local swa = { lr = options.lr, anneal = options.anneal_epochs or 10, start = options.start or 0.8 }
  if not (is_count(swa.start) or is_share(swa.start)) then
    fail("Trainer: 'start' of average is a share of the epochs for swa, or an epoch")
  end
  if not (mine.epochs or is_count(swa.start)) then
    fail("Trainer: average = \"swa\" begins at a share of the epochs; give epochs, or an epoch as its start")
  end
  mine.swa = swa
  native.without_trace(mine.optimizer, function() new_swa_schedule(mine) end)
end

-- The average of what the option says.
function trainer.make_average(mine, given)
  if given == nil then return end
  local theirs = private(given, "average")
  if theirs then
    if theirs.model ~= mine.model then fail("Trainer: 'average' is one of another model; make it of this one") end
    mine.average, mine.average_start = given, 0
    return
  end
  local options = type(given) == "table" and copy(given) or { mode = given }
  local is_swa = options.mode == "swa"
  mine.average_start = not is_swa and options.start or 0
  if not is_count(mine.average_start) then fail("Trainer: 'start' of average is a step for ema") end
  if is_swa then
    swa_of(mine, options)
    options.lr, options.anneal_epochs = nil, nil
  end
  options.start, options.mode = nil, options.mode or "ema"
  if options.use_buffers == nil then options.use_buffers = not is_swa end
  mine.average = gb.optim.Average(mine.model, options)
end

-- After a step that was not skipped.
function trainer.average_step(mine)
  if mine.average and not mine.swa and mine.step >= mine.average_start then
    trainer.gather(mine)
    mine.average:update_parameters()
  end
end

-- After an epoch.
function trainer.average_epoch(mine)
  local swa = mine.swa
  if not swa then return end
  local start = math_type(swa.start) == "integer" and swa.start or floor(swa.start * mine.epochs)
  if mine.epoch < start then return end
  if mine.epoch > start or start == 0 then mine.average:update_parameters() end
  mine.swa_schedule = mine.swa_schedule or new_swa_schedule(mine)
  mine.swa_schedule:step()
end

-- Go on with what a checkpoint has of SWA's schedule.
function trainer.load_swa(mine, state)
  if state == nil or not mine.swa then return end
  mine.swa_schedule = new_swa_schedule(mine)
  mine.swa_schedule:load_state_dict(state)
end

-- The average becomes the weights; batch norms get statistics of its weights.
function trainer.adopt_average(mine)
  if not mine.average or mine.average.n_averaged == 0 or mine.averaged then return end
  mine.average:copy_to()
  mine.averaged = true
  if not mine.swa then return end
  trainer.untouched(mine, mine.train, function() -- of whole batches on every process
    gb.optim.update_bn(native.batches_of(mine.train, mine.device, false), mine.model)
  end)
end
