-- collectives.lua - gb.dist on every rank of a job, of whatever size: run by mpirun, or by threads (test_ranks.c).

local gb = require "gibbous"
local dist = gb.dist
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
if not dist.is_initialized() then dist.init { timeout = 60 } end
local rank, size = dist.rank(), dist.world_size()

local floats, integers = { "float64", "float32", "float16", "bfloat16" }, { "int64", "int32", "int16", "int8", "uint8" }

-- The numbers that a rank brings: small whole ones, exact in every dtype.
local function of(r, dtype) return ((gb.arange(8) + r) % 5):to(dtype) end

-- The definition: left to right up a balanced tree over the ranks.
local function by_tree(values)
  while #values > 1 do
    local row = {}
    for i = 1, #values, 2 do row[#row + 1] = values[i + 1] and values[i] + values[i + 1] or values[i] end
    values = row
  end
  return values[1]
end

describe("dist", function()
  it("knows the job", function()
    expect(rank >= 0 and rank < size):to_be(true)
    expect(dist.local_rank()):to_be(rank)
    expect(function() dist.init() end):to_fail("already")
  end)

  it("broadcasts every dtype from every rank", function()
    for _, dtype in ipairs { "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8",
      "bool" } do
      for source = 0, size - 1 do
        local x = of(rank, dtype)
        expect(dist.broadcast(x, source)):to_equal_bits(of(source, dtype))
        expect(x):to_equal_bits(of(source, dtype))
      end
    end
  end)

  it("reduces every dtype", function()
    for _, list in ipairs { floats, integers } do
      for _, dtype in ipairs(list) do
        local sum, most = gb.zeros(8, { dtype = "int64" }), gb.zeros(8, { dtype = "int64" })
        for r = 0, size - 1 do sum, most = sum + of(r, "int64"), most:maximum(of(r, "int64")) end
        expect(dist.all_reduce(of(rank, dtype))):to_equal_bits(sum:to(dtype))
        expect(dist.all_reduce(of(rank, dtype), "max")):to_equal_bits(most:to(dtype))
        if list == floats then
          expect(dist.all_reduce(of(rank, dtype), "mean")):to_be_close(sum:to("float64") / size, 2e-2)
        end
      end
    end
    local one = gb.zeros(8, { dtype = "bool" })
    one[rank + 1] = true
    expect(dist.all_reduce(one, "or"):to("int64"):sum():item()):to_be(size)
    expect(dist.all_reduce(gb.tensor { 1 << rank }, "or"):item()):to_be((1 << size) - 1)
  end)

  it("adds in a fixed tree, in float32", function()
    for _, dtype in ipairs { "float32", "bfloat16" } do
      local all = {}
      for r = 0, size - 1 do
        gb.manual_seed(100 + r)
        all[r + 1] = gb.randn(1001):to(dtype)
      end
      local mine = all[rank + 1]:clone()
      for r = 1, size do all[r] = all[r]:to("float32") end
      expect(dist.all_reduce(mine)):to_equal_bits(by_tree(all):to(dtype))
    end
  end)

  it("does not overflow on the way to a mean of 16 bits", function()
    local x = gb.full({ 4 }, 40000, { dtype = "float16" })
    expect(dist.all_reduce(x, "mean")):to_equal_bits(gb.full({ 4 }, 40000, { dtype = "float16" }))
  end)

  it("gathers and scatters", function()
    local all = dist.all_gather(gb.full({ 2, 3 }, rank, { dtype = "int32" }))
    expect(#all):to_be(size)
    for r = 1, size do expect(all[r]):to_equal_bits(gb.full({ 2, 3 }, r - 1, { dtype = "int32" })) end
    local x = gb.arange(size * 6):to("float32"):reshape(size * 2, 3)
    expect(function() dist.reduce_scatter(gb.tensor(1.5)) end):to_fail("the tensor has no dimensions")
    local part = dist.reduce_scatter(x + rank, "mean")
    expect(part):to_be_close(x:narrow(1, rank * 2 + 1, 2) + (size - 1) / 2)
    if size > 1 then
      expect(function() dist.reduce_scatter(gb.ones(size + 1)) end):to_fail("pad it")
    end
  end)

  it("sends and receives", function()
    if size == 1 then
      expect(function() dist.send(gb.ones(1), 0) end):to_fail("is this process")
      return
    end
    local function values(r) return gb.full({ 3 }, r, { dtype = "float32" }) end
    local x, to, from = values(rank), (rank + 1) % size, (rank - 1) % size
    if rank % 2 == 0 then dist.send(x, to) end
    local y = dist.recv(gb.zeros(3), from)
    if rank % 2 == 1 then dist.send(x, to) end
    expect(y):to_equal_bits(values(from))
    dist.barrier()
  end)

  it("sends values of Lua", function()
    local value = { rank, -0.5 * rank, "a\0b", true, { x = gb.full({ 2, 0 }, 1), y = of(rank, "bfloat16"), z = {} } }
    local all = dist.all_gather_object(value)
    expect(#all):to_be(size)
    for r = 1, size do
      expect(all[r][1]):to_be(r - 1)
      expect(math.type(all[r][2])):to_be("float")
      expect(all[r][3]):to_be("a\0b")
      expect(all[r][5].x.shape[2]):to_be(0)
      expect(all[r][5].y):to_equal_bits(of(r - 1, "bfloat16"))
      expect(next(all[r][5].z)):to_be(nil)
    end
    for source = 0, size - 1 do
      expect(dist.broadcast_object(rank == source and ("x"):rep(source * 1000) or 0, source)):to_be(
        ("x"):rep(source * 1000))
    end
    expect(dist.broadcast_object(nil)):to_be(nil)
    local holds = {}
    holds[1] = holds
    expect(function() dist.all_gather_object(holds) end):to_fail("hold themselves")
    expect(function() dist.all_gather_object({ print }) end):to_fail("a function has no bytes")
    expect(function() dist.broadcast_object(1, size) end):to_fail("the job has " .. size)
    -- One rank alone has a value without bytes: all are told, and nobody waits.
    local last = size - 1
    local text = rank == last and "a function has no bytes" or ("rank %d: "):format(last)
    expect(function() dist.all_gather_object(rank == last and print or 1) end):to_fail(text)
    expect(function() dist.broadcast_object(rank == last and print or nil, last) end):to_fail(text)
    dist.barrier()
  end)

  it("does once what one process does for all", function()
    local runs = 0
    expect(dist.once(function(x) runs = runs + 1 return x end, 7)):to_be(7)
    expect(runs):to_be(rank == 0 and 1 or 0)
    expect(function() dist.once(error, "no room") end):to_fail("no room")
    if size > 1 then expect(function() dist.once(function() return print end) end):to_fail("no bytes") end
    expect(dist.any(rank == size - 1)):to_be(true)
    expect(dist.any(false)):to_be(false)
  end)

  it("begins calls that are waited for later", function()
    local sums, handles = {}, {}
    for i = 1, 5 do
      sums[i] = gb.full({ 50000 * (i % 2) + 3 }, rank + i, { dtype = "float32" })
      handles[i] = dist.all_reduce(sums[i], "sum", { async = true })
    end
    local gathered = dist.all_gather(gb.tensor { rank }, { async = true })
    local part = dist.reduce_scatter(gb.ones(size * 2), "sum", { async = true })
    local sent = dist.broadcast(gb.full({ 3 }, rank, { dtype = "int32" }), size - 1, { async = true })
    dist.all_reduce(gb.ones(2)) -- comes after them, on every rank
    for i = 5, 1, -1 do
      expect(handles[i]:is_completed()):to_be(true)
      expect(handles[i]:wait() == sums[i]):to_be(true)
      expect(handles[i]:wait() == sums[i]):to_be(true)
      expect(sums[i][1]:item()):to_be(size * i + size * (size - 1) // 2)
    end
    local all = gathered:wait()
    expect(#all):to_be(size)
    expect(all[size]:item()):to_be(size - 1)
    expect(part:wait()):to_equal_bits(gb.full({ 2 }, size, { dtype = "float32" }))
    expect(sent:wait():sum():item()):to_be(3 * (size - 1))
    dist.all_reduce(gb.ones(100), "sum", { async = true }) -- nobody waits for it
    collectgarbage()
  end)

  it("has messages both ways under way at once", function()
    if size == 1 then return end
    local to, from, n = (rank + 1) % size, (rank - 1) % size, 300000
    local out, into = gb.full({ n }, rank, { dtype = "float32" }), gb.zeros(n)
    local sending, receiving = dist.send(out, to, { async = true }), dist.recv(into, from, { async = true })
    expect(receiving:wait() == into):to_be(true)
    expect(sending:wait() == nil):to_be(true)
    expect(into):to_equal_bits(gb.full({ n }, from, { dtype = "float32" }))
  end)

  it("makes groups", function()
    local even, odd = {}, {}
    for r = size - 1, 0, -1 do
      local list = r % 2 == 0 and even or odd
      list[#list + 1] = r
    end
    local mine = dist.new_group(even)
    local other = #odd > 0 and dist.new_group(odd)
    if rank % 2 == 1 then mine, other = other, mine end
    local members = rank % 2 == 0 and even or odd
    expect(dist.rank(mine)):to_be(rank // 2)
    expect(dist.world_size(mine)):to_be(#members)
    local sum, first = 0, rank % 2
    for _, r in ipairs(members) do sum = sum + r end
    expect(dist.all_reduce(gb.tensor { rank }, "sum", { group = mine }):item()):to_be(sum)
    expect(dist.all_reduce(gb.tensor { rank }, "sum", { group = mine, async = true }):wait():item()):to_be(sum)
    expect(dist.broadcast(gb.tensor { rank }, first, { group = mine }):item()):to_be(first)
    expect(#dist.all_gather(gb.ones(1), { group = mine })):to_be(#members)
    dist.barrier(mine)
    if not other then return end
    expect(dist.rank(other)):to_be(-1)
    expect(function() dist.barrier(other) end):to_fail("is not in 'group'")
    expect(function() dist.broadcast(gb.ones(1), 1 - first, { group = mine }) end):to_fail("is not in 'group'")
    expect(function() dist.new_group { 0, 0 } end):to_fail("twice")
    expect(function() dist.new_group { 0, size } end):to_fail("from 0 to")
    expect(function() dist.new_group {} end):to_fail("has 0 ranks")
    expect(function() dist.new_group { rank } end):to_fail("names other ranks than rank 0")
  end)

  it("refuses what it cannot do", function()
    expect(function() dist.all_reduce(gb.ones(2), "or") end):to_fail("floats have sum, mean and max")
    expect(function() dist.all_reduce(gb.arange(2), "mean") end):to_fail("integers sum, max and or")
    expect(function() dist.broadcast(gb.ones(2), size) end):to_fail("the job has " .. size)
    expect(function() dist.recv(gb.ones(2), rank) end):to_fail("is this process")
  end)
end)

gb.test.finish()
