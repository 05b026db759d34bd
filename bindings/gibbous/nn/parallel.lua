-- nn/parallel.lua - DataParallel: training in virtual shards, on one process or many, with the same bits.
--
-- The wrapper holds the model as its field `module`, as PyTorch's does. What it keeps beside that is private: the round
-- of shards that is open, of which runtime/dist/shards.c knows everything.

local gb, native = ...
local fail = native.fail -- raises with the recipe's line
local define, own, private, copy = native.define, native.own, native.private, native.copy
local format, is_tensor, pack, unpack = string.format, gb.is_tensor, table.pack, table.unpack
local Module, world_size = gb.nn.Module, gb.dist.world_size
local parallel = gb.nn.parallel

local DataParallel = native.new_class("DataParallel", Module)
native.classes.DataParallel = DataParallel

local function state_of(self)
  local mine = private(self, "parallel")
  if not mine then fail("DataParallel: it is a method of what gb.nn.parallel.DataParallel(model) gives") end
  return mine.state, mine
end

function DataParallel:forward(...) return self.module(...) end

-- {==== batches ====

-- Call fn with every tensor of a batch that has samples: arguments themselves, and the values of tables among them.
local function each(values, fn)
  for i = 1, values.n do
    local value = values[i]
    if is_tensor(value) then fn(value)
    elseif type(value) == "table" then
      for _, inner in next, value do
        if is_tensor(inner) then fn(inner) end
      end
    end
  end
end

-- The number of samples: dimension 1 of every tensor that has one. who: the call, for errors.
local function samples_of(values, who)
  local samples
  each(values, function(t)
    if t.ndim == 0 then return end
    local n = t.shape[1]
    if samples and n ~= samples then
      fail(format("%s: dimension 1 counts the samples, and tensors of the batch have %d and %d", who, samples, n))
    end
    samples = n
  end)
  if not samples then fail(format("%s: there is no tensor in the batch to cut into shards", who)) end
  return samples
end
native.samples_of = samples_of

local function cut(value, first, count)
  if is_tensor(value) then return value.ndim > 0 and value:narrow(1, first, count) or value end
  if type(value) ~= "table" then return value end
  local part = copy(value)
  for key, inner in next, part do
    if is_tensor(inner) then part[key] = cut(inner, first, count) end
  end
  return part
end
native.cut = cut

-- What a loader reads for a model in this process (data.lua); from then on the model is given such parts.
function native.parts_for(model)
  local mine = private(model, "parallel")
  if not mine then fail("DataLoader: 'parts' is a model that gb.nn.parallel.DataParallel(model) gave") end
  mine.view = { shards = mine.shards, rank = gb.dist.rank(), size = gb.dist.world_size() }
  return mine.view
end

-- The ranks tell each other how many samples each was given.
local function add_rows(view, rows)
  local all, total = gb.dist.all_gather_object(rows), 0
  for i = 1, #all do total = total + all[i] end
  for i = 1, #all do
    local _, part = native.part_of({ shards = view.shards, rank = i - 1, size = view.size }, total)
    if part ~= all[i] then
      fail(format("DataParallel:shards: rank %d was given %d samples of a batch of %d, and its part is %d; give what \z
        a DataLoader with parts = model gave", i - 1, all[i], total, part))
    end
  end
  return total
end

-- What a loader has noted of the batch that it gave (data.lua); nil: the recipe made it.
local function note_of(batch)
  local note
  each(batch, function(t) note = note or native.batch_notes[t] end)
  return note
end
native.note_of = note_of

-- How many samples the whole batch has of which this process was given so many, how many of them come before, and, if
-- its shards take another number, which only this process may know, a number of its own above 0.
local function whole_batch(mine, note, rows)
  local view = mine.view
  if not view or view.size == 1 then return rows, 0, 0 end
  local total = note and note.total or add_rows(view, rows)
  local before, part = native.part_of(view, total)
  return total, before, part == rows and 0 or 1 + view.rank
end

-- ====}

-- A table whose end ends the round that a loop has left early.
local function guard_of(state) return setmetatable({}, { __close = function() state:abandon() end }) end

-- A round over the shards of this process that have samples: the first of each among all samples, from 1, and how many.
-- odd: see whole_batch; note: see note_of; counted and expected: see runtime/dist/shards.h.
function native.round(self, samples, odd, note, counted, expected)
  local state, mine = state_of(self)
  if mine.syncs and samples < world_size() then
    fail(format("DataParallel:shards: %d samples for %d processes: those without one would not run SyncBatchNorm, for \z
      which the others wait; drop such a batch", samples, world_size()))
  end
  state:begin(Module.parameters(self.module), Module.buffers(self.module), samples, mine.holds, odd,
    note, counted, expected)
  return function() return state:next() end, nil, nil, guard_of(state)
end

-- In an open round: what this process wishes, some of the first six bits.
function native.wish(self, bits) state_of(self):wish(bits) end

-- After a round: what any process has wished; and, where it was taken back since they counted something else than was
-- expected, what they all counted.
function native.wishes(self) return state_of(self):wishes() end
function native.miscounted(self) return state_of(self):miscounted() end

DataParallel.shards = define("DataParallel:shards(batch...: any) -> function: Run the loop's body once for each \z
  virtual shard of this process, on its slices of the batch: of tensors along dimension 1, of tables of tensors \z
  each value; all else is passed on. The body runs forward and backward. After the loop every parameter has the \z
  gradient of the mean over the whole batch, with the same bits on every process and for every number of them; what \z
  it had before is added to. Every process is given the whole batch. Errors: tensors with different numbers of \z
  samples, a loop within a loop, processes that do not agree. Example: local ddp = \z
  gb.nn.parallel.DataParallel(gb.nn.Linear(4, 2)) for part in ddp:shards(gb.rand(16, 4)) do \z
  ddp(part):sum():backward() end", "strict", function(self, ...)
  local _, mine = state_of(self)
  local batch = pack(...)
  local note = note_of(batch)
  local samples, before, odd = whole_batch(mine, note, samples_of(batch, "DataParallel:shards"))
  local next_shard, _, _, guard = native.round(self, samples, odd, note)
  while odd > 0 and next_shard() do end -- all ranks are told
  return function()
    local first, count = next_shard()
    if not first then return nil end
    local parts = {}
    for i = 1, batch.n do parts[i] = cut(batch[i], first - before, count) end
    return unpack(parts, 1, batch.n)
  end, nil, nil, guard
end)

DataParallel.no_sync = define("DataParallel:no_sync(fn: function, arguments...: any) -> any: Run fn(...), whose loops \z
  over shards exchange no gradients: each process keeps those of each of its shards, and the next loop outside adds \z
  its own and exchanges them all, once. So does it with running statistics. Until then parameters have the gradients \z
  of before. The bits are the same for any number of processes. It takes the memory of the gradients for each shard \z
  of a process. Leaving a loop early forgets what is kept. Errors: no_sync within no_sync, or in a loop over shards; \z
  parameters that were frozen or added meanwhile. Example: local ddp = gb.nn.parallel.DataParallel(gb.nn.Linear(4, \z
  2)) local function run(x) for xs in ddp:shards(x) do ddp(xs):sum():backward() end end ddp:no_sync(run, gb.rand(16, \z
  4)) run(gb.rand(16, 4))", "strict", function(self, fn, ...)
  local mine = private(self, "parallel")
  if state_of(self):is_open() then
    fail("DataParallel:no_sync: a loop over shards is being run; call it around the loop")
  end
  if mine.holds then fail("DataParallel:no_sync: it runs already") end
  mine.holds = true
  local _ <close> = setmetatable({}, { __close = function() mine.holds = nil end })
  return (function(...) return ... end)(fn(...))
end)

DataParallel.record = define("DataParallel:record(loss: tensor|number): In the loop over shards: the shard's loss, \z
  the mean over its samples, for DataParallel:loss(). Errors: outside the loop. Example: local ddp = \z
  gb.nn.parallel.DataParallel(gb.nn.Linear(4, 2)) for part in ddp:shards(gb.rand(16, 4)) do local l = \z
  ddp(part):mean() ddp:record(l) l:backward() end print(ddp:loss())", "strict", function(self, loss)
  state_of(self):record(is_tensor(loss) and loss:item() or loss)
end)

DataParallel.backward = define("DataParallel:backward(fn: function, batch...: any) -> number: One step's gradients in \z
  one call: fn(batch...) runs for each virtual shard of this process, on its slices, and gives the shard's loss, \z
  whose backward runs; where it gives two, as a scaled loss and the loss itself, the second is what is recorded. \z
  Returns the mean loss over the whole batch. The rest is as in DataParallel:shards. Errors: a loss that is no \z
  tensor. Example: local ddp = gb.nn.parallel.DataParallel(gb.nn.Linear(4, 2)) print(ddp:backward(function(x) return \z
  ddp(x):square():mean() end, gb.rand(16, 4)))", "strict", function(self, fn, ...)
  local next_part, _, _, guard = self:shards(...)
  local _ <close> = guard
  local parts = pack(next_part())
  while parts[1] ~= nil do
    local loss, shown = fn(unpack(parts, 1, parts.n))
    if not is_tensor(loss) then
      fail(format("DataParallel:backward: the function gave a %s; it gives the shard's loss, a tensor",
        native.type_name(loss)))
    end
    self:record(shown == nil and loss or shown)
    loss:backward()
    parts = pack(next_part())
  end
  return self:loss()
end)

DataParallel.loss = define("DataParallel:loss() -> number: The mean of what the shards of the last batch recorded, \z
  over all processes and by their numbers of samples; NaN where none did. Example: \z
  print(gb.nn.parallel.DataParallel(model):loss())", "strict", function(self) return state_of(self):loss() end)

-- Every parameter and buffer with its name.
local function named_tensors(model)
  local tensors, names = {}, {}
  for name, t in Module.named_parameters(model) do tensors[#tensors + 1], names[#names + 1] = t, name end
  for name, t in Module.named_buffers(model) do tensors[#tensors + 1], names[#names + 1] = t, name end
  return tensors, names
end

-- Does the model hold a SyncBatchNorm?
local function has_sync(model)
  for _, module in ipairs(Module.modules(model)) do
    if native.library_name(module) == "SyncBatchNorm" then return true end
  end
  return false
end

-- How many shards there are: as the options say, or one for each process where the order of sums is free.
local function shards_of(options)
  if options.order == "fixed" then return options.shards or 8 end
  if options.shards and options.shards ~= world_size() then
    fail(format("DataParallel: order = 'free' has one shard for each process, of which there are %d; leave shards = \z
      %d out", world_size(), options.shards))
  end
  return world_size()
end

parallel.DataParallel = define("gb.nn.parallel.DataParallel(module: module; shards?: size, overlap?: bool, \z
  order: \"fixed\"|\"free\" = \"fixed\") -> module: The model, to be trained on every process of the job. Calling it \z
  calls the model; its method shards cuts each batch into so many virtual shards (8), whatever the number of \z
  processes, so that one process and eight give the same bits. The values of rank 0, and its random stream, go to \z
  all. overlap: gradients are exchanged while backward goes on, from the second batch on, if the loop's body left \z
  them alone after they were final; the bits are the same. Left out, it is true, but where all processes, on one \z
  machine and without GPUs, have a thread for each of its cores, so that nothing would be hidden. order free: one \z
  shard for each process, whose gradients MPI adds up as it likes: faster, and the bits hang on the number of \z
  processes and on MPI. Give the optimizer the model's parameters after this. Errors: shards that are no power of \z
  two or fewer than the processes, models that differ between processes. Example: local ddp = \z
  gb.nn.parallel.DataParallel(gb.nn.Linear(4, 2), { shards = 4 })", "strict",
  function(module, options)
    local self = DataParallel()
    self.module = module
    local shards, syncs = shards_of(options), has_sync(module)
    if syncs and shards ~= world_size() then
      fail(format("DataParallel: SyncBatchNorm measures what all processes run at once, and %d processes run %d \z
        shards one after another; give shards = %d (order = 'free' where that is no power of two), or use a batch \z
        norm, which measures each shard", world_size(), shards, world_size()))
    end
    local state = native.shards(shards, options.overlap, options.order == "free")
    own(self, "parallel", { state = state, shards = shards, syncs = syncs })
    state:agree(named_tensors(module))
    return self
  end)
