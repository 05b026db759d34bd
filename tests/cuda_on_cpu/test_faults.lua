-- test_faults.lua - what kernels of the CUDA device find wrong in data: told once, by the next wait, as the error of
-- the op that met it; memory is never touched out of bounds (the address sanitizer watches), and the device goes on.

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
local F = gb.nn.functional
gb.set_default_device("cuda")

local index, labels = gb.tensor({ 0, 12, 3 }), gb.tensor({ 1, -7, 2 })

local cases = {
  { "embedding", "embedding: index 12 is out of range 0 .. 4",
    function() return F.embedding(index, gb.ones(5, 2)) end },
  { "gather", "gather: index 12 is out of range 0 .. 3", function() return gb.ones(4):gather(1, index) end },
  { "index_select", "index_select: index 12 is out of range 0 .. 3",
    function() return gb.ones(4):index_select(1, index) end },
  { "cross_entropy", "cross_entropy: target -7 is out of range 0 .. 3",
    function() return F.cross_entropy(gb.ones(3, 4), labels) end },
  { "floor_divide", "floor_divide: integer division by zero",
    function() return index:floor_divide(gb.zeros(3, { dtype = "int64" })) end },
}

for _, case in ipairs(cases) do
  describe(case[1], function()
    it("is told by the next read", function()
      case[3]()
      expect(function() gb.ones(1):item() end):to_fail(case[2])
      expect(gb.ones(1):item()):to_be(1.0) -- once
    end)
    it("is told by synchronize, with its code and op", function()
      case[3]()
      expect(gb.cuda.synchronize):to_fail(case[2])
      expect(gb.last_error().op):to_be(case[1])
      gb.cuda.synchronize()
    end)
  end)
end

describe("several faults", function()
  it("the first one is told", function()
    cases[1][3]()
    cases[4][3]()
    expect(gb.cuda.synchronize):to_fail(cases[1][2])
    gb.cuda.synchronize()
  end)
end)

gb.test.finish()
