-- test_norm_rows.lua - batch_norm and group_norm of rows of channels that lie end to end, which the CPU works on in
-- registers, against float64, which it does not: channels that fill a line alone or only together, that leave rests of
-- lines and of chunks, or make no line; a mean far from 0; a ReLU and a residual behind; and any number of threads.

local gb = require "gibbous"
local F = gb.nn.functional
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect

local function last(x) return x:permute({ 1, 3, 4, 2 }):contiguous():permute({ 1, 4, 2, 3 }) end

-- In units of the largest value: of results, and of gradients, which a mean of 10 costs a few bits.
local room = { float32 = 2e-6, float16 = 2 ^ -10, bfloat16 = 2 ^ -7 }
local sizes = {
  { 1, 1, 5, 7 }, { 2, 3, 41, 37 }, { 3, 8, 9, 5 }, { 129, 16, 7, 9 }, { 1, 24, 11, 13 }, { 5, 32, 33, 31 },
  { 2, 48, 21, 17 }, { 130, 64, 7, 5 }, { 2, 100, 5, 9 }, { 3, 128, 16, 16 }, { 1, 256, 40, 40 }, { 2, 512, 9, 9 },
}

local function far(got, want)
  return ((got:double() - want):abs():max() / (want:abs():max() + 1e-30)):item()
end

-- f(x, residual, weight, bias) in a dtype, and its gradients.
local function run(from, kind, up, f)
  local leaves = {}
  for i, t in ipairs(from) do
    leaves[i] = (kind == "float64" or i <= 2) and t:to(kind) or t:float()
    leaves[i] = leaves[i]:detach():requires_grad_()
  end
  local y = f(table.unpack(leaves))
  return { y, table.unpack(gb.grad(y, leaves, { grad_outputs = up:to(kind), allow_unused = true })) }
end

describe("norms of rows of channels", function()
  for dtype, most in pairs(room) do
    it("agree with float64 in " .. dtype, function()
      for _, size in ipairs(sizes) do
        gb.manual_seed(3)
        local c = size[2]
        local function images() return last(gb.randn(size):to(dtype)):detach() end
        local from = { last((gb.randn(size) * 2 + 10):to(dtype)):detach(), images(), gb.rand(c) + 0.5, gb.randn(c) }
        local up = images()
        for _, how in ipairs { "plain", "relu", "added", "groups" } do
          local function f(x, more, weight, bias)
            if how == "groups" then return F.group_norm(x, c % 4 == 0 and 4 or 1, weight, bias) end
            local options = { training = true, activation = how ~= "plain" and "relu" or nil }
            return F.batch_norm(x, nil, nil, weight, bias, how == "added" and more or nil, options)
          end
          -- where rounding may move a result over 0 its gradient comes or goes
          local plain = run(from, "float64", up, function(x, more, weight, bias)
            local y = F.batch_norm(x, nil, nil, weight, bias, nil, { training = true })
            return how == "added" and y + more or y
          end)[1]
          local sure = plain:abs():gt(8 * most * plain:abs():max())
          local kept = last(gb.where(sure, up, gb.zeros_like(up))):detach()
          local want, got = run(from, "float64", kept, f), run(from, dtype, kept, f)
          for i = 1, 5 do
            if want[i] and got[i] then expect(far(got[i], want[i]) <= (i == 1 and 2 or 4) * most):to_be(true) end
          end
        end
      end
    end)
  end

  it("give the same bits for any number of threads", function()
    for dtype in pairs(room) do
      local x = last(gb.randn(40, 48, 31, 33):to(dtype)):requires_grad_()
      local threads, first = gb.get_num_threads(), nil
      for _, count in ipairs { 1, 2, 3, 7 } do
        gb.set_num_threads(count)
        local y = F.batch_norm(x, nil, nil, nil, nil, nil, { training = true, activation = "relu" })
        local dx = gb.grad(y:float():square():sum(), { x })[1]
        first = first or { y, dx }
        expect(y):to_equal_bits(first[1])
        expect(dx):to_equal_bits(first[2])
      end
      gb.set_num_threads(threads)
    end
  end)

  -- All of its bits set: rounding to 16 bits must not carry them into the sign.
  it("keep a NaN of any bits in what belongs to a channel", function()
    for _, bits in ipairs { 0xffffffff, 0x7fffffff } do
      local bad = gb.from_bytes(string.pack("<I4", bits):rep(32), "float32", { 32 })
      local ones, zeros = gb.ones(32), gb.zeros(32)
      for _, dtype in ipairs { "float32", "bfloat16", "float16" } do
        local x = gb.randn({ 2, 4, 4, 32 }, { dtype = dtype }):permute(1, 4, 2, 3):requires_grad_()
        local norms = {
          F.batch_norm(x, zeros:clone(), ones:clone(), ones, bad, { training = true }),
          F.batch_norm(x, zeros:clone(), ones:clone(), bad, zeros, { training = true, activation = "relu" }),
          F.batch_norm(x, bad:clone(), ones:clone(), ones, zeros), F.group_norm(x, 4, ones, bad),
        }
        for _, y in ipairs(norms) do expect(y:isnan():all():item()):to_be(true) end
        expect(gb.grad(norms[2], x, { grad_outputs = gb.ones_like(norms[2]) }):isnan():all():item()):to_be(true)
      end
    end
  end)
  it("keep NaN behind a ReLU, and have the gradient pass it", function()
    local x = last(gb.randn(2, 32, 4, 4))
    x[{ 1, 3, 2, 2 }] = 0 / 0
    x:requires_grad_()
    local y = F.batch_norm(x, nil, nil, nil, nil, nil, { training = true, activation = "relu" })
    expect(y:isnan():sum():item()):to_be(2 * 16)
    local dx = gb.grad(y, { x }, { grad_outputs = gb.ones_like(y) })[1]
    expect(dx:isnan():sum():item()):to_be(2 * 16)
  end)
end)

gb.test.finish()
