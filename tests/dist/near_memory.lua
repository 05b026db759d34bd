-- near_memory.lua - what collectives of a GPU's tensors take of its memory, on every rank of a job over NCCL on the
-- emulated device: nothing from the driver once they have run, all of it counted, and given back when it is wanted.

local gb = require "gibbous"
local dist = gb.dist
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
dist.init { timeout = 60 }
local rank, size = dist.rank(), dist.world_size()
local MB = 1 << 20

local LANDING = 4 * MB -- what each piece of the ring that uploads pass through takes, beside the statistics

-- How many blocks the driver has given to this process, those of uploads aside.
local function given()
  local count = 0
  for bytes in io.lines(os.getenv "GIBBOUS_CUDA_ALLOCATION_FILE", "n", "l") do
    if bytes ~= LANDING then count = count + 1 end
  end
  return count
end

-- What the driver has given, less what the statistics know of: it stays the same.
local function stats() return gb.memory_stats("cuda") end
local function device() return gb.cuda.properties("cuda") end
local function uncounted() return (device().total_memory - device().free_memory - stats().reserved) % LANDING end
local function idle() return stats().reserved - stats().current_total end

-- Its sum over the ranks, here and in each result.
local function of(r, n) return gb.arange(n, { dtype = "float32" }) % 1000 + r end
local function sum_of(n)
  local sum = of(0, n)
  for r = 1, size - 1 do sum = sum + of(r, n) end
  return sum
end

describe("collectives of a GPU's tensors", function()
  local x = of(rank, 300000):to("cuda")
  dist.all_reduce(x:clone())
  collectgarbage()
  local beside = uncounted()
  it("take from the driver once, however often they run", function()
    local before, bytes = given(), stats().current_total
    local function exchange(turn)
      local y = dist.all_reduce(turn % 2 == 0 and x:clone() or x[{ { 1, 200000 + turn } }]:clone())
      if turn % 25 == 0 then expect(y:cpu()):to_equal_bits(sum_of(y:numel())) end
      dist.reduce_scatter(gb.ones(1000 * size, 3, { device = "cuda" }))
    end
    for turn = 1, 100 do
      exchange(turn)
      collectgarbage()
    end
    expect(given() - before <= 4):to_be(true) -- sizes that were not asked for before
    expect(stats().current_total):to_be(bytes)
    expect(uncounted()):to_be(beside)
  end)
  it("are part of the statistics while they run", function()
    gb.reset_peak_memory_stats()
    local before = stats().peak.scratch
    dist.all_reduce(x:clone())
    expect(stats().peak.scratch - before >= 2 * 4 * 300000):to_be(true)
    expect(stats().current.scratch):to_be(0)
  end)
  it("share memory that others begin, one after another, beside the recipe's own", function()
    local handles = {}
    for i = 1, 12 do
      handles[i] = dist.all_reduce(of(rank, 10000 * i):to("cuda"), { async = true })
      gb.empty_cache()
      expect((gb.ones(5000, { device = "cuda" }) * i):sum():item()):to_be(5000 * i)
    end
    for i = 12, 1, -1 do expect(handles[i]:wait():cpu()):to_equal_bits(sum_of(10000 * i)) end
    expect(uncounted()):to_be(beside)
  end)
  it("give memory back with the cache", function()
    gb.empty_cache()
    local least = idle()
    dist.all_reduce(gb.ones(MB, { device = "cuda" }))
    collectgarbage()
    expect(idle() - least >= 4 * 4 * MB):to_be(true) -- the tensor, its copy, and what the sum works in
    gb.empty_cache()
    expect(idle() <= least):to_be(true)
    expect(uncounted()):to_be(beside)
  end)
  it("give it back where the device has no more, and take from its cache", function()
    local n = 2 * MB
    expect(dist.all_reduce(gb.ones(n, { device = "cuda" }))[1]:item()):to_be(size)
    collectgarbage()
    local free, cached = device().free_memory, idle()
    local function take_most() -- more than is free
      expect(gb.zeros((free + cached - 8 * MB) // 4, { device = "cuda" })[1]:item()):to_be(0)
    end
    expect(cached > 24 * MB):to_be(true)
    take_most()
    collectgarbage()
    expect(device().free_memory < 16 * MB):to_be(true)
  end)
  it("take what the recipe's cache has", function()
    gb.empty_cache()
    local y = gb.ones(2 * MB, { device = "cuda" })
    local function take_more() -- a block for the copy of y, and all but 8 MB
      local one = gb.ones(2 * MB, { device = "cuda" })
      return one, gb.zeros(device().free_memory // 4 - 2 * MB, { device = "cuda" })
    end
    take_more()
    collectgarbage()
    expect(device().free_memory < 16 * MB):to_be(true)
    expect(dist.all_reduce(y, { async = true }):wait()[2 * MB]:item()):to_be(size)
    expect(device().free_memory > 16 * MB):to_be(true)
  end)
  it("say where there is none", function()
    local n = device().total_memory // 12 -- a third: for the tensor and its copy, not for the sum
    gb.empty_cache()
    expect(function() dist.all_reduce(gb.ones(n, { device = "cuda" })) end):to_fail(" bytes of the device, for sums")
    expect(function() dist.barrier() end):to_fail("an earlier exchange")
  end)
  it("leave nothing behind, also in a job that is broken", function()
    x = nil
    collectgarbage()
    dist.finalize()
    gb.empty_cache()
    expect(uncounted()):to_be(beside)
    expect(stats().current.scratch):to_be(0)
    expect(idle() < 4 * MB):to_be(true)
  end)
end)

gb.test.finish()
