-- test_arrange.lua - ops made of other ops: what golden cases do not show. Integers beyond 2^53, equal elements, NaN,
-- memory that is shared, and wrong calls.

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect

local NAN = 0 / 0
local BIG = (1 << 53) + 1

local function list_of(t) return t:reshape(-1):tolist() end

local function expect_elements(t, list)
  local got = list_of(t)
  expect(#got):to_be(#list)
  for i, v in ipairs(list) do
    if v ~= v then expect(got[i] ~= got[i]):to_be(true) else expect(got[i]):to_be(v) end
  end
end

describe("integers beyond 2^53", function()
  local x = gb.tensor { BIG, BIG - 1, BIG + 1, BIG }
  it("keep their bits", function()
    expect_elements(x:unique(), { BIG - 1, BIG, BIG + 1 })
    expect_elements(x:unique_consecutive(), { BIG, BIG - 1, BIG + 1, BIG })
    expect_elements(gb.isin(x, BIG), { true, false, false, true })
    expect_elements(gb.searchsorted(gb.tensor { BIG - 1, BIG, BIG + 1 }, BIG), { 1 })
    expect_elements(gb.bucketize(BIG, gb.tensor { BIG - 1, BIG, BIG + 1 }, { right = true }), { 2 })
    expect_elements(x:median(), { BIG })
    expect_elements(x:scatter(1, gb.tensor { 3, 0 }, gb.tensor { BIG + 7, BIG + 9 }),
      { BIG + 9, BIG - 1, BIG + 1, BIG + 7 })
    expect_elements(gb.einsum("i,i->i", x, gb.tensor { 1, 1, 1, 1 }), { BIG, BIG - 1, BIG + 1, BIG })
  end)
end)

describe("equal elements", function()
  it("keep their order where indices are asked for", function()
    expect_elements(gb.tensor({ 2, 1, 2, 1 }):argsort(), { 1, 3, 0, 2 })
    expect_elements(gb.tensor({ 2, 1, 2, 1 }):argsort({ descending = true }), { 0, 2, 1, 3 })
  end)
  it("among indices: the last one wins", function()
    expect_elements(gb.zeros(3):scatter(1, gb.tensor { 1, 1 }, gb.tensor { 5.0, 7.0 }), { 0, 7, 0 })
    expect_elements(gb.zeros(3):index_copy(1, gb.tensor { 1, 1 }, gb.tensor { 5.0, 7.0 }), { 0, 7, 0 })
  end)
  it("lie between both sides of their places", function()
    local line = gb.tensor { 1.0, 2.0, 2.0, 3.0 }
    expect_elements(gb.searchsorted(line, gb.tensor { 0, 2, 3, 4 }), { 0, 1, 3, 4 })
    expect_elements(gb.searchsorted(line, gb.tensor { 0, 2, 3, 4 }, { right = true }), { 0, 3, 4, 4 })
  end)
end)

describe("NaN", function()
  local x = gb.tensor { 3, NAN, 1, 2 }
  it("spreads, but where it is passed over", function()
    expect_elements(x:median(), { NAN })
    local value, index = x:median(1)
    expect_elements(value, { NAN })
    expect_elements(index, { 1 })
    expect_elements(x:nanmedian(), { 2 })
    expect_elements(x:quantile(0.5), { NAN })
    expect_elements(x:nanquantile(0.5), { 2 })
    expect_elements(x:nansum(), { 6 })
    expect_elements(x:nanmean(), { 2 })
    expect_elements(gb.tensor({ NAN, NAN }):nanmedian(), { NAN })
    expect_elements(gb.tensor({ NAN, NAN }):nanquantile(0.5), { NAN })
  end)
  it("is equal to nothing", function()
    expect_elements(gb.isin(x, gb.tensor { NAN, 1 }), { false, false, true, false })
    expect(#list_of(gb.tensor({ NAN, NAN }):unique())):to_be(2)
  end)
end)

describe("memory", function()
  it("is shared by views and by nothing else", function()
    local x = gb.zeros(2, 2)
    for _, view in ipairs { x:movedim(1, 2), x:swapaxes(1, 2), x:broadcast_to(1, 2, 2), gb.atleast_1d(x),
      gb.atleast_3d(x) } do
      view:fill_(1)
      expect(x:sum():item()):to_be(4)
      x:fill_(0)
    end
    for _, copy in ipairs { x:roll(0), x:roll(0, 1), x:rot90(0), x:rot90(4), x:diff(0), x:diag(), gb.hstack { x } } do
      copy:fill_(1)
      expect(x:sum():item()):to_be(0)
    end
  end)
end)

describe("empty tensors", function()
  it("have no order and no counts", function()
    local x = gb.zeros(0)
    expect_elements(x:unique(), {})
    expect_elements(gb.bincount(x:long()), {})
    expect_elements(gb.bincount(x:long(), { minlength = 2 }), { 0, 0 })
    expect_elements(x:histc(2), { 0, 0 })
    expect_elements(gb.isin(gb.tensor { 1.0 }, x), { false })
    expect_elements(gb.searchsorted(x, gb.tensor { 1.0 }), { 0 })
    expect_elements(x:median(), { NAN })
    expect_elements(x:diag_embed(1), { 0 })
  end)
end)

describe("a wrong call", function()
  local x, index = gb.zeros(2, 3), gb.tensor { { 0 } }
  local calls = {
    ["they must be as many"] = function() return x:movedim({ 1, 2 }, 1) end,
    ["named twice"] = function() return x:movedim({ 1, 1 }, { 1, 2 }) end,
    ["give one for each"] = function() return x:roll({ 1, 2 }) end,
    ["it turns two"] = function() return x:rot90(1, { 1 }) end,
    ["nowhere to turn|at least 2|dimension"] = function() return gb.zeros(2):fliplr() end,
    ["needs two different ones"] = function() return x:diag_embed(0, 1, 1) end,
    ["along dimension 2"] = function() return gb.trapezoid(x, gb.zeros(4)) end,
    ["broadcast in all but dimension 1"] = function() return x:take_along_dim(gb.tensor { { 0, 1 } }, 1) end,
    ["a slice along dimension 1"] = function() return x:index_copy(1, gb.tensor { 0 }, gb.zeros(2, 3)) end,
    ["without dimension 1"] = function() return x:select_scatter(gb.zeros(2), 1, 1) end,
    ["none of them larger"] = function() return x:scatter(1, index, gb.zeros(1)) end,
    ["out of range 0 .. 1"] = function() return x:scatter(1, index + 2, 1) end,
    ["k is 4"] = function() return x:kthvalue(4) end,
    ["must lie in 0 .. 1"] = function() return x:quantile(1.5) end,
    ["there are no elements"] = function() return gb.zeros(2, 0):median(2) end,
    ["alike in all dimensions but the last"] = function() return gb.searchsorted(x, gb.zeros(3, 3)) end,
    ["it counts integers from 0"] = function() return gb.bincount(gb.tensor { -1 }) end,
    ["one for each of x"] = function() return gb.bincount(gb.tensor { 1 }, gb.zeros(2)) end,
    ["is empty or not finite"] = function() return x:histc(4, 2, 1) end,
    ["must have size 3 in both"] = function() return gb.cross(gb.zeros(2, 2), gb.zeros(2, 2)) end,
    ["dimensions that meet"] = function() return gb.tensordot(x, x, 1) end,
    ["belong together"] = function() return gb.tensordot(x, x, { x_dims = 1 }) end,
    ["does not broadcast to the shape of the product"] = function() return gb.addmv(gb.zeros(3), x, gb.zeros(3)) end,
    ["has room for 4 dimensions"] = function() return gb.kron(gb.zeros(1, 1, 1, 1, 1), x) end,
  }
  for text, call in pairs(calls) do
    it("says: " .. text, function()
      local ok, message = pcall(call)
      expect(ok):to_be(false)
      local said = false
      for part in text:gmatch("[^|]+") do said = said or tostring(message):find(part, 1, true) ~= nil end
      if not said then error(message, 0) end
    end)
  end
end)

describe("einsum", function()
  it("of seven shared dimensions and one that is summed", function()
    local x, y = gb.randn(2, 1, 2, 1, 2, 1, 2, 3), gb.randn(2, 1, 2, 1, 2, 1, 2, 3)
    local z = gb.einsum("abcdefgi,gbcdefai->gbcdefa", x, y)
    expect(z):to_be_close((x:transpose(1, 7) * y):sum(-1), 1e-5)
  end)
end)

describe("a wrong equation", function()
  local x = gb.zeros(2, 3)
  local equations = {
    { "ij,jk->ik", { x }, "more operands" }, { "ij", { x, x }, "fewer operands" },
      { "ijk", { x }, "3 labels for a tensor of 2" },
    { "ij->ik", { x }, "'k', which no operand has" }, { "ij->ii", { x }, "names a label twice" },
      { "i1", { x }, "has '1'" },
    { "ij->ij->", { x }, "goes on" }, { "ij-i", { x }, "lone '-'" }, { "ii", { x }, "sizes 2 and 3" },
    { "ij,ij->ij", { x, x:t() }, "sizes 3 and 2" }, { "...ijk", { x }, "3 labels" }, { "i..j", { x }, "has '.'" },
    { "abcdefghi", { x }, "more than 8 labels" }, { "", { x }, "0 labels" },
  }
  for _, row in ipairs(equations) do
    it("'" .. row[1] .. "' is refused", function()
      expect(function() gb.einsum(row[1], row[2]) end):to_fail(row[3])
    end)
  end
end)

gb.test.finish()
