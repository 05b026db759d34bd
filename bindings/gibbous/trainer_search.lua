-- trainer_search.lua - Trainer:find_batch and Trainer:find_lr: steps that are tried, and then have never been. Weights,
-- buffers, optimizer, scaler, random numbers and the loader are afterwards what they were.

local gb, native = ...
local fail = native.fail -- raises with the recipe's line
local define, private, trainer = native.define, native.private, native.trainer
local format, huge, floor, min, max, pack = string.format, math.huge, math.floor, math.min, math.max, table.pack
local is_tensor, Module = gb.is_tensor, gb.nn.Module
local Trainer = native.classes.Trainer

-- Run fn with a trainer for trials: the model, optimizer and scaler of this one, without what else goes on in a step.
local function trying(mine, loader, fn)
  if mine.running then fail("Trainer: fit is running; search before it") end
  local tensors = { table.unpack(Module.parameters(mine.model)) }
  for _, b in Module.named_buffers(mine.model) do tensors[#tensors + 1] = b end
  local restore, optimizer, scaler = trainer.kept(tensors), mine.optimizer:state_dict(), mine.scaler:state_dict()
  local trial = setmetatable({ schedule = false, average = false, callbacks = {}, spikes = false, tally = false,
    values = {}, window = {}, sums = { loss = 0.0, count = 0 }, step = 0, inner = 0, skipped = 0, epoch = 0,
    reports = huge, nonfinite = "skip", quiet = true }, { __index = mine })
  local _ <close> = setmetatable({}, { __close = function()
    mine.optimizer:zero_grad()
    restore()
    mine.optimizer:load_state_dict(optimizer)
    mine.scaler:load_state_dict(scaler)
  end })
  return trainer.untouched(mine, loader, function() return fn(trial) end)
end

-- The next batch of a loader, over and over.
local function cycle(mine, loader)
  local source
  return function()
    local batch = source and pack(source()) or pack()
    if batch[1] == nil then
      source = trainer.source_of(mine, loader, false)
      batch = pack(source())
    end
    if batch[1] == nil then fail("Trainer: the loader has no batches") end
    batch.number = 1
    if mine.ddp then batch.total = trainer.total_of(mine, loader, batch) end
    return batch
  end
end

-- {==== the learning rate ====

-- Where the smoothed losses fall fastest, without the first 10 and the last one.
local function steepest(losses)
  local first, last, at, slope = 11, #losses - 1, nil, 0
  for i = first, last do
    local a, b = max(i - 1, first), min(i + 1, last)
    local d = b > a and (losses[b] - losses[a]) / (b - a) or 0
    if d < slope then at, slope = i, d end
  end
  return at
end

Trainer.find_lr = define("Trainer:find_lr(loader: any; first: number = 1e-8, last: number = 1, steps: size = 100, \z
  beta: number = 0.98, most: number = 4) -> number, table: The learning rate at which the loss falls fastest, while \z
  the rate rises from first to last in that many steps (Smith 2017); it ends where the smoothed loss is most times \z
  the best. Of the trial nothing is left. The second value has the lists lr and loss (smoothed by beta). nil where it \z
  did not fall. Errors: a range that does not rise. Example: local trainer = gb.Trainer({ model = gb.nn.Linear(4, 2), \z
  optimizer = \"SGD\", loss = gb.nn.functional.cross_entropy }) local lr, curve = trainer:find_lr({ { gb.rand(8, 4), \z
  gb.zeros(8, { dtype = \"int64\" }) } }, { steps = 20 })", "strict", function(self, given, options)
  local mine = private(self, "trainer")
  if not (options.first > 0 and options.first < options.last and options.last < huge) or options.steps < 2 then
    fail(format("find_lr: 'first' must be above 0 and below 'last', in 2 steps or more; got %g, %g and %d",
      options.first,
      options.last, options.steps))
  end
  if not (options.beta >= 0 and options.beta < 1) then
    fail(format("find_lr: 'beta' must be from 0 to below 1, got %g", options.beta))
  end
  local loader = native.loader_of(given, "find_lr")
  local curve, mean, best = { lr = {}, loss = {} }, 0.0, huge
  trying(mine, loader, function(trial)
    local next_batch, groups = cycle(mine, loader), private(mine.optimizer, "optimizer").native
    for i = 1, options.steps do
      local lr = options.first * (options.last / options.first) ^ ((i - 1) / (options.steps - 1))
      for g = 1, groups:groups() do groups:set(g, "lr", lr) end
      trainer.train_step(trial, { next_batch() })
      mean = options.beta * mean + (1 - options.beta) * trial.values.loss
      local smooth = mean / (1 - options.beta ^ i)
      if smooth ~= smooth or smooth == huge or i > 1 and smooth > options.most * best then break end
      curve.lr[i], curve.loss[i], best = lr, smooth, min(best, smooth)
    end
  end)
  local at = steepest(curve.loss)
  return at and curve.lr[at], curve
end)

-- ====}

-- {==== the batch ====

-- The batch with n rows: its own, over and over.
local function rows_of(batch, n)
  local rows, made = batch[1]:size(1), { n = batch.n, number = 1, total = n }
  local index = gb.arange(n, { dtype = "int64", device = batch[1].device }):remainder(rows)
  for i = 1, batch.n do
    local x = batch[i]
    made[i] = is_tensor(x) and x.ndim > 0 and x:size(1) == rows and x:index_select(1, index) or x
  end
  return made
end

-- The most bytes in tensors during a step on n rows, without `extra`.
local function bytes_for(trial, batch, n, extra)
  collectgarbage()
  gb.reset_peak_memory_stats()
  trainer.train_step(trial, { rows_of(batch, n) })
  return gb.memory_stats(trial.device).peak_total - extra
end

-- How much memory there is for tensors, where the recipe does not say.
local function memory_of(mine)
  if mine.device == "cpu" then
    fail("find_batch: give memory, the bytes that tensors may take: { memory = 4 << 30 }")
  end
  return gb.cuda.properties(mine.device).free_memory + gb.memory_stats(mine.device).reserved
end

Trainer.find_batch = define("Trainer:find_batch(loader: any; memory?: number, most: size = 8192, margin: number = \z
  0.05) -> int, table: How many samples fit into a batch. Steps are measured by the pool's own accounting, on the \z
  rows of the loader's first batch, twice as many, and then four times as many each, until one takes a quarter of \z
  the memory; from the last two the largest that takes up to (1 - margin) * memory bytes is predicted, and \z
  confirmed by one step. memory: what is free on a device; on the CPU it must be given. Of the trial nothing is \z
  left. The second value: bytes_per_sample, other_bytes, predicted, measured, confirmed. Errors: a memory that one \z
  sample does not fit into; a job of several processes. Example: local trainer = gb.Trainer({ model = \z
  gb.nn.Linear(4, 2), optimizer = \"SGD\", loss = gb.nn.functional.cross_entropy, device = \"cpu\" }) \z
  print(trainer:find_batch({ { gb.rand(8, 4), gb.zeros(8, { dtype = \"int64\" }) } }, { memory = 1 << 20, most = 64 \z
  }))", "strict", function(self, given, options)
  local mine = private(self, "trainer")
  if mine.size > 1 then
    fail(format("find_batch: it measures one process, and the job has %d; run it alone, and multiply by their number",
      mine.size))
  end
  local memory = options.memory or memory_of(mine)
  if not (memory > 0 and memory < huge) then fail(format("find_batch: 'memory' must be bytes above 0, got %g",
    memory)) end
  if not (options.margin >= 0 and options.margin < 1) then
    fail(format("find_batch: 'margin' must be a share from 0 to below 1, got %g", options.margin))
  end
  local loader = native.loader_of(given, "find_batch")
  local before = gb.memory_stats(mine.device).current_total
  local report, found = {}, nil
  trying(mine, loader, function(trial)
    local batch = cycle(mine, loader)()
    if not is_tensor(batch[1]) or batch[1].ndim == 0 then
      fail("find_batch: the first value of a batch must have rows") end
    collectgarbage()
    local extra, rows = max(gb.memory_stats(mine.device).current_total - before, 0), batch[1]:size(1)
    local room = (1 - options.margin) * memory
    bytes_for(trial, batch, rows, extra) -- it makes what stays: copies of weights, states
    local n, low = rows, bytes_for(trial, batch, rows, extra)
    local large, high = 2 * rows, bytes_for(trial, batch, 2 * rows, extra)
    while high < room / 4 and large < options.most do -- what few rows take is no rule for many
      n, low, large = large, high, min(4 * large, options.most)
      high = bytes_for(trial, batch, large, extra)
    end
    report.bytes_per_sample = max((high - low) / (large - n), 1)
    report.other_bytes = low - n * report.bytes_per_sample
    found = min(floor((room - report.other_bytes) / report.bytes_per_sample), options.most)
    if found < 1 then
      fail(format("find_batch: %.0f bytes hold no sample: it takes %.0f, and %.0f are needed besides", memory,
        report.bytes_per_sample, report.other_bytes))
    end
    report.predicted = report.other_bytes + found * report.bytes_per_sample
    report.measured = bytes_for(trial, batch, found, extra)
    report.confirmed = report.measured <= memory
    if not report.confirmed then -- not linear: between what was measured
      local slope = (report.measured - high) / (found - large)
      found = max(floor(large + (room - high) / slope), 1)
    end
  end)
  return found, report
end)

-- ====}
