-- test_random.lua - the random stream: the same seed gives the same bits, the state is two integers, and what is drawn
-- has the distribution it says. Bounds are five standard errors, so a right generator passes; the seed is fixed, so it
-- passes every time. (The words themselves are compared with Random123's in tests/c/test_numbers.c.)

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
local F = gb.nn.functional

local function about(value, expected, error) -- within five standard errors
  if not (math.abs(value - expected) <= 5 * error) then
    gb.test.expect(value):to_be_near(expected, 5 * error / (1 + math.abs(expected)))
  end
end

describe("the stream", function()
  it("same seed, same bits; another seed, other ones", function()
    gb.manual_seed(5)
    local a = gb.randn(100)
    gb.manual_seed(5)
    expect(gb.randn(100)):to_equal_bits(a)
    expect(gb.seed()):to_be(5)
    gb.manual_seed(6)
    expect(gb.randn(100):eq(a):all():item()):to_be(false)
    gb.manual_seed(-1)
    expect(gb.seed()):to_be(-1)
  end)
  it("every op takes a new place in it", function()
    gb.manual_seed(1)
    local a, b = gb.rand(50), gb.rand(50)
    expect(a:eq(b):any():item()):to_be(false)
    expect(gb.get_rng_state().offset):to_be(2)
  end)
  it("the state is two integers, saved and restored", function()
    gb.manual_seed(9)
    gb.rand(3)
    local state = gb.get_rng_state()
    local a = gb.rand(20)
    gb.set_rng_state(state)
    expect(gb.rand(20)):to_equal_bits(a)
    expect(function() gb.set_rng_state { sed = 1 } end):to_fail("seed")
    expect(function() gb.set_rng_state(5) end):to_fail("table")
    expect(function() gb.manual_seed("x") end):to_fail("seed")
    expect(function() gb.manual_seed(1.5) end):to_fail("seed")
  end)
  it("bits do not depend on threads", function()
    local before = gb.get_num_threads()
    local runs = {}
    for threads = 1, 3 do
      gb.set_num_threads(threads)
      gb.manual_seed(3)
      local x = gb.zeros(201, 77):t()
      x:normal_()
      runs[threads] = { gb.rand(100000), gb.randn(100000), gb.randint(100, { 50000 }), gb.randperm(10000), x,
        F.dropout(gb.ones(90000), 0.4) }
    end
    gb.set_num_threads(before)
    for i = 1, #runs[1] do
      expect(runs[2][i]):to_equal_bits(runs[1][i])
      expect(runs[3][i]):to_equal_bits(runs[1][i])
    end
  end)
  it("logical order: a transposed tensor gets the numbers of a plain one", function()
    gb.manual_seed(4)
    local plain = gb.zeros(30, 50):uniform_()
    gb.manual_seed(4)
    local turned = gb.zeros(50, 30):t()
    turned:uniform_()
    expect(turned:contiguous()):to_equal_bits(plain)
  end)
end)

describe("uniform and normal", function()
  gb.manual_seed(12)
  local n = 200000
  it("rand lies in [0, 1) with the right moments", function()
    for _, dtype in ipairs { "float32", "float64" } do
      local u = gb.rand(n, { dtype = dtype })
      expect(u.dtype):to_be(dtype)
      expect(u:amin():item() >= 0):to_be(true)
      expect(u:amax():item() < 1):to_be(true)
      about(u:mean():item(), 0.5, math.sqrt(1 / 12 / n))
      about(u:var():item(), 1 / 12, math.sqrt(1 / 180 / n))
      about(u:lt(0.1):to("float64"):mean():item(), 0.1, math.sqrt(0.09 / n))
    end
    local half = gb.rand(n, { dtype = "float16" })
    expect(half:amin():item() >= 0):to_be(true)
    expect(half:amax():item() <= 1):to_be(true)
  end)
  it("uniform_ keeps to its bounds", function()
    local u = gb.zeros(n):uniform_(-3, 5)
    expect(u:amin():item() >= -3):to_be(true)
    expect(u:amax():item() < 5):to_be(true)
    about(u:mean():item(), 1, math.sqrt(64 / 12 / n))
  end)
  it("randn: mean, variance, skewness, kurtosis, tails", function()
    for _, dtype in ipairs { "float32", "float64" } do
      local x = gb.randn(n, { dtype = dtype }):to("float64")
      about(x:mean():item(), 0, 1 / math.sqrt(n))
      about(x:square():mean():item(), 1, math.sqrt(2 / n))
      about((x ^ 3):mean():item(), 0, math.sqrt(15 / n))
      about((x ^ 4):mean():item(), 3, math.sqrt(96 / n))
      about(x:abs():gt(2):to("float64"):mean():item(), 0.0455, math.sqrt(0.0455 / n))
      expect(x:abs():amax():item() > 4):to_be(true)
      expect(x:isfinite():all():item()):to_be(true)
    end
    local y = gb.zeros(n):normal_(10, 0.5)
    about(y:to("float64"):mean():item(), 10, 0.5 / math.sqrt(n))
  end)
  it("neighbours are not correlated", function()
    local x = gb.randn(n, { dtype = "float64" })
    for _, lag in ipairs { 1, 2, 3, 4 } do
      about((x:narrow(1, 1, n - lag) * x:narrow(1, 1 + lag, n - lag)):mean():item(), 0, 1 / math.sqrt(n))
    end
  end)
end)

describe("gb.random", function()
  it("manual_seed seeds math.random too", function()
    gb.manual_seed(11)
    local a, b = math.random(1000000), math.random()
    gb.manual_seed(12)
    local other = math.random(1000000)
    gb.manual_seed(11)
    expect(math.random(1000000)):to_be(a)
    expect(math.random()):to_be(b)
    expect(other == a):to_be(false)
  end)
  it("number lies in [low, high), evenly", function()
    gb.manual_seed(21)
    local n, sum, squares = 20000, 0, 0
    for _ = 1, n do
      local u = gb.random.number()
      expect(math.type(u)):to_be("float")
      expect(u >= 0 and u < 1):to_be(true)
      sum, squares = sum + u, squares + u * u
    end
    about(sum / n, 0.5, math.sqrt(1 / 12 / n))
    about(squares / n, 1 / 3, math.sqrt(4 / 45 / n))
    for _ = 1, 1000 do
      local u = gb.random.number(-3, 5)
      expect(u >= -3 and u < 5):to_be(true)
      local v = gb.random.number(1, 1 + 2 ^ -52)
      expect(v):to_be(1.0)
      local w = gb.random.number(-1.7e308, 1.7e308)
      expect(w >= -1.7e308 and w < 1.7e308):to_be(true)
    end
    expect(gb.random.number(2, 2)):to_be(2.0)
  end)
  it("integer has both ends, evenly", function()
    gb.manual_seed(22)
    local n, counts = 12000, {}
    for _ = 1, n do
      local i = gb.random.integer(-2, 3)
      expect(math.type(i)):to_be("integer")
      counts[i] = (counts[i] or 0) + 1
    end
    for i = -2, 3 do about(counts[i] / n, 1 / 6, math.sqrt(5 / 36 / n)) end
    expect(counts[-3] == nil and counts[4] == nil):to_be(true)
    expect(gb.random.integer(7, 7)):to_be(7)
    local positive = 0
    for _ = 1, 1000 do positive = positive + (gb.random.integer(math.mininteger, math.maxinteger) > 0 and 1 or 0) end
    about(positive / 1000, 0.5, math.sqrt(0.25 / 1000))
  end)
  it("shuffle keeps every element, in the table it was given, each order equally often", function()
    gb.manual_seed(23)
    local orders, n = {}, 6000
    for _ = 1, n do
      local list = { "a", "b", "c" }
      expect(gb.random.shuffle(list)):to_be(list)
      local order = table.concat(list)
      orders[order] = (orders[order] or 0) + 1
    end
    local kinds = 0
    for _, count in pairs(orders) do
      kinds = kinds + 1
      about(count / n, 1 / 6, math.sqrt(5 / 36 / n))
    end
    expect(kinds):to_be(6)
    local long, seen = {}, {}
    for i = 1, 10000 do long[i] = i end
    for _, value in ipairs(gb.random.shuffle(long)) do seen[value] = true end
    expect(#seen):to_be(10000)
    expect(#gb.random.shuffle {}):to_be(0)
    local asked = setmetatable({ 1, 2, 3 }, { __index = error, __newindex = error, __len = error })
    expect(rawlen(gb.random.shuffle(asked))):to_be(3)
  end)
  it("each draw takes one place in the stream, and the state brings it back", function()
    gb.manual_seed(24)
    local function draw()
      local list = gb.random.shuffle { 1, 2, 3, 4, 5, 6, 7, 8 }
      return ("%.17g %d %s %.9g"):format(gb.random.number(), gb.random.integer(1, 1 << 40), table.concat(list, ","),
        gb.rand(1):item())
    end
    local state = gb.get_rng_state()
    local first = draw()
    expect(gb.get_rng_state().offset):to_be(4)
    expect(draw() == first):to_be(false)
    gb.set_rng_state(state)
    expect(draw()):to_be(first)
  end)
  it("a checkpoint resumes it", function()
    local path = os.tmpname()
    local function draw() return { gb.random.number(), gb.random.integer(1, 1 << 50),
      table.unpack(gb.random.shuffle { 1, 2, 3, 4, 5, 6, 7, 8, 9 }) } end
    gb.manual_seed(25)
    draw()
    gb.io.save_checkpoint(path, {})
    local expected = draw()
    gb.manual_seed(26)
    draw()
    gb.io.load_checkpoint(path, {})
    local got = draw()
    for i = 1, #expected do expect(got[i]):to_be(expected[i]) end
    os.remove(path)
  end)
  it("refuses what is no range", function()
    expect(function() gb.random.number(1) end):to_fail("high")
    expect(function() gb.random.number(2, 1) end):to_fail("below low")
    expect(function() gb.random.number(0, math.huge) end):to_fail("finite")
    expect(function() gb.random.number(0 / 0, 1) end):to_fail("finite")
    expect(function() gb.random.number(0, 1, 2) end):to_fail("too many")
    expect(function() gb.random.integer(2, 1) end):to_fail("below low")
    expect(function() gb.random.integer(5) end):to_fail("high")
    expect(function() gb.random.integer(1.5, 2) end):to_fail("low")
    expect(function() gb.random.shuffle("abc") end):to_fail("list")
    expect(function() gb.random.shufle {} end):to_fail("shuffle")
    expect(function() gb.random.fork() end):to_fail("fn")
  end)
end)

describe("integers", function()
  it("randint covers its range evenly", function()
    gb.manual_seed(2)
    local n = 100000
    local x = gb.randint(-3, 4, { n })
    expect(x.dtype):to_be("int64")
    expect(x:amin():item()):to_be(-3)
    expect(x:amax():item()):to_be(3)
    for value = -3, 3 do about(x:eq(value):to("float64"):mean():item(), 1 / 7, math.sqrt(6 / 49 / n)) end
    expect(gb.randint(5, { 10 }):lt(5):all():item()):to_be(true)
    expect(gb.randint(1, { 10 }):sum():item()):to_be(0)
    local wide = gb.randint(math.mininteger, math.maxinteger, { 1000 })
    about(wide:gt(0):to("float64"):mean():item(), 0.5, math.sqrt(0.25 / 1000))
    expect(function() gb.randint(0, { 3 }) end):to_fail("rand")
    expect(function() gb.randint(5, 5, { 3 }) end):to_fail("rand")
    expect(function() gb.randint(5, 3, { 3 }) end):to_fail("rand")
    expect(function() gb.randint(5) end):to_fail("randint")
    expect(gb.randint(10, { 2, 3 }, { dtype = "uint8" }).dtype):to_be("uint8")
  end)
  it("randperm holds every number once", function()
    for _, n in ipairs { 0, 1, 2, 1000 } do
      local p = gb.randperm(n)
      expect(p):to_have_shape(n)
      expect((p:sort())):to_be_close(gb.arange(n))
    end
    local first = 0
    for _ = 1, 600 do first = first + (gb.randperm(3)[1]:item() == 0 and 1 or 0) end
    about(first / 600, 1 / 3, math.sqrt(2 / 9 / 600))
    expect(function() gb.randperm(-1) end):to_fail("negative")
  end)
end)

describe("bernoulli and multinomial", function()
  it("bernoulli draws ones with each element's probability", function()
    gb.manual_seed(8)
    local n = 50000
    local p = gb.tensor { 0.0, 0.2, 0.7, 1.0 }
    local x = gb.bernoulli(p:expand(n, 4))
    expect(x.dtype):to_be("float32")
    local mean = x:mean(1)
    expect(mean[1]:item()):to_be(0.0)
    expect(mean[4]:item()):to_be(1.0)
    about(mean[2]:item(), 0.2, math.sqrt(0.16 / n))
    about(mean[3]:item(), 0.7, math.sqrt(0.21 / n))
    expect(x:eq(0):logical_or(x:eq(1)):all():item()):to_be(true)
    expect(function() gb.tensor({ 1.5 }):bernoulli() end):to_fail("bernoulli")
    expect(function() gb.tensor({ -0.1 }):bernoulli() end):to_fail("bernoulli")
    expect(function() gb.tensor({ 0 / 0 }):bernoulli() end):to_fail("bernoulli")
    expect(function() gb.tensor({ 1 }):bernoulli() end):to_fail("bernoulli")
  end)
  it("multinomial draws by weight, with replacement", function()
    local n = 60000
    local x = gb.tensor({ 1.0, 0.0, 3.0, 6.0 }):multinomial(n, { replacement = true })
    expect(x.dtype):to_be("int64")
    expect(x):to_have_shape(n)
    for value, share in pairs { [0] = 0.1, [1] = 0.0, [2] = 0.3, [3] = 0.6 } do
      about(x:eq(value):to("float64"):mean():item(), share, math.sqrt(share * (1 - share) / n))
    end
  end)
  it("and without: none twice, weights still count", function()
    local weights = gb.tensor { { 1.0, 2.0, 3.0, 4.0 }, { 0.0, 5.0, 0.0, 1.0 } }
    local firsts = 0
    for _ = 1, 500 do
      local x = weights:multinomial(2)
      expect(x):to_have_shape(2, 2)
      expect(x[1][1]:item() ~= x[1][2]:item()):to_be(true)
      expect((x[2]:sort())):to_be_close({ 1, 3 })
      firsts = firsts + (x[1][1]:item() == 3 and 1 or 0)
    end
    about(firsts / 500, 0.4, math.sqrt(0.24 / 500))
    expect(weights[1]:multinomial(4):sort()):to_be_close({ 0, 1, 2, 3 })
    expect(function() weights[2]:multinomial(3) end):to_fail("multinomial")
    expect(function() weights[1]:multinomial(5) end):to_fail("multinomial")
    expect(function() weights[1]:multinomial(0) end):to_fail("multinomial")
    expect(function() gb.zeros(3):multinomial(1) end):to_fail("multinomial")
    expect(function() gb.tensor({ -1.0, 2.0 }):multinomial(1) end):to_fail("multinomial")
    expect(function() gb.tensor({ 0 / 0, 2.0 }):multinomial(1) end):to_fail("multinomial")
    expect(function() gb.ones(2, 2, 2):multinomial(1) end):to_fail("multinomial")
  end)
end)

describe("dropout", function()
  it("drops the rate it says and scales the rest, so that the mean stays", function()
    gb.manual_seed(21)
    local n = 100000
    for _, p in ipairs { 0.1, 0.5, 0.9 } do
      local y = F.dropout(gb.ones(n), p)
      about(y:eq(0):to("float64"):mean():item(), p, math.sqrt(p * (1 - p) / n))
      expect(y:amax():item()):to_be_near(1 / (1 - p), 1e-6)
      about(y:mean():item(), 1, math.sqrt(p / (1 - p) / n))
    end
  end)
  it("backward drops the same elements", function()
    for _, dtype in ipairs { "float32", "float64", "float16", "bfloat16" } do
      local x = gb.ones(1000, { dtype = dtype, requires_grad = true })
      local y = F.dropout(x, 0.3)
      gb.rand(10) -- the stream goes on in between
      y:sum():backward()
      expect(x.grad):to_equal_bits(y:detach())
    end
    local x = gb.ones(30, 40):t():requires_grad_()
    local y = F.dropout(x, 0.3)
    y:sum():backward()
    expect(x.grad):to_be_close(y:detach(), 0)
  end)
  it("does nothing when not training, at rate 0, and everything at rate 1", function()
    local x = gb.randn(50)
    expect(F.dropout(x, 0.5, false)):to_be_close(x, 0)
    expect(F.dropout(x, 0)):to_be_close(x, 0)
    expect(F.dropout(x, 1):abs():sum():item()):to_be(0.0)
    for _, p in ipairs { -0.1, 1.1, 0 / 0 } do expect(function() F.dropout(x, p) end):to_fail("dropout") end
  end)
end)

describe("draws in the shape of a tensor", function()
  it("random_integers_ gives every integer of its range, and no other", function()
    for _, dtype in ipairs { "int64", "uint8", "float32" } do
      local y = gb.zeros(2000, { dtype = dtype }):random_integers_(3, 8)
      expect(y:amin():item() == 3 and y:amax():item() == 7):to_be(true)
      expect(y:unique():numel()):to_be(5)
    end
    expect(function() gb.zeros(2):random_integers_(3, 3) end):to_fail("random_integers")
  end)
  it("rand_like and randn_like have its shape and dtype, and the numbers of rand and randn", function()
    local x = gb.zeros(3, 5, { dtype = "float64" })
    for like, plain in pairs { rand_like = "rand", randn_like = "randn" } do
      gb.manual_seed(4)
      local y = gb[like](x)
      gb.manual_seed(4)
      expect(y):to_equal_bits(gb[plain](3, 5, { dtype = "float64" }))
    end
  end)
end)

gb.test.finish()
