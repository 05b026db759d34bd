-- test_linear_loss.lua - linear_cross_entropy on the CUDA device against the CPU's: rows of logits that fit into shared
-- memory, that do not, and that begin anywhere in 16 bytes; and what it does where memory is short.

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
local F = gb.nn.functional
local expect_alike = dofile("tests/cuda_on_cpu/alike.lua")

describe("rows of logits", function()
  -- one warp, four rows to a block; a block of several warps; several tiles; more than shared memory holds
  for _, classes in ipairs { 1, 30, 513, 8193, 16390, 60001 } do
    for _, dtype in ipairs { "bfloat16", classes == 8193 and "float64" or "float32" } do
      it(("of %d classes, %s"):format(classes, dtype), function()
        gb.manual_seed(classes)
        local target = gb.randint(0, classes, { 3 })
        target[2] = -100
        expect_alike(dtype, function(x, w)
          return F.linear_cross_entropy(x, w, target:to(x.device), nil, { reduction = "sum" })
        end, gb.randn(3, 4):to(dtype), gb.randn(classes, 4):to(dtype))
      end)
    end
  end
  it("that are -infinity and NaN", function()
    local losses = {}
    for d, device in ipairs { "cpu", "cuda" } do
      local x = gb.tensor({ { 1.0, 0 }, { 0, 1.0 } }, { device = device })
      local w = gb.zeros({ 9000, 2 }, { device = device })
      w[3] = -math.huge
      w[{ 8500, 2 }] = 0 / 0
      losses[d] = F.linear_cross_entropy(x, w, gb.tensor({ 5, 6 }, { device = device }), nil, { reduction = "sum" })
    end
    expect(losses[1]:isnan():item()):to_be(true)
    expect(losses[2]:isnan():item()):to_be(true)
  end)
end)

describe("a chunk", function()
  -- The losses and the sizes of gradients of 512 rows of 8,000 classes, printed by a process with so much memory: the
  -- logits and their gradient take 16 MB.
  local script = [[
    local gb = require 'gibbous'
    gb.manual_seed(3)
    local function leaf(...) return gb.randn(...):to('cuda'):requires_grad_(true) end
    local x, w = leaf(512, 4), leaf(8000, 4)
    local target = gb.randint(0, 8000, { 512 }):to('cuda')
    for _ = 1, 2 do
      local loss = gb.nn.functional.linear_cross_entropy(x, w, target)
      loss:backward()
      print(('%.4f %.4f %.4f'):format(loss:item(), x.grad:norm():item(), w.grad:norm():item()))
    end ]]
  local function run(options)
    local command = ('GIBBOUS_CUDA_PIECE=0 "%s" %s -e "%s" 2>&1'):format(gb.test.program(), options, script)
    local pipe <close> = io.popen(command)
    return pipe:read("a")
  end
  it("has fewer rows where the device has no memory for all", function()
    local whole, short = run(""), run("--memory 12M")
    expect(whole:find("^[%d.]+ [%d.]+ [%d.]+\n") ~= nil):to_be(true)
    expect(short):to_be(whole)
  end)
  it("says so where there is not even room for a few", function()
    expect(run("--memory 3M"):find("out of memory", 1, true) ~= nil):to_be(true)
  end)
end)

gb.test.finish()
