-- dist.lua [SAMPLES [ROUNDS [overlap]]] - steps of a model of 10 MB (2.6 million float32 parameters, AdamW) on the
-- processes of a job, by how gradients are exchanged; a step of each kind in turn, so that what else the machine does
-- meets all alike. By mpirun, with --threads 1, or alone, where it measures one process. With "overlap" only the kinds
-- that show what overlap hides. dist.sh runs it; no test does.
--
-- "hidden" is what overlap saves, as a part of what it could: the shorter one of the exchange (a step that exchanges
-- after backward, less one that does not) and of backward. "sent" is in units of the gradients' bytes.

local gb = require "gibbous"
local nn, dist = gb.nn, gb.dist
dist.init()
local samples, rounds = tonumber(arg and arg[1]) or 256, tonumber(arg and arg[2]) or 15
local only_overlap = arg and arg[3] == "overlap"
local size, rank = dist.world_size(), dist.rank()

local function new_model()
  gb.manual_seed(1)
  local layers = {}
  for i = 1, 10 do layers[2 * i - 1], layers[2 * i] = nn.Linear(512, 512), nn.ReLU() end
  return nn.Sequential(table.unpack(layers))
end

local x = gb.randn(samples, 512)
local first = samples // size * rank + 1
local mine = x:narrow(1, first, samples // size)

-- A step of one kind, as a function. options: of DataParallel; nil: this process's part of the batch, no exchange.
local function stepper(options, share)
  local model = new_model()
  local ddp = options and nn.parallel.DataParallel(model, options)
  local opt = gb.optim.AdamW(model:parameters(), { lr = 1e-4 })
  if share then gb.optim.Sharded(opt) end
  return function()
    opt:zero_grad()
    if ddp then
      for xs in ddp:shards(x) do ddp(xs):square():mean():backward() end
    else model(mine):square():mean():backward() end
    opt:step()
  end
end

local function forward()
  local model = new_model()
  return function() model(mine):square():mean() end
end

local rows = { { "no exchange", stepper() }, { "forward alone", forward() } }
if size > 1 then
  local even = size & size - 1 == 0 and size or 8
  rows[#rows + 1] = { "fixed, after backward", stepper { shards = even, overlap = false } }
  rows[#rows + 1] = { "fixed, overlapped", stepper { shards = even, overlap = true } }
end
if size > 1 and not only_overlap then
  local even = size & size - 1 == 0 and size or 8
  rows[#rows + 1] = { "fixed, Sharded", stepper({ shards = even }, true) }
  rows[#rows + 1] = { "fixed, 8 shards", stepper { shards = 8 } }
  rows[#rows + 1] = { "free, after backward", stepper { order = "free", overlap = false } }
  rows[#rows + 1] = { "free, overlapped", stepper { order = "free", overlap = true } }
end
for round = 1, rounds + 3 do
  for _, row in ipairs(rows) do
    dist.barrier()
    local before = dist.stats()
    local ms = gb.time(row[2]) * 1000
    local after = dist.stats()
    row.sent = after.bytes_sent - before.bytes_sent
    row.summed, row.messages = after.bytes_summed - before.bytes_summed, after.messages_sent - before.messages_sent
    if round > 3 then row[#row + 1] = ms end
  end
end

local gradients = 0
for _, p in ipairs(new_model():parameters()) do gradients = gradients + 4 * p:numel() end
local median, least = {}, {}
for _, row in ipairs(rows) do
  local times = table.move(row, 3, #row, 1, {})
  table.sort(times)
  median[row[1]], least[row[1]] = times[#times // 2 + 1], times[1]
  if rank == 0 then
    print(("%-24s median %8.2f ms, least %8.2f ms, %3d messages, sent %.3f%s"):format(row[1], times[#times // 2 + 1],
      times[1], row.messages, row.sent / gradients,
      row.summed > 0 and (" and %.3f given to MPI's sum"):format(row.summed / gradients) or ""))
  end
end
for _, order in ipairs(size > 1 and rank == 0 and { "fixed", not only_overlap and "free" or nil } or {}) do
  for name, of in pairs { median = median, least = least } do
    local late, early = of[order .. ", after backward"], of[order .. ", overlapped"]
    local exchange, backward = late - of["no exchange"], of["no exchange"] - of["forward alone"]
    print(("%s, by the %s: exchange %.2f ms, backward (with the step) %.2f ms, hidden %.2f"):format(order, name,
      exchange, backward, (late - early) / math.min(exchange, backward)))
  end
end
