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
  if saved == nil or saved == mine.shards then return end
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

local signs = { "over", "validate", "save", "asked", "reason", "stop" }

-- What any rank asks for, of these signs: a table of the same for all.
function trainer.agree(mine, asked)
  if mine.size == 1 then return asked end
  local bits, agreed = 0, {}
  for i, name in ipairs(signs) do
    if asked[name] then bits = bits | 1 << i end
  end
  local all = dist.all_reduce(gb.tensor({ bits }, { dtype = "int64", device = "cpu" }), "or")
  bits = all:item()
  for i, name in ipairs(signs) do agreed[name] = bits & 1 << i ~= 0 end
  if agreed.reason then
    local reasons = dist.all_gather_object(mine.reason or false)
    for rank = 1, #reasons do mine.reason = mine.reason or reasons[rank] or nil end
  end
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

-- How many elements the loss of each piece is the mean of, and the sum over all batches, shards and processes: exact,
-- and on every process the same bits, since each number is added to zeros alone.
local function count_pieces(mine, group)
  local total = 0
  if native.counts_rows(mine, group[1]) then
    for _, batch in ipairs(group) do
      total = total + batch.total
      for _, piece in ipairs(batch.pieces) do piece.count = piece.rows end
    end
    return total
  end
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

-- The states of metrics after each piece, added in the order of the shards on every process.
local function add_states(mine, states)
  local all = {}
  for _, list in ipairs(mine.size > 1 and dist.all_gather_object(states) or { states }) do
    for _, entry in ipairs(list) do all[#all + 1] = entry end
  end
  table.sort(all, function(a, b) return a.place < b.place end)
  for _, entry in ipairs(all) do mine.tally:merge(entry.state) end
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

-- Gradients of the batches of a step, summed over all processes; its loss, and of how many elements it is the mean.
function trainer.accumulate_shards(mine, group)
  for _, batch in ipairs(group) do batch.pieces = pieces_of(mine, batch) end
  local total, mean, states = count_pieces(mine, group), 0.0, {}
  mine.optimizer:zero_grad()
  for k, batch in ipairs(group) do
    trainer.tell(mine, "batch", batch)
    local at = 0
    for _ in native.round(mine.ddp, batch.total, 0, native.note_of(batch)) do
      at = at + 1
      local piece = batch.pieces[at]
      local state = run_piece(mine, batch, piece, total)
      if state then states[#states + 1] = { place = (k - 1) * mine.shards + piece.shard, state = state } end
    end
    mean = mean + mine.ddp:loss()
  end
  if mine.tally then add_states(mine, states) end
  return mean, total
end

-- ====}
