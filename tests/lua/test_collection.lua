-- test_collection.lua - when the handles of tensors that nobody uses any more are let go of, where a recipe passes no
-- place that collects.

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect

local BLOCK = 256 -- bytes: the least that the pool hands out

-- The most blocks that a loop of small ops holds beside x and y, once it has run for a while.
local function most_blocks(ops)
  local x, y = gb.ones(1, { device = "cpu" }), gb.ones(1, { device = "cpu" })
  for _ = 1, 20000 do local _ = x + y end
  local before = gb.memory_stats("cpu").current_total
  gb.reset_peak_memory_stats()
  for _ = 1, ops do local _ = x + y end
  return (gb.memory_stats("cpu").peak_total - before) / BLOCK
end

describe("a loop over batches without gradients", function()
  -- Handles that were let go of added up to 64 MB before anything looked.
  it("does not add up what its batches were made into", function()
    local loader = gb.data.DataLoader(gb.data.TensorDataset(gb.rand(40, 256, { device = "cpu" })), { batch_size = 1 })
    local weight = gb.rand(1024, 256, { device = "cpu" })
    local before = gb.memory_stats("cpu").current_total
    gb.reset_peak_memory_stats()
    gb.no_grad(function()
      for x in loader:iter() do local _ = x * weight end -- 1 MB
    end)
    expect(gb.memory_stats("cpu").peak_total - before < 15e6):to_be(true)
  end)
end)

describe("a loop of small ops", function()
  -- A heap that grows by a fifth before Lua looks at it held 9,000 results, and 19,000 after 300,000 ops.
  it("holds the results of a few generations of handles", function()
    expect(most_blocks(50000) < 3000):to_be(true) -- 128 in one, more where the machine holds the collector up
  end)
  it("keeps what it still uses, however many generations go by", function()
    local kept, sum = {}, gb.zeros(1)
    for i = 1, 30000 do
      sum = sum + 1
      if i % 1000 == 0 then kept[#kept + 1] = sum end
    end
    for i, value in ipairs(kept) do expect(value:item()):to_be(1000 * i) end
    expect(sum:item()):to_be(30000)
  end)
  it("goes on with generations after ops within a finaliser", function()
    local ran = false
    setmetatable({}, { __gc = function()
      local x = gb.ones(1)
      for _ = 1, 20000 do local _ = x + x end
      ran = true
    end })
    collectgarbage()
    expect(ran):to_be(true)
    expect(most_blocks(50000) < 3000):to_be(true) -- without generations: 17,000
  end)
  it("leaves a collector alone that the recipe has stopped", function()
    collectgarbage("stop")
    local before = collectgarbage("count")
    for _ = 1, 12000 do local _ = gb.ones(1) + 1 end
    local stopped, grown = not collectgarbage("isrunning"), collectgarbage("count") - before
    collectgarbage("restart")
    expect(stopped):to_be(true)
    expect(grown * 1024 > 20000 * 40):to_be(true) -- of 24,000; a handle is a userdata of 40 bytes
  end)
  it("leaves the recipe its choice of a collector", function()
    local before = collectgarbage("incremental")
    for _ = 1, 12000 do local _ = gb.ones(1) + 1 end
    expect(collectgarbage(before)):to_be("incremental")
  end)
end)

describe("a table of options", function()
  it("runs no function of the recipe's that could free what the call has read", function()
    local x, called = gb.ones(4), false
    local options = setmetatable({ dtype = "float32" }, { __index = function()
      called = true
      x:free()
    end })
    expect(gb.zeros_like(x, options)):to_have_shape(4)
    local y = gb.ones(4, { requires_grad = true }):sum()
    y:backward(setmetatable({}, getmetatable(options)))
    local leaf = gb.ones(4, { requires_grad = true })
    gb.grad(leaf:sum(), { leaf }, setmetatable({}, getmetatable(options)))
    expect(called):to_be(false)
  end)
  it("is none where it has fields that a function makes up", function()
    local x = gb.ones(4)
    local target = setmetatable({}, { __index = function() x:free() end })
    expect(function() return x:to(target) end):to_fail("expects a dtype, a device, a tensor or a precision")
    expect(x):to_have_shape(4)
  end)
end)

-- Collections run in the middle of calls, and with them finalisers, to which the operands of such a call may belong.
describe("a finaliser that frees", function()
  it("an operand of the op that is interrupted leaves it whole", function()
    local x, errors = nil, 0
    local metatable = { __gc = function() if x then x:free() end end }
    for _ = 1, 50000 do
      x = gb.full({ 100 }, 3)
      setmetatable({}, metatable)
      local ok, sum = pcall(function() return gb.add(x, gb.full({ 100 }, 4)):sum():item() end)
      if ok then expect(sum):to_be(700)
      else
        errors = errors + 1
        expect(sum:find("freed", 1, true)):to_be_truthy()
      end
    end
    x = nil
    expect(errors > 0):to_be(true) -- it came to that
  end)
  it("lets go of the memory at the next op", function()
    local one = gb.ones(1)
    collectgarbage()
    collectgarbage("stop")
    local before = gb.memory_stats("cpu").current_total
    local large = gb.zeros(1 << 20)
    setmetatable({}, { __gc = function() large:free() end })
    collectgarbage()
    expect(pcall(large.sum, large)):to_be(false)
    local _ = one + one
    expect(gb.memory_stats("cpu").current_total - before < 1 << 20):to_be(true)
    collectgarbage("restart")
  end)
end)

gb.test.finish()
