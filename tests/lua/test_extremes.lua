-- test_extremes.lua - tensors of more than 2^31 elements, made by repeating small ones without copying, and tensors of
-- eight dimensions.
--
--   gibbous tests/lua/test_extremes.lua all       goes through all the elements of the large ones too, which takes 6 GB
--   and half a minute

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
local ALL = arg and arg[1] == "all"

-- {==== More than 2^31 elements ====

local ROWS = (1 << 29) + 3
local function large() return gb.arange(5):to("uint8"):reshape(1, 5):expand(ROWS, 5) end

describe("an expanded tensor of " .. 5 * ROWS .. " elements", function()
  it("knows its size, and takes no memory", function()
    local before = gb.memory_stats().current_total
    local x = large()
    expect(x:numel()):to_be(5 * ROWS)
    expect(x):to_have_shape(ROWS, 5)
    expect(gb.memory_stats().current_total - before <= 512):to_be(true)
  end)
  it("gives elements, rows and slices from its end", function()
    local x = large()
    expect(x[{ -1, 5 }]:item()):to_be(4)
    expect(x[ROWS]):to_be_close { 0, 1, 2, 3, 4 }
    expect(x[{ { ROWS - 2, ROWS }, {} }]:clone()):to_be_close { 0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1, 2, 3, 4 }
    expect(x[{ { 1, -1, 1 << 28 }, { 2, 3 } }]:contiguous()):to_be_close { 1, 2, 1, 2, 1, 2 }
    expect(x:narrow(1, ROWS - 1, 2):float():argmax(2)):to_be_close { 4, 4 }
    expect(x:t()[{ {}, -1 }]):to_be_close { 0, 1, 2, 3, 4 }
    expect(function() return x[ROWS + 1] end):to_fail("out of range")
  end)
  it("is indexed by tensors", function()
    local x, i = large(), gb.tensor { ROWS - 1, 0, 1 << 28 }
    expect(x:index_select(1, i)):to_be_close { 0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1, 2, 3, 4 }
    expect(x[i]):to_have_shape(3, 5)
    expect(x:gather(1, gb.tensor { { ROWS - 1, 0, 1, 2, 3 } })):to_be_close { 0, 1, 2, 3, 4 }
    expect(function() return x:index_select(1, gb.tensor { ROWS }) end):to_fail(tostring(ROWS))
  end)
  it("cannot be had as a whole where memory is short, and says how much it would take", function()
    expect(function() return large():expand(1 << 20, ROWS, 5):clone() end):to_fail("memory")
    expect(function() return large():expand(1 << 40, ROWS, 5) end):to_fail("elements")
  end)
  it("has no view of more elements than bytes and products of sizes can count", function()
    for bits = 54, 62 do
      expect(function() return gb.ones(1):long():expand(1 << bits) end):to_fail("more elements than can be counted")
    end
    expect(function() return gb.zeros(0):reshape(0, math.maxinteger, 3) end):to_fail("more elements")
    expect(function() return gb.zeros(0):view(0, math.maxinteger, 3) end):to_fail("more elements")
    local wide = gb.ones(1, 1):expand(1 << 40, 1)
    expect(function() return gb.kron(wide, wide) end):to_fail("more elements")
    expect(function() return gb.ones(1):expand(1 << 40):diag_embed() end):to_fail("more elements")
    expect(function() return gb.ones(1):expand(1 << 40):diag() end):to_fail("more elements")
    local image = gb.ones(1, 8, 1, 1, { dtype = "float32" })
    expect(function() return gb.nn.functional.adaptive_avg_pool2d(image, 1 << 30) end):to_fail("more elements")
  end)
  if ALL then
    it("is summed, searched and compared", function()
      local x = large()
      expect(x:sum():item()):to_be(10 * ROWS)
      expect(x:sum(1)):to_be_close { 0, ROWS, 2 * ROWS, 3 * ROWS, 4 * ROWS }
      expect(x:amax(1)):to_be_close { 0, 1, 2, 3, 4 }
      expect(x:any():item()):to_be(true)
      expect(x:all():item()):to_be(false)
      expect(gb.ones(1, { dtype = "uint8" }):expand((1 << 31) + 12345):sum():item()):to_be((1 << 31) + 12345)
    end)
    it("is copied where there is room", function()
      local x = large():clone():view(-1)
      expect(x:numel()):to_be(5 * ROWS)
      expect(x[{ { -7, -1 } }]):to_be_close { 3, 4, 0, 1, 2, 3, 4 }
      x[-1] = 9
      expect(x:amax():item()):to_be(9)
      expect(x:narrow(1, 5 * ROWS - 3, 4)):to_be_close { 1, 2, 3, 9 }
      expect(x:eq(9):sum():item()):to_be(1)
    end)
  end
end)

-- ====}

-- {==== Eight dimensions ====

describe("eight dimensions", function()
  local shape = { 2, 1, 3, 2, 1, 2, 2, 3 }
  local function new() return gb.arange(144):reshape(shape):double() end
  local order = { 8, 3, 1, 7, 2, 6, 5, 4 }

  it("are permuted, copied and brought back", function()
    local x = new()
    local y = x:permute(order)
    expect(y):to_have_shape(3, 3, 2, 2, 1, 2, 1, 2)
    expect(y[{ 3, 2, 1, 2, 1, 1, 1, 2 }]:item()):to_be(x[{ 1, 1, 2, 2, 1, 1, 2, 3 }]:item())
    local back = {}
    for to, from in ipairs(order) do back[from] = to end
    expect(y:contiguous():permute(back)):to_equal_bits(x)
    expect(y:contiguous():reshape(-1):sum():item()):to_be(144 * 143 / 2)
  end)
  it("are broadcast and reduced, with gradients", function()
    local x, y = new():requires_grad_(), gb.ones(2, 1, 1, 2, 3, { dtype = "float64" }):requires_grad_()
    local z = x * y
    expect(z):to_have_shape(2, 1, 3, 2, 1, 2, 2, 3)
    z:sum():backward()
    expect(x.grad:sum():item()):to_be(144.0)
    expect(y.grad):to_have_shape(2, 1, 1, 2, 3)
    expect(y.grad:sum():item()):to_be(144 * 143 / 2)
    expect(new():permute(order):sum { 1, 4, 8 }):to_have_shape(3, 2, 1, 2, 1)
    expect(new():permute(order):mean(2):sum():item()):to_be_near(144 * 143 / 6, 1e-12)
    expect(new():amax { 2, 3, 4, 5, 6, 7, 8 }):to_be_close { 71, 143 }
  end)
  it("are normalised, multiplied, joined, sorted and indexed", function()
    local x = new()
    expect(x:softmax(3):sum(3)):to_be_close(gb.ones(48))
    expect(x:matmul(x:transpose(7, 8))):to_have_shape(2, 1, 3, 2, 1, 2, 2, 2)
    expect(gb.cat({ x, x }, 5)):to_have_shape(2, 1, 3, 2, 2, 2, 2, 3)
    expect(x:flip { 1, 8 }[{ 1, 1, 1, 1, 1, 1, 1, 1 }]:item()):to_be(74.0)
    expect((x:sort(8, { descending = true }))[{ 1, 1, 1, 1, 1, 1, 1, 1 }]:item()):to_be(2.0)
    expect(x:index_select(3, gb.tensor { 2, 0 })):to_have_shape(2, 1, 2, 2, 1, 2, 2, 3)
    expect(x:gt(100):nonzero()):to_have_shape(43, 8)
    expect(x[{ {}, 1, {}, {}, 1, {}, { 2 }, { 1, -1, 2 } }]):to_have_shape(2, 3, 2, 2, 1, 2)
  end)
  it("are printed and saved", function()
    expect(tostring(new()):find("tensor([[[[[[[[", 1, true)):to_be(1)
    local path = os.tmpname()
    gb.save(path, { x = new() })
    expect(gb.load(path).x):to_equal_bits(new())
    os.remove(path)
  end)
  it("are the most there are: a ninth is an error that says so", function()
    expect(function() return new():unsqueeze(1) end):to_fail("8")
    expect(function() return gb.stack { new(), new() } end):to_fail("8")
    expect(function() return gb.zeros(1, 1, 1, 1, 1, 1, 1, 1, 1) end):to_fail("8")
    expect(function() return new():reshape(1, 2, 1, 3, 2, 1, 2, 2, 3) end):to_fail("8")
    expect(function() return new():expand(1, 2, 1, 3, 2, 1, 2, 2, 3) end):to_fail("8")
  end)
end)

-- ====}

gb.test.finish()
