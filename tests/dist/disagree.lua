-- disagree.lua - ranks that do not do the same are told so, each of them; after that the job goes on.

local gb = require "gibbous"
local nn, dist = gb.nn, gb.dist
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
if not dist.is_initialized() then dist.init { timeout = 60 } end
local rank, size = dist.rank(), dist.world_size()

local function run(ddp, n)
  for xs in ddp:shards(gb.ones(n, 2)) do ddp(xs):sum():backward() end
end

describe("a job", function()
  it("begins with the weights and the random stream of rank 0", function()
    gb.manual_seed(rank)
    local model = nn.Linear(2, 2)
    nn.parallel.DataParallel(model)
    local mine, draw = model.weight:detach(), gb.rand(1)
    for _, other in ipairs(dist.all_gather(mine)) do expect(other):to_equal_bits(mine) end
    for _, other in ipairs(dist.all_gather(draw)) do expect(other):to_equal_bits(draw) end
  end)
  it("knows how many shards it needs", function()
    if size == 1 then return end
    expect(function() nn.parallel.DataParallel(nn.Linear(2, 2), { shards = 1 }) end):to_fail("1 shards for")
  end)
  if size == 1 then return end
  it("names what the ranks do not agree on", function()
    local ddp = nn.parallel.DataParallel(nn.Linear(2, 2))
    run(ddp, 16)
    expect(function() run(ddp, 16 + rank) end):to_fail("do not agree on the number of samples")
    dist.barrier() -- all know it, so the job goes on
    run(ddp, 16)
  end)
end)

gb.test.finish()
