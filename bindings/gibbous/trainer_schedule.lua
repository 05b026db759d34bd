-- trainer_schedule.lua - a Trainer's schedule: made where fit knows how many steps there are, and tried before, so that
-- what is wrong with it is said when the Trainer is made.
--
-- mine.schedule_spec is what the option says, mine.schedule the schedule or nil, mine.schedule_every its pace.

local gb, native = ...
local fail = native.fail -- raises with the recipe's line
local private, trainer = native.private, native.trainer
local format, ceil, huge = string.format, math.ceil, math.huge

-- How often a schedule steps: those that go by a measure at each check of it.
local function set_pace(mine, schedule)
  if private(schedule, "schedule").optimizer ~= mine.optimizer then
    fail("Trainer: 'schedule' is one of another optimizer; make it of the one that is given here")
  end
  local by_measure = native.takes_metric(schedule)
  mine.schedule_every = mine.schedule_every or by_measure and "check" or "step"
  if by_measure ~= (mine.schedule_every == "check") then
    fail(format("Trainer: 'schedule_every' is %s, and %s", mine.schedule_every, by_measure and
      "the schedule goes by a measure: check" or "only ReduceOnPlateau steps at checks: step or epoch"))
  end
end

-- A schedule is made where fit knows how many steps there are. What is wrong with it is said when the Trainer is made.
function trainer.try_schedule(mine)
  local given = mine.schedule_spec
  if given == nil or type(given) == "function" then return end
  local steps = mine.steps or mine.epochs and 1 << 20 or nil
  native.without_trace(mine.optimizer, function()
    set_pace(mine, gb.optim.lr.named(given, mine.optimizer, { steps = steps }))
  end)
end

-- The schedule of a run, which counts steps or epochs.
function trainer.make_schedule(mine)
  if mine.schedule or mine.schedule_spec == nil then return end
  local batches = native.limited(mine.limit.train, mine.train)
  local total = trainer.total_steps(mine, batches)
  if mine.schedule_every == "epoch" then total = ceil(total / ceil(batches / mine.accumulate)) end
  mine.schedule = gb.optim.lr.named(mine.schedule_spec, mine.optimizer,
    { steps = total < huge and total > 0 and total or nil })
  set_pace(mine, mine.schedule)
end
