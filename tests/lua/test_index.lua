-- test_index.lua - every form of t[key] and t[key] = value: positions from 1 and from the end, ranges, all, masks,
-- integer tensors; errors in Lua's counting. Random keys are checked against a plain walk over nested lists.

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect

local function expect_list(t, list)
  expect(gb.io.json_encode(gb.is_tensor(t) and t:tolist() or t)):to_be(gb.io.json_encode(list))
end

local function fresh() return gb.arange(24):reshape(2, 3, 4) end

describe("reading", function()
  local x = fresh()
  it("a position selects, from either end", function()
    expect_list(x[1], { { 0, 1, 2, 3 }, { 4, 5, 6, 7 }, { 8, 9, 10, 11 } })
    expect_list(x[-1][-1], { 20, 21, 22, 23 })
    expect(x[2][3][4]:item()):to_be(23)
    expect(x[2][3][4].ndim):to_be(0)
    expect(x[2.0]:numel()):to_be(12)
    expect_list(x[{ 2, 1 }], { 12, 13, 14, 15 })
    expect(x[{ 2, -1, -1 }]:item()):to_be(23)
    expect_list(x[{ 1 }], x[1]:tolist())
  end)
  it("ranges are inclusive, {} is all, a step strides", function()
    expect_list(x[{ 1, { 2, 3 }, { 1, 2 } }], { { 4, 5 }, { 8, 9 } })
    expect_list(x[{ {}, 1, {} }], { { 0, 1, 2, 3 }, { 12, 13, 14, 15 } })
    expect_list(x[{ {}, 2, 3 }], { 6, 18 })
    expect_list(x[{ 1, 1, { -2, -1 } }], { 2, 3 })
    expect_list(x[{ 1, 1, { 1, -1, 2 } }], { 0, 2 })
    expect_list(x[{ 1, 1, { 2, 4, 2 } }], { 1, 3 })
    expect(x[{ {}, {}, { 2 } }]):to_have_shape(2, 3, 1) -- {a} is a range of one
    expect(x[{ {}, { 2, 1 } }]):to_have_shape(2, 0, 4) -- one that ends just before it starts is empty
    expect(x[{ {}, { 4, 3 } }]):to_have_shape(2, 0, 4)
    expect(x[{}]):to_have_shape(2, 3, 4)
  end)
  it("views, not copies", function()
    local y = fresh()
    y[{ {}, { 1, 2 } }]:fill_(0)
    expect(y:sum():item()):to_be(8 + 9 + 10 + 11 + 20 + 21 + 22 + 23)
  end)
  it("a mask picks elements, or slices of the first dimensions", function()
    expect_list(x[x:gt(20)], { 21, 22, 23 })
    expect_list(x[gb.tensor { false, true }], { x[2]:tolist() })
    local mask = gb.tensor { { true, false, false }, { false, false, true } }
    expect_list(x[mask], { { 0, 1, 2, 3 }, { 20, 21, 22, 23 } })
    expect_list(x[{ 2, gb.tensor { true, false, true }, { 1, 2 } }], { { 12, 13 }, { 20, 21 } })
    expect(x[x:lt(0)]):to_have_shape(0)
  end)
  it("an integer tensor picks by numbers from 0", function()
    expect_list(x[gb.tensor { 1 }], { x[2]:tolist() })
    expect_list(x[{ 1, gb.tensor { 2, 0 }, 1 }], { 8, 0 })
    expect_list(x[{ 1, {}, gb.tensor { { 0, 1 }, { 2, 3 } } }][1], { { 0, 1 }, { 2, 3 } })
    expect_list(x[{ 1, 1, gb.tensor(3) }], 3)
    expect_list(gb.arange(5)[gb.tensor { 4, 4, 0 }], { 4, 4, 0 })
    expect_list(gb.arange(5)[gb.tensor({ 1, 2 }, { dtype = "int32" })], { 1, 2 })
    expect(gb.arange(5)[gb.zeros(0, { dtype = "int64" })]):to_have_shape(0)
  end)
end)

describe("assignment", function()
  local function assigned(key, value)
    local x = fresh()
    x[key] = value
    return x
  end
  it("of a number", function()
    expect(assigned(1, 0):sum():item()):to_be(210)
    expect(assigned({ 2, 3, 4 }, 100)[{ 2, 3, 4 }]:item()):to_be(100)
    expect(assigned({ {}, { 1, -1, 2 }, {} }, 0):sum():item()):to_be(92)
    expect(assigned({}, 1):sum():item()):to_be(24)
    expect(assigned({ {}, { 2, 1 } }, 7):sum():item()):to_be(276)
  end)
  it("of a tensor, a list, a boolean", function()
    expect_list(assigned({ 1, 1 }, gb.tensor { 9, 8, 7, 6 })[{ 1, 1 }], { 9, 8, 7, 6 })
    expect_list(assigned({ 1, 1 }, { 9, 8, 7, 6 })[{ 1, 1 }], { 9, 8, 7, 6 })
    expect_list(assigned({ 1, {}, 1 }, gb.tensor(5))[{ 1, {}, 1 }], { 5, 5, 5 })
    expect_list(assigned({ 1 }, gb.tensor { { 1 }, { 2 }, { 3 } })[{ 1, {}, 4 }], { 1, 2, 3 }) -- broadcast
    local flags = gb.zeros(3):bool()
    flags[2] = true
    expect_list(flags, { false, true, false })
  end)
  it("converts to the tensor's dtype", function()
    local x = gb.zeros(2, { dtype = "float16" })
    x[1] = gb.tensor(2049)
    expect(x[1]:item()):to_be(2048.0)
    expect(x.dtype):to_be("float16")
  end)
  it("through a mask", function()
    local x = fresh()
    x[x:gt(20)] = 0
    expect(x:sum():item()):to_be(276 - 66)
    x[gb.tensor { false, true }] = 1
    expect(x[2]:sum():item()):to_be(12)
    local y = gb.zeros(2, 3)
    y[gb.tensor { { true, false, true }, { false, true, false } }] = gb.tensor { 1.0, 2.0, 3.0 }
    expect_list(y, { { 1.0, 0.0, 2.0 }, { 0.0, 3.0, 0.0 } })
  end)
  it("through integers; the last of equal ones wins", function()
    local x = gb.zeros(4, { dtype = "int64" })
    x[gb.tensor { 1, 3, 1 }] = gb.tensor { 5, 6, 7 }
    expect_list(x, { 0, 7, 0, 6 })
    local y = gb.zeros(2, 3, { dtype = "int64" })
    y[{ {}, gb.tensor { 2, 0 } }] = gb.tensor { { 1, 2 }, { 3, 4 } }
    expect_list(y, { { 2, 0, 1 }, { 4, 0, 3 } })
    y[{ {}, gb.tensor { 1 } }] = 9
    expect_list(y, { { 2, 9, 1 }, { 4, 9, 3 } })
    y[gb.tensor { 0 }] = { 7, 7, 7 }
    expect_list(y[1], { 7, 7, 7 })
  end)
  it("from an overlapping part of itself", function()
    local x = gb.arange(6)
    x[{ { 2, 6 } }] = x[{ { 1, 5 } }]
    expect_list(x, { 0, 0, 1, 2, 3, 4 })
  end)
  it("reaches the gradient", function()
    local x = gb.tensor({ 1.0, 2.0, 3.0 }, { requires_grad = true })
    local y = x * 1
    y[2] = 10
    (y * y):sum():backward()
    expect_list(x.grad, { 2.0, 0.0, 6.0 })
    local a, b = gb.ones(3, { requires_grad = true }), gb.full({ 2 }, 3.0, { requires_grad = true })
    local z = a * 2
    z[{ { 1, 2 } }] = b
    z:square():sum():backward()
    expect_list(a.grad, { 0.0, 0.0, 8.0 })
    expect_list(b.grad, { 6.0, 6.0 })
    local c = gb.ones(4, { requires_grad = true })
    local w = c * 1
    w[gb.tensor { 0, 3 }] = 0
    w:sum():backward()
    expect_list(c.grad, { 0.0, 1.0, 1.0, 0.0 })
    local d = gb.ones(4, { requires_grad = true })
    d[gb.tensor { 1, 1 }]:sum():backward()
    expect_list(d.grad, { 0.0, 2.0, 0.0, 0.0 })
  end)
end)

describe("errors, in Lua's counting", function()
  local x = fresh()
  local function fails(key, ...)
    for _, text in ipairs { ... } do
      expect(function() return x[key] end):to_fail(text)
      expect(function() x[key] = 1 end):to_fail(text)
    end
  end
  it("positions", function()
    fails(0, "position 0", "count from 1")
    fails(3, "position 3", "size 2", "1 .. 2")
    fails(-3, "-3")
    fails({ 1, 4 }, "position 4", "dimension 2", "size 3")
    fails({ 1, 1, 1, 1 }, "more items")
    fails(1.5, "number")
  end)
  it("ranges", function()
    fails({ {}, { 0, 2 } }, "position 0")
    fails({ {}, { 1, 4 } }, "position 4", "dimension 2")
    fails({ {}, { 3, 1 } }, "ends before it starts")
    fails({ {}, { 1, 3, 0 } }, "step")
    fails({ {}, { 3, 1, -1 } }, "flip")
    fails({ {}, { 1, 2, 1, 1 } }, "range")
    fails({ {}, { "a", 2 } }, "first")
  end)
  it("keys that are none", function()
    fails({ "a" }, "item 1", "string")
    fails({ 1, true }, "item 2", "boolean")
    fails(true, "boolean")
    fails(print, "function")
    expect(function() return x[nil] end):to_fail("nil")
    expect(function() return x["1"] end):to_fail("'1'")
  end)
  it("tensors as keys", function()
    fails(gb.ones(2), "float32")
    fails(gb.tensor { 2 }, "0 .. 1")
    fails(gb.tensor { -1 }, "-1")
    fails(gb.tensor { true }, "mask", "1")
    fails({ gb.tensor { 0 }, gb.tensor { 99 } }, "out of range")
    fails({ gb.tensor { -1 }, gb.tensor { 0 } }, "out of range")
    fails({ gb.tensor { 0, 1 }, gb.tensor { 0, 1, 1 } }, "shapes 2 and 3, which do not broadcast")
    fails({ gb.tensor { 0 }, gb.tensor { 0.5 } }, "tensor 2 of the index is float32")
    expect(function() return gb.tensor(1)[1] end):to_fail("item()")
  end)
  it("values", function()
    expect(function() x[1] = "a" end):to_fail("string")
    expect(function() x[1] = nil end):to_fail("nil")
    expect(function() x[1] = gb.ones(5) end):to_fail("5")
    expect(function() x[1] = { 1, 2, 3, { 4 } } end):to_fail("tensor")
    expect(function() x[x:gt(20)] = gb.tensor { 1, 2 } end):to_fail("2")
    expect(function() gb.ones(2, { requires_grad = true })[1] = 0 end):to_fail("no_grad")
  end)
  it("leave the tensor as it was", function() expect(x:sum():item()):to_be(276) end)
end)

describe("against nested lists", function()
  -- Follow a key of positions and ranges through nested lists.
  local function follow(list, key, i)
    local item = key[i]
    if item == nil then return list end
    if type(item) == "number" then return follow(list[item > 0 and item or #list + 1 + item], key, i + 1) end
    local from, to, step = item[1] or 1, item[2] or item[1] or #list, item[3] or 1
    if from < 0 then from = #list + 1 + from end
    if to < 0 then to = #list + 1 + to end
    local out = {}
    for k = from, to, step do out[#out + 1] = follow(list[k], key, i + 1) end
    return out
  end
  it("for random keys", function()
    math.randomseed(3)
    local x = gb.arange(5 * 4 * 6):reshape(5, 4, 6)
    local list, sizes = x:tolist(), { 5, 4, 6 }
    for _ = 1, 300 do
      local key = {}
      for d = 1, math.random(1, 3) do
        local kind, n = math.random(4), sizes[d]
        local a, b = math.random(n), math.random(n)
        if a > b then a, b = b, a end
        if kind == 1 then key[d] = a
        elseif kind == 2 then key[d] = -a
        elseif kind == 3 then key[d] = {}
        else key[d] = { math.random(2) == 1 and a or a - n - 1, b, math.random(3) } end
      end
      expect_list(x[key], follow(list, key, 1))
    end
  end)
end)

-- An index may lie anyhow, be of any integer dtype, and show its elements many times; lines are longer than a tile.
describe("gather and scatter_add", function()
  local function by_hand(x, index)
    local y, list = gb.zeros(index.shape):tolist(), x:tolist()
    for i, row in ipairs(index:tolist()) do
      for j, at in ipairs(row) do y[i][j] = list[i][at + 1] end
    end
    return gb.tensor(y)
  end
  gb.manual_seed(5)
  local x, line = gb.randint(-99, 99, { 3, 50 }):float(), gb.randint(0, 50, { 1, 2100 })
  local other = gb.randint(0, 50, { 3, 2100 })
  local apart = gb.stack({ other, other }, 3):select(3, 1)
  local indices = { line:expand(3, 2100), other, other:t():contiguous():t(), apart }
  for k, index in ipairs(indices) do
    for _, dtype in ipairs { "int64", "int32", "uint8" } do
      it(("read index %d as %s"):format(k, dtype), function()
        local given = dtype == "int64" and index or index:to(dtype)
        for _, type in ipairs { "float32", "float64", "bfloat16", "int64", "int8" } do
          expect(x:to(type):gather(2, given):float()):to_equal_bits(by_hand(x, index))
        end
        local source, sums = gb.randint(-9, 9, { 3, 2100 }):float(), x:tolist()
        local list, places = source:tolist(), index:tolist()
        for i = 1, 3 do
          for j = 1, 2100 do sums[i][places[i][j] + 1] = sums[i][places[i][j] + 1] + list[i][j] end
        end
        local turned = source:t():contiguous():t()
        for _, type in ipairs { "float32", "float64", "int64" } do
          local y = x:to(type):scatter_add(2, given, source:to(type))
          expect(y:float()):to_equal_bits(gb.tensor(sums))
          expect(x:to(type):scatter_add(2, given, turned:to(type))):to_equal_bits(y)
        end
      end)
    end
  end
  it("find a bad element of an index that shows it many times", function()
    local index = gb.tensor({ { 3, 50 } }, { dtype = "int64" }):expand(3, 2)
    expect(function() x:gather(2, index) end):to_fail("index 50 is out of range")
    expect(function() x:scatter_add(2, index, gb.ones(3, 2)) end):to_fail("index 50 is out of range")
  end)
end)

describe("tensors without dimensions in a key", function()
  it("are selections beside other tensors, and pick alone", function()
    local x = gb.arange(24):view(2, 3, 4)
    for _, dtype in ipairs { "int64", "uint8" } do
      local one, list = gb.tensor(1, { dtype = dtype }), gb.tensor({ 0, 3 }, { dtype = dtype })
      expect(x[{ one, {}, list }]):to_equal_bits(x[2]:index_select(2, list))
      expect(x[{ one, one, list }]):to_equal_bits(x[{ 2, 2 }]:index_select(1, list))
      expect(x[{ one }]):to_equal_bits(x[2])
      local y = x:clone()
      y[{ one, {}, list }] = gb.zeros(3, 2):long()
      expect(y:sum():item()):to_be(276 - (12 + 15 + 16 + 19 + 20 + 23))
    end
    local two = gb.tensor(2, { dtype = "int64" })
    expect(function() return x[{ two, two }] end):to_fail("index 2 of item 1 is out of range")
    expect(function() return x[{ gb.tensor(-1, { dtype = "int64" }), two }] end):to_fail("index -1 of item 1")
  end)
  it("are no masks, however many", function()
    local x, key = gb.zeros(2, 3), {}
    for n = 1, 40 do
      key[n] = gb.tensor(true)
      expect(function() return x[key] end):to_fail("a mask covers one or more")
      expect(function() x[key] = 1 end):to_fail("a mask covers one or more")
    end
    for n = 1, 40 do key[n] = gb.tensor({ 0 }, { dtype = "int64" }) end
    expect(function() return x[key] end):to_fail("more items than the tensor has dimensions")
    local deep = gb.zeros(1, 1, 1, 1, 1, 1, 1, 1)
    expect(function() return deep[key] end):to_fail("item 9")
  end)
end)

-- Short lists of gradients are summed in registers where rows are whole vectors; other widths, dtypes and long lists go
-- by tiles.
describe("gradients of embeddings", function()
  local F = gb.nn.functional
  it("are sums of float64, rounded", function()
    gb.manual_seed(3)
    for _, dtype in ipairs { "float64", "float32", "bfloat16", "float16" } do
      for _, width in ipairs { 1, 8, 16, 32, 33, 64, 96, 128, 160, 224, 1024, 1056 } do
        local index = gb.randint(0, 23, { 40, 3 })
        index[{ { 1, 20 }, 1 }] = 5 -- more than a block of it
        local weight, up = gb.randn(30, width):to(dtype), gb.randn(40, width):to(dtype)
        local wide = weight:double()
        weight:requires_grad_()
        wide:requires_grad_()
        F.embedding_bag(index, weight, nil, { mode = "sum" }):backward(up)
        F.embedding_bag(index, wide, nil, { mode = "sum" }):backward(up:double())
        local close = ({ float64 = 1e-14, float32 = 1e-6, bfloat16 = 2 ^ -8, float16 = 2 ^ -11 })[dtype]
        local most = wide.grad:abs():max():item()
        expect((weight.grad:double() - wide.grad):abs():max():item() <= close * most):to_be(true)
        expect(weight.grad[{ { 24, 30 }, {} }]:abs():sum():item()):to_be(0.0)
        weight.grad, wide.grad = nil, nil
        local each = gb.randn(40, 3, width):to(dtype)
        F.embedding(index, weight, { padding_idx = 5 }):backward(each)
        F.embedding(index, wide, { padding_idx = 5 }):backward(each:double())
        most = wide.grad:abs():max():item()
        expect((weight.grad:double() - wide.grad):abs():max():item() <= close * most):to_be(true)
        expect(weight.grad[6]:abs():sum():item()):to_be(0.0)
      end
    end
  end)
  it("have the same bits for any number of threads", function()
    local before, index, up = gb.get_num_threads(), gb.randint(0, 5000, { 700, 9 }), gb.randn(700, 9, 96)
    for _, dtype in ipairs { "float32", "bfloat16" } do
      local made = {}
      for i, threads in ipairs { 1, 3 } do
        gb.set_num_threads(threads)
        local weight = gb.zeros(5000, 96, { dtype = dtype }):requires_grad_()
        F.embedding(index, weight):backward(up:to(dtype))
        made[i] = weight.grad
      end
      gb.set_num_threads(before)
      expect(made[1]):to_equal_bits(made[2])
    end
  end)
end)

gb.test.finish()
