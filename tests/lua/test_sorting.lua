-- test_sorting.lua - sort, argsort and topk of lines of any length against table.sort: equal elements keep their order,
-- NaN is the largest, -0 equals 0, whatever the dtype, the layout and the way in which the line is sorted.

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
gb.manual_seed(7)

describe("a long row", function()
  local F, on_cpu = gb.nn.functional, { device = "cpu" }
  local x = gb.randn(100000, on_cpu)
  local calls = {}
  for _, name in ipairs { "sort", "cumsum", "cumprod", "cummax", "softmax" } do
    calls[name] = function() return x[name](x, 1) end
  end
  function calls.cross_entropy() return F.cross_entropy(x:unsqueeze(1), x:unsqueeze(1):softmax(2)) end
  local steps = x:reshape(100, 1, 1000):log_softmax(3):requires_grad_()
  function calls.ctc_loss()
    local one = gb.tensor({ 50 }, { dtype = "int64", device = "cpu" })
    local targets = gb.ones(1, 50, { dtype = "int64", device = "cpu" })
    return F.ctc_loss(steps, targets, one * 2, one)
  end
  function calls.scaled_dot_product_attention()
    local head = x:narrow(1, 1, 51200):reshape(1, 1, 400, 128):requires_grad_()
    return F.scaled_dot_product_attention(head, head, head):sum():backward()
  end
  for name, call in pairs(calls) do
    it("has one room, whatever the threads: " .. name, function()
      local threads, bytes = gb.get_num_threads(), {}
      for i, n in ipairs { 1, 8 } do
        gb.set_num_threads(n)
        call()
        collectgarbage()
        gb.reset_peak_memory_stats()
        local before = gb.memory_stats("cpu").current_total
        call()
        bytes[i] = gb.memory_stats("cpu").peak_total - before
      end
      gb.set_num_threads(threads)
      expect(bytes[2] < 1.5 * bytes[1]):to_be(true)
    end)
  end
end)

-- Does a come before b? Positions decide between equals.
local function before(values, descending)
  local function rank(x) return x ~= x and math.huge or x end
  return function(i, j)
    local a, b = values[i], values[j]
    local first, second = a ~= a, b ~= b
    if first ~= second then return descending == first end
    if first or rank(a) == rank(b) then return i < j end
    if descending then return a > b end
    return a < b
  end
end

-- Positions from 0 in the order of values, a list.
local function expected(values, descending)
  local order = {}
  for i = 1, #values do order[i] = i end
  table.sort(order, before(values, descending))
  for i, at in ipairs(order) do order[i] = at - 1 end
  return order
end

-- Values with ties, extremes and, of floats, what is no number.
local function line(n, dtype)
  local special = { 0 / 0, -0.0, 0.0, math.huge, -math.huge, -1.5, 1.5, 1e-40 }
  if dtype:find("int") then
    local most = dtype == "int64" and math.maxinteger or dtype == "int32" and 2 ^ 31 - 1 | 0 or 255
    special = { 0, most, dtype == "uint8" and 1 or -most - 1, 1, 7, 255 }
  end
  local spread = gb.randint(0, dtype == "uint8" and 256 or 1000, { n }):tolist()
  for i = 1, n do
    if i % 5 == 0 then spread[i] = special[i // 5 % #special + 1]
    elseif not dtype:find("int") then spread[i] = (spread[i] - 500) / 8
    elseif dtype ~= "uint8" then spread[i] = spread[i] - 500 end
  end
  return gb.tensor(spread, { dtype = dtype })
end

-- The same bits, NaN and the sign of 0 included.
local function same(a, b)
  if a ~= a or b ~= b then return a ~= a and b ~= b end
  return a == b and (a ~= 0 or 1 / a == 1 / b or math.type(a) == "integer")
end

-- How many of a line's elements are not where they belong: by sort, and by topk for some k.
local function misplaced(x, values, descending)
  local n, order, wrong = #values, expected(values, descending), 0
  local sorted, indices = x:sort(-1, { descending = descending })
  local made, at = sorted:tolist(), indices:tolist()
  for i = 1, n do
    if at[i] ~= order[i] or not same(made[i], values[order[i] + 1]) then wrong = wrong + 1 end
  end
  for _, k in ipairs { 1, n // 20 + 1, math.min(16, n), n // 2 + 1 } do
    local _, places = x:topk(k, -1, { largest = descending })
    for i, place in ipairs(places:tolist()) do
      if place ~= order[i] then wrong = wrong + 1 end
    end
  end
  return wrong
end

describe("sort and topk", function()
  for _, dtype in ipairs { "float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8" } do
    it("put " .. dtype .. " in order", function()
      for _, n in ipairs { 1, 2, 17, 192, 193, 700, 5000 } do
        local x = line(n, dtype)
        local values = x:tolist()
        expect(misplaced(x, values, false)):to_be(0)
        expect(misplaced(x, values, true)):to_be(0)
      end
    end)
  end
  it("put int64 in order whose distances need 40 bits, and one more, from anywhere", function()
    for _, span in ipairs { 0, 1, (1 << 40) - 1, 1 << 40, math.maxinteger } do
      for _, first in ipairs { 0, -(1 << 39), math.mininteger, math.maxinteger - span } do
        local values = { first, first + span }
        for i = 3, 1000 do -- with ties
          values[i] = first + (i % 3 == 0 and span or span // 1000 * ((i * 619) % 997) + (i * 31) % 7 * (span // 7))
          if values[i] < first or values[i] > first + span then values[i] = first end
        end
        local x = gb.tensor(values, { dtype = "int64" })
        expect(misplaced(x, values, false)):to_be(0)
        expect(misplaced(x, values, true)):to_be(0)
      end
    end
  end)
  it("sort columns and lines with holes as their copies", function()
    local wide = gb.randn(300, 9)
    local columns, their = wide:sort(1)
    local rows, there = wide:t():contiguous():sort(-1)
    expect(gb.equal(columns:t(), rows) and gb.equal(their:t(), there)):to_be(true)
    local every = gb.randn(400, 2):select(2, 1)
    expect(gb.equal((every:sort()), (every:contiguous():sort()))):to_be(true)
  end)
  it("take the first of rows that rise, fall, and have one value", function()
    local up = gb.arange(1000)
    for _, x in ipairs { up, up:flip(1), up * 0, up % 3, up:float() } do
      for _, k in ipairs { 2, 16, 17 } do
        local values, places = x:sort(1, { descending = true })
        local first, there = x:topk(k)
        expect(gb.equal(first, values:narrow(1, 1, k)) and gb.equal(there, places:narrow(1, 1, k))):to_be(true)
      end
    end
  end)
end)

describe("searchsorted", function()
  -- Where v goes in the sorted list, one comparison at a time; NaN is the largest.
  local function place(list, v, right)
    local at = 0
    for _, e in ipairs(list) do
      local smaller
      if v ~= v then smaller = right or e == e
      elseif right then smaller = e <= v
      else smaller = e < v end
      if smaller then at = at + 1 end
    end
    return at
  end
  for _, dtype in ipairs { "float32", "float64", "float16", "int64", "int32" } do
    it("finds the place of each value, in lines of any length: " .. dtype, function()
      for _, n in ipairs { 0, 1, 2, 3, 31, 32, 33, 100 } do
        local values = line(70, dtype)
        local whole = line(n, dtype):sort()
        local holes = gb.stack({ whole, whole }, -1):select(2, 1)
        local list, wanted = whole:tolist(), values:tolist()
        for _, right in ipairs { false, true } do
          for _, x in ipairs { whole, holes } do
            local got, wrong = gb.searchsorted(x, values, { right = right }):tolist(), 0
            for i, v in ipairs(wanted) do wrong = wrong + (got[i] == place(list, v, right) and 0 or 1) end
            expect(wrong):to_be(0)
          end
        end
      end
    end)
  end
end)

describe("unique of integers", function()
  -- The values, where each went and how often each stands, element by element.
  local function check(x)
    local list, seen, values = x:reshape(-1):tolist(), {}, {}
    for _, v in ipairs(list) do
      if not seen[v] then values[#values + 1] = v end
      seen[v] = (seen[v] or 0) + 1
    end
    table.sort(values)
    local made, inverse, counts = x:unique { return_inverse = true, return_counts = true }
    expect(made.dtype):to_be(x.dtype)
    expect(table.concat(made:tolist(), " ")):to_be(table.concat(values, " "))
    expect(gb.equal(made:take(inverse), x)):to_be(true)
    for i, n in ipairs(counts:tolist()) do expect(n):to_be(seen[values[i]]) end
    expect(gb.equal((x:unique()), made)):to_be(true)
  end
  for _, dtype in ipairs { "int64", "int32", "uint8" } do
    it("that lie close together and far apart: " .. dtype, function()
      local least = dtype == "uint8" and 0 or -60
      for _, n in ipairs { 1, 2, 50, 200 } do check(gb.randint(least, 60, { n }, { dtype = dtype })) end
      check(gb.randint(least, 60, { 20, 10 }, { dtype = dtype }):t())
      check(gb.tensor({ 100, 100, least, 101 }, { dtype = dtype }))
    end)
  end
  it("over several tiles, and of nothing", function()
    for _, n in ipairs { 1023, 1024, 1025, 5000 } do
      check(gb.randint(0, 1 << 12, { n }) * (1 << 30))
      local x, places, want = gb.randint(0, 3, { n }), {}, 0
      for i, v in ipairs(x:tolist()) do if v ~= 0 then places[#places + 1] = i - 1 end end
      expect(table.concat(x:nonzero():reshape(-1):tolist(), " ")):to_be(table.concat(places, " "))
      local runs, inverse, counts = x:unique_consecutive { return_inverse = true, return_counts = true }
      for _, count in ipairs(counts:tolist()) do want = want + count end
      expect(want):to_be(n)
      expect(gb.equal(runs:take(inverse), x)):to_be(true)
    end
    for _, op in ipairs { "unique", "unique_consecutive" } do
      local none = gb.zeros(0, { dtype = "int64" })
      local values, inverse, counts = none[op](none, { return_inverse = true, return_counts = true })
      expect(values:numel() + inverse:numel() + counts:numel()):to_be(0)
      local one, _, single = gb.tensor { 7 }[op](gb.tensor { 7 }, { return_inverse = true, return_counts = true })
      expect(one:item() + single:item()):to_be(8)
    end
  end)
  it("at both ends of int64", function()
    check(gb.tensor { math.mininteger, math.maxinteger, math.mininteger })
    check(gb.tensor { math.mininteger, math.mininteger + 2, math.mininteger })
    check(gb.tensor { math.maxinteger, math.maxinteger - 1 })
    check(gb.tensor { math.mininteger })
  end)
end)

gb.test.finish()
