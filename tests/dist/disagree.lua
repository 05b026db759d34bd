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
  it("notices weights that differ, as by other optimizers", function()
    local body = nn.Linear(2, 2)
    local ddp = nn.parallel.DataParallel(body)
    local function same() -- weights on all ranks
      for _, p in ipairs(body:parameters()) do gb.no_grad(function() p:copy_(dist.broadcast(p:detach())) end) end
    end
    local opt = gb.optim.SGD(body:parameters(), { lr = rank == size - 1 and 0.2 or 0.1 })
    run(ddp, 16)
    opt:step()
    expect(function() run(ddp, 16) end):to_fail("do not agree on the weights")
    opt.param_groups[1].lr = 0.1
    same()
    run(ddp, 16)
    if rank == 0 then opt:step() end
    opt:zero_grad()
    expect(function() run(ddp, 16) end):to_fail("do not agree on the weights")
    expect(body.weight.grad):to_be(nil)
    same()
    run(ddp, 16)
    opt:close()
  end)
  it("does not mind who has an optimizer, or whether one that is garbage was collected", function()
    local body = nn.Linear(2, 2)
    local ddp = nn.parallel.DataParallel(body)
    for turn = 1, 4 do
      do
        local opt = (rank == 0 or turn > 2) and gb.optim.SGD(body:parameters(), { lr = 0.1 })
        run(ddp, 16)
        if opt then opt:step() end
        for _, p in ipairs(body:parameters()) do gb.no_grad(function() p:copy_(dist.broadcast(p:detach())) end) end
        if opt and turn ~= 3 then opt:close() end
      end
      body:zero_grad()
      if turn == 3 and rank == 0 then
        collectgarbage()
        collectgarbage()
      end
    end
    run(ddp, 16)
  end)
  it("names gradients of several scales on one rank alone", function()
    local model = nn.Linear(2, 2)
    local ddp, scaler = nn.parallel.DataParallel(model), gb.amp.GradScaler()
    expect(function()
      for xs in ddp:shards(gb.ones(16, 2)) do
        scaler:scale(ddp(xs):sum()):backward()
        if rank == size - 1 then ddp(xs):sum():backward() end
      end
    end):to_fail(rank == size - 1 and "a scaled and an unscaled loss" or "left the loop")
    dist.barrier()
    run(ddp, 16)
  end)
  it("exchanges few messages", function()
    local model = nn.parallel.DataParallel(nn.Sequential(nn.Linear(2, 9), nn.BatchNorm1d(9), nn.Linear(9, 2)))
    local set = gb.data.TensorDataset(gb.ones(96, 2))
    local loader = gb.data.DataLoader(set, { batch_size = 32, seed = 1, parts = model })
    for x in loader:iter() do
      local before = dist.stats()
      model:backward(function(part) return model(part):sum() end, x)
      local after = dist.stats()
      -- Gradients, and all else: to each partner one message.
      local partners = ({ [2] = 1, [4] = 2, [8] = 3 })[size]
      if partners then expect(after.messages_sent - before.messages_sent):to_be(2 * partners) end
      expect(after.bytes_sent - before.bytes_sent < 10000):to_be(true)
    end
  end)
  it("sends no bias by itself", function() -- a weight of one bucket's size, and another one: a bucket each
    local body = nn.Sequential(nn.Linear(512, 512), nn.Linear(512, 512))
    local ddp = nn.parallel.DataParallel(body, { shards = size & size - 1 == 0 and size or 8 })
    for _ = 1, 3 do
      local before = dist.stats().messages_sent
      for xs in ddp:shards(gb.ones(size, 512)) do ddp(xs):sum():backward() end
      -- There and back for each bucket, and all else: to each partner.
      local partners = ({ [2] = 1, [4] = 2, [8] = 3 })[size]
      if partners then expect(dist.stats().messages_sent - before):to_be((2 * 2 + 1) * partners) end
    end
  end)
  it("sums gradients where they lie in a slab", function()
    local function run_on(shards, order, flipped, overlap)
      gb.manual_seed(2)
      local body = nn.Sequential(nn.Linear(70, 90), nn.Tanh(), nn.Linear(90, 300), nn.Linear(300, 3))
      local ddp = nn.parallel.DataParallel(body, { shards = shards, order = order, overlap = overlap })
      local params = body:parameters()
      if flipped then params[3], params[5] = params[5], params[3] end
      local opt = gb.optim.SGD(params, { lr = 0.1, momentum = 0.9 })
      local copied
      for step = 1, 4 do
        if step ~= 4 then opt:zero_grad() end -- the last ones are added to what is there
        copied = step == 4 and copied or dist.stats().bytes_copied
        for xs in ddp:shards(gb.randn(4 * size + 1, 70)) do ddp(xs):square():mean():backward() end
        if step == 3 then copied = dist.stats().bytes_copied - copied end
        opt:step()
      end
      for i, p in ipairs(body:parameters()) do params[i] = p:detach() end
      return params, copied
    end
    local even = size & size - 1 == 0
    if even then
      local there, copied = run_on(size, "fixed", false, false)
      local _, early = run_on(size)
      expect(copied):to_be(0)
      -- Where the processes of one machine keep all of its cores busy, nothing goes out beside backward.
      local cores <close> = assert(io.popen("getconf _NPROCESSORS_ONLN"))
      local threads = gb.get_num_threads() * size
      local is_crowded = tonumber(os.getenv "OMPI_COMM_WORLD_LOCAL_SIZE") == size and threads >= cores:read "n"
      if size > 1 then expect(early == 0):to_be(is_crowded) end
      local moved, all = run_on(size, "fixed", true)
      expect(all > 2 * 4 * (70 * 90 + 90 * 300)):to_be(true)
      for i, p in ipairs(there) do expect(p):to_equal_bits(moved[i]) end
    end
    local _, all = run_on(16)
    expect(all > 4 * (70 * 90 + 90 * 300)):to_be(true)
    run_on(nil, "free")
  end)
  it("exchanges gradients while backward goes on only where the body leaves them alone", function()
    local function twice(ddp, n)
      for xs in ddp:shards(gb.ones(n, 2)) do
        ddp(xs):sum():backward()
        ddp(xs):sum():backward()
      end
    end
    local function grad_of(fn, ddp)
      ddp.module.weight.grad = nil
      fn(ddp, 16)
      return ddp.module.weight.grad:clone()
    end
    local function early() return nn.parallel.DataParallel(nn.Linear(2, 2), { overlap = true }) end
    local calm, busy = early(), early()
    local late = nn.parallel.DataParallel(nn.Linear(2, 2), { overlap = false })
    local once = grad_of(run, calm)
    for _ = 1, 3 do
      expect(grad_of(run, calm)):to_equal_bits(once)
      expect(grad_of(twice, busy)):to_equal_bits(once * 2)
      expect(grad_of(run, late)):to_equal_bits(once)
    end
    expect(grad_of(twice, late)):to_equal_bits(once * 2)
    expect(grad_of(run, busy)):to_equal_bits(once)
    expect(function() twice(calm, 16) end):to_fail("changed after it had been sent")
    expect(grad_of(twice, calm)):to_equal_bits(once * 2)
  end)
  it("lets the loop's body read gradients while they are exchanged", function()
    local ddp = nn.parallel.DataParallel(nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)))
    local opt = gb.optim.SGD(ddp.module:parameters(), { lr = 0.1 })
    local function grads_of(reads)
      gb.manual_seed(6)
      local x, read = gb.randn(16, 3), {}
      opt:zero_grad()
      for xs in ddp:shards(x) do
        ddp(xs):square():mean():backward()
        local own = {} -- of this shard alone, whatever has gone out by now
        for i, p in ipairs(ddp.module:parameters()) do own[i] = reads and p.grad:clone() end
        if reads then read[#read + 1] = { xs = xs, own = own } end
      end
      local made = {}
      for i, p in ipairs(ddp.module:parameters()) do made[i] = p.grad:clone() end
      return made, read
    end
    local want = grads_of(false)
    for _ = 1, 3 do
      local made, read = grads_of(true)
      for i, grad in ipairs(made) do expect(grad):to_equal_bits(want[i]) end
      for _, shard in ipairs(read) do
        opt:zero_grad()
        ddp.module(shard.xs):square():mean():backward()
        for i, p in ipairs(ddp.module:parameters()) do expect(shard.own[i]):to_equal_bits(p.grad) end
      end
    end
  end)
  it("tells all ranks that a gradient was replaced after it had been sent", function()
    local ddp = nn.parallel.DataParallel(nn.Linear(2, 2), { overlap = true })
    for _ = 1, 2 do run(ddp, 16) end
    expect(function()
      for xs in ddp:shards(gb.ones(16, 2)) do
        ddp(xs):sum():backward()
        if rank == size - 1 then ddp.module.weight.grad = ddp.module.weight.grad * 2 end
      end
    end):to_fail("changed after it had been sent")
    run(ddp, 16)
  end)
  it("goes on where one rank leaves the loop, and all are told", function()
    local ddp = nn.parallel.DataParallel(nn.Linear(2, 2))
    local function body(fails, late)
      for xs in ddp:shards(gb.ones(16, 2)) do
        if fails and not late then error("left") end
        ddp(xs):sum():backward()
        if fails and late then error("left") end
      end
    end
    for step = 1, 6 do
      local leaves = (step % size == rank)
      run(ddp, 16)
      expect(function() body(leaves, step % 2 == 0) end)
        :to_fail(leaves and "left" or ("rank %d left the loop"):format(step % size))
      if step == 3 then dist.barrier() end
      if step == 4 then
        expect(function() ddp:no_sync(body, leaves) end):to_fail(leaves and "left" or "left the loop")
      end
    end
    run(ddp, 16)
  end)
  it("goes on where one rank leaves the loop with gradients that lie in a slab", function()
    for turn = 1, 4 do
      local body = nn.Sequential(nn.Linear(70, 90), nn.Tanh(), nn.Linear(90, 3000))
      local ddp = nn.parallel.DataParallel(body, { shards = size & size - 1 == 0 and size or 8 })
      local opt = gb.optim.SGD(body:parameters(), { lr = 0.1 })
      if turn == 4 then gb.optim.Sharded(opt) end
      local function step(leaves)
        opt:zero_grad()
        for xs in ddp:shards(gb.ones(16, 70)) do
          local out = ddp(xs):square():mean()
          if leaves and turn == 1 then error("left") end
          out:backward()
          if leaves and turn == 2 then opt:close() end -- while gradients may be under way
          if leaves then error("left") end
        end
        opt:step()
      end
      for _ = 1, 3 do step() end
      local leaves = turn % size == rank
      expect(function() step(leaves) end):to_fail(leaves and "left" or ("rank %d left the loop"):format(turn % size))
      expect(body[1].weight.grad):to_be(nil)
      if turn == 2 then
        opt:close()
        opt = gb.optim.SGD(body:parameters(), { lr = 0.1 })
      end
      collectgarbage()
      step()
      local mine = body[3].weight:detach()
      for _, other in ipairs(dist.all_gather(mine)) do expect(other):to_equal_bits(mine) end
    end
  end)
  it("goes on where all ranks leave the loop, with gradients under way", function()
    local ddp = nn.parallel.DataParallel(nn.Linear(2, 2))
    for _ = 1, 2 do run(ddp, 16) end
    pcall(function()
      local count = 0
      for xs in ddp:shards(gb.ones(16, 2)) do
        ddp(xs):sum():backward()
        count = count + 1
        if count == 8 // size then error("left") end
      end
    end)
    run(ddp, 16)
  end)
end)

gb.test.finish()
