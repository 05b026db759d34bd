-- test_layouts.lua - copies, casts and elementwise ops whose operands run across the result: transposed, permuted,
-- reversed, broadcast, at odd offsets, and of sizes around those of the squares, lines and boxes in which they are
-- read. What is expected is counted from positions, so that nothing strided has a part in it.

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect

local dtypes = { "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64" }
-- Numbers up to here are exact in every dtype but bool, and a prime, so that neighbours in any direction differ.
local PRIME = 127

-- What element `number` of a source holds.
local function value(number, dtype) return (number % PRIME):to(dtype) end

-- A source of a shape, `offset` elements into its storage; and its elements' numbers in row-major order as strides tell
-- them.
local function source(shape, offset, dtype)
  local n = 1
  for _, size in ipairs(shape) do n = n * size end
  return value(gb.arange(n + offset), dtype):narrow(1, 1 + offset, n):reshape(shape)
end

-- The numbers of a view's elements: the sum over dims of position * stride, row-major.
local function numbers(shape, strides, offset)
  local sum = gb.full(shape, offset, { dtype = "int64" })
  for d, size in ipairs(shape) do
    local ones = {}
    for i = 1, #shape do ones[i] = 1 end
    ones[d] = size
    sum = sum + gb.arange(size):reshape(ones) * strides[d]
  end
  return sum
end

-- A permuted source and the numbers of its elements.
local function permuted(shape, order, offset, dtype)
  local strides, of, sizes, step = {}, {}, {}, 1
  for d = #shape, 1, -1 do
    strides[d] = step
    step = step * shape[d]
  end
  for i, d in ipairs(order) do of[i], sizes[i] = strides[d], shape[d] end
  return source(shape, offset, dtype):permute(order), numbers(sizes, of, offset)
end

describe("copies of what runs across", function()
  it("in every dtype, around the sizes of squares, lines and boxes", function()
    local sizes = { { 64, 64 }, { 65, 63 }, { 15, 300 }, { 300, 15 }, { 3, 1000 }, { 1000, 3 }, { 2, 2000 },
      { 129, 127 }, { 257, 255 }, { 33, 31 },
      { 513, 130 }, { 130, 513 } }
    if gb.get_default_device() == "cpu" then sizes[#sizes + 1] = { 1030, 1027 } end -- the CPU's boxes
    for _, size in ipairs(sizes) do
      for i, dtype in ipairs(dtypes) do
        local x, n = permuted(size, { 2, 1 }, i * 3 % 7, dtype)
        expect(x:contiguous()):to_equal_bits(value(n, dtype))
      end
    end
  end)
  it("in any order of up to 8 dims", function()
    local cases = { { { 5, 70, 6, 90 }, { 4, 3, 2, 1 } }, { { 3, 40, 6, 32 }, { 1, 3, 2, 4 } },
      { { 3, 6, 40, 32 }, { 1, 3, 2, 4 } },
      { { 2, 3, 61, 59 }, { 1, 3, 4, 2 } }, { { 2, 61, 59, 3 }, { 1, 4, 2, 3 } }, { { 7, 33, 65 }, { 3, 1, 2 } },
        { { 7, 33, 65 }, { 2, 3, 1 } },
      { { 2, 3, 4, 5, 3, 4, 3, 5 }, { 8, 7, 6, 5, 4, 3, 2, 1 } },
        { { 2, 3, 4, 5, 3, 4, 3, 5 }, { 1, 3, 5, 7, 2, 4, 6, 8 } },
      { { 2, 1, 40, 1, 50, 1, 3, 1 }, { 7, 8, 5, 2, 4, 3, 1, 6 } } }
    for _, case in ipairs(cases) do
      for _, dtype in ipairs { "uint8", "bfloat16", "float32", "float64" } do
        local x, n = permuted(case[1], case[2], 5, dtype)
        expect(x:contiguous()):to_equal_bits(value(n, dtype))
      end
    end
  end)
  it("converted on the way, from and to every dtype", function()
    for _, from in ipairs(dtypes) do
      local x, n = permuted({ 70, 67 }, { 2, 1 }, 1, from)
      for _, to in ipairs(dtypes) do
        local y = gb.zeros(67, 70, { dtype = to })
        expect(y:copy_(x)):to_equal_bits(value(n, from):to(to))
      end
    end
  end)
  it("reversed, broadcast, joined, into a part and in steps", function()
    local x, n = permuted({ 130, 67 }, { 2, 1 }, 3, "float32")
    local y = value(n, "float32")
    local back = numbers({ 67, 130 }, { -1, -67 }, 3 + 66 + 129 * 67)
    expect(x:flip(1, 2)):to_equal_bits(value(back, "float32"))
    expect(gb.cat({ x, x:flip(1, 2) }, 1)):to_equal_bits(gb.cat({ y, value(back, "float32") }, 1))
    expect(gb.cat({ x, y }, 2)[{ {}, { 1, 130 } }]:contiguous()):to_equal_bits(y)
    local three = x:unsqueeze(2):expand(67, 4, 130)
    for i = 1, 4 do expect(three:contiguous():select(2, i):contiguous()):to_equal_bits(y) end
    expect(x:unsqueeze(3):expand(67, 130, 3):contiguous():select(3, 2):contiguous()):to_equal_bits(y)
    local room = gb.zeros(70, 140)
    room[{ { 3, 69 }, { 6, 135 } }]:copy_(x)
    expect(room[{ { 3, 69 }, { 6, 135 } }]:contiguous()):to_equal_bits(y)
    expect(room:sum():item()):to_be(y:sum():item())
    expect(x[{ { 2, 67, 3 }, { 1, 130, 2 } }]:contiguous()):to_equal_bits(value(numbers({ 22, 65 }, { 3, 134 }, 4),
      "float32"))
    local column = gb.zeros(130, 67):t()
    expect(column:copy_(y):contiguous()):to_equal_bits(y)
  end)
  if gb.get_default_device() == "cpu" then -- what is special there is the CPU's
    it("past the caches, whose results are written otherwise", function()
      for _, dtype in ipairs { "float32", "bfloat16" } do
        local rows, columns = dtype == "float32" and 3001 or 4201, dtype == "float32" and 2999 or 4099
        local x, n = permuted({ rows, columns }, { 2, 1 }, 1, dtype)
        local y = value(n, dtype)
        expect(x:contiguous():eq(y):all():item()):to_be(true)
        expect((x + y):eq(y + y):all():item()):to_be(true)
      end
      local x, n = permuted({ 17, 131, 63, 64 }, { 1, 3, 2, 4 }, 16, "float32")
      expect(x:contiguous():eq(value(n, "float32")):all():item()):to_be(true)
    end)
  end
end)

-- Short broadcast rows at the end of a copy are spread element by element; they were a call each once.
describe("copies of elements that repeat side by side", function()
  it("give each of them its times over, in every dtype, and whatever a tile cuts", function()
    gb.manual_seed(7)
    for _, dtype in ipairs { "float64", "float32", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool" } do
      for _, times in ipairs { 1, 2, 3, 4, 5, 7, 64, 300, 700 } do
        for _, columns in ipairs { 1, 3, 257, 600 } do
          local x = gb.randn(3, columns):mul(9):to(dtype)
          local wide = x:repeat_interleave(times, 2)
          expect(wide):to_have_shape(3, columns * times)
          for k = 1, math.min(times, 3) do
            local at = k == 3 and times or k
            expect(wide:view(3, columns, times):select(3, at):contiguous()):to_equal_bits(x)
          end
          expect(wide:view(3, columns, times):eq(x:unsqueeze(3)):all():item()):to_be(true)
        end
      end
    end
  end)
  it("and so where the elements lie apart, run backwards or repeat on both sides", function()
    gb.manual_seed(8)
    local x = gb.randn(5, 40, 60)
    for _, given in ipairs { x, x:transpose(2, 3), x[{ {}, { 1, -1, 2 }, { 2, -1, 3 } }], x:permute(3, 1, 2),
      x:half() } do
      local a, b, c = table.unpack(given.shape)
      for times = 2, 5 do
        local up = given:unsqueeze(4):unsqueeze(3):expand(a, b, times, c, times):reshape(a, b * times, c * times)
        for _, place in ipairs { { 1, 1 }, { times, 1 }, { 1, times }, { times, times } } do
          expect(up[{ {}, { place[1], -1, times },
            { place[2], -1, times } }]:contiguous()):to_equal_bits(given:contiguous())
        end
      end
    end
  end)
  it("and so as operands", function()
    gb.manual_seed(9)
    local x, y = gb.randn(70, 33), gb.randn(70, 33, 3)
    local sum = x:unsqueeze(3):expand(70, 33, 3) + y
    for k = 1, 3 do expect(sum:select(3, k):contiguous()):to_equal_bits(x + y:select(3, k)) end
  end)
end)

describe("elementwise ops on what runs across", function()
  it("in every dtype, with one, two and three such operands", function()
    for _, size in ipairs { { 64, 64 }, { 63, 65 }, { 300, 7 }, { 7, 300 }, { 257, 259 } } do
      for i, dtype in ipairs(dtypes) do
        local x, n = permuted(size, { 2, 1 }, i, dtype)
        local y, m = permuted(size, { 2, 1 }, 2 * i + 1, dtype)
        local a, b = value(n, dtype), value(m, dtype)
        expect(a:lt(y)):to_equal_bits(a:lt(b))
        expect(gb.where(a:ne(b), x, b):contiguous()):to_equal_bits(gb.where(a:ne(b), a, b))
        expect(gb.where(a:ne(b), x, y):contiguous()):to_equal_bits(gb.where(a:ne(b), a, b))
        if dtype ~= "bool" then
          expect(a + y):to_equal_bits(a + b)
          expect(a:clone():add_(y)):to_equal_bits(a + b)
          expect(a * 1 + y * x):to_equal_bits(a + b * a)
        end
      end
    end
  end)
  it("of different dtypes, and with numbers and scalars", function()
    local x, n = permuted({ 90, 77 }, { 2, 1 }, 0, "bfloat16")
    local a = value(n, "bfloat16")
    local f, i = value(n + 1, "float32"), value(n + 2, "int64")
    expect(f + x):to_equal_bits(f + a)
    expect((i + x):contiguous()):to_equal_bits((i + a):contiguous())
    expect(f:clone():mul_(x)):to_equal_bits(f * a)
    expect((f + x * 2 + gb.tensor(3)):contiguous()):to_equal_bits(f + a * 2 + gb.tensor(3))
  end)
  it("onto themselves", function()
    local x = value(gb.arange(130 * 130), "float32"):reshape(130, 130)
    local t = value(numbers({ 130, 130 }, { 1, 130 }, 0), "float32")
    local sum = x + t
    expect(x:add_(x:t())):to_equal_bits(sum)
  end)
  it("cat of maps with channels last keeps them last", function()
    local x, y = gb.randn(2, 3, 4, 5), gb.randn(2, 6, 4, 5)
    local function last(t) return t:permute({ 1, 3, 4, 2 }):contiguous():permute({ 1, 4, 2, 3 }) end
    local want = gb.cat({ x, y }, 2)
    local kept = { { last(x), last(y), true }, { x, last(y), false }, { last(x), y, false }, { x, y, false } }
    for _, case in ipairs(kept) do
      local got = gb.cat({ case[1], case[2] }, 2)
      expect(got:contiguous()):to_equal_bits(want)
      expect(got:stride(2)):to_be(case[3] and 1 or 20)
    end
    expect(gb.cat({ last(x), last(x) }, 1):contiguous()):to_equal_bits(gb.cat({ x, x }, 1))
    -- what is both stays contiguous, as do vectors
    expect(gb.cat({ gb.ones(2, 1, 4, 5), gb.ones(2, 1, 4, 5) }, 2):is_contiguous()):to_be(true)
    expect(gb.cat({ gb.ones(3), gb.ones(2) }, 1):is_contiguous()):to_be(true)
  end)
  it("with any number of threads", function()
    local before = gb.get_num_threads()
    local x, n = permuted({ 700, 900 }, { 2, 1 }, 3, "float32")
    local y = value(n, "float32")
    for threads = 1, 3 do
      gb.set_num_threads(threads)
      expect(x:contiguous()):to_equal_bits(y)
      expect(y + x):to_equal_bits(y + y)
    end
    gb.set_num_threads(before)
  end)
end)
gb.test.finish()
