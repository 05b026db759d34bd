-- trainer_rescue.lua - a Trainer whose run ends by an error saves the last whole step, if it was asked to.
--
-- Before its optimizer does anything, a step changes random numbers, the loader's place, running statistics and the
-- sums of metrics: these are remembered when it begins, and given back. What fails after that comes after a whole step,
-- unless weights were being written, an epoch was being ended, or new measures were being told: then nothing is saved,
-- and the last checkpoint is the one of before. A validation that failed is owed: the run goes on with it.
--
-- Nothing runs any more where a limit of the program around is reached, so such a run ends before that.
--
-- mine.rescue is what gives back, true where nothing has to be, or nil where there is no whole step to save.

local gb, native = ...
local copy, private, trainer = native.copy, native.private, native.trainer
local format, max = string.format, math.max
local MARGIN = { seconds = 1.0, instructions = 1000000 } -- for saving, beside three of the longest steps, and one
-- that passes in a job before all ranks know

-- A step begins.
function trainer.remember(mine)
  if not mine.save_on_error then return end
  local seed, offset = native.get_rng()
  local loader, batch = mine.train:state_dict(), mine.batch
  local tally = mine.tally and copy(mine.tally:state_dict(), true)
  local buffers = {}
  for _, b in gb.nn.Module.named_buffers(mine.model) do buffers[#buffers + 1] = b end
  local restore = trainer.kept(buffers)
  mine.rescue = function()
    restore()
    native.set_rng(seed, offset)
    mine.train:load_state_dict(loader)
    mine.batch = batch
    if tally then mine.tally:load_state_dict(tally) end
  end
end

-- A step is over: end the run where the limits of the program around leave no more than it needs to save. What a step
-- costs is what all cost from one to the next, so validations and earlier saves are among it.
function trainer.mind_limits(mine)
  if not mine.save_on_error then return end
  local left, before, longest = {}, mine.limits_before or {}, mine.longest or {}
  left.seconds, left.instructions = native.limits_left()
  for name, margin in next, MARGIN do
    if left[name] then
      longest[name] = max(longest[name] or 0, before[name] and before[name] - left[name] or 0)
      if left[name] < margin + (mine.size > 1 and 4 or 3) * longest[name] then
        mine.reason = mine.reason or format("the limit of %s of the program around is near", name)
      end
    end
  end
  mine.limits_before, mine.longest = left, longest
end

-- A validation begins.
function trainer.owe(mine)
  if not mine.save_on_error then return end
  local state, seed, offset = mine.validation:state_dict(), native.get_rng()
  mine.owes = true
  mine.rescue = function()
    native.set_rng(seed, offset)
    mine.validation:load_state_dict(state)
  end
end

-- What can still be saved of a run that failed is saved; where that fails too, the first error stays the one.
function trainer.save_what_is_whole(mine)
  if not (mine.save_on_error and mine.checkpoint and mine.rank == 0) then return end
  if not mine.rescue then
    print("the run failed where no step was whole, and nothing was saved")
    return
  end
  if mine.size > 1 and private(mine.optimizer, "optimizer").shares_gradients ~= nil then
    print("the run failed, and nothing was saved: the optimizer is shared out between the processes \z
      (gb.optim.Sharded), and they would have to save it together; the last checkpoint is as it was")
    return
  end
  local ok, why = pcall(function()
    if mine.rescue ~= true then mine.rescue() end
    local path = mine.checkpoint:save_last(trainer.parts_of(mine))
    print(format("the run failed after step %d, in epoch %d; %s holds all of it: run the same with resume = true to \z
      go on", mine.step, mine.epoch + 1, path))
  end)
  if not ok then print("the run failed, and so did saving it: " .. tostring(why)) end
  native.flush()
end
