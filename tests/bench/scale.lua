-- scale.lua - the model on paper of docs/distributed.md: how long a step takes on N GPUs, by what messages cost.
--
--   gibbous tests/bench/scale.lua                     GPT-2 on 8 to 4,096 H200, as the table of the document
--   mpirun -n 4 gibbous tests/bench/scale.lua here    the same formulas with what this machine's messages and memory
--                                                     cost, beside what an all_reduce takes here
--
-- A message of b bytes takes alpha + b / beta. Recursive halving and doubling of n bytes over N ranks, nearest partner
-- first (runtime/dist/tree.c), takes 2 log2(N) messages and sends 2 n (N - 1) / N bytes: in round k, 1 / 2^k of n each
-- way. The first three rounds stay among the 8 GPUs of a host (NVLink), the others go over the host's network, one port
-- for each GPU. Rings send as many bytes in 2 (N - 1) messages.

local gb = require "gibbous"
local log2 = function(n) return math.log(n, 2) end

-- Per direction and GPU, in bytes/s; alpha in seconds. See docs/distributed.md for where the figures are from.
local h200 = { flops = 989e12 * 0.4, memory = 4.8e12 * 0.8, near = 450e9 * 0.8, far = 50e9 * 0.9, near_alpha = 3.4e-6,
  far_alpha = 14e-6, per_host = 8 }

-- One way, halving or doubling: seconds.
local function halving(machine, bytes, ranks)
  local seconds, part, distance = 0, bytes, 1
  while distance < ranks do
    part = part / 2
    local is_near = distance < machine.per_host
    seconds = seconds + (is_near and machine.near_alpha or machine.far_alpha) +
      part / (is_near and machine.near or machine.far)
    distance = distance * 2
  end
  return seconds
end

-- Both ways, rings over all ranks. One of 8 messages goes between hosts, and there are 8 rings, so that each port of a
-- host carries an eighth of the bytes.
local function ring(machine, bytes, ranks)
  local sent, hosts = 2 * bytes * (ranks - 1) / ranks, ranks > machine.per_host
  local alpha = hosts and (7 * machine.near_alpha + machine.far_alpha) / 8 or machine.near_alpha
  local far = hosts and sent / machine.per_host / machine.far or 0
  return 2 * (ranks - 1) * alpha + math.max(sent / machine.near, far)
end

local models = {
  { name = "GPT-2 124M", parameters = 124.4e6, layers = 12, width = 768, batch = 16, last = 38.6e6 + 7.1e6 },
  { name = "GPT-2 1.5B", parameters = 1557.6e6, layers = 48, width = 1600, batch = 8, last = 80.4e6 + 30.7e6 },
}
local TIME = 1024 -- tokens in a sequence

-- Seconds of forward, backward and step of one GPU's part; Kaplan et al. 2020: 2 operations for each weight and token
-- forward, twice that backward, and attention's products.
local function compute(machine, m)
  local tokens = m.batch * TIME
  local forward = tokens * (2 * m.parameters + 4 * m.layers * m.width * TIME) / machine.flops
  return forward, 2 * forward
end

-- A step with one shard for each GPU. `last`: weights whose gradients come with the last of backward, the tied table
-- and a layer, so that their exchange hides behind nothing.
local function step(machine, m, ranks, way)
  local forward, backward = compute(machine, m)
  local bytes, optimizer = 4 * m.parameters, 28 * m.parameters / machine.memory
  local exchange, tail, after = 0, 0, 0
  if ranks > 1 then
    local cost = way == "ring" and function(b) return ring(machine, b, ranks) end
      or function(b) return (way == "sharded" and 1 or 2) * halving(machine, b, ranks) end
    exchange, tail = cost(bytes), cost(4 * m.last)
    if way == "sharded" then after, optimizer = halving(machine, bytes, ranks), optimizer / ranks end
  end
  local exposed = math.max(tail, exchange - backward)
  return forward + backward + exposed + optimizer + after, exchange + after
end

local function paper()
  for _, m in ipairs(models) do
    local alone = step(h200, m, 1)
    print(("\n%s, %d x %d tokens on each GPU: alone %.1f ms"):format(m.name, m.batch, TIME, alone * 1e3))
    print("| GPUs | exchange, tree | step, tree | efficiency | step, ring | step, Sharded | memory, plain | Sharded |")
    print("|---|---|---|---|---|---|---|---|")
    for _, ranks in ipairs { 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096 } do
      local tree, exchange = step(h200, m, ranks, "tree")
      local shared = step(h200, m, ranks, "sharded")
      local p = m.parameters / 1e9
      print(("| %d | %.1f ms | %.1f ms | %.2f | %.1f ms | %.1f ms | %.1f GB | %.1f GB |"):format(ranks, exchange * 1e3,
        tree * 1e3, alone / tree, step(h200, m, ranks, "ring") * 1e3, shared * 1e3, 18 * p, 10 * p + 8 * p / ranks))
    end
  end
end

-- {==== the same for this machine ====

-- The median of some runs of fn on all ranks at once, in seconds.
local function median(fn)
  local times = {}
  for i = 1, 15 do
    gb.dist.barrier()
    times[i] = gb.time(fn)
  end
  table.sort(times)
  return times[8]
end

local function here()
  local dist = gb.dist
  dist.init()
  local rank, size = dist.rank(), dist.world_size()
  -- A message each way, between neighbours: small, for alpha, and large, for beta, which includes its copies.
  local function swap(t, other)
    local handle = dist.send(t, rank ~ 1, { async = true })
    dist.recv(other, rank ~ 1)
    handle:wait()
  end
  local count = 1 << 21
  local small, large = gb.zeros(1), gb.zeros(count)
  local other_small, other_large = gb.zeros(1), gb.zeros(count)
  local alpha = median(function() swap(small, other_small) end)
  local beta = 4 * count / (median(function() swap(large, other_large) end) - alpha)
  local add = median(function() large:add_(other_large) end) / count -- of an element
  local copy = median(function() other_large:copy_(large) end) / count
  for _, n in ipairs { 1 << 18, 1 << 20, 1 << 22 } do
    local t = gb.zeros(n)
    local model = 2 * log2(size) * alpha + 2 * 4 * n * (size - 1) / size / beta + n * (size - 1) / size * add +
      4 * n * copy -- into a leaf and out, read and written
    local measured = median(function() dist.all_reduce(t) end)
    if rank == 0 then
      local text = "%d ranks, all_reduce of %5.1f MB: model %7.2f ms, measured %7.2f ms, ratio %.2f (alpha %.0f us, \z
        beta %.2f GB/s)"
      print(text:format(size, 4 * n / 1e6, model * 1e3, measured * 1e3, measured / model, alpha * 1e6, beta / 1e9))
    end
  end
end

-- ====}

if arg and arg[1] == "here" then here() else paper() end
