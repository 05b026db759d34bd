-- test_small_ops.lua - small elementwise ops take a way of their own where operands lie as the loop takes them: it
-- gives the bits of the long way.

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect

local LONG, SHORT = 3000, 700 -- elements: of several tiles, and of less than one

local unary = { "neg", "abs", "exp", "log", "sqrt", "tanh", "sigmoid", "relu", "silu", "erf", "floor", "square",
  "reciprocal", "isnan", "logical_not" }
local binary = { "add", "sub", "mul", "div", "maximum", "minimum", "pow", "atan2", "remainder", "eq", "lt", "ge",
  "logical_and", "floor_divide" }

-- The first elements of a long result, and the result of the first elements, are the same; NaN is NaN.
local function check(name, f, ...)
  local short = {}
  for i, x in ipairs({ ... }) do short[i] = type(x) == "number" and x or x:narrow(1, 1, SHORT):clone() end
  local whole, part = f(...):narrow(1, 1, SHORT), f(table.unpack(short))
  expect(part.dtype):to_be(whole.dtype)
  local a, b = whole:tolist(), part:tolist()
  for i = 1, SHORT do
    if a[i] ~= b[i] and (a[i] == a[i] or b[i] == b[i]) then
      error(("%s, element %d: %s, and %s by the long way"):format(name, i, b[i], a[i]))
    end
  end
end

for _, dtype in ipairs({ "float32", "float64", "int64", "bfloat16" }) do
  describe("small ops of " .. dtype, function()
    gb.manual_seed(1)
    local x, y = (gb.randn(LONG) * 8):to(dtype), (gb.randn(LONG) * 8):to(dtype)
    local divisor = gb.where(y:eq(0), gb.ones(LONG):to(dtype), y)
    local mask = x:gt(1)
    it("of one operand", function()
      for _, name in ipairs(unary) do
        if not (name == "silu" and dtype == "int64") then check(name, gb[name], x) end
      end
    end)
    it("of two", function()
      for _, name in ipairs(binary) do
        if not (name == "pow" and dtype == "int64") then check(name, gb[name], x, divisor) end
      end
    end)
    it("of one and a number", function()
      for _, number in ipairs({ 3, 0.3, -1e10, (1 << 53) + 1, 1e300 }) do
        for _, name in ipairs({ "add", "mul", "div", "pow", "maximum", "lt" }) do
          local fits = math.type(number) == "float" or dtype ~= "int64" or name ~= "pow"
          if fits then check(name .. " " .. number, gb[name], x, number) end
        end
      end
    end)
    it("of masks", function()
      check("where", gb.where, mask, x, y)
      check("masked_fill", function(a, m) return a:masked_fill(m, 2) end, x, mask)
    end)
  end)
end

-- A number or nested lists of them as text.
local function text_of(x)
  if type(x) ~= "table" then return type(x) == "number" and ("%.17g"):format(x) or tostring(x) end
  local parts = {}
  for i, part in ipairs(x) do parts[i] = text_of(part) end
  return "{" .. table.concat(parts, ", ") .. "}"
end
local function same(got, want) expect(text_of(got)):to_be(text_of(want)) end

describe("options that other ops make", function()
  it("alpha: in place, of integers exactly, with a gradient", function()
    local x, y = gb.tensor { 1.0, 2.0 }, gb.tensor { 3.0, 4.0 }
    x:requires_grad_()
    y:requires_grad_()
    local z = x:sub(y, { alpha = 0.5 })
    same(z:tolist(), { -0.5, 0.0 })
    z:sum():backward()
    same(x.grad:tolist(), { 1.0, 1.0 })
    same(y.grad:tolist(), { -0.5, -0.5 })
    local a = gb.tensor({ 1, 2 }, { dtype = "int64" })
    same(a:add_(gb.tensor({ 1, 1 << 40 }, { dtype = "int64" }), { alpha = (1 << 20) + 1 }):tolist(), {
      (1 << 20) + 2, (1 << 60) + (1 << 40) + 2 })
    expect(function() a:add(a, { alpha = 0.5 }) end):to_fail("alpha is 0.5, and the result is int64")
    expect(function() gb.tensor { true }:add(gb.tensor { true }, { alpha = 2 }) end):to_fail("bool")
    same(gb.add(2, y, { alpha = 10 }):detach():tolist(), { 32.0, 42.0 })
  end)
  it("alpha rounds once in 16 bits", function()
    local x, y = gb.tensor({ 1 }, { dtype = "bfloat16" }), gb.tensor({ 1 + 1 / 128 }, { dtype = "bfloat16" })
    local want = (x:float() + y:float() * (1 + 1 / 128)):bfloat16()
    expect(x:add(y, { alpha = 1 + 1 / 128 })):to_equal_bits(want)
    local inside = gb.amp.autocast({ dtype = "float16" }, function() return x:add(y, { alpha = 3 }) end)
    expect(inside.dtype):to_be("bfloat16")
  end)
  it("rounding_mode keeps integers, the smallest one too", function()
    local least = math.mininteger
    local x, y = gb.tensor({ -7, 7, least, least }, { dtype = "int64" }), gb.tensor({ 2, -2, -1, 3 },
      { dtype = "int64" })
    same(x:div(y, { rounding_mode = "trunc" }):tolist(), { -3, -3, least, least // 3 + 1 })
    same(x:div(y, { rounding_mode = "floor" }):tolist(), { -4, -4, least, least // 3 })
    expect(x:clone():div_(2, { rounding_mode = "floor" }).dtype):to_be("int64")
    expect(function() x:div(0, { rounding_mode = "trunc" }) end):to_fail("division by zero")
    expect(function() x:div(2, { rounding_mode = "up" }) end):to_fail("rounding_mode")
    local p = gb.tensor { 3.5, -3.5 }
    p:requires_grad_()
    p:div(2, { rounding_mode = "trunc" }):sum():backward()
    same(p.grad:tolist(), { 0.0, 0.0 })
  end)
  it("decimals", function()
    same(gb.tensor({ 1.25, 2.345, -0.05 }, { dtype = "float64" }):round { decimals = 2 }:tolist(), { 1.25,
      2.35, -0.05 })
    same(gb.tensor { 1251.0, -1349.0 }:round_({ decimals = -2 }):tolist(), { 1300.0, -1300.0 })
    expect(function() gb.tensor({ 1 }, { dtype = "int32" }):round { decimals = 1 } end):to_fail("float")
    expect(function() gb.tensor { 1.0 }:round { decimals = 1 << 40 } end):to_fail("decimals")
  end)
  it("accumulate adds equal indices, numbers too, and in place", function()
    local x = gb.zeros(3, 2)
    x:index_put_(gb.tensor({ 1, 1, 2 }, { dtype = "int64" }), 2, true)
    same(x:tolist(), { { 0.0, 0.0 }, { 4.0, 4.0 }, { 2.0, 2.0 } })
    expect(function() x:index_put(gb.tensor({ 3 }, { dtype = "int64" }), 1, true) end):to_fail("3")
    expect(function() x:index_put(gb.tensor({ 0 }, { dtype = "int64" }), gb.zeros(5), true) end):to_fail("broadcast")
  end)
  it("gcd, lcm and shifts at the ends of their range", function()
    local function whole(...) return gb.tensor({ ... }, { dtype = "int64" }) end
    local least = math.mininteger
    same(whole(least, -12, 0, 7):gcd(whole(6, 18, 0, 0)):tolist(), { 2, 6, 0, 7 })
    same(whole(-4, 0, 21):lcm(whole(6, 5, 6)):tolist(), { 12, 0, 42 })
    same(whole(1, 1, -1, -8):bitwise_left_shift(whole(63, 64, -1, 1)):tolist(), { least, 0, 0, -16 })
    same(whole(-8, -8, 8, 8):bitwise_right_shift(whole(1, 99, -1, 2)):tolist(), { -4, -1, 0, 2 })
    same(gb.tensor({ 100 }, { dtype = "int8" }):bitwise_left_shift(1):tolist(), { -56 })
    expect(function() gb.tensor { 1.0 }:gcd(gb.tensor { 1.0 }) end):to_fail("integer")
    expect(function() gb.tensor { true }:gcd(gb.tensor { true }) end):to_fail("bool")
  end)
  it("nextafter goes one number further, in float32 and float64", function()
    local function next_of(dtype, ...)
      return gb.tensor({ ... }, { dtype = dtype }):nextafter(gb.tensor({ 9, 9, 9, 9 }, { dtype = dtype })):tolist()
    end
    same(next_of("float64", 1, 0, 9, 1 / 0), { 1 + 2 ^ -52, 5e-324, 9.0, 1.7976931348623157e308 })
    same(next_of("float32", 1, 0, 9, 1 / 0), { 1 + 2 ^ -23, 2 ^ -149, 9.0, 2 ^ 128 - 2 ^ 104 })
    expect(function() gb.ones(2):half():nextafter(gb.ones(2):half()) end):to_fail("float16")
  end)
end)

describe("parts that differ", function()
  local x = gb.tensor({ { 1, 0 }, { 0, 2 }, { 1, 0 }, { 0, 1 } }, { dtype = "int32" })
  it("unique along a dim, in the order of words", function()
    local values, inverse, counts = x:unique { dim = 1, return_inverse = true, return_counts = true }
    same(values:tolist(), { { 0, 1 }, { 0, 2 }, { 1, 0 } })
    same(inverse:tolist(), { 2, 1, 2, 0 })
    same(counts:tolist(), { 1, 1, 2 })
    expect(values.dtype):to_be("int32")
  end)
  it("of nothing, of one, of NaN, and wrong calls", function()
    same(gb.zeros(0, 3):unique({ dim = 1 }).shape, { 0, 3 })
    same(gb.zeros(2, 0):unique({ dim = 1 }).shape, { 1, 0 })
    same(gb.zeros(1, 3):unique_consecutive({ dim = 1 }).shape, { 1, 3 })
    same(gb.tensor({ { 0 / 0 }, { 0 / 0 } }):unique({ dim = 1 }).shape, { 2, 1 })
    expect(function() gb.tensor(1.0):unique { dim = 1 } end):to_fail("unique")
    expect(function() x:unique { dim = 3 } end):to_fail("dim")
  end)
end)

describe("running products and extremes of long rows", function()
  -- Rows of one strip of a block, of some, and of pieces, on a device that works by these; against the CPU's.
  local device, cpu = gb.get_default_device(), { device = "cpu" }
  for _, n in ipairs { 63, 1100, 9000 } do
    it("are the CPU's: " .. n, function()
      local x = (gb.randn(2, n, cpu) * 4):round() -- many are equal
      x[{ 2, n // 2 }] = 0 / 0
      for _, name in ipairs { "cummax", "cummin" } do
        local values, indices = x[name](x, 2)
        local got, places = x:to(device)[name](x:to(device), 2)
        expect(got:to("cpu")):to_equal_bits(values)
        expect(places:to("cpu")):to_equal_bits(indices)
      end
      local whole = gb.randint(-9, 10, { 2, n }, cpu)
      whole = whole + whole:eq(0):long()
      expect(whole:to(device):cumprod(2):to("cpu")):to_equal_bits(whole:cumprod(2))
      expect(whole:to(device):cumsum(2):to("cpu")):to_equal_bits(whole:cumsum(2))
      local near = 1 + gb.randn(2, n, { dtype = "float64", device = "cpu" }) / n
      expect(near:to(device):cumprod(2):to("cpu")):to_be_close(near:cumprod(2), 1e-12)
    end)
    it("stay in the range where products one by one do: " .. n, function()
      local exact = { dtype = "float64", device = "cpu" }
      local at = gb.arange(n, exact)
      local falls = ((at + 3) / 6):floor():remainder(2) -- three, then six and six: from 1e270 to 1e-270 and back
      local waves = gb.where(falls:eq(0), gb.full({ n }, 1e90, exact), gb.full({ n }, 1e-90, exact))
      local x = gb.stack({ waves, waves * (1 + gb.randn(n, exact) / n), waves:clone(), gb.ones(n, exact),
        gb.where(at:lt(n / 2), gb.full({ n }, 1e-30, exact), gb.full({ n }, 1e30, exact)), gb.rand(n, exact) }, 1)
      x[{ 3, n // 3 }] = 0
      x[{ 4, n // 3 }] = 1 / 0
      local own, want = x:to(device), x:cumprod(2)
      for _, rows in ipairs { own, own:t():contiguous():t() } do -- along memory, and across it
        for _, got in ipairs { rows:cumprod(2), rows:clone():cumprod_(2) } do
          expect(gb.allclose(got:to("cpu"), want, { rtol = 1e-11, atol = 1e-300, equal_nan = true })):to_be(true)
        end
      end
    end)
    it("have the CPU's gradient, beside zeros and where products overflow: " .. n, function()
      local x = 1 + gb.randn(4, n, { dtype = "float64", device = "cpu" }) * (4 / n)
      local by, slopes = gb.randn(4, n, { dtype = "float64", device = "cpu" }), {}
      x[{ 2, n // 2 }] = 0
      x[{ 2, n - 1 }] = 0
      x[{ 3, { 1, n // 3 } }] = 1e-30
      x[{ 3, { n // 3 + 1, n } }] = 1e30
      x[{ 4, n // 2 }] = 1 / 0
      for i, where in ipairs { "cpu", device } do
        local own = x:to(where):clone():requires_grad_()
        own:cumprod(2):backward(by:to(where))
        slopes[i] = own.grad:to("cpu")
      end
      -- sums of n products, each in another order
      expect(gb.allclose(slopes[2], slopes[1], { rtol = 1e-11, atol = 1e-11, equal_nan = true })):to_be(true)
    end)
  end
end)

describe("a word with a '-' of PyTorch's", function()
  it("is the one with a '_'", function()
    local F, x = gb.nn.functional, gb.arange(12):float():reshape(1, 1, 3, 4)
    local y = F.interpolate(x, { 5, 7 }, { mode = "nearest-exact" })
    expect(y):to_be_close(F.interpolate(x, { 5, 7 }, { mode = "nearest_exact" }))
    expect(gb.nn.Upsample({ size = { 5, 7 }, mode = "nearest-exact" })(x)):to_be_close(y)
    expect(function() F.interpolate(x, { 5, 7 }, { mode = "nearest-exacd" }) end):to_fail("'nearest-exacd' is unknown")
  end)
end)

describe("composed ops in place", function()
  it("refuse a result that the tensor's dtype cannot hold", function()
    local x = gb.tensor({ 7 }, { dtype = "int32" })
    local why = "in place, a result of float32 cannot be stored in a tensor of int32"
    expect(function() x:add_(gb.tensor { 1.25 }, { alpha = 2 }) end):to_fail(why)
    expect(function() x:div_(gb.tensor { 0.0 }, { rounding_mode = "floor" }) end):to_fail(why)
    same(x:tolist(), { 7 })
    for _, name in ipairs { "cumsum_", "cumprod_" } do
      expect(function() gb.ones(2)[name](gb.ones(2), 1, { dtype = "float64" }) end):to_fail("dtype is 'float64'")
      same(gb.tensor({ 2.0, 3.0 })[name](gb.tensor({ 2.0, 3.0 }), 1, { dtype = "float32" }).dtype, "float32")
    end
    same(x:add_(gb.tensor({ 2 }, { dtype = "int32" }), { alpha = 2 }):tolist(), { 11 })
    same(gb.tensor({ 7.0 }):add_(gb.tensor({ 2 }), { alpha = 2 }):tolist(), { 11.0 })
  end)
end)

describe("running products", function()
  it("have the true gradient beside zeros, once and twice", function()
    local x = gb.tensor({ 2.0, 0.0, 3.0, 0.0, 5.0 }, { dtype = "float64" })
    x:requires_grad_()
    local g = gb.grad(x:cumprod(1):sum(), x, { create_graph = true })
    same(g:detach():tolist(), { 1.0, 8.0, 0.0, 0.0, 0.0 })
    local second = gb.grad(g:sum(), x)
    same(second:tolist(), { 4.0, 42.0, 2.0, 36.0, 0.0 })
  end)
  it("have the true gradient where products of a part overflow or underflow", function()
    local function gradient(before, a, after, b, zero)
      local list = {}
      for i = 1, before + after do list[i] = i <= before and a or b end
      if zero then list[zero] = 0.0 end
      local x = gb.tensor(list, { dtype = "float32" }):requires_grad_()
      x:cumprod(1):sum():backward()
      return x.grad:tolist()
    end
    local function near(x, want) expect(math.abs(x - want) <= 1e-6 * math.abs(want)):to_be(true) end
    local g = gradient(30, 0.01, 30, 100.0)
    near(g[1], 1 + 0.0101010101 + 1.0101010101 + 100)
    near(g[60], 0.01)
    g = gradient(400, 0.1, 400, 10.0) -- forward ends at 0
    near(g[1], 1 / 0.9)
    near(g[2], 0.1 / 0.9)
    same({ g[400], g[401], g[800] }, { 0.0, 0.0, 0.0 })
    g = gradient(3, 0.5, 400, 10.0, 3)
    same({ g[1], g[2], g[3], g[4], g[403] }, { 1.5, 0.5, math.huge, 0.0, 0.0 })
    g = gradient(400, 10.0, 0, 0)
    same({ g[1], g[400] }, { math.huge, math.huge })
    local x = gb.full({ 2, 400 }, 10.0):requires_grad_()
    x:cumprod(2):narrow(2, 1, 1):sum():backward() -- the other products are infinite, and have no part in it
    same(x.grad:sum(2):tolist(), { 1.0, 1.0 })
  end)
  it("have the true gradient where only products of some factors vanish", function()
    local list, by = {}, {}
    for i = 1, 300 do list[i], by[i] = 1.0, i == 300 and 1.0 or 0.0 end
    list[2], list[101], list[102], list[201] = 2.0 ^ 900, 2.0 ^ -700, 2.0 ^ -600, 2.0 ^ 500 -- 2 ^ 100 in all
    local x = gb.tensor(list, { dtype = "float64" }):requires_grad_()
    local g = gb.grad(x:cumprod(1), x, { grad_outputs = gb.tensor(by, { dtype = "float64" }) }):tolist()
    for i, factor in ipairs(list) do same(g[i], 2.0 ^ 100 / factor) end
  end)
  it("in place, of integers in their own dtype", function()
    same(gb.tensor({ 1, 2, 3 }, { dtype = "int32" }):cumprod_(1):tolist(), { 1, 2, 6 })
    expect(gb.tensor({ 1, 2, 3 }, { dtype = "int16" }):cumsum_(1).dtype):to_be("int16")
    expect(gb.tensor(3.0):cumprod(1):item()):to_be(3.0)
  end)
  it("extremes take over a later NaN only, and give their gradient to the element that was picked", function()
    local nan = 0 / 0
    local x = gb.tensor { 1.0, 3.0, nan, 5.0, nan }
    local values, indices = x:cummax(1)
    same(indices:tolist(), { 0, 1, 2, 2, 4 })
    same(values:isnan():tolist(), { false, false, true, true, true })
    local y = gb.tensor { 2.0, 1.0, 1.0, 4.0 }
    y:requires_grad_()
    local least = y:cummin(1)
    least:sum():backward()
    same(y.grad:tolist(), { 1.0, 1.0, 2.0, 0.0 })
  end)
end)

describe("positions among sorted values", function()
  it("of NaN lie behind all numbers, and of anything in nothing at 0", function()
    local line = gb.tensor { 1.0, 2.0, 0 / 0 }
    same(gb.searchsorted(line, gb.tensor { 0 / 0, 2.0, 9.0 }):tolist(), { 2, 1, 2 })
    same(gb.searchsorted(line, gb.tensor { 2.0, 9.0 }, { right = true }):tolist(), { 2, 2 })
    same(gb.searchsorted(gb.zeros(0), gb.ones(2)):tolist(), { 0, 0 })
    same(gb.searchsorted(line, gb.zeros(0)).shape, { 0 })
  end)
end)

describe("in place, an operand that is the tensor itself", function()
  it("is read as it was", function()
    local x, low = gb.tensor { 1.0, 5.0, -3.0 }, gb.tensor { 0.0, 7.0, 5.0 }
    for _, bounds in ipairs { { low, x }, { x, low }, { x, x }, { low, 2.0 }, { 2.0, x } } do
      local y = x:clone()
      local own = {}
      for i, b in ipairs(bounds) do own[i] = b == x and y or b end
      local want = x:clamp(bounds[1], bounds[2])
      expect(y:clamp_(own[1], own[2])):to_equal_bits(want)
    end
    for name, arguments in pairs { add_ = 1, mul_ = 1, sub_ = 1, div_ = 1, pow_ = 1, addcmul_ = 2, addcdiv_ = 2 } do
      local y = x:clone()
      local want = x[name:sub(1, -2)](x, table.unpack({ x, x }, 1, arguments))
      expect(y[name](y, table.unpack({ y, y }, 1, arguments))):to_equal_bits(want)
    end
  end)
end)

-- Windows that overlap, and rows that are one row, have no result of their own for each element.
describe("in place, memory that elements share", function()
  local calls = { bernoulli_ = {}, copy_ = { gb.ones(1) }, exponential_ = {}, fill_ = { 1 }, zero_ = {}, ldexp_ = { 2 },
    mvlgamma_ = { 1 }, normal_ = {}, random_ = {}, uniform_ = {}, add_ = { 1 }, exp_ = {}, clamp_ = { 0, 1 },
    tril_ = {}, masked_fill_ = { gb.ones(1):bool(), 2 }, index_fill_ = { 1, gb.tensor { 0 }, 2 },
    fill_diagonal_ = { 1 }, scatter_add_ = { 1, gb.tensor { { 0 } }, gb.ones(1, 1) }, cumsum_ = { 1 },
    addmm_ = { gb.ones(3, 3), gb.ones(3, 3) } }
  local base = gb.arange(9.0)
  local views = { unfold = base:unfold(1, 3, 1):narrow(1, 1, 3), expand = base:narrow(1, 1, 3):expand(3, 3) }
  for kind, view in pairs(views) do
    for name, arguments in pairs(calls) do
      it(name .. " refuses a tensor of " .. kind .. ", and says what to do", function()
        expect(function() view[name](view, table.unpack(arguments)) end):to_fail("share memory")
        expect(function() view[name](view, table.unpack(arguments)) end):to_fail("x:clone() first")
        expect(base):to_equal_bits(gb.arange(9.0))
      end)
    end
  end
  it("is none where windows lie side by side, or a dimension has one position", function()
    for _, view in ipairs { gb.arange(9.0):unfold(1, 3, 3), gb.arange(9.0):unfold(1, 8, 1):narrow(1, 2, 1),
      gb.ones(2, 3, 4):transpose(1, 3), gb.ones(3, 4, 4):diagonal(0, 2, 3), gb.ones(4, 6)[{ { 1, 4, 2 }, { 2, 6, 3 } }],
      gb.ones(0, 3):expand(0, 3), gb.ones(1, 1):expand(1, 1) } do
      local want = view + 1
      expect(view:add_(1)):to_equal_bits(want)
    end
  end)
end)

gb.test.finish()
