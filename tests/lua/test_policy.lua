-- test_policy.lua - the precision of single modules: pins, policies that set them, and the plan that shows them.

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
local amp, nn = gb.amp, gb.nn

local Net = nn.Module:extend("Net")
function Net:init()
  self.conv1 = nn.Linear(4, 6)
  self.body = { nn.Linear(6, 6), nn.Linear(6, 6) }
  self.head = nn.Sequential(nn.Linear(6, 6), nn.GELU(), nn.Linear(6, 2))
end
function Net:forward(x)
  self.seen = {}
  x = self.conv1(x)
  self.seen[1] = x.dtype
  for _, layer in ipairs(self.body) do x = layer(x) end
  self.seen[2] = x.dtype
  return self.head(x)
end

local function under(dtype, fn, ...) return amp.autocast({ dtype = dtype }, fn, ...) end

describe("module:precision", function()
  it("float32 is float32 inside a scope, to the bit, forward and backward", function()
    local layer, x = nn.Linear(5, 3), gb.randn(4, 5)
    local plain, a = x:clone():requires_grad_(), x:clone():requires_grad_()
    local y = layer(plain)
    y:sum():backward()
    local weight = layer.weight.grad:clone()
    layer.weight.grad = nil
    expect(layer:precision("float32") == layer):to_be(true)
    local z = under("float16", layer, a)
    z:sum():backward()
    expect(z):to_equal_bits(y)
    expect(a.grad):to_equal_bits(plain.grad)
    expect(layer.weight.grad):to_equal_bits(weight)
  end)
  it("float32 widens 16-bit arguments", function()
    local layer, x = nn.Linear(5, 3):precision("float32"), gb.randn(4, 5):to("bfloat16"):requires_grad_()
    local y = under("bfloat16", layer, x)
    expect(y):to_equal_bits(layer(x:to("float32")))
    y:sum():backward()
    expect(x.grad.dtype):to_be("bfloat16")
  end)
  it("16 bits are a scope of their own, wherever the module is called", function()
    local layer, x = nn.Linear(5, 3), gb.randn(4, 5)
    local low = under("bfloat16", layer, x)
    layer:precision("bfloat16")
    expect(layer(x)):to_equal_bits(low)
    expect(under("float16", layer, x)):to_equal_bits(low)
    amp.disable(function() expect(layer(x)):to_equal_bits(low) end)
    expect(amp.is_enabled()):to_be(false)
  end)
  it("counts for the modules inside, unless they are pinned", function()
    local net = Net()
    net:precision("float32")
    net.conv1:precision("bfloat16")
    expect(under("float16", net, gb.randn(2, 4)).dtype):to_be("float32")
    expect(net.seen[1]):to_be("bfloat16")
    expect(net.seen[2]):to_be("float32")
  end)
  it("is told, and taken away", function()
    local layer = nn.Linear(2, 2)
    expect(layer:precision()):to_be(nil)
    expect(layer:precision("float16"):precision()):to_be("float16")
    expect(layer:precision("inherit"):precision()):to_be(nil)
    expect(layer(gb.ones(1, 2)).dtype):to_be("float32")
    expect(function() layer:precision("int64") end):to_fail("'float32', 'float16', 'bfloat16' or 'inherit'")
  end)
  it("holds for norms that add, with hooks, and ends when forward fails", function()
    local norm, x = nn.LayerNorm(4, { out = "autocast" }):precision("bfloat16"), gb.randn(2, 4)
    local y, sum = norm:add(x, x)
    expect(y.dtype):to_be("bfloat16")
    expect(sum.dtype):to_be("float32")
    local layer = nn.Linear(4, 4):precision("float16")
    local seen
    layer:register_forward_hook(function(_, inputs, output) seen = { inputs[1].dtype, output.dtype } end)
    layer(x)
    expect(seen[1]):to_be("float32")
    expect(seen[2]):to_be("float16")
    expect(function() layer(gb.ones(2, 5)) end):to_fail("linear")
    expect(amp.is_enabled()):to_be(false)
  end)
  it("is the same when the module is recomputed", function()
    local net, x = Net(), gb.randn(2, 4)
    net.head:precision("float32")
    local function grads(call)
      local loss = under("bfloat16", function() return call(net, x):float():square():sum() end)
      loss:backward()
      local list = {}
      for i, p in ipairs(net:parameters()) do list[i], p.grad = p.grad, nil end
      return list
    end
    local plain = grads(function(module, v) return module(v) end)
    for i, g in ipairs(grads(gb.recompute)) do expect(g):to_equal_bits(plain[i]) end
  end)
end)

describe("amp.policy", function()
  it("pins what its patterns match, whole names only", function()
    local net = Net()
    expect(amp.policy { { "head%..*", "float32" }, { "conv1", "bfloat16" } }:apply(net) == net):to_be(true)
    expect(net.conv1:precision()):to_be("bfloat16")
    expect(net.head:precision()):to_be(nil)
    for i = 1, 3 do expect(net.head[i]:precision()):to_be("float32") end
    expect(net.body[1]:precision()):to_be(nil)
    local y = under("float16", net, gb.randn(2, 4))
    expect(y.dtype):to_be("float32")
    expect(net.seen[1]):to_be("bfloat16")
    expect(net.seen[2]):to_be("float16")
  end)
  it("takes rules that agree, and refuses those that differ, with nothing pinned", function()
    local net = Net()
    amp.policy { { "head", "float32" }, { "h.*d", "float32" } }:apply(net)
    expect(net.head:precision()):to_be("float32")
    net = Net()
    expect(function() amp.policy { { "conv1", "float16" }, { "head%..*", "float32" },
      { "head%.2", "bfloat16" } }:apply(net) end)
      :to_fail("module 'head.2' is matched by 'head%..*' (float32) and by 'head%.2' (bfloat16)")
    expect(net.conv1:precision()):to_be(nil)
  end)
  it("refuses rules that match nothing or mean nothing", function()
    expect(function() amp.policy { { "conv1", "float32" },
      { "tail", "float32" } }:apply(Net()) end):to_fail("no module's name matches 'tail'")
    expect(function() amp.policy { { "a", "int8" } } end):to_fail("a precision is float32, float16 or bfloat16")
    expect(function() amp.policy { { "[", "float32" } } end):to_fail("is not a Lua pattern")
    expect(function() amp.policy { "conv1" } end):to_fail("rule 1")
    expect(function() amp.policy(3) end):to_fail("policy: 'rules' must be a table, got 3")
    expect(function() amp.policy({}):apply(3) end):to_fail("apply: 'model' must be a module of gb.nn, got 3")
    expect(function() amp.plan(gb.ones(2)) end):to_fail("plan: 'model' must be a module of gb.nn, got a tensor")
  end)
  it("is shown by the plan", function()
    local net, lines, old = Net(), {}, print
    amp.policy { { "head", "float32" }, { "head%.0", "bfloat16" } }:apply(net)
    _G.print = function(line) lines[#lines + 1] = line end
    local ok, rows = pcall(amp.plan, net)
    _G.print = old
    expect(ok):to_be(true)
    local by_name = {}
    for _, row in ipairs(rows) do by_name[row.name] = row end
    expect(by_name[""].precision):to_be(nil)
    expect(by_name["body.1"].precision):to_be(nil)
    expect(by_name["head.0"].precision):to_be("bfloat16")
    expect(by_name["head.2"].precision):to_be("float32")
    expect(by_name["head.2"].from):to_be("head")
    expect(#lines):to_be(#rows + 1)
    expect(table.concat(lines, "\n"):find("head%.2 +Linear +float32, from 'head'") ~= nil):to_be(true)
    expect(table.concat(lines, "\n"):find("conv1 +Linear +the scope's") ~= nil):to_be(true)
  end)
end)

gb.test.finish()
