-- nccl.lua - what is particular to a job over NCCL, on every rank: the GPU of the process, messages that cross, that
-- are begun in another order than they are waited for, and that go in pieces.

local gb = require "gibbous"
local nn, F, dist = gb.nn, gb.nn.functional, gb.dist
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
local early = gb.ones(2, { device = "cuda" })
dist.init { timeout = 60 }
local rank, size = dist.rank(), dist.world_size()
local to, from = (rank + 1) % size, (rank - 1) % size

-- Numbers of a rank that no other has, more than go along with a packet.
local function of(r, n) return gb.arange(n or 300000, { dtype = "float32" }) + 7 * r end

describe("a job over NCCL", function()
  it("takes the GPU of its local rank for cuda, also before it joins", function()
    expect(early.device):to_be("cuda:" .. rank)
    expect(gb.ones(2, { device = "cuda" }).device):to_be("cuda:" .. rank)
    expect(gb.ones(2, { device = "cuda:0" }).device):to_be("cuda:0")
    expect(dist.local_rank()):to_be(rank)
  end)
  it("sends both ways at once, and waits in any order", function()
    for turn = 1, 3 do
      local x = turn == 2 and of(rank):to("cuda") or of(rank)
      local out = dist.send(x, to, { async = true })
      local second = dist.send(x * 2, to, { async = true })
      local a, b = gb.zeros(300000), gb.zeros(300000)
      local one, two = dist.recv(a, from, { async = true }), dist.recv(b, from, { async = true })
      if rank % 2 == 0 then two:wait() one:wait() second:wait() out:wait()
      else out:wait() one:wait() second:wait() two:wait() end
      expect(a):to_equal_bits(of(from))
      expect(b):to_equal_bits(of(from) * 2)
    end
  end)
  it("sends from a GPU's memory to another's, in every layout", function()
    for _, dtype in ipairs { "float32", "bfloat16", "int64", "uint8" } do
      local function grid(r) return (gb.arange(6000):reshape(60, 100) + r):to(dtype) end
      local mine, before = grid(rank):to("cuda"), dist.stats().bytes_direct
      local bytes = #gb.to_bytes(grid(0))
      local out = dist.send(mine:t(), to, { async = true })
      local got = gb.zeros(60, 100, { device = "cuda" }):to(dtype)
      expect(dist.recv(got:t(), from):cpu()):to_equal_bits(grid(from):t())
      expect(got:cpu()):to_equal_bits(grid(from))
      local all = dist.all_gather(mine, { async = true }):wait()
      for r = 1, size do expect(all[r]:cpu()):to_equal_bits(grid(r - 1)) end
      expect(dist.broadcast(mine:t(), size - 1):cpu()):to_equal_bits(grid(size - 1):t())
      expect(mine:cpu()):to_equal_bits(grid(size - 1))
      out:wait()
      local sent = dist.stats().bytes_direct - before
      expect(sent >= size * bytes and sent % bytes == 0):to_be(true)
      local near, far = grid(rank), grid(rank):to("cuda") -- one side on the host
      out = dist.send(rank % 2 == 0 and near or far, to, { async = true })
      expect(dist.recv(rank % 2 == 0 and near or far, from):cpu()):to_equal_bits(grid(from))
      out:wait()
    end
  end)
  it("adds up where the numbers lie, on the GPUs", function()
    local before = dist.stats()
    for _, dtype in ipairs { "float64", "float32", "float16", "bfloat16", "int64", "uint8" } do
      local function grid(r) return ((gb.arange(6000):reshape(60, 100) + r) % 7):to(dtype) end
      local sum, most = grid(0), grid(0)
      for r = 1, size - 1 do sum, most = sum + grid(r), gb.maximum(most, grid(r)) end
      expect(dist.all_reduce(grid(rank):to("cuda"):t()):cpu()):to_equal_bits(sum:t())
      expect(dist.all_reduce(grid(rank):to("cuda"), "max", { async = true }):wait():cpu()):to_equal_bits(most)
      local part = dist.reduce_scatter(gb.ones(400 * size, 3, { device = "cuda" }):to(dtype))
      expect(part:cpu()):to_equal_bits((gb.ones(400, 3) * size):to(dtype))
    end
    local x = of(rank, 3000)
    expect(dist.all_reduce(x:to("cuda"), "mean"):cpu()):to_equal_bits(dist.all_reduce(x:clone(), "mean"))
    local flags = gb.arange(3000) % (rank + 2)
    expect(dist.all_reduce(flags:to("cuda"), "or"):cpu()):to_equal_bits(dist.all_reduce(flags:clone(), "or"))
    local bad = gb.zeros(3000)
    if rank == size - 1 then bad[7] = 0 / 0 end
    expect(dist.all_reduce(bad:to("cuda"), "max"):isnan():sum():item()):to_be(1)
    expect(dist.stats().bytes_staged):to_be(before.bytes_staged)
    expect(dist.stats().bytes_direct > before.bytes_direct):to_be(true)
    dist.all_reduce(gb.ones(3, { device = "cuda" })) -- so few go with a packet
    expect(dist.stats().bytes_staged - before.bytes_staged):to_be(24)
  end)
  it("moves no byte of gradients through the host", function()
    for _, o in ipairs { { shards = 4 }, { order = "free" }, { shards = 4, overlap = false } } do
      gb.manual_seed(1)
      local net = nn.Sequential(nn.Linear(8, 700), nn.ReLU(), nn.Linear(700, 500), nn.Linear(500, 3)):to("cuda")
      local ddp = nn.parallel.DataParallel(net, o)
      local opt, bytes = gb.optim.SGD(net:parameters(), { lr = 0.1 }), 0
      for _, p in ipairs(net:parameters()) do bytes = bytes + 4 * p:numel() end
      for _ = 1, 3 do
        local before = dist.stats()
        opt:zero_grad()
        ddp:backward(function(xs, ys) return F.cross_entropy(ddp(xs), ys) end, gb.randn(24, 8, { device = "cuda" }),
          gb.randint(0, 3, { 24 }):to("cuda"))
        opt:step()
        local now = dist.stats()
        expect(now.bytes_staged):to_be(before.bytes_staged)
        local sent = now.bytes_direct - before.bytes_direct
        if o.order then expect(now.bytes_summed - before.bytes_summed >= bytes):to_be(true)
        elseif size == 2 then -- and what keeps parameters apart in a slab
          expect(sent >= bytes and sent < bytes + 4096):to_be(true)
        end
      end
    end
  end)
  it("shares gradients out, and brings weights together, between the GPUs", function()
    local function train(shares)
      gb.manual_seed(1)
      -- 3 numbers at the end: a run that goes with a packet
      local net = nn.Sequential(nn.Linear(8, 700), nn.ReLU(), nn.Linear(700, 90), nn.Linear(90, 3)):to("cuda")
      local ddp = nn.parallel.DataParallel(net, { shards = 4 })
      local opt = gb.optim.AdamW(net:parameters(), { lr = 0.1 })
      if shares then opt = gb.optim.Sharded(opt) end
      local bytes = 0
      for _, p in ipairs(net:parameters()) do bytes = bytes + 4 * p:numel() end
      for step = 1, 3 do
        opt:zero_grad()
        local before = dist.stats()
        ddp:backward(function(xs, ys) return F.cross_entropy(ddp(xs), ys) end, gb.randn(24, 8, { device = "cuda" }),
          gb.randint(0, 3, { 24 }):to("cuda"))
        local now = dist.stats()
        if shares and size == 2 then -- five chunks: two of the one, and three of the other
          local sent = now.bytes_direct - before.bytes_direct
          expect(sent > 0.4 * bytes and sent < 0.6 * bytes):to_be(true)
        end
        nn.utils.clip_grad_norm_(net:parameters(), 0.5)
        before = dist.stats()
        expect(before.bytes_staged):to_be(now.bytes_staged)
        opt:step()
        now = dist.stats()
        expect(now.bytes_staged):to_be(before.bytes_staged)
        if shares and step > 1 then expect(now.bytes_direct > before.bytes_direct):to_be(true) end
      end
      return net:parameters()
    end
    local whole, shared = train(false), train(true)
    for i, p in ipairs(whole) do expect(shared[i]:cpu()):to_equal_bits(p:cpu()) end
  end)
  it("exchanges beside messages that other ranks are not ready for", function()
    local sum
    if rank == 0 then
      sum = dist.all_reduce(of(0), { async = true })
      dist.send(of(0), 1)
    else
      local got = gb.zeros(300000)
      local handle = rank == 1 and dist.recv(got, 0, { async = true })
      sum = dist.all_reduce(of(rank), { async = true })
      if handle then expect(handle:wait()):to_equal_bits(of(0)) end
    end
    local want = of(0)
    for r = 1, size - 1 do want = want + of(r) end
    expect(sum:wait()):to_be_close(want, 1e-6)
  end)
  it("moves long messages in pieces", function()
    local n = (32 << 20) + 5001
    local x = gb.zeros(n, { dtype = "uint8" })
    if rank == 0 then
      x[1], x[16 << 20], x[(16 << 20) + 1], x[n] = 1, 2, 3, 4
    end
    dist.broadcast(x)
    for i, at in ipairs { 1, 16 << 20, (16 << 20) + 1, n } do expect(x[at]:item()):to_be(i) end
    expect(x:sum():item()):to_be(10)
  end)
  it("tells tensors of different sizes, and is broken then", function()
    if size > 2 then return end
    expect(function() dist.all_reduce(gb.ones(2000 + 10 * rank)) end)
      :to_fail(" bytes where rank " .. rank .. " expected")
    expect(function() dist.barrier() end):to_fail("an earlier exchange")
  end)
end)

gb.test.finish()
