-- evaluate.lua - what a model makes of batches without training: gb.evaluate and gb.predict, for a loop written by hand
-- and for the Trainer; and what both need of one batch: its loss, and how many elements that is the mean of.
--
-- A run, here, is a table with model, loss or compute, precision, and where they are wanted device, average, metrics,
-- count, ignore_index and progress; in a job of several processes its rank and its size, and where the model trains in
-- virtual shards their number.

local gb, native = ...
local fail = native.fail -- raises with the recipe's line
local define, private = native.define, native.private
local format, concat, sort = string.format, table.concat, table.sort
local pack, unpack, math_type, huge = table.pack, table.unpack, math.type, math.huge
local min, max, ceil = math.min, math.max, math.ceil
local amp, is_tensor = gb.amp, gb.is_tensor
local autocast, Module = amp.autocast, gb.nn.Module
local IGNORED = -100 -- cross_entropy's own

-- {==== one batch ====

-- The loss of a batch, the output and its target. A batch is what the loader gave: inputs first, then the target.
local function forward(run, batch)
  local loss, output, target
  if run.compute then
    loss, output, target = run.compute(run.model, unpack(batch, 1, batch.n))
  else
    output, target = run.model(batch[1]), batch[2]
    if run.loss then loss = run.loss(output, unpack(batch, 2, batch.n)) else loss = output end
  end
  if not is_tensor(loss) or loss:numel() ~= 1 then
    fail(format("%s: the loss must be a tensor of one element, got %s", run.who or "Trainer", is_tensor(loss) and
      "the shape (" .. concat(loss.shape, ", ") .. ")" or "a " .. type(loss)))
  end
  return loss, output, target
end

-- The same in the run's precision.
function native.loss_of(run, batch) return autocast(run.precision, forward, run, batch) end
local loss_of = native.loss_of

-- How many samples a batch holds.
function native.rows_of(batch)
  local x = batch[1]
  return is_tensor(x) and x.ndim > 0 and x:size(1) or 1
end

-- Are labels counted, of which some may be ignored?
local function has_labels(batch)
  local target = batch[batch.n]
  return batch.n > 1 and is_tensor(target) and not target:is_floating_point() and target.dtype ~= "bool"
end

-- Is the loss of a batch the mean over its rows, whatever is in them?
function native.counts_rows(run, batch) return not run.count and not has_labels(batch) end

local function item(value) return is_tensor(value) and value:item() or value end

-- How many elements the loss of a batch is the mean of: labels that are not ignored, else rows. A device is waited for,
-- where a step or a batch begins and there is little to wait for: a batch of which nothing counts is left out.
function native.count_of(run, batch)
  if run.count then
    local given = run.count(unpack(batch, 1, batch.n))
    local count = is_tensor(given) and given:numel() == 1 and given:item() or given
    if type(count) == "number" and count >= 0 and count < huge then return count end
    fail(format("Trainer: 'count' must give a number from 0, it gave %s", tostring(given)))
  end
  if has_labels(batch) then return batch[batch.n]:ne(run.ignore_index or IGNORED):sum():item() end
  return native.rows_of(batch)
end
local count_of = native.count_of

-- ====}

-- {==== loaders ====

-- A DataLoader as it is, a list of batches as one. who: what was called.
function native.loader_of(given, who)
  if private(given, "loader") then return given end
  if type(given) == "table" and #native.copy(given) > 0 then return gb.data.batches(given) end
  fail(format("%s takes a DataLoader, or a list of batches { { x, y }, ... }", who))
end

-- How many batches of a loader are used: all, so many, or that share.
function native.limited(limit, loader)
  local n = #loader
  if limit == nil then return n end
  return min(n, math_type(limit) == "float" and ceil(limit * n) or limit)
end

-- The batches of an epoch, or what a view (data.lua) has of them, on a device.
function native.batches_of(loader, device, resume, view)
  local mine = private(loader, "loader")
  if view and view.size == 1 then view = nil end
  if view or mine.view then return native.iterate(mine, device, resume, view) end
  return loader:iter(device, { resume = resume })
end

-- After n batches of source the loader stands at the beginning of the next epoch, as one that is read to its end does.
function native.to_next_epoch(loader, source, n)
  if n == #loader and source() == nil then return end
  local state = loader:state_dict()
  state.epoch, state.batch = state.epoch + 1, 0
  loader:load_state_dict(state)
end

-- ====}

-- Values by name as one line.
function native.text_of(values)
  local names, parts = {}, {}
  for name in next, values do names[#names + 1] = name end
  sort(names)
  for i, name in ipairs(names) do parts[i] = format("%s %.4g", name, values[name]) end
  return native.plain_nan(concat(parts, "  "))
end

-- Run fn with every module in evaluation, without gradients, in the average's weights if there are some.
local function evaluating(run, fn, ...)
  local modes = {}
  for _, module in ipairs(Module.modules(run.model)) do modes[#modes + 1] = { module, module.training } end
  local _ <close> = setmetatable({}, { __close = function()
    for _, pair in ipairs(modes) do pair[1].training = pair[2] end
  end })
  Module.eval(run.model)
  local average = run.average
  if average and average.n_averaged > 0 and not run.averaged then
    return average:apply(gb.no_grad, fn, ...)
  end
  return gb.no_grad(fn, ...)
end

-- {==== sharing batches ====

-- Call fn(batch, number) for the first n batches of a loader, of several processes each for its own ones. Where random
-- numbers must not hang on how many there are, each batch has its own.
local function each_batch(run, loader, n, fn)
  local view = (run.size or 1) > 1 and { rank = run.rank, size = run.size } or nil
  local source = native.batches_of(loader, run.device, false, view)
  local seed, offset = native.get_rng()
  local by_batch = run.shards or run.draws_by_batch
  for number = view and view.rank or 0, n - 1, view and view.size or 1 do
    local batch = pack(source())
    if batch[1] == nil then break end
    if by_batch then native.set_rng(seed + (number + 1) * 0x9E3779B97F4A7C15, offset) end
    fn(batch, number + 1)
  end
  if by_batch then native.set_rng(seed, offset) end
  native.to_next_epoch(loader, source, n)
end

-- The entries of all processes by the numbers of their batches, in their order.
local function shared(run, entries)
  if (run.size or 1) == 1 then return entries end
  local all, most = {}, 0
  for _, list in ipairs(gb.dist.all_gather_object(entries)) do
    for number, entry in next, list do
      all[number], most = entry, max(most, number)
    end
  end
  return all, most
end

-- ====}

-- {==== measures ====

-- What one process says of a batch: its mean loss, of how many elements, and the state of the metrics.
local function entry_of(run, loss, count, output, target)
  local entry = { loss = loss:detach():double():item(), count = count, measures = run.metrics ~= nil }
  if run.metrics and output then
    run.metrics:reset()
    run.metrics:update(output, target)
    entry.state = run.metrics:state_dict()
  end
  return entry
end

-- Processes that do not all measure would have metrics of some batches alone.
local function check_measured(all, most)
  local with, without
  for number = 1, most do
    if all[number] and all[number].measures then with = number
    elseif all[number] then without = number end
  end
  if with and without then
    fail(format("evaluate: metrics were measured of batch %d, and not of batch %d; every process has the same metrics",
      with, without))
  end
end

-- The mean of all entries; the metrics become those of all.
local function mean_of(run, entries)
  local sum, total = 0.0, 0
  if run.metrics then run.metrics:reset() end
  local all, most = shared(run, entries)
  check_measured(all, most)
  for number = 1, most do
    local entry = all[number]
    if entry and entry.count > 0 then sum, total = sum + entry.loss * entry.count, total + entry.count end
    if entry and entry.state then run.metrics:merge(entry.state) end
  end
  return sum, total
end

-- The measures over at most n batches, by names that begin with val_. One process adds as it goes, and waits for a
-- device once; several add the same numbers in the order of the batches, which gives the same bits.
local function measure(run, loader, n)
  local sum, total, values, entries = 0.0, 0, {}, {}
  local is_shared = (run.size or 1) > 1
  local bar = run.progress and gb.progress(n, "validate") or nil
  if run.metrics then run.metrics:reset() end
  each_batch(run, loader, n, function(batch, number)
    local loss, output, target = loss_of(run, batch)
    local count = count_of(run, batch)
    local is_measured = is_tensor(output) and is_tensor(target)
    if is_shared then entries[number] = entry_of(run, loss, count, is_measured and output, target)
    else
      if count > 0 then sum, total = sum + loss:detach():double() * count, total + count end
      if run.metrics and is_measured then run.metrics:update(output, target) end
    end
    if bar then bar:update(min(run.size or 1, n - number + 1)) end
  end)
  if is_shared then sum, total = mean_of(run, entries) end
  values.val_loss = total > 0 and item(sum) / total or 0 / 0
  for name, value in next, run.metrics and run.metrics:compute() or {} do values["val_" .. name] = value end
  local shown = native.copy(values)
  shown.loss = values.val_loss
  if bar then
    bar:update(0, shown)
    bar:close(native.text_of(values))
  else native.tell("validate", n, n, shown) end
  return values
end

-- The same of a run in evaluation mode.
function native.evaluate(run, loader, n) return evaluating(run, measure, run, loader, n) end

-- ====}

-- {==== outputs ====

local function outputs_of(run, loader, n)
  local outputs, tensors = {}, true
  each_batch(run, loader, n, function(batch, number)
    local output = autocast(run.precision, run.model, batch[1])
    outputs[number] = is_tensor(output) and output:cpu() or output
  end)
  outputs = shared(run, outputs)
  for i = 1, #outputs do tensors = tensors and is_tensor(outputs[i]) and outputs[i].ndim > 0 end
  if #outputs == 0 then fail(format("%s: the loader has no batches", run.who or "Trainer: predict")) end
  return tensors and gb.cat(outputs) or outputs
end

-- What a run's model gives for the first values of n batches.
function native.predict(run, loader, n) return evaluating(run, outputs_of, run, loader, n) end

-- ====}

-- A run of what a recipe gave by hand.
local function run_of(who, model, options)
  local metrics = options.metrics
  if options.loss ~= nil and options.compute ~= nil then fail(format("%s: give loss or compute, not both", who)) end
  local first = Module.parameters(model)[1]
  options.model, options.who, options.precision = model, who, amp.precision(options.precision)
  options.metrics = metrics and (private(metrics, "metrics") and metrics or gb.Metrics(metrics))
  options.device = options.device or first and first.device or "cpu"
  options.rank, options.size = gb.dist.rank(), gb.dist.world_size()
  options.draws_by_batch = gb.dist.is_initialized() -- also in a job of one, which is to have the same bits
  return options
end

gb.evaluate = define("gb.evaluate(model: module, loader: any; loss?: function|module, compute?: function, metrics?: \z
  any, precision: any = \"32-true\", device?: device, average?: average, batches?: count, ignore_index: int = -100, \z
  progress: bool = false) -> table: The loss and the measures over a DataLoader, or a list of batches, in evaluation \z
  mode, without gradients, and with an average's weights if it is given: val_loss, and each of metrics (gb.Metrics, \z
  or what it takes) with val_ before its name. They are exact for batches of any sizes. loss is a function of output \z
  and target; compute(model, x, ...) gives loss, output and target. batches: so many at most. The processes of a job \z
  share the batches, and each gets the measures of all, to the bits of a job of one process: all of them call it; \z
  random numbers hang on the batch then, and the random stream stays where it was. Errors: a loss that is no single \z
  number. Example: local model = gb.nn.Linear(4, 2) print(gb.evaluate(model, { { gb.rand(8, 4), gb.zeros(8, { dtype \z
  = \"int64\" }) } }, { loss = gb.nn.functional.cross_entropy, metrics = { \"accuracy\" } }).val_loss)", "strict",
  function(model, given, options)
    local loader = native.loader_of(given, "evaluate")
    return native.evaluate(run_of("evaluate", model, options), loader, native.limited(options.batches, loader))
  end)

gb.predict = define("gb.predict(model: module, loader: any; precision: any = \"32-true\", device?: device, average?: \z
  average, batches?: count) -> any: What the model gives for the first value of each batch, in evaluation mode, on \z
  the CPU: one tensor of all rows, or a list where the model gives no tensor. The processes of a job share the \z
  batches, and each gets all outputs. Errors: a loader without batches. Example: print(gb.predict(gb.nn.Linear(4, \z
  2), { { gb.rand(8, 4) } }).shape)", "strict",
  function(model, given, options)
    local loader = native.loader_of(given, "predict")
    return native.predict(run_of("predict", model, options), loader, native.limited(options.batches, loader))
  end)
