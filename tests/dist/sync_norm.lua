-- sync_norm.lua - SyncBatchNorm on parts of a batch beside a batch norm of the whole.

local gb = require "gibbous"
local nn, dist = gb.nn, gb.dist
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
if not dist.is_initialized() then dist.init { timeout = 60 } end
local rank, size = dist.rank(), dist.world_size()

-- The first sample of a rank's part of n, and how many it has: unequal parts.
local function part(n)
  local first = n * rank // size
  return first + 1, n * (rank + 1) // size - first
end

describe("SyncBatchNorm", function()
  it("is the batch norm of all parts together", function()
    for _, shape in ipairs { { 19, 3 }, { 17, 2, 5 }, { 9, 4, 3, 2 } } do
      gb.manual_seed(4)
      local n, c = shape[1], shape[2]
      local x, weights = gb.randn(table.unpack(shape)) * 3 + 5, gb.randn(table.unpack(shape))
      local whole, mine = nn["BatchNorm" .. math.max(#shape - 2, 1) .. "d"](c), nn.SyncBatchNorm(c)
      for _, norm in ipairs { whole, mine } do
        gb.no_grad(function() norm.weight:copy_(gb.arange(c) + 0.5) norm.bias:fill_(0.25) end)
      end
      local first, count = part(n)
      local all, own = x:clone():requires_grad_(), x:narrow(1, first, count):clone():requires_grad_()
      local y, z = whole(all), mine(own)
      expect(z):to_be_close(y:narrow(1, first, count), 1e-5);
      (y * weights):sum():backward();
      (z * weights:narrow(1, first, count)):sum():backward()
      expect(own.grad):to_be_close(all.grad:narrow(1, first, count), 1e-4)
      for _, name in ipairs { "weight", "bias" } do
        expect(dist.all_reduce(mine[name].grad:clone())):to_be_close(whole[name].grad, 1e-4)
      end
      expect(mine.running_mean):to_be_close(whole.running_mean, 1e-5)
      expect(mine.running_var):to_be_close(whole.running_var, 1e-5)
      expect(mine.num_batches_tracked:item()):to_be(1)
      local same = dist.all_gather(mine.running_var)
      for r = 2, size do expect(same[r]):to_equal_bits(same[1]) end
      expect(mine:eval()(own)):to_be_close(whole:eval()(all):narrow(1, first, count), 1e-5)
    end
  end)

  it("adds a residual and takes a ReLU", function()
    gb.manual_seed(5)
    local x, r = gb.randn(17, 4, 5), gb.randn(17, 4, 5)
    local whole, mine = nn.BatchNorm1d(4, { activation = "relu" }), nn.SyncBatchNorm(4, { activation = "relu" })
    local first, count = part(17)
    local all, own = x:clone():requires_grad_(), x:narrow(1, first, count):clone():requires_grad_()
    local y, z = whole(all, r), mine(own, r:narrow(1, first, count))
    expect(z):to_be_close(y:narrow(1, first, count), 1e-5)
    y:sum():backward()
    z:sum():backward()
    expect(own.grad):to_be_close(all.grad:narrow(1, first, count), 1e-4)
  end)

  -- Both used to be taken as float32.
  it("keeps float64, of x and of a residual", function()
    gb.manual_seed(7)
    for _, dtypes in ipairs { { "float64", "float64" }, { "float32", "float64" }, { "float64", "float32" } } do
      local x, r = gb.randn(17, 4, 5):to(dtypes[1]) + 1e-12, (gb.randn(17, 4, 5):to(dtypes[2]) + 1e-12) * 1e6
      local whole, mine = nn.BatchNorm1d(4), nn.SyncBatchNorm(4)
      local first, count = part(17)
      local all, own = x:clone():requires_grad_(), x:narrow(1, first, count):clone():requires_grad_()
      local y, z = whole(all, r), mine(own, r:narrow(1, first, count))
      expect(z.dtype):to_be(y.dtype)
      expect(z.dtype):to_be("float64")
      local tolerance = dtypes[1] == "float64" and 1e-9 or 1e-5
      expect(z):to_be_close(y:narrow(1, first, count), tolerance)
      y:square():sum():backward()
      z:square():sum():backward()
      expect(own.grad.dtype):to_be(dtypes[1])
      -- sums of large terms that cancel
      expect(own.grad):to_be_close(all.grad:narrow(1, first, count), 1e7 * tolerance)
      expect(mine.running_var):to_be_close(whole.running_var, 1e-5)
    end
  end)

  it("measures over a group of processes", function()
    if size < 2 then return end
    local ranks = {}
    for r = 0, size - 2 do ranks[r + 1] = r end
    local group = dist.new_group(ranks)
    gb.manual_seed(6)
    local x = gb.randn(4 * (size - 1), 3) + 2
    if rank < size - 1 then
      local whole, mine = nn.BatchNorm1d(3), nn.SyncBatchNorm(3, { process_group = group })
      local all, own = x:clone():requires_grad_(), x:narrow(1, 4 * rank + 1, 4):clone():requires_grad_()
      local y, z = whole(all), mine(own)
      expect(z):to_be_close(y:narrow(1, 4 * rank + 1, 4), 1e-5)
      gb.sum(y:square() * y):backward()
      gb.sum(z:square() * z):backward()
      expect(own.grad):to_be_close(all.grad:narrow(1, 4 * rank + 1, 4), 1e-4)
      expect(mine.running_var):to_be_close(whole.running_var, 1e-5)
    end
  end)

  it("trains in DataParallel with a shard for each process", function()
    if size == 3 then
      expect(function() nn.parallel.DataParallel(nn.SyncBatchNorm(2), { shards = 4 }) end):to_fail("shards = 3")
      return
    end
    gb.manual_seed(2)
    local model = nn.Sequential(nn.Linear(3, 4), nn.SyncBatchNorm(4), nn.Linear(4, 2))
    local plain = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    plain:load_state_dict(model:state_dict())
    local ddp = nn.parallel.DataParallel(model, { shards = size })
    local x = gb.randn(16, 3)
    for _ = 1, 3 do
      model:zero_grad()
      plain:zero_grad()
      for xs in ddp:shards(x) do ddp(xs):square():mean():backward() end
      plain(x):square():mean():backward()
      for i, p in ipairs(model:parameters()) do expect(p.grad):to_be_close(plain:parameters()[i].grad, 1e-4) end
    end
    expect(model[2].running_var):to_be_close(plain[2].running_var, 1e-5)
    if size > 1 then expect(function() ddp:shards(gb.ones(size - 1, 3)) end):to_fail("drop such a batch") end
    expect(function() nn.parallel.DataParallel(model, { shards = 2 * size }) end):to_fail("shards = " .. size)
  end)

  it("takes 16 bits", function()
    local norm = nn.SyncBatchNorm(2)
    local x = gb.randn(8, 2):to("bfloat16")
    local y = gb.amp.autocast(gb.amp.precision("bf16-mixed"), function() return norm(x) end)
    expect(y.dtype):to_be("bfloat16")
    expect(function() norm(gb.ones(3)) end):to_fail("2 dimensions")
    expect(function() norm(gb.ones(3, 4)) end):to_fail("4 channels")
  end)
end)

gb.test.finish()
