-- test_orders.lua - what the device does in parallel where the CPU goes one after another: running sums, sorts,
-- permutations, masks and sums by index.
--
-- Each must not show: permutations, sorts and everything of integers have the CPU's bits. Running sums of floats are
-- kept in float64 and rounded once, so pieces that are joined in another order differ by a spacing of the result at
-- most.

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect

local function same(fn, ...)
  local there = {}
  for i, x in ipairs { ... } do there[i] = x:to("cuda") end
  expect(fn(table.unpack(there)):cpu()):to_equal_bits(fn(...))
end

-- Numbers that repeat, with the special ones among them where the dtype has them.
local function numbers(n, dtype)
  local x = gb.arange(n):mul(7919):remainder(211):sub(dtype == "uint8" and 0 or 100):to(dtype)
  if dtype:find("float") and n > 9 then
    for i, v in ipairs { 0 / 0, 1 / 0, -1 / 0, -0.0, 0, 1e-7, -1e-7 } do x:select(1, i * (n // 9)):fill_(v) end
  end
  return x
end

describe("permutations", function()
  for _, n in ipairs { 1, 2, 3, 4, 5, 7, 31, 64, 255, 256, 257, 1000, 5000 } do
    it(tostring(n), function()
      for seed = 1, 8 do
        local p = {}
        for i, device in ipairs { "cpu", "cuda" } do
          gb.manual_seed(seed)
          p[i] = gb.randperm(n, { device = device }):cpu()
        end
        expect(p[2]):to_equal_bits(p[1])
      end
    end)
  end
end)

describe("sorts", function()
  for _, dtype in ipairs { "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8",
    "bool" } do
    it("of rows of " .. dtype, function()
      for _, shape in ipairs { { 1, 700 }, { 3, 200 }, { 700, 3 }, { 600, 1 } } do
        local x = numbers(shape[1] * shape[2], dtype):reshape(table.unpack(shape))
        for _, descending in ipairs { false, true } do
          same(function(t) return (t:sort(2, { descending = descending })) end, x)
          same(function(t) return select(2, t:sort(2, { descending = descending })) end, x)
          same(function(t) return select(2, t:sort(1, { descending = descending })) end, x)
        end
      end
    end)
  end
end)

describe("running sums", function()
  for _, n in ipairs { 1, 3, 4, 5, 1023, 1024, 1025, 8191, 8192, 8193, 40000 } do
    it("of " .. n, function()
      for _, dtype in ipairs { "int64", "int32", "int16", "int8", "uint8", "bool" } do
        same(function(x) return x:cumsum(1) end, numbers(n, dtype))
      end
      local x = gb.arange(n + 1, { dtype = "float64" }):mul(0.37):sin()
      for _, dtype in ipairs { "float64", "float32", "bfloat16" } do
        -- in float64 the chain itself is rounded
        local spacing = ({ float64 = 2 ^ -40, float32 = 2 ^ -23, bfloat16 = 2 ^ -7 })[dtype]
        local y = x:to(dtype):narrow(1, 2, n)
        expect(y:to("cuda"):cumsum(1):cpu():double()):to_be_close(y:cumsum(1):double(), spacing)
      end
    end)
  end
  it("of rows and columns", function()
    same(function(x) return x:cumsum(2) end, numbers(3 * 9000, "int64"):reshape(3, 9000))
    same(function(x) return x:cumsum(1) end, numbers(9000 * 2, "int64"):reshape(9000, 2))
    same(function(x) return x:cumsum(1) end, gb.zeros(0, 3, { dtype = "int64" }))
  end)
  it("in place of nothing but the same bits each time", function()
    local x = gb.arange(30000, { dtype = "float32", device = "cuda" }):sin()
    expect(x:cumsum(1):cpu()):to_equal_bits(x:cumsum(1):cpu())
  end)
end)

describe("masks", function()
  it("of more blocks than one scan takes at once", function()
    local n = 2048 * 1100 + 77
    local x = gb.arange(n, { dtype = "int32" })
    local mask = x:remainder(1000):eq(999)
    same(function(a, m) return a:masked_select(m) end, x, mask)
  end)
  it("of none and of all", function()
    for _, n in ipairs { 0, 1, 2047, 2048, 2049, 5000 } do
      local x = gb.arange(n, { dtype = "int32" })
      for _, least in ipairs { -1, n // 2, n } do same(function(a) return a:masked_select(a:gt(least)) end, x) end
      same(function(a) return a:remainder(3):nonzero() end, x)
    end
  end)
end)

describe("sums by index", function()
  -- Every row named by many: runs of one key around the number of parts that are under way at once.
  it("of an embedding", function()
    for _, width in ipairs { 1, 3, 4, 8, 40 } do
      local list = {}
      for key = 1, 24 do
        for _ = 1, key do list[#list + 1] = (key * 5) % 50 end
      end
      for i = 1, 200 do list[#list + 1] = i % 7 == 0 and 2 or 49 end
      local index = gb.tensor(list, { dtype = "int64" })
      same(function(at, x)
        local weight = x:detach():requires_grad_()
        gb.nn.functional.embedding(at, weight):mul(gb.arange(width, { device = x.device }):add(1)):sum():backward()
        return weight.grad
      end, index, gb.arange(50 * width, { dtype = "float32" }):reshape(50, width))
    end
  end)
  it("of index_add and scatter_add", function()
    local index = gb.arange(300):mul(7):remainder(11)
    same(function(x, at, source) return x:index_add(1, at, source) end, gb.ones(11, 6), index,
      gb.arange(1800, { dtype = "float32" }):reshape(300, 6))
    same(function(x, at, source) return x:scatter_add(1, at, source) end, gb.ones(12), index,
      gb.arange(300, { dtype = "float32" }))
  end)
  it("picks rows of whole and broken vectors", function()
    local index = gb.tensor({ 2, 0, 2, 1 }, { dtype = "int64" })
    for _, dtype in ipairs { "float32", "bfloat16" } do
      for width = 1, 33 do
        same(function(at, x) return gb.nn.functional.embedding(at, x) end, index,
          numbers(3 * width, dtype):reshape(3, width))
        same(function(at, x) return gb.nn.functional.embedding(at, x:narrow(2, 2, width)) end, index,
          numbers(3 * (width + 2), dtype):reshape(3, width + 2))
      end
    end
  end)
end)

gb.test.finish()
