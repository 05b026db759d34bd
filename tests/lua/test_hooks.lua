-- test_hooks.lua - hooks of modules before and after forward and in backward, as PyTorch's
-- torch.nn.Module.register_*_hook have them (bindings/gibbous/nn/module.lua).

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
local nn = gb.nn

-- A layer y = w * x with w = 3.
local function scaled()
  local layer = nn.Linear(1, 1, { bias = false })
  gb.no_grad(function() layer.weight:fill_(3) end)
  return layer
end

local function log_of() return setmetatable({}, { __call = function(self, text) self[#self + 1] = text end }) end

describe("forward hooks", function()
  it("run in order, those put first before the others", function()
    local layer, log = scaled(), log_of()
    layer:register_forward_hook(function() log("b") end)
    layer:register_forward_hook(function() log("a") end, { prepend = true })
    layer:register_forward_pre_hook(function() log("2") end)
    local remove = layer:register_forward_pre_hook(function() log("1") end, { prepend = true })
    layer(gb.ones(1))
    remove()
    layer(gb.ones(1))
    expect(table.concat(log, " ")):to_be("1 2 a b 2 a b")
  end)
  it("are called where forward fails, if they are always called", function()
    local Bad, log = nn.Module:extend("Bad"), log_of()
    function Bad.forward() error("not today", 0) end
    local layer = Bad()
    layer:register_forward_hook(function() log("sometimes") end)
    local remove = layer:register_forward_hook(function(m, inputs, y)
      log(("%s %d %s"):format(m == layer, inputs[1], tostring(y)))
      error("of the hook")
    end, { always_call = true })
    expect(function() layer(7) end):to_fail("not today")
    expect(table.concat(log, " ")):to_be("true 7 nil")
    remove()
    expect(function() layer(8) end):to_fail("not today")
    expect(#log):to_be(1)
  end)
  it("that are always called run once where forward does not fail", function()
    local layer, count = scaled(), 0
    layer:register_forward_hook(function() count = count + 1 end, { always_call = true })
    layer(gb.ones(1))
    expect(count):to_be(1)
  end)
end)

describe("backward hooks", function()
  it("are told the gradients of inputs and outputs", function()
    local layer, seen = scaled(), {}
    layer:register_full_backward_hook(function(m, ins, outs)
      seen = { m, ins.n, ins[1]:item(), outs.n, outs[1]:item() }
    end)
    local x = gb.tensor({ 2.0 }):requires_grad_()
    local y = layer(x)
    expect(y:item()):to_be(6)
    gb.sum(y * 5):backward()
    expect(seen[1]):to_be(layer)
    expect(table.concat(seen, " ", 2)):to_be("1 15.0 1 5.0")
    expect(x.grad:item()):to_be(15)
    expect(layer.weight.grad:item()):to_be(10)
  end)
  it("replace them", function()
    local layer = scaled()
    local off = layer:register_full_backward_hook(function(_, ins) return { ins[1] * 2 } end)
    local x = gb.tensor({ 2.0 }):requires_grad_()
    layer(x):sum():backward()
    expect(x.grad:item()):to_be(6)
    expect(layer.weight.grad:item()):to_be(2) -- what lies inside is not touched
    off()
    x.grad = nil
    layer(x):sum():backward()
    expect(x.grad:item()):to_be(3)
    layer:register_full_backward_pre_hook(function(m, outs)
      expect(m):to_be(layer)
      return { outs[1] * 10 }
    end)
    x.grad = nil
    layer(x):sum():backward()
    expect(x.grad:item()):to_be(30)
  end)
  it("run where no input has a gradient, when those of the outputs are there", function()
    local layer, seen = scaled(), nil
    layer:register_full_backward_hook(function(_, ins, outs) seen = { ins.n, ins[1], outs[1]:item() } end)
    layer(gb.ones(1)):sum():backward()
    expect(seen[1]):to_be(1)
    expect(seen[2]):to_be(nil)
    expect(seen[3]):to_be(1)
  end)
  it("take several inputs and results, and what is no tensor", function()
    local Two, seen = nn.Module:extend("Two"), nil
    function Two:forward(x, k, y) return x * k + y, k, x * y end
    local two = Two()
    two:register_full_backward_hook(function(_, ins, outs)
      seen = { ins.n, ins[1]:item(), ins[2], ins[3]:item(), outs.n, outs[1]:item(), outs[2], outs[3]:item() }
    end)
    local x, y = gb.tensor({ 2.0 }):requires_grad_(), gb.tensor({ 3.0 }):requires_grad_()
    local sum, k, product = two(x, 4, y)
    expect(k):to_be(4)
    gb.sum(sum * 2 + product):backward()
    expect(seen[1]):to_be(3)
    expect(seen[2]):to_be(11) -- 2 * 4 + 3
    expect(seen[3]):to_be(nil)
    expect(seen[4]):to_be(4) -- 2 + 2
    expect(seen[5]):to_be(3)
    expect(seen[6]):to_be(2)
    expect(seen[7]):to_be(nil)
    expect(seen[8]):to_be(1)
    expect(x.grad:item()):to_be(11)
  end)
  it("are not called without gradients, and stay out of results then", function()
    local layer, count = scaled(), 0
    layer:register_full_backward_hook(function() count = count + 1 end)
    gb.no_grad(function() expect(layer(gb.ones(1)):item()):to_be(3) end)
    layer:requires_grad_(false)
    expect(layer(gb.ones(1)).requires_grad):to_be(false)
    expect(count):to_be(0)
  end)
  it("give second derivatives on", function()
    local Cube = nn.Module:extend("Cube")
    function Cube:forward(x) return x * x * x end
    local cube = Cube()
    cube:register_full_backward_hook(function() end)
    local x = gb.tensor({ 2.0 }):requires_grad_()
    local dx = gb.grad(cube(x):sum(), x, { create_graph = true })
    expect(dx:item()):to_be(12)
    expect(gb.grad(dx:sum(), x):item()):to_be(12)
  end)
  it("say what they may give", function()
    local layer = scaled()
    layer:register_full_backward_hook(function() return 5 end)
    local x = gb.ones(1):requires_grad_()
    expect(function() layer(x):sum():backward() end):to_fail("a list of gradients in place of those it got, got number")
  end)
end)

describe("parameters in lists", function()
  it("are found, named and trained", function()
    local list = nn.ParameterList { gb.zeros(2), nn.Parameter(gb.ones(3)) }
    list:append(gb.ones(1))
    expect(#list):to_be(3)
    expect(list[3].requires_grad):to_be(true)
    local dict = nn.ParameterDict { b = gb.zeros(2), a = gb.ones(3) }
    dict.c = nn.Parameter(gb.ones(1))
    expect(table.concat(dict:keys(), " ")):to_be("a b c")
    local seen = {}
    for name, p in pairs(dict) do seen[#seen + 1] = name .. p:numel() end
    expect(table.concat(seen, " ")):to_be("a3 b2 c1")
    local Net = nn.Module:extend("Net")
    function Net:init()
      self.list = list
      self.dict = dict
    end
    local names = {}
    for name in Net():named_parameters() do names[#names + 1] = name end
    expect(table.concat(names, " ")):to_be("list.0 list.1 list.2 dict.a dict.b dict.c")
  end)
  it("say what they take", function()
    expect(function() nn.ParameterList { 5 } end):to_fail("ParameterList takes tensors, got number")
    expect(function() nn.ParameterDict { gb.ones(1) } end):to_fail("ParameterDict takes a table of tensors by name")
    expect(function() nn.ParameterDict { a = "b" } end):to_fail("ParameterDict takes tensors, got string")
  end)
end)

describe("always_call", function()
  it("is one call, where a hook behind fails too", function()
    local layer, calls = nn.Linear(2, 2), 0
    layer:register_forward_hook(function() calls = calls + 1 end, { always_call = true })
    layer:register_forward_hook(function() error("no") end)
    expect(function() layer(gb.ones(1, 2)) end):to_fail("no")
    expect(calls):to_be(1)
  end)
end)

describe("backward to some leaves", function()
  it("adds once to a leaf that is named twice, and calls its hooks", function()
    local a, calls = gb.ones(2, { requires_grad = true }), 0
    a:register_post_accumulate_grad_hook(function() calls = calls + 1 end)
    local y = (a * 3):sum();
    y:backward { inputs = { a, a } }
    expect(a.grad:tolist()[1]):to_be(3)
    expect(calls):to_be(1)
  end)
end)

describe("norms without a bias", function()
  it("have a weight alone", function()
    local x = gb.rand(2, 4, 3, 3)
    for _, norm in ipairs { nn.BatchNorm2d(4, { bias = false }), nn.GroupNorm(2, 4, { bias = false }),
      nn.InstanceNorm2d(4, { affine = true, bias = false }), nn.SyncBatchNorm(4, { bias = false }) } do
      expect(#norm:parameters()):to_be(1)
      expect(norm.bias):to_be(nil)
      gb.no_grad(function() norm.weight:fill_(2) end)
      expect(norm(x):mean()):to_be_near(0, 1e-5)
      norm(x):square():sum():backward()
      expect(norm.weight.grad):to_have_shape(4)
    end
    expect(#nn.BatchNorm1d(4, { affine = false }):parameters()):to_be(0)
  end)
end)

gb.test.finish()
