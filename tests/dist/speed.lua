-- speed.lua [SAMPLES] - how long a step takes of a model of 10 MB, in milliseconds (the median of 20), by how gradients
-- are exchanged. To be run by mpirun on a quiet machine; no test runs it.

local gb = require "gibbous"
local nn, dist = gb.nn, gb.dist
dist.init()
local samples = tonumber(arg and arg[1]) or 64

local function measure(options)
  gb.manual_seed(1)
  local model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024),
    nn.ReLU(), nn.Linear(1024, 256))
  local ddp = options and nn.parallel.DataParallel(model, options)
  local opt = gb.optim.AdamW(model:parameters(), { lr = 1e-4 })
  local x, times = gb.randn(samples, 256), {}
  for step = 1, 23 do
    dist.barrier()
    local seconds = gb.time(function()
      opt:zero_grad()
      if ddp then
        for xs in ddp:shards(x) do ddp(xs):square():mean():backward() end
      else model(x):square():mean():backward() end
      opt:step()
    end)
    if step > 3 then times[step - 3] = seconds * 1000 end
  end
  opt:close()
  table.sort(times)
  return times[10]
end

local rows = {
  { "whole batch, no exchange", nil }, { "8 shards, after backward", { overlap = false } }, { "8 shards", {} },
  { "a shard each, after backward", { order = "free", overlap = false } }, { "a shard each", { order = "free" } },
}
for _, row in ipairs(rows) do
  local ms = measure(row[2])
  if dist.rank() == 0 then print(("%-30s %8.2f ms"):format(row[1], ms)) end
end
