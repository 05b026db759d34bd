-- test_numerics.lua - gb.amp.numerics: its records, what it estimates and advises, what it prints. The counting itself
-- is tests/c/test_numerics.c's.

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
local amp, nn = gb.amp, gb.nn

-- A flat table as text, in the order of its keys.
local function text(t)
  local keys, parts = {}, {}
  for key in pairs(t) do keys[#keys + 1] = key end
  table.sort(keys)
  for i, key in ipairs(keys) do
    parts[i] = ("%s=%s"):format(key, math.type(t[key]) and ("%.17g"):format(t[key]) or tostring(t[key]))
  end
  return table.concat(parts, " ")
end

-- Elements whose fate in float16 is known.
local known = { 0, -0.0, 1 / 0, 0 / 0, 2 ^ -25, -2 ^ -26, 2 ^ -24, 2 ^ -15, 1, -3, 65519.99, 65520, -1e9, 2 ^ -149 }

describe("amp.numerics of a tensor", function()
  local record = amp.numerics(gb.tensor(known))
  it("counts, and gives shares of all elements", function()
    local c = record.counts
    expect(text({ c.zero, c.infinite, c.nan, c.flushed, c.subnormal, c.overflowed })):to_be(text { 2, 1, 1, 3, 2, 2 })
    for name, count in pairs(c) do expect(record[name]):to_be(count / #known) end
    expect(record.numel):to_be(#known)
    expect(record.dtype .. record.format):to_be("float32float16")
    expect(record.amax):to_be(1e9)
    expect(record.amin):to_be(2 ^ -149)
  end)
  it("has a bin for every exponent that occurs", function()
    expect(text(record.exponents)):to_be(text { [-149] = 1, [-26] = 1, [-25] = 1, [-24] = 1, [-15] = 1, [0] = 1,
      [1] = 1, [15] = 2, [29] = 1 })
  end)
  it("asks about the scope's format, float16 outside, or the one that is named", function()
    expect(amp.autocast("bfloat16", amp.numerics, gb.ones(2)).format):to_be("bfloat16")
    expect(amp.numerics(gb.ones(2)).format):to_be("float16")
    local x = gb.tensor({ 1e-300, 1e300, 1e-40, 70000 }, { dtype = "float64" })
    local counts = { float16 = { 2, 0, 2 }, bfloat16 = { 1, 1, 1 }, float32 = { 1, 1, 1 }, float64 = { 0, 0, 0 } }
    for format, want in pairs(counts) do
      local c = amp.numerics(x, { format = format }).counts
      expect(text({ c.flushed, c.subnormal, c.overflowed })):to_be(text(want))
    end
  end)
  it("agrees with a cast to the format", function()
    for _, format in ipairs { "float16", "bfloat16" } do
      for _, dtype in ipairs { "float32", "float64" } do
        local x = (gb.randn(20000) * gb.exp(gb.randn(20000) * (format == "float16" and 6 or 40))):to(dtype)
        local y, finite = x:to(format), x:isfinite()
        local c = amp.numerics(x, { format = format }).counts
        local least = format == "float16" and 2 ^ -14 or 2 ^ -126
        local function count(mask) return mask:sum():item() end
        expect(c.flushed):to_be(count(y:eq(0):logical_and(x:ne(0))))
        expect(c.overflowed):to_be(count(y:isinf():logical_and(finite)))
        expect(c.subnormal):to_be(count(y:to("float64"):abs():lt(least):logical_and(y:ne(0))))
        expect(c.zero):to_be(count(x:eq(0)))
      end
    end
  end)
  it("takes views, no elements and a single one", function()
    local x = gb.arange(24):to("float32"):view(2, 3, 4)
    expect(amp.numerics(x:permute(3, 1, 2):select(2, 2)).counts.zero):to_be(0)
    expect(amp.numerics(gb.zeros(1):expand(700)).counts.zero):to_be(700)
    local none, one = amp.numerics(gb.zeros(0)), amp.numerics(gb.tensor(5.0))
    expect(text({ none.numel, none.zero, none.amax, none.amin })):to_be(text { 0, 0, 0, 0 })
    expect(none:advise()):to_be(nil)
    expect(text({ one.amax, one.amin, one.exponents[2] })):to_be(text { 5, 5, 1 })
  end)
  it("leaves the graph alone", function()
    local x = gb.tensor({ 1e-9, 2 }, { requires_grad = true })
    amp.numerics(x)
    x:sum():backward()
    expect(text(x.grad:tolist())):to_be(text { 1, 1 })
  end)
  it("refuses what it cannot count", function()
    expect(function() amp.numerics(gb.arange(3)) end):to_fail("this one is int64")
    expect(function() amp.numerics(3) end):to_fail("a tensor, a module or a table of tensors, got number")
    expect(function() amp.numerics { a = 3 } end):to_fail("'a' must be a tensor, got number")
    expect(function() amp.numerics(gb.ones(2), { format = "int32" }) end):to_fail("'format' must be 'float16', \z
      'bfloat16', 'float32' or 'float64', got 'int32'")
    expect(function() amp.numerics(gb.ones(2), { dtype = "float16" }) end):to_fail("unknown option 'dtype'")
    expect(function() amp.numerics(gb.ones(2), "float16") end):to_fail("numerics: expects a table of options, \z
      such as { format = ... }, got string")
  end)
end)

describe("what if", function()
  it("all were multiplied by a power of two, away from boundaries, is what a count then gives", function()
    local x = gb.randn(5000) * 3e-7
    local record = amp.numerics(x)
    for _, scale in ipairs { 1, 2 ^ 10, 2 ^ 20, 2 ^ 38, 2 ^ -8 } do
      local estimate, counted = record:at_scale(scale), amp.numerics(x:to("float64") * scale)
      -- a value is misjudged within 2^-11 of its size at the upper ends, or where it rounds to 2^-25: less than 1 in
      -- 500 of these
      for _, name in ipairs { "flushed", "subnormal", "overflowed" } do
        expect(math.abs(estimate[name] - counted[name]) < 0.002):to_be(true)
      end
    end
    expect(record:at_scale(2 ^ 20).flushed < record.flushed):to_be(true)
  end)
  it("is exact where no value is near a boundary", function()
    local record = amp.numerics(gb.tensor { 1.5 * 2 ^ -30, 1.5 * 2 ^ -20, 1.5, 1.5 * 2 ^ 14 })
    expect(text(record:at_scale(1))):to_be(text { flushed = 0.25, subnormal = 0.25, overflowed = 0 })
    expect(text(record:at_scale(2 ^ 5))):to_be(text { flushed = 0, subnormal = 0.5, overflowed = 0.25 })
    expect(text(record:at_scale(2 ^ -6))):to_be(text { flushed = 0.5, subnormal = 0, overflowed = 0 })
  end)
  it("refuses other scales", function()
    for _, scale in ipairs { 0, -2, 3, 1 / 0, "2", 0 / 0 } do
      expect(function() amp.numerics(gb.ones(1)):at_scale(scale) end):to_fail(type(scale) == "string" and
        "'scale' must be a number" or "must be a power of two")
    end
  end)
  it("the advised scale leaves the largest exponent two below the format's", function()
    for _, format in ipairs { "float16", "bfloat16" } do
      for _, size in ipairs { format == "float16" and 1e-6 or 0.3, 3, 1000 } do
        local x = gb.tensor { size, size / 1000 }
        local scale = amp.numerics(x, { format = format }):advise()
        local scaled = amp.numerics(x:to("float64") * scale, { format = format })
        expect(scaled.exponents[(format == "float16" and 15 or 127) - 2]):to_be(1)
        expect(scaled.overflowed):to_be(0)
      end
    end
    expect(amp.numerics(gb.tensor { 2 ^ -149 }):advise()):to_be(2 ^ 127)
  end)
end)

describe("amp.numerics of many tensors", function()
  it("names a module's parameters, with the gradients that they have", function()
    local net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    net[2].weight:requires_grad_(false)
    net(gb.rand(5, 3)):sum():backward()
    local names, grads = {}, {}
    for i, entry in ipairs(amp.numerics(net)) do
      names[i], grads[i] = entry.name, entry.grad ~= nil
      if entry.grad then expect(entry.grad.numel):to_be(entry.value.numel) end
    end
    local want = {}
    for name in net:named_parameters() do want[#want + 1] = name end
    expect(text(names)):to_be(text(want))
    expect(text(grads)):to_be(text { true, true, false, true })
  end)
  it("takes tables by name, sorted, without integers", function()
    local names = {}
    for i, entry in ipairs(amp.numerics { b = gb.ones(2), a = gb.zeros(3), n = gb.arange(3), [10] = gb.ones(1),
      [2] = gb.ones(1) }) do names[i] = entry.name end
    expect(text(names)):to_be(text { "2", "10", "a", "b" })
  end)
end)

describe("what is printed", function()
  it("of a record is its shares and a bar for every exponent", function()
    expect(tostring(amp.numerics(gb.tensor { 0, 2 ^ -30, 2 ^ -28, 1.5 * 2 ^ -28 }))):to_be(table.concat({
      "4 elements of float32 in float16: largest 5.588e-09, smallest above 0 9.313e-10",
      "  zero 25.00 %, infinite 0 %, nan 0 %, flushed 75.00 %, subnormal 0 %, overflowed 0 %",
      "  2^-30         25.00 %  ####################                      flushed",
      "  2^-29             0 %",
      "  2^-28         50.00 %  ########################################  flushed",
    }, "\n"))
  end)
  it("puts exponents together where there are many", function()
    local shown = tostring(amp.numerics(gb.tensor({ 1e-300, 1e300 }, { dtype = "float64" })))
    expect(select(2, shown:gsub("\n", "")) <= 26):to_be(true)
    expect(shown:find("2^-149..-138  50.00 %", 1, true) ~= nil and
      shown:find("2^127         50.00 %", 1, true) ~= nil):to_be(true)
    expect(select(2, shown:gsub("and beyond", ""))):to_be(2)
  end)
  -- string.format takes no width above 99, and counts bytes
  it("has columns as wide as any name, in characters", function()
    local function columns(names)
      local tensors, places = {}, {}
      for _, name in ipairs(names) do tensors[name] = gb.ones(2) end
      for line in tostring(amp.numerics(tensors)):gmatch("[^\n]+") do
        places[utf8.len(line:match("^(.*  )[df][tl][yo]"))] = true
      end
      local width = next(places)
      expect(next(places, width)):to_be(nil)
      return width
    end
    expect(columns { ("x"):rep(150), "b" }):to_be(152)
    expect(columns { "größere", "b" }):to_be(9)
    expect(columns { "zero\0byte", "b" }):to_be(11)
    local deep = gb.nn.Linear(2, 2)
    for _ = 1, 60 do deep = gb.nn.Sequential(deep) end
    expect(tostring(amp.numerics(deep)):find("weight", 1, true) ~= nil):to_be(true)
    local said = print
    _G.print = function() end
    local planned, rows = pcall(amp.plan, deep)
    _G.print = said
    expect(planned and #rows):to_be(61)
  end)
  it("of many tensors is a line each", function()
    local lines = {}
    for line in tostring(amp.numerics { weight = gb.tensor { 1e-9, 1, 2 } }):gmatch("[^\n]+") do
      lines[#lines + 1] = line
    end
    expect(#lines):to_be(2)
    expect(lines[2]:find("^weight  float32 +3 +2 +0 %% +0 %% +0 %% +33.33 %% +0 %% +0 %%$") ~= nil):to_be(true)
  end)
end)

gb.test.finish()
