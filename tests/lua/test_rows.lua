-- test_rows.lua - the CPU's kernels of rows at every dtype, at lengths about those of its vectors, where rows lie end
-- to end and where they do not, and at sizes that are written past the caches. The reference is the same op on the same
-- values in a wider dtype.

local gb = require "gibbous"
local F = gb.nn.functional
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
gb.set_default_device("cpu")

local lengths = { 1, 2, 7, 15, 16, 17, 31, 32, 33, 47, 63, 64, 65, 100, 1000, 1023, 1024, 1025, 2100 }

-- The spacing of a dtype's numbers, of their size, and a number below which they are subnormal.
local spacing = { float32 = 2 ^ -23, float16 = 2 ^ -10, bfloat16 = 2 ^ -7 }
local smallest = { float32 = 2 ^ -126, float16 = 2 ^ -14, bfloat16 = 2 ^ -126 }

-- Each op makes a list of results from rows x [rows, n], weight and bias [n], a gradient like x and classes [rows].
local ops = {
  softmax = function(x, r) local y = x:softmax(-1); y:backward(r.grad); return { y, x.grad } end,
  log_softmax = function(x, r) local y = x:log_softmax(-1); y:backward(r.grad); return { y, x.grad } end,
  layer_norm = function(x, r)
    local y = F.layer_norm(x, { x.shape[2] }, r.weight, r.bias)
    y:backward(r.grad)
    return { y, x.grad, r.weight.grad, r.bias.grad }
  end,
  rms_norm = function(x, r) local y = F.rms_norm(x, { x.shape[2] }, r.weight); y:backward(r.grad);
  return { y, x.grad, r.weight.grad } end,
  cross_entropy = function(x, r) local y = F.cross_entropy(x, r.classes); y:backward(); return { y, x.grad } end,
}

local function leaf(x) return x:detach():clone():requires_grad_(true) end

-- The same values for an op in another dtype.
local function inputs(r, dtype)
  return leaf(r.x:to(dtype)), { grad = r.grad:to(dtype), weight = leaf(r.weight:to(dtype)),
    bias = leaf(r.bias:to(dtype)), classes = r.classes }
end

local function random_rows(rows, n, dtype)
  local function values(...) return gb.randn(...):to(dtype) end
  return { x = values(rows, n) * 3, grad = values(rows, n), weight = values(n), bias = values(n),
    classes = gb.randint(0, n, { rows }) }
end

-- Every element within so many spacings of its own size, or of the largest in its row: sums and differences lose what
-- small elements have to say.
local function expect_near(got, want, dtype, growth)
  local size = want:abs():amax(-1, { keepdim = true }):clamp(smallest[dtype])
  local worst = ((got:to("float64") - want):abs() / size):max():item() / spacing[dtype]
  if not (worst <= growth) then
    error(("%.2f spacings of %s, at most %.2f were expected"):format(worst, dtype, growth), 2)
  end
end

describe("rows", function()
  for name, op in pairs(ops) do
    for dtype in pairs(spacing) do
      it(("of any length: %s of %s"):format(name, dtype), function()
        gb.manual_seed(5)
        for _, n in ipairs(lengths) do
          -- the gradient of one or two elements is what eps leaves of it
          if name:find "norm" and n < 7 then goto continue end
          local r = random_rows(3, n, dtype)
          local got, want = op(inputs(r, dtype)), op(inputs(r, "float64"))
          -- a result rounded to 16 bits is off by half a spacing; gradients are differences, and their sums in float32
          -- are of a thousand numbers. softmax's in 16 bits takes the difference from what forward rounded: see the
          -- comparison with rows that do not lie end to end
          for i, y in ipairs(got) do
            expect(y.dtype):to_be(dtype)
            local bound = dtype == "float32" and 64 or i == 1 and 1 or name:find "softmax" and math.huge or 8
            expect_near(y, want[i], dtype, bound)
          end
          ::continue::
        end
      end)
    end
    it("lie end to end or not: " .. name, function()
      gb.manual_seed(6)
      for _, n in ipairs { 5, 33, 1025 } do
        local r = random_rows(70, n, "bfloat16")
        local x, with = inputs(r, "bfloat16")
        local across = leaf(r.x:t():contiguous():t())
        expect(across:is_contiguous()):to_be(false)
        local plain, strided = op(x, with), op(across, select(2, inputs(r, "bfloat16")))
        -- one rounds the same float32 but for the order of its sums
        for i, y in ipairs(plain) do expect_near(strided[i], y:to("float64"), "bfloat16", 1) end
      end
    end)
    it("have the same bits for any number of threads: " .. name, function()
      local before, runs = gb.get_num_threads(), {}
      for threads = 1, 3 do
        gb.set_num_threads(threads)
        gb.manual_seed(7)
        runs[threads] = op(inputs(random_rows(300, 257, "bfloat16"), "bfloat16"))
      end
      gb.set_num_threads(before)
      for threads = 2, 3 do
        for i, y in ipairs(runs[threads]) do expect(y):to_equal_bits(runs[1][i]) end
      end
    end)
  end

  it("that are written past the caches are the rows they would be", function()
    gb.manual_seed(8)
    -- 32 MiB and more of results; of 8190 columns only every other row begins where a vector does
    for _, case in ipairs { { "bfloat16", 2050, 8192 }, { "float32", 1100, 8190 } } do
      local dtype, rows, n = table.unpack(case)
      local part = random_rows(10, n, dtype)
      local r = { weight = part.weight, bias = part.bias, x = part.x:tile(rows // 10, 1),
        grad = part.grad:tile(rows // 10, 1),
        classes = part.classes:tile(rows // 10) }
      for _, name in ipairs { "softmax", "log_softmax", "layer_norm" } do
        local large, small = ops[name](inputs(r, dtype)), ops[name](inputs(part, dtype))
        for i = 1, 2 do
          for _, first in ipairs { 1, 101, rows - 9 } do
            expect(large[i]:narrow(1, first, 10)):to_equal_bits(small[i])
          end
        end
      end
      local sum = F.cross_entropy(leaf(r.x), r.classes, { reduction = "sum" })
      local x, y = leaf(r.x), leaf(part.x)
      F.cross_entropy(x, r.classes, { reduction = "sum" }):backward()
      F.cross_entropy(y, part.classes, { reduction = "sum" }):backward()
      expect(x.grad:narrow(1, rows - 9, 10)):to_equal_bits(y.grad)
      expect(sum:item() > 0):to_be(true)
      expect((r.x + r.grad):narrow(1, rows - 9, 10)):to_equal_bits(part.x + part.grad)
    end
  end)

  it("of one class, or of one that outweighs all others, have exactly that", function()
    for dtype in pairs(spacing) do
      for _, n in ipairs { 1, 40 } do
        local x = gb.full({ 2, n }, -60):to(dtype)
        x:narrow(2, 1, 1):fill_(60.5)
        expect(F.cross_entropy(x, gb.zeros({ 2 }, { dtype = "int64" })):item()):to_be(0)
        expect(x:softmax(-1):narrow(2, 1, 1):float():min():item()):to_be(1)
      end
    end
  end)

  it("with NaN or only infinities are NaN, and -inf has no weight and no gradient", function()
    for dtype in pairs(spacing) do
      for _, n in ipairs { 3, 33, 70 } do
        local x = gb.zeros({ 4, n })
        x:narrow(1, 1, 1):narrow(2, 2, 1):fill_(0 / 0)
        x:narrow(1, 2, 1):narrow(2, n, 1):fill_(math.huge)
        x:narrow(1, 3, 1):fill_(-math.huge)
        x:narrow(1, 4, 1):narrow(2, 1, n - 1):fill_(-math.huge)
        x = leaf(x:to(dtype))
        local y = x:softmax(-1)
        expect(y:narrow(1, 1, 3):isnan():all():item()):to_be(true)
        expect(y:narrow(1, 4, 1):narrow(2, 1, n - 1):float():abs():max():item()):to_be(0)
        expect(y:narrow(1, 4, 1):narrow(2, n, 1):item()):to_be(1)
        -- the loss is scaled as a GradScaler would: still nothing for what has no weight
        local row = leaf(x:narrow(1, 4, 1))
        local loss = F.cross_entropy(row, gb.full({ 1 }, n - 1, { dtype = "int64" })) * 1024
        loss:backward()
        expect(row.grad:float():abs():max():item()):to_be(0)
      end
    end
  end)

  it("have a gradient of NaN where a weight is NaN, whatever its bits", function()
    -- CUDA's: rounding to bfloat16 as if it were a number would carry into the sign
    local nan = string.unpack("<f", "\xff\xff\xff\x7f")
    for dtype in pairs(spacing) do
      for _, n in ipairs { 3, 64, 70 } do
        local x = leaf(gb.randn(2, n):to(dtype))
        F.cross_entropy(x, gb.zeros({ 2 }, { dtype = "int64" }), { weight = gb.full({ n }, nan) }):backward()
        expect(x.grad:isnan():all():item()):to_be(true)
      end
    end
  end)
end)

-- Rows of up to 1024 elements are folded by halves: the later one onto the earlier, an odd middle staying as it is.
describe("the folds of a row", function()
  local function by_halves(x, fold)
    local n = x.shape[2]
    while n > 1 do
      local half, pairs_of = (n + 1) // 2, n // 2
      local y = fold(x:narrow(2, 1, pairs_of), x:narrow(2, half + 1, pairs_of))
      x, n = half > pairs_of and gb.cat({ y, x:narrow(2, half, 1) }, 2) or y, half
    end
    return x:select(2, 1)
  end
  local folds = { sum = gb.add, prod = gb.mul, amax = gb.maximum, amin = gb.minimum }
  local folded = { 1, 2, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65, 66, 97, 127, 129, 255, 257, 511, 770, 1023,
    1024 }

  for _, dtype in ipairs { "float32", "float64", "int64" } do
    it("are those of its halves: " .. dtype, function()
      gb.manual_seed(9)
      for _, n in ipairs(folded) do
        for _, rows in ipairs { 1, 3, 67 } do
          local x = dtype == "int64" and gb.randint(-9, 9, { rows, n }) or gb.randn({ rows, n }, { dtype = dtype })
          local apart = gb.cat({ x, x }, 2):narrow(2, 1, n)
          for name, fold in pairs(folds) do
            local want = by_halves(x, fold)
            for _, rows_of in ipairs { x, apart, x:t():contiguous():t() } do
              -- columns of memory are added up in another order
              local exact = rows_of:stride(2) == 1 or name:find "^am"
              if exact then expect(rows_of[name](rows_of, 2)):to_equal_bits(want) end
            end
          end
        end
      end
    end)
  end

  it("keep NaN, infinities and the sign of nothing, wherever they stand", function()
    for _, n in ipairs(folded) do
      for _, at in ipairs { 1, n // 2 + 1, n } do
        local x = gb.ones(3, n)
        x:narrow(1, 1, 1):narrow(2, at, 1):fill_(0 / 0)
        x:narrow(1, 2, 1):narrow(2, at, 1):fill_(-math.huge)
        x:narrow(1, 3, 1):narrow(2, at, 1):fill_(math.huge)
        for name in pairs(folds) do expect(x[name](x, 2):select(1, 1):isnan():item()):to_be(true) end
        expect(x:sum(2):narrow(1, 2, 2)):to_equal_bits(gb.tensor { -math.huge, math.huge })
        expect(x:amin(2):narrow(1, 2, 2):select(1, 1):item()):to_be(-math.huge)
        expect(x:logsumexp(2):narrow(1, 2, 2):select(1, 2):item()):to_be(math.huge)
      end
      expect(1 / gb.full({ 2, n }, -0.0):sum(2)):to_equal_bits(gb.full({ 2 }, math.huge))
      expect(gb.full({ 2, n }, -math.huge):logsumexp(2)):to_equal_bits(gb.full({ 2 }, -math.huge))
    end
  end)

  it("are near those of a wider dtype, of squares and distances from the mean too", function()
    gb.manual_seed(10)
    for dtype in pairs(spacing) do
      for _, n in ipairs { 16, 33, 47, 48, 63, 64, 65, 100, 1000, 1023, 1024, 1025, 2047, 2100, 40000 } do
        local x = gb.randn(5, n):to(dtype)
        local wide = x:double()
        for _, pair in ipairs {
          { x:norm(2, 2), wide:norm(2, 2) }, { x:norm(1, 2), wide:norm(1, 2) }, { x:logsumexp(2), wide:logsumexp(2) },
          { x:var(2), wide:var(2) }, { x:abs():mean(2), wide:abs():mean(2) },
        } do
          -- sums of so few terms in a row that their rounding is a few spacings of float32
          expect_near(pair[1]:unsqueeze(2), pair[2]:unsqueeze(2), dtype, dtype == "float32" and 16 or 1)
        end
      end
    end
  end)
end)

-- The largest of 16-bit elements is looked for among whole numbers: signs, zeros and infinities are what could go
-- wrong.
describe("the largest element of a row of 16 bits", function()
  local inf, nan = math.huge, 0 / 0

  for _, dtype in ipairs { "bfloat16", "float16" } do
    for _, n in ipairs { 1, 31, 64, 100 } do
      local function row_of(fill, first) -- on [1, n], `first` at its end
        local x = gb.full({ 1, n }, fill, { dtype = "float32" })
        x:narrow(2, n, 1):fill_(first)
        return x:to(dtype)
      end

      it(("keeps sums in range: %s, %d"):format(dtype, n), function()
        local pairs_of_ends = { { -200, -3 }, { -3, -200 }, { -0.0, 0.0 }, { -0.0, -1 }, { -1, -0.0 }, { 90, 200 },
          { 200, -90 }, { -inf, -300 }, { -inf, 7 } }
        for _, pair in ipairs(pairs_of_ends) do
          local x = row_of(pair[1], pair[2])
          local y, want = x:softmax(-1), x:double():softmax(-1)
          expect(y:isnan():any():item()):to_be(false)
          expect(y:double()):to_be_close(want, spacing[dtype]) -- rounded once: half of it
        end
      end)

      it(("is certain of a class: %s, %d"):format(dtype, n), function()
        local x, class = row_of(-300, -20), gb.full({ 1 }, n - 1, { dtype = "int64" })
        expect(x:softmax(-1):narrow(2, n, 1):item()):to_be(1)
        expect(F.cross_entropy(x, class):item()):to_be(0)
      end)

      it(("is not hidden by what is no number: %s, %d"):format(dtype, n), function()
        for _, pair in ipairs { { -inf, -inf }, { 0, inf }, { -1, nan }, { -1, -nan }, { inf, -inf } } do
          local y = row_of(pair[1], pair[2]):softmax(-1)
          expect(y:isnan():any():item()):to_be(true)
        end
      end)
    end
  end
end)

-- Rows of two to four vectors are taken four at a time, in registers.
describe("four rows in registers", function()
  it("are as accurate as one, and have the bits that it has alone", function()
    gb.manual_seed(21)
    for _, dtype in ipairs { "float32", "float16", "bfloat16" } do
      for _, n in ipairs { 32, 33, 48, 49, 64, 65 } do
        for _, count in ipairs { 1, 2, 3, 4, 5, 7, 16, 18, 37 } do
          local x = (gb.randn(count, n) * 4):to(dtype)
          for _, op in ipairs { "softmax", "log_softmax" } do
            local y, want = x[op](x, 2), x:double()
            want = want[op](want, 2)
            -- a difference of 20 or so is rounded before its exponential; what is near 0 was a difference too
            local size = op == "softmax" and want:abs() + smallest[dtype] or want:abs() + 4
            local error = ((y:double() - want):abs() / size):max():item()
            expect(error <= (dtype == "float32" and 2 ^ -19 or spacing[dtype])):to_be(true)
            local last = x[{ { count, count }, {} }]:clone()
            if dtype == "float32" then expect(y[{ { count, count }, {} }]):to_equal_bits(last[op](last, 2)) end
          end
        end
      end
    end
  end)
  it("keep what is special of a row to itself", function()
    for _, dtype in ipairs { "float32", "bfloat16" } do
      local x = gb.zeros(6, 64)
      x[{ 2, 5 }], x[{ 3, 64 }], x[{ 4, {} }] = 0 / 0, math.huge, -math.huge
      x[{ 5, 1 }], x[{ 6, 33 }] = -1e4, -math.huge
      local low = x:to(dtype)
      local y, log = low:softmax(2):double(), low:log_softmax(2):double()
      for _, row in ipairs { 2, 3, 4 } do
        expect(y[row]:isnan():sum():item()):to_be(64)
        expect(log[row]:isnan():sum():item()):to_be(64)
      end
      expect(y[{ 1, {} }]:sum():item()):to_be(1.0)
      expect(y[{ 5, 1 }]:item()):to_be(0.0)
      expect(y[{ 6, 33 }]:item()):to_be(0.0)
      expect(log[{ 6, 33 }]:item()):to_be(-math.huge)
      expect(log[{ 5, 1 }]:item() < -9900):to_be(true)
      expect(math.abs(y[{ 6, 1 }]:item() - 1 / 63) < 1e-4):to_be(true)
    end
  end)
end)

describe("arithmetic on 16 bits", function()
  -- The values of a dtype where rounding is hard: halves of a spacing, subnormals, overflow, zeros of both signs,
  -- infinities and NaN.
  local function hard(dtype, n)
    local x = gb.randn(n) * gb.full({ n }, 2):pow(gb.randint(-30, 17, { n }):float())
    if dtype == "bfloat16" then x = x * gb.full({ n }, 2):pow(gb.randint(-110, 110, { n }):float()) end
    for i, special in ipairs { 0.0, -0.0, math.huge, -math.huge, 0 / 0, smallest[dtype] * spacing[dtype],
      1 + spacing[dtype] } do
      if n > 2 * i then x:narrow(1, 2 * i, 1):fill_(special) end
    end
    return x:to(dtype)
  end

  for _, dtype in ipairs { "bfloat16", "float16" } do
    it("is float32's, rounded once: " .. dtype, function()
      gb.manual_seed(9)
      for _, n in ipairs { 1, 5, 31, 32, 33, 64, 1000, 1024, 1030, 40000 } do
        local x, y = hard(dtype, n), hard(dtype, n)
        local a, b = x:float(), y:float()
        local results = { { x + y, a + b }, { x * y, a * b }, { x - y, a - b }, { x * 3, a * 3 }, { x / y, a / b },
          { -x, -a }, { x:relu(), a:relu() },
          { x:clamp(-1, 1), a:clamp(-1, 1) }, { x:clone():add_(y), a + b }, { x:maximum(y), a:maximum(b) } }
        for _, pair in ipairs(results) do
          local got, want = pair[1], pair[2]:to(dtype)
          local nan = want:isnan()
          expect(got:isnan()):to_equal_bits(nan)
          expect(got:masked_fill(nan, 0)):to_equal_bits(want:masked_fill(nan, 0))
        end
      end
    end)
  end
end)

-- x summed along dim as it goes, by a chain of additions in float64 or int64.
local function running(x, dim)
  local rows = x:transpose(dim, x.ndim):contiguous()
  local values, n, whole = rows:view(-1):tolist(), rows:size(-1), x.dtype == "int64"
  local sum
  for i, v in ipairs(values) do
    sum = (i - 1) % n == 0 and v or sum + v
    values[i] = whole and sum or (string.unpack("f", string.pack("f", sum)))
  end
  return gb.tensor(values, { dtype = x.dtype }):view(rows.shape):transpose(dim, x.ndim)
end

describe("cumsum", function()
  it("adds up in a wide type and in order, whichever way rows lie", function()
    for _, shape in ipairs { { 5, 40 }, { 3, 5, 33 }, { 9, 1 }, { 2, 3, 1100 }, { 6000 }, { 5, 4200 } } do
      for dim = 1, #shape do
        local x = gb.randn(shape) * 100
        for _, values in ipairs { x, x:long() } do
          expect(gb.equal(values:cumsum(dim), running(values, dim))):to_be(true)
          local turned = values:transpose(1, #shape)
          expect(gb.equal(turned:cumsum(dim), running(turned, dim))):to_be(true)
        end
      end
    end
    expect(1 / gb.tensor({ -0.0 }):cumsum(1):item()):to_be(-math.huge)
  end)
end)

-- Rows of at most a tile, folded one element after the other; NaN, infinities and -0 among them.
describe("short rows", function()
  local nan, step = 0 / 0, 0
  local folds = {
    sum = function(a, b) return a + b end, prod = function(a, b) return a * b end,
    amax = function(a, b) return (b > a or b ~= b) and a == a and b or a end,
    amin = function(a, b) return (b < a or b ~= b) and a == a and b or a end,
  }
  -- The rows along the last dim, as lists of numbers.
  local function rows_of(x)
    local list = x:double():contiguous():view(-1, x:size(-1)):tolist()
    return list
  end
  local function close(a, b, room) return a == b or (a ~= a and b ~= b) or math.abs(a - b) <= room end
  local function check(x, room, name)
    local rows = rows_of(x)
    local made = {}
    for op in pairs(folds) do made[op] = x[op](x, -1):double():flatten():tolist() end
    local most, where = x:max(-1)
    local least, there = x:min(-1)
    most, where = most:double():flatten():tolist(), where:flatten():tolist()
    least, there = least:double():flatten():tolist(), there:flatten():tolist()
    for r, row in ipairs(rows) do
      local size = 1
      for _, value in ipairs(row) do
        if value == value and math.abs(value) < math.huge then size = size + math.abs(value) end
      end
      for op, fold in pairs(folds) do
        local want = row[1]
        for i = 2, #row do want = fold(want, row[i]) end
        local is_exact = op == "amax" or op == "amin"
        local room_here = is_exact and 0 or op == "sum" and room * size or room * #row * math.abs(want) + step
        if not close(made[op][r], want, room_here) then
          error(("%s of row %d of %s: %g, not %g"):format(op, r, name, made[op][r], want))
        end
      end
      for _, found in ipairs { { most[r], where[r], folds.amax }, { least[r], there[r], folds.amin } } do
        local want, at = row[1], 1
        for i = 2, #row do
          local better = found[3](want, row[i])
          if want == want and (better ~= want) then want, at = better, i end
        end
        expect(close(found[1], want, 0)):to_be(true)
        expect(found[2]):to_be(at - 1)
      end
    end
  end
  for _, dtype in ipairs { "float32", "float64", "float16", "bfloat16" } do
    it("are folded and searched in any layout, in " .. dtype, function()
      gb.manual_seed(6)
      local room = ({ float64 = 1e-15, float32 = 1e-6, float16 = 1e-3, bfloat16 = 8e-3 })[dtype]
      step = dtype == "float16" and 2.0 ^ -24 or 0 -- of subnormal numbers
      for _, n in ipairs { 1, 2, 3, 4, 5, 7, 8, 13, 31, 32, 33, 63, 64, 65 } do
        local x = gb.randn(6, 41, n + 2):to(dtype)
        x[{ 1, 3, 1 }], x[{ 2, 5, n }], x[{ 3, 7, 1 }], x[{ 4, 7, n }] = nan, math.huge, -math.huge, -0.0
        local name = dtype .. " of " .. n
        check(x:narrow(3, 1, n):contiguous(), room, name)
        check(x:narrow(3, 1, n), room, name .. ", apart")
        check(x:narrow(3, 1, n):transpose(1, 2), room, name .. ", in another order")
        check(x:narrow(3, 1, n):transpose(2, 3):contiguous():transpose(2, 3), room, name .. ", beside each other")
        check(x:narrow(3, 1, n):flip(3):permute(3, 1, 2):contiguous():permute(2, 3, 1), room, name .. ", far apart")
        check(x:narrow(2, 1, 1):narrow(3, 1, n):expand(6, 9, n), room, name .. ", repeated")
      end
    end)
  end
  it("of whole numbers wrap and compare as such", function()
    local x = gb.tensor({ { math.maxinteger, 1, 2 }, { math.mininteger, -1, 5 } }, { dtype = "int64" }):tile(400, 1)
    local least, at = x:min(2)
    for _, case in ipairs { { x:sum(2), math.mininteger + 2, math.mininteger + 4 }, { x:amax(2), math.maxinteger, 5 },
      { least, 1, math.mininteger }, { at, 1, 0 } } do
      expect(case[1][799]:item()):to_be(case[2])
      expect(case[1][800]:item()):to_be(case[3])
    end
  end)
end)

gb.test.finish()
