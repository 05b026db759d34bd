-- trainer_job.lua - a Trainer on several processes, and in virtual shards: how it joins the job that it was started in,
-- what the processes must do alike, and the gradients of a step. Rank 0 alone prints and writes files, and its clock is
-- the one that counts; what any rank is asked for, all do after the same step.
--
-- mine.rank and mine.size are those of the job (a Trainer that was told shards = false is alone in it), mine.shards the
-- number of virtual shards or nil, mine.ddp the wrapped model, mine.view what this process reads of a batch.

local gb, native = ...
local fail = native.fail -- raises with the recipe's line
local private = native.private
local format, is_tensor = string.format, gb.is_tensor
local dist, trainer = gb.dist, native.trainer
local SHARDS = 8 -- where the recipe does not say

-- {==== the job ====

-- Run the model in so many virtual shards from now on.
local function wrap(mine, shards)
  mine.shards = shards
  mine.ddp = gb.nn.parallel.DataParallel(mine.model, { shards = shards })
  mine.view = { shards = shards, rank = mine.rank, size = mine.size }
end

-- Join the job that this process was started in, if it was with others.
function trainer.join(mine)
  mine.rank, mine.size = 0, 1
  local shards = mine.shards
  mine.shards = nil
  if shards == false then return end
  if not dist.is_initialized() and native.launch_size() > 1 then dist.init() end
  mine.rank, mine.size = dist.rank(), dist.world_size()
  mine.given_shards = shards
  if mine.size > 1 then
    mine.progress = mine.progress and mine.rank == 0
    if not shards then
      trainer.say(mine, format("Trainer: %d processes, so each batch is cut into %d virtual shards (shards = %d)",
        mine.size, SHARDS, SHARDS))
    end
    shards = shards or SHARDS
  end
  if shards then wrap(mine, shards) end
end

-- A checkpoint of a run in so many shards (nil: in none) goes on in as many, or, where the recipe says another number,
-- not at all.
function trainer.check_shards(mine, saved)
  if saved == mine.shards then return end
  if saved == nil then
    return trainer.say(mine, format("Trainer: the checkpoint is of a run without virtual shards, which goes on in %d: \z
      from here on it is what it would have been within rounding", mine.shards))
  end
  if mine.given_shards ~= nil or math.type(saved) ~= "integer" then
    fail(format("Trainer: the checkpoint is of a run in %s virtual shards, and shards = %s; the same number gives the \z
      same bits", tostring(saved), tostring(mine.given_shards)))
  end
  wrap(mine, saved)
  trainer.say(mine, format("Trainer: the run goes on in %d virtual shards, as it began", saved))
end

-- Print on rank 0.
function trainer.say(mine, text)
  if mine.rank == 0 then print(text) end
end

-- What fn gives on rank 0, for all.
function trainer.once(mine, fn)
  if mine.size == 1 then return fn() end
  return dist.once(fn)
end

-- Parts of a checkpoint that rank 0 can save alone: of an optimizer each process may have a part of the states only.
function trainer.gathered(mine, parts)
  if mine.size == 1 then return parts end
  local state = mine.optimizer:state_dict()
  parts.optimizer = { state_dict = function() return state end }
  return parts
end

-- Weights that a sharded optimizer brings together in 16 bits are whole for what reads them between steps.
function trainer.gather(mine)
  if mine.size > 1 and mine.optimizer.gather then mine.optimizer:gather() end
end

-- The loaders stand where that of rank 0 does, also where a seed was drawn.
function trainer.align(mine, loader)
  if mine.size > 1 and loader then loader:load_state_dict(dist.broadcast_object(loader:state_dict())) end
end

-- What ranks ask for after a step goes with the message that ends its gradients. A reason to stop that comes up later,
-- as in a callback, takes a message of its own where callbacks are told then, and otherwise goes with the next step's.
local signs = { "over", "validate", "save", "asked", "reason", "stop" }
local late = { "backward", "step", "skip" } -- events after that message

local function bits_of(asked)
  local bits = 0
  for i, name in ipairs(signs) do
    if asked[name] then bits = bits | 1 << i - 1 end
  end
  return bits
end

-- What any rank asked for: a table of the same for all, with the first one's reason.
local function signs_of(mine, bits)
  local agreed = {}
  for i, name in ipairs(signs) do agreed[name] = bits & 1 << i - 1 ~= 0 end
  if agreed.reason then
    local reasons, own = dist.all_gather_object(mine.reason or mine.wanted or false), nil
    for rank = 1, #reasons do own = own or reasons[rank] or nil end
    mine.reason, mine.wanted = mine.reason or mine.wanted or own, nil
  end
  return agreed
end

-- What any rank asks for, of these signs.
function trainer.agree(mine, asked)
  if mine.size == 1 then return asked end
  local all = dist.all_reduce(gb.tensor({ bits_of(asked) }, { dtype = "int64", device = "cpu" }), "or")
  return signs_of(mine, all:item())
end

-- Does a schedule, or one that it is made of, call functions of the recipe?
local function calls_recipe(own)
  if own.options.fn then return true end
  for _, part in ipairs(own.parts) do
    if calls_recipe(part) then return true end
  end
  return false
end

-- Has a rank callbacks, or a schedule, that may end the run after a step's message?
function trainer.find_late(mine)
  local has = mine.schedule ~= nil and calls_recipe(private(mine.schedule, "schedule"))
  for _, hooks in ipairs(mine.callbacks) do
    for _, event in ipairs(late) do has = has or hooks[event] ~= nil end
  end
  mine.late = mine.size > 1 and dist.any(has)
end

-- What the ranks asked for in the step that was made; nil: there is one alone.
function trainer.agreed(mine)
  if mine.size == 1 then return nil end
  local agreed = mine.asked
  if mine.late and not agreed.reason then
    agreed.reason = trainer.agree(mine, { reason = (mine.reason or mine.wanted) ~= nil }).reason
  end
  if not agreed.reason then mine.wanted, mine.reason = mine.wanted or mine.reason, nil end
  return agreed
end

-- ====}

-- {==== one step in virtual shards ====

-- The batches of an epoch as this process reads them.
function trainer.source_of(mine, loader, resume)
  return native.batches_of(loader, mine.device, resume, mine.view)
end

-- How many samples the whole batch has that source gave last, of which this process may have a part.
function trainer.total_of(mine, loader, batch)
  if mine.size > 1 then return private(loader, "loader").rows end
  return native.samples_of(batch, "Trainer")
end

-- A batch cut into this process's shards that have samples: each a batch with its number, and its rows.
local function pieces_of(mine, batch)
  local view, total, pieces = mine.view, batch.total, {}
  local before = native.part_of(view, total)
  for shard = view.shards * view.rank // view.size, view.shards * (view.rank + 1) // view.size - 1 do
    local first, last = total * shard // view.shards, total * (shard + 1) // view.shards
    if last > first then
      local piece = { n = batch.n, shard = shard + 1, rows = last - first }
      for i = 1, batch.n do piece[i] = native.cut(batch[i], first - before + 1, piece.rows) end
      pieces[#pieces + 1] = piece
    end
  end
  return pieces
end

-- The count of labels where none is ignored, if every process has some of each batch and can know it; and how many of
-- its own count. Else nil.
local function count_labels(mine, group)
  if mine.size == 1 or mine.count or mine.counts_ahead then return nil end
  for _, batch in ipairs(group) do
    if batch.total < mine.shards then return nil end
  end
  local expected, own = 0.0, 0
  for _, batch in ipairs(group) do
    for _, piece in ipairs(batch.pieces) do
      piece.count = native.count_of(mine, piece)
      own = own + piece.count
    end
    local piece = batch.pieces[1]
    expected = expected + batch.total * (piece[piece.n]:numel() // piece.rows)
  end
  return expected, own
end

-- How many elements the loss of each piece is the mean of, and the sum over all batches, shards and processes: exact,
-- and on every process the same bits, since each number is added to zeros alone. A loss needs the sum before its
-- gradients, which would take a message: so labels are taken to count all, as long as they have, and the second number,
-- how many of this process's do, goes with the message of the step, which shows whether that was right.
local function count_pieces(mine, group)
  local total = 0
  if native.counts_rows(mine, group[1]) then
    for _, batch in ipairs(group) do
      total = total + batch.total
      for _, piece in ipairs(batch.pieces) do piece.count = piece.rows end
    end
    return total
  end
  local expected, own = count_labels(mine, group)
  if expected then return expected, own end
  local counts = gb.zeros(#group * mine.shards, { dtype = "float64", device = "cpu" })
  for k, batch in ipairs(group) do
    for _, piece in ipairs(batch.pieces) do
      piece.count = native.count_of(mine, piece)
      counts[(k - 1) * mine.shards + piece.shard] = piece.count
    end
  end
  for _, count in ipairs(dist.all_reduce(counts):tolist()) do total = total + count end
  return total
end

local STATES_MOST = 32 -- steps whose states of metrics wait

-- The states of metrics that wait are added, of every process, in the order of steps and of shards. It is a message, if
-- there are any, so every process calls it.
function trainer.join_states(mine)
  local all, waiting = {}, mine.waiting
  if not waiting then return end
  mine.waiting = nil
  for _, list in ipairs(mine.size > 1 and dist.all_gather_object(waiting.states) or { waiting.states }) do
    for _, entry in ipairs(list) do all[#all + 1] = entry end
  end
  table.sort(all, function(a, b) return a.place < b.place end)
  for _, entry in ipairs(all) do mine.tally:merge(entry.state) end
end

-- The states of metrics after each piece of a step of so many batches wait until they are asked for, by the end of the
-- epoch or a checkpoint. One that rank 0 alone saves, after an error, cannot ask for them.
local function add_states(mine, states, batches)
  local waiting = mine.waiting or { steps = 0, places = 0, states = {} }
  for _, entry in ipairs(states) do
    entry.place = entry.place + waiting.places
    waiting.states[#waiting.states + 1] = entry
  end
  waiting.places, waiting.steps = waiting.places + batches * mine.shards, waiting.steps + 1
  mine.waiting = waiting
  if mine.size == 1 or mine.save_on_error or waiting.steps == STATES_MOST then trainer.join_states(mine) end
end

-- Forward and backward of one piece: its loss counts by its share of the step's elements, and the round by its share
-- of the batch's samples. One without any has nothing to say.
local function run_piece(mine, batch, piece, total)
  piece.seed, piece.offset = native.get_rng()
  if piece.count == 0 then
    mine.ddp:record(0)
    return
  end
  local loss, output, target = native.loss_of(mine, piece)
  local share = (piece.count * batch.total) / (total * piece.rows)
  if share ~= 1 then loss = loss * share end
  mine.ddp:record(loss)
  mine.scaler:scale(loss):backward()
  if not (mine.tally and is_tensor(output) and is_tensor(target)) then return end
  local tally = native.metrics_like(mine.tally)
  tally:update(output, target)
  return tally:state_dict()
end

-- The round of one batch; own: see count_pieces; asked: what this process asks for, or nil. Gives the states of metrics
-- of its pieces.
local function run_batch(mine, batch, total, own, asked)
  local states, at = {}, 0
  local next_shard, _, _, guard = native.round(mine.ddp, batch.total, 0, native.note_of(batch), own, own and total)
  if asked then native.wish(mine.ddp, bits_of(asked)) end
  for _ in next_shard, nil, nil, guard do
    at = at + 1
    local piece = batch.pieces[at]
    local state = run_piece(mine, batch, piece, total)
    if state then states[#states + 1] = { place = piece.shard, state = state } end
    if asked and mine.reason and not asked.reason then
      asked.reason = true
      native.wish(mine.ddp, bits_of(asked))
    end
  end
  return states
end

-- Gradients of the batches of a step, summed over all processes; its loss, and of how many elements it is the mean.
function trainer.accumulate_shards(mine, group)
  for _, batch in ipairs(group) do batch.pieces = pieces_of(mine, batch) end
  local total, own = count_pieces(mine, group)
  local ahead, mean, states = mine.size > 1 and mine.ahead, 0.0, {}
  mine.ahead = nil
  mine.optimizer:zero_grad()
  for k, batch in ipairs(group) do
    trainer.tell(mine, "batch", batch)
    local asked = ahead and k == #group and trainer.wishes_of(mine, ahead) or nil
    local found = run_batch(mine, batch, total, own, asked)
    local counted = own and native.miscounted(mine.ddp)
    if counted then -- once in a run: labels are ignored, so they are counted ahead from now on
      mine.counts_ahead, total = true, counted
      found = run_batch(mine, batch, total, nil, asked)
    end
    own = nil
    for _, state in ipairs(found) do
      state.place = state.place + (k - 1) * mine.shards
      states[#states + 1] = state
    end
    mean = mean + mine.ddp:loss()
  end
  if ahead then mine.asked = signs_of(mine, native.wishes(mine.ddp)) end
  if mine.tally then add_states(mine, states, #group) end
  return mean, total
end

-- ====}
