-- free.lua - DataParallel whose sums have a free order: the same gradients within rounding, for any number of
-- processes.

local gb = require "gibbous"
local nn, dist = gb.nn, gb.dist
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
if not dist.is_initialized() then dist.init { timeout = 60 } end
local size = dist.world_size()

local function run(ddp, x) for xs in ddp:shards(x) do
  local loss = ddp(xs):square():mean()
  ddp:record(loss)
  loss:backward()
end end

describe("DataParallel with a free order", function()
  it("has the gradients of the whole batch, also under no_sync", function()
    gb.manual_seed(3)
    local model = nn.Sequential(nn.Linear(6, 300), nn.GELU(), nn.Linear(300, 4, { dtype = "float32" }))
    local ddp = nn.parallel.DataParallel(model, { order = "free" })
    for _, n in ipairs { 24, 24, 19, 1 } do
      local x = gb.randn(n, 6)
      model:zero_grad()
      local loss = model(x):square():mean()
      loss:backward()
      local want = {}
      for i, p in ipairs(model:parameters()) do want[i] = p.grad:clone() end
      model:zero_grad()
      run(ddp, x)
      expect(ddp:loss()):to_be_near(loss:item(), 1e-4)
      for i, p in ipairs(model:parameters()) do
        expect(p.grad):to_be_close(want[i], 1e-4)
        for _, other in ipairs(dist.all_gather(p.grad)) do expect(other):to_equal_bits(p.grad) end
      end
      model:zero_grad()
      ddp:no_sync(run, ddp, x)
      run(ddp, x)
      for i, p in ipairs(model:parameters()) do expect(p.grad):to_be_close(want[i] * 2, 1e-4) end
    end
  end)

  it("measures batch norms over any number of processes", function()
    local ddp = nn.parallel.DataParallel(nn.SyncBatchNorm(3), { order = "free" })
    local x = gb.randn(24, 3) * 2 + 1
    run(ddp, x)
    expect(ddp.module.running_mean):to_be_close(x:mean(1) * 0.1, 1e-4)
    expect(function() nn.parallel.DataParallel(nn.Linear(2, 2), { order = "free", shards = size + 1 }) end)
      :to_fail("leave shards")
  end)
end)

gb.test.finish()
