-- test_time.lua - gb.time: what a function took, and what it gave.

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect

describe("gb.time", function()
  it("gives seconds, then all results, nils among them", function()
    local results = table.pack(gb.time(function(a, b) return a, nil, b, nil end, 1, 2))
    expect(results.n):to_be(5)
    expect(results[1] >= 0):to_be(true)
    expect(results[2]):to_be(1)
    expect(results[3]):to_be(nil)
    expect(results[4]):to_be(2)
  end)
  it("counts what the function does", function()
    local seconds = gb.time(function()
      local started = gb.clock()
      while gb.clock() - started < 0.01 do end
    end)
    expect(seconds >= 0.01):to_be(true)
  end)
  it("calls modules too", function()
    local layer, x = gb.nn.Linear(3, 2), gb.rand(4, 3)
    local _, y = gb.time(layer, x)
    expect(y):to_equal_bits(layer(x))
  end)
  it("refuses what cannot be called, and passes errors on", function()
    expect(function() gb.time(3) end):to_fail("time: 'fn' must be a function, got 3")
    expect(function() gb.time(gb.ones(1)) end):to_fail("got a tensor")
    expect(function() gb.time(error, "as it was") end):to_fail("as it was")
  end)
end)

gb.test.finish()
