-- test_nn.lua - modules: what is found and how it is named, states, conversions that keep identity, printing, hooks,
-- how long Sequential holds what lies between its layers, and where each layer's first values come from.

local gb = require "gibbous"
local describe, it, expect = gb.test.describe, gb.test.it, gb.test.expect
local nn, F = gb.nn, gb.nn.functional

local function names_of(iterator)
  local names = {}
  for name in iterator do names[#names + 1] = name end
  return table.concat(names, " ")
end

describe("discovery", function()
  it("follows the order of first assignment", function()
    local Net = nn.Module:extend("Net")
    function Net:init()
      self.z = nn.Linear(2, 2)
      self.a = nn.Linear(2, 2, { bias = false })
      self.m = nn.Parameter(gb.ones(1))
      self.note = "text"
      self.plain = gb.ones(3) -- neither a parameter nor a buffer
      self.z = nn.Linear(2, 3) -- assigned again: its place stays
    end
    local net = Net()
    expect(names_of(net:named_parameters())):to_be("z.weight z.bias a.weight m")
    expect(#net:parameters()):to_be(4)
    expect(net:parameters()[1]):to_have_shape(3, 2)
    expect(names_of(net:named_modules())):to_be(" z a")
    expect(#net:modules()):to_be(3)
    expect(#net:children()):to_be(2)
  end)
  it("walks plain tables: the list, then the other keys sorted; names count from 0", function()
    local Net = nn.Module:extend("Net")
    function Net:init()
      self.blocks = { nn.Linear(1, 1, { bias = false }), nn.Linear(1, 1, { bias = false }),
        zeta = nn.Parameter(gb.ones(1)), alpha = nn.Parameter(gb.ones(1)),
                      deep = { { nn.Parameter(gb.ones(1)) } } }
    end
    expect(names_of(Net():named_parameters())):to_be("blocks.0.weight blocks.1.weight blocks.alpha blocks.deep.0.0 \z
      blocks.zeta")
  end)
  it("lists what is shared once, and survives loops", function()
    local Net = nn.Module:extend("Net")
    function Net:init()
      self.first = nn.Linear(2, 2)
      self.second = self.first
      self.third = nn.Linear(2, 2)
      self.third.weight = self.first.weight
      self.list = { self.first }
      self.list[2] = self.list
      self.me = self
    end
    local net = Net()
    expect(names_of(net:named_parameters())):to_be("first.weight first.bias third.bias")
    expect(type(tostring(net))):to_be("string")
    net:train()
  end)
  it("of containers", function()
    local s = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    expect(names_of(s:named_parameters())):to_be("0.weight 0.bias 2.weight 2.bias")
    s:append(nn.Linear(1, 1, { bias = false }))
    expect(names_of(s:named_parameters())):to_be("0.weight 0.bias 2.weight 2.bias 3.weight")
    expect(#s):to_be(4)
    local list = nn.ModuleList { nn.Linear(1, 1), nn.Linear(1, 1) }
    expect(#list:parameters()):to_be(4)
    list:append(nn.ReLU())
    expect(#list):to_be(3)
    expect(names_of(nn.ModuleDict({ b = nn.Linear(1, 1, { bias = false }),
      a = nn.Linear(1, 1, { bias = false }) }):named_parameters())):to_be("a.weight b.weight")
  end)
  it("a ModuleDict gives its modules by name, in order of first assignment", function()
    local dict = nn.ModuleDict { b = nn.ReLU(), a = nn.Linear(1, 1) }
    dict.later, dict.note = nn.Tanh(), "no module"
    dict.b = nil
    expect(table.concat(dict:keys(), " ")):to_be("a later")
    for _, iterate in ipairs { pairs, dict.items } do
      local seen = {}
      for name, module in iterate(dict) do
        expect(module):to_be(dict[name])
        seen[#seen + 1] = name
      end
      expect(table.concat(seen, " ")):to_be("a later")
    end
    expect(next(nn.ModuleDict():keys())):to_be(nil)
    local Mine = nn.ModuleDict:extend("Mine")
    for name in pairs(Mine { only = nn.ReLU() }) do expect(name):to_be("only") end
    expect(function() dict.keys = nn.ReLU() end):to_fail("is a method")
  end)
  it("parameters of an assigned nil are gone", function()
    local net = nn.Linear(2, 2)
    net.bias = nil
    expect(#net:parameters()):to_be(1)
    expect(net(gb.ones(1, 2))):to_have_shape(1, 2)
  end)
end)

describe("classes", function()
  it("inherit, and call their forward", function()
    local Base = nn.Module:extend("Base")
    function Base:init(n) self.n = n end
    function Base:twice() return 2 * self.n end
    local Child = Base:extend("Child")
    function Child:init(n)
      Base.init(self, n)
      self.k = 1
    end
    function Child:forward(x, y) return x + y * self.n, self.k end
    local c = Child(3)
    expect(c:twice()):to_be(6)
    local a, b = c(1, 2)
    expect(a):to_be(7)
    expect(b):to_be(1)
    expect(nn.is_module(c)):to_be(true)
    expect(nn.is_module({})):to_be(false)
    expect(nn.is_module(gb.ones(1))):to_be(false)
  end)
  it("a method cannot be hidden by a field", function()
    local net = nn.Linear(2, 2)
    for _, name in ipairs { "forward", "parameters", "to", "train" } do
      expect(function() net[name] = 5 end):to_fail(name)
    end
    local Net = nn.Module:extend("Net")
    function Net:layers() end
    function Net:init() self.layers = {} end
    expect(function() Net() end):to_fail("Net.layers is a method")
  end)
  it("without a forward, or a name, say so", function()
    expect(function() nn.Module:extend("Empty")()(1) end):to_fail("Empty")
    expect(function() nn.Module:extend() end):to_fail("name")
  end)
end)

describe("a forward that rawset puts past the class", function()
  it("is what a call runs, with hooks and without, and may keep what it is given", function()
    local layer, kept = nn.Linear(2, 2), nil
    local model = nn.Sequential(nn.ReLU(), layer, nn.ReLU())
    rawset(layer, "forward", function(_, x)
      kept = x
      return x * 3
    end)
    expect(layer(gb.ones(2)):tolist()[1]):to_be(3.0)
    gb.no_grad(function() expect(model(gb.ones(2)):tolist()[1]):to_be(3.0) end)
    expect(kept:tolist()[1]):to_be(1.0)
    layer:register_forward_hook(function(_, _, y) return y + 1 end)
    expect(layer(gb.ones(2)):tolist()[1]):to_be(4.0)
    rawset(layer, "forward", nil)
    expect(layer(gb.ones(1, 2))):to_have_shape(1, 2)
  end)
end)

describe("train and eval", function()
  it("reach every submodule", function()
    local net = nn.Sequential(nn.Dropout(0.5), nn.Sequential(nn.BatchNorm1d(2)))
    expect(net.training):to_be(true)
    expect(net:eval()):to_be(net)
    for _, m in ipairs(net:modules()) do expect(m.training):to_be(false) end
    local x = gb.ones(4, 2)
    expect(net[1](x)):to_be(x)
    net:train()
    expect(net[2][1].training):to_be(true)
    net:train(false)
    expect(net[2][1].training):to_be(false)
  end)
  it("BatchNorm uses the batch, then its running statistics", function()
    gb.manual_seed(1)
    local bn = nn.BatchNorm2d(3)
    local x = gb.randn(8, 3, 4, 4) * 2 + 5
    for _ = 1, 100 do bn(x) end
    expect(bn.num_batches_tracked:item()):to_be(100)
    expect(bn.running_mean):to_be_close(x:mean({ 1, 3, 4 }), 1e-3)
    expect(bn.running_var):to_be_close(x:var({ 1, 3, 4 }), 1e-3)
    bn:eval()
    expect(bn(x):mean():item()):to_be_near(0, 1e-3)
    expect(bn.num_batches_tracked:item()):to_be(100)
    bn:train()
    x[{ 1, 1, 1, 1 }] = math.huge
    bn(x)
    expect(bn.running_mean:isfinite():all():item()):to_be(true) -- a batch that is not finite does not count
    expect(bn.running_var:isfinite():all():item()):to_be(true)
    expect(function() bn(gb.ones(2, 3)) end):to_fail("BatchNorm2d")
    expect(function() nn.BatchNorm1d(3)(gb.ones(2, 4)) end):to_fail("batch_norm")
    expect(function() nn.GroupNorm(2, 3) end):to_fail("3 channels cannot be put into 2 groups")
    expect(function() nn.GroupNorm(2, 4)(gb.ones(2, 6)) end):to_fail("group_norm")
    expect(nn.GroupNorm(2, 4, { affine = false }).weight):to_be(nil)
    expect(nn.GroupNorm(2, 4):extra()):to_be("2 groups of 4 channels")
  end)
  it("apply runs on every module, the children first", function()
    local order = {}
    local net = nn.Sequential(nn.Linear(1, 1), nn.ReLU())
    net:apply(function(m) order[#order + 1] = m end)
    expect(#order):to_be(3)
    expect(order[3]):to_be(net)
  end)
  it("requires_grad_ and zero_grad", function()
    local net = nn.Linear(2, 1)
    net(gb.ones(1, 2)):sum():backward()
    expect(net.weight.grad ~= nil):to_be(true)
    net:zero_grad()
    expect(net.weight.grad):to_be(nil)
    net:requires_grad_(false)
    expect(net(gb.ones(1, 2)).requires_grad):to_be(false)
    net:requires_grad_()
    expect(net.bias.requires_grad):to_be(true)
  end)
end)

describe("state_dict", function()
  local function make()
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3))
  end
  it("goes round, through a file too", function()
    gb.manual_seed(4)
    local a, b = make(), make()
    local path = os.tmpname()
    gb.save(path, a:state_dict())
    local loaded = gb.load(path)
    os.remove(path)
    expect(loaded["1.num_batches_tracked"].dtype):to_be("int64")
    local missing, unexpected = b:load_state_dict(loaded)
    expect(#missing + #unexpected):to_be(0)
    local x = gb.randn(2, 1, 4, 4)
    expect(b(x)):to_equal_bits(a(x))
  end)
  it("shares memory, without history", function()
    local net = nn.Linear(2, 2)
    local state = net:state_dict()
    expect(state.weight.requires_grad):to_be(false)
    gb.no_grad(function() net.weight:fill_(3) end)
    expect(state.weight[1][1]:item()):to_be(3.0)
  end)
  it("what is missing, unexpected or of another shape is an error", function()
    local net = nn.Linear(2, 3)
    expect(function() net:load_state_dict { weight = gb.ones(3, 2) } end):to_fail("missing: bias")
    expect(function() net:load_state_dict { weight = gb.ones(3, 2), bias = gb.ones(3),
      more = gb.ones(1) } end):to_fail("unexpected: more")
    expect(function() net:load_state_dict { weight = gb.ones(2, 3),
      bias = gb.ones(3) } end):to_fail("weight has shape 2x3")
    expect(function() net:load_state_dict { weight = 5, bias = gb.ones(3) } end):to_fail("weight")
    expect(function() net:load_state_dict() end):to_fail("load_state_dict")
    local before = net.weight:detach():clone()
    pcall(net.load_state_dict, net, { weight = gb.zeros(3, 2), bias = gb.ones(4) })
    expect(net.weight:detach()):to_equal_bits(before) -- all or nothing
    local missing, unexpected = net:load_state_dict({ weight = gb.ones(3, 2), more = gb.ones(1) }, { strict = false })
    expect(missing[1]):to_be("bias")
    expect(unexpected[1]):to_be("more")
    expect(net.weight[1][1]:item()):to_be(1.0)
  end)
  it("takes what is shared under any of its names, as PyTorch writes it under each", function()
    local Tied = nn.Module:extend("Tied")
    function Tied:init()
      self.tok = nn.Embedding(3, 2)
      self.head = nn.Linear(2, 3, { bias = false })
      self.head.weight = self.tok.weight
      self.blocks = { nn.LayerNorm(2) }
      self.again = { first = self.blocks[1] }
    end
    local net, ones = Tied(), gb.ones(3, 2)
    local function state(more)
      local all = net:state_dict()
      for name, t in pairs(all) do all[name] = t:clone() end
      for name, t in pairs(more) do all[name] = t or nil end
      return all
    end
    local missing,
      unexpected = net:load_state_dict(state { ["tok.weight"] = ones, ["head.weight"] = ones:clone(),
      ["again.first.bias"] = gb.zeros(2) })
    expect(#missing + #unexpected):to_be(0)
    expect(net.tok.weight:detach()):to_equal_bits(ones)
    net:load_state_dict(state { ["tok.weight"] = false, ["head.weight"] = ones * 2 }) -- the second name alone
    expect(net.tok.weight:detach()):to_equal_bits(ones * 2)
    local nan = ones * (0 / 0)
    net:load_state_dict(state { ["tok.weight"] = nan, ["head.weight"] = nan:clone() }) -- bits, not values
    local zero = gb.zeros(3, 2)
    local function load(more) return function() net:load_state_dict(state(more)) end end
    local differ = "tok.weight and head.weight are one tensor in the module, but two with different values in the state"
    expect(load { ["tok.weight"] = zero, ["head.weight"] = ones }):to_fail(differ)
    expect(load { ["tok.weight"] = zero, ["head.weight"] = -zero }):to_fail(differ)
    expect(load { ["tok.weight"] = zero, ["head.weight"] = zero:double() }):to_fail(differ)
    expect(load { ["head.weight"] = gb.ones(2,
      3) }):to_fail("head.weight has shape 2x3 in the state, 3x2 in the module")
    expect(load { ["head.weight"] = 1 }):to_fail("head.weight is a number in the state, not a tensor")
    local freed = gb.ones(2)
    freed:free()
    expect(load { ["head.weight"] = freed }):to_fail("head.weight is a tensor that was freed in the state")
    expect(load { ["head.weight"] = gb.tensor(1.0) }):to_fail("head.weight has shape [] in the state, 3x2")
    expect(load { ["tok.weight"] = false }):to_fail("missing: tok.weight; unexpected: none")
    for _, name in ipairs { "head.bias", "blocks.1.weight", "tok.weight.x", "head", "", "_order.known",
      "again.0.bias" } do
      expect(load { [name] = ones }):to_fail("missing: none; unexpected: " .. name)
    end
  end)
  it("converts dtypes, and keeps the parameter", function()
    local net = nn.Linear(1, 1, { bias = false })
    local p = net.weight
    net:load_state_dict { weight = gb.tensor({ { 2049.0 } }, { dtype = "float64" }) }
    expect(net.weight == p):to_be(true)
    expect(p.dtype):to_be("float32")
    expect(p:item()):to_be(2049.0)
  end)
  it("buffers: persistent ones are saved, transient ones are not", function()
    local Net = nn.Module:extend("Net")
    function Net:init()
      self:register_buffer("kept", gb.ones(2))
      self:register_buffer("passing", gb.ones(2), { persistent = false })
      self:register_parameter("p", gb.zeros(1))
    end
    local net = Net()
    local state = net:state_dict()
    expect(state.kept ~= nil):to_be(true)
    expect(state.passing):to_be(nil)
    expect(state.p ~= nil):to_be(true)
    expect(names_of(net:named_buffers())):to_be("kept passing")
    expect(#net:parameters()):to_be(1)
    net:load_state_dict { kept = gb.zeros(2), p = gb.ones(1) }
    expect(net.kept:sum():item()):to_be(0.0)
  end)
end)

describe("to", function()
  it("converts in place: parameters stay the values they are", function()
    local net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    local p, list = net[1].weight, net:parameters()
    expect(net:to("float16")):to_be(net)
    expect(net[1].weight == p):to_be(true)
    expect(list[1] == p):to_be(true)
    expect(p.dtype):to_be("float16")
    expect(p.requires_grad):to_be(true)
    expect(net[2].num_batches_tracked.dtype):to_be("int64") -- integers stay
    net:to("cpu", "float64")
    expect(p.dtype):to_be("float64")
    net:to(gb.amp.precision("bf16-true"))
    expect(p.dtype):to_be("bfloat16")
    net:to(gb.amp.precision("16-mixed"), "cpu")
    expect(p.dtype):to_be("bfloat16") -- a mixed precision converts nothing
  end)
  it("refuses what it does not know", function()
    local net = nn.Linear(1, 1)
    expect(function() net:to(5) end):to_fail("number")
    expect(function() net:to("cuda:7") end):to_fail("cuda:7")
    expect(function() net:to("float17") end):to_fail("float17")
    expect(function() net:to("int64") end):to_fail("int64")
    expect(net.weight.dtype):to_be("float32")
  end)
end)

describe("printing", function()
  it("is a tree with counts and precision", function()
    local net = nn.Sequential(nn.Linear(1000, 50), nn.ReLU(), nn.Sequential(nn.Linear(50, 2, { bias = false })))
    expect(tostring(net)):to_be(table.concat({
      "Sequential()  50,150 parameters, float32", "  [1]: Linear(1000 -> 50)  50,050 parameters, float32",
        "  [2]: ReLU()",
      "  [3]: Sequential()  100 parameters, float32", "    [1]: Linear(50 -> 2, no bias)  100 parameters, float32" },
        "\n"))
  end)
  it("shows what layers are made with", function()
    for _, row in ipairs {
      { nn.Conv2d(3, 8, 5, { activation = "relu", bias = false }), "3 -> 8, 5x5, relu, no bias" },
        { nn.MaxPool2d(2), "2x2" },
      { nn.Dropout(0.25), "p = 0.25" }, { nn.Embedding(10, 4), "10 x 4" }, { nn.LayerNorm { 3, 4 }, "3x4" },
        { nn.GELU("tanh"), "tanh" },
      { nn.MultiheadAttention(8, 2, { is_causal = true }), "2 heads, causal" }, { nn.CrossEntropyLoss(), "mean" },
    } do
      expect(tostring(row[1]):find(row[2], 1, true) ~= nil):to_be(true)
    end
  end)
end)

describe("forward hooks", function()
  it("see inputs and outputs, and may replace them", function()
    local net = nn.Linear(2, 2)
    local seen
    local remove = net:register_forward_hook(function(module, inputs, output) seen = { module, inputs[1], output } end)
    local x = gb.ones(1, 2)
    local y = net(x)
    expect(seen[1]):to_be(net)
    expect(seen[2]):to_be(x)
    expect(seen[3]):to_be(y)
    local undo = net:register_forward_hook(function(_, _, output) return output * 0 end)
    expect(net(x):abs():sum():item()):to_be(0.0)
    undo()
    remove()
    expect(net(x)):to_be_close(y)
  end)
  it("before forward replace the inputs", function()
    local net, x, seen = nn.Linear(2, 2), gb.ones(1, 2), nil
    local y, zero = net(x), net(x * 0)
    local remove = net:register_forward_pre_hook(function(module, inputs)
      expect(module):to_be(net)
      return { inputs[1] * 0 }
    end)
    net:register_forward_hook(function(_, inputs) seen = inputs[1] end)
    expect(net(x)):to_equal_bits(zero)
    expect(seen:sum():item()):to_be(0.0)
    local undo = net:register_forward_pre_hook(function(_, inputs) return inputs[1] + 1 end)
    expect(net(x)):to_be_close(y)
    undo()
    net:register_forward_pre_hook(function() end)
    expect(net(x)):to_equal_bits(zero)
    remove()
    expect(net(x)):to_equal_bits(y)
    expect(function() net:register_forward_pre_hook(1) end):to_fail("fn")
  end)
  it("inside Sequential keep what they were given", function()
    local net = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2))
    local kept
    net[2]:register_forward_hook(function(_, _, output) kept = output end)
    net(gb.ones(1, 2))
    expect(kept):to_have_shape(1, 2) -- not freed beneath the recipe
  end)
end)

describe("Sequential", function()
  it("lets go of what lies between its layers", function()
    gb.no_grad(function()
      local n = 1 << 18
      local net = nn.Sequential()
      for _ = 1, 10 do net:append(nn.Tanh()) end
      local x = gb.ones(n)
      collectgarbage()
      collectgarbage()
      collectgarbage("stop")
      gb.reset_peak_memory_stats()
      local before = gb.memory_stats().current_total
      local y = net(x)
      local peak = gb.memory_stats().peak_total
      collectgarbage("restart")
      expect(y):to_have_shape(n)
      expect(peak - before <= 2 * 4 * n + 4096):to_be(true)
    end)
  end)
  it("of a recipe's own modules keeps their results", function()
    local Keep = nn.Module:extend("Keep")
    function Keep:forward(x)
      self.last = x * 2
      return self.last
    end
    local keep = Keep()
    nn.Sequential(nn.Tanh(), keep, nn.Tanh(), nn.Identity())(gb.ones(3))
    expect(keep.last):to_have_shape(3)
    local Pass = nn.Module:extend("Pass")
    function Pass:forward(x)
      self.seen = x
      return x
    end
    local pass = Pass()
    nn.Sequential(nn.Tanh(), pass, nn.Identity(), nn.Tanh())(gb.ones(3))
    expect(pass.seen):to_have_shape(3)
  end)
  it("keeps what a hook saw that has removed itself", function()
    local seen, remove
    local net = nn.Sequential(nn.Tanh(), nn.Tanh(), nn.Sequential(nn.Tanh()), nn.Tanh())
    for i = 2, 3 do
      local layer = i == 2 and net[2] or net[3][1]
      net(gb.ones(3)) -- a hook that comes after a call
      remove = layer:register_forward_hook(function(_, inputs, output)
        seen = { inputs[1], output }
        remove()
      end)
      for _ = 1, 2 do net(gb.ones(3)) end
      expect(seen[1]:tanh()):to_equal_bits(seen[2])
    end
  end)
  it("keeps what parts hold that were put into a layer of the library", function()
    local Keep = nn.Module:extend("Keep")
    function Keep:forward(x)
      self.seen = x
      return x
    end
    local before, after, attention = Keep(), Keep(), nn.MultiheadAttention(8, 2)
    attention.qkv = nn.Sequential(attention.qkv, after)
    attention.proj = nn.Sequential(before, attention.proj)
    nn.Sequential(nn.Tanh(), attention, nn.Tanh())(gb.ones(1, 3, 8))
    expect(after.seen):to_have_shape(1, 3, 24)
    expect(before.seen:isfinite():all():item()):to_be(true)
  end)
  it("keeps valid what somebody else may hold, however deep he sits", function()
    local Keep = nn.Module:extend("Keep")
    function Keep:forward(x)
      self.seen, self.last = x, x * 2
      return self.last
    end
    local keep, seen = Keep(), nil
    local hooked = nn.Tanh()
    hooked:register_forward_hook(function(_, inputs, output) seen = { inputs[1], output } end)
    nn.Sequential(nn.Tanh(), nn.Sequential(nn.Tanh(), keep), nn.Sequential(nn.Sequential(hooked)),
      nn.Tanh())(gb.ones(3))
    local a = gb.tensor(1.0):tanh():item()
    local b = gb.tensor(a):tanh():item()
    expect(keep.seen):to_be_close({ b, b, b })
    expect(keep.last):to_be_close({ 2 * b, 2 * b, 2 * b })
    expect(seen[1]):to_be_close({ 2 * b, 2 * b, 2 * b })
    expect(seen[2]):to_be_close(gb.tensor({ 2 * b, 2 * b, 2 * b }):tanh())
    local net = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    local inner = net[1](gb.ones(1, 3)) -- a layer called by hand gives what is the caller's
    net(gb.ones(1, 3))
    expect(inner):to_have_shape(1, 3)
    expect(inner:isfinite():all():item()):to_be(true)
  end)
  it("does not free its input, or a parameter", function()
    local x = gb.ones(3)
    nn.Sequential(nn.Identity(), nn.Identity(), nn.Tanh())(x)
    expect(x:sum():item()):to_be(3.0)
    local Give = nn.Module:extend("Give")
    function Give:init() self.p = nn.Parameter(gb.ones(3)) end
    function Give:forward() return self.p end
    local give = Give()
    nn.Sequential(give, nn.Identity(), nn.Tanh())(x)
    expect(give.p:sum():item()):to_be(3.0)
  end)
  it("gradients flow through", function()
    local net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Dropout(0), nn.Flatten(), nn.Linear(4, 1))
    net(gb.randn(5, 3)):sum():backward()
    for _, p in ipairs(net:parameters()) do expect(p.grad ~= nil):to_be(true) end
  end)
  it("an empty one is the identity", function()
    local x = gb.ones(2)
    expect(nn.Sequential()(x)):to_be(x)
  end)
end)

-- Uniform within +-bound, filling it: the largest of n draws is below the bound by about bound / n.
local function expect_uniform(p, bound)
  local n, largest = p:numel(), p:detach():abs():amax():item()
  expect(largest <= bound):to_be(true)
  expect(largest > bound * (1 - 12 / n)):to_be(true)
  local mean, std = p:detach():mean():item(), p:detach():std():item()
  expect(math.abs(mean) < 5 * bound / math.sqrt(3 * n)):to_be(true)
  expect(std):to_be_near(bound / math.sqrt(3), 0.1)
end

local function expect_normal(p, std)
  local n, x = p:numel(), p:detach()
  expect(math.abs(x:mean():item()) < 5 * std / math.sqrt(n)):to_be(true)
  expect(math.abs(x:std():item() - std) < 5 * std / math.sqrt(2 * n)):to_be(true)
  expect(x:abs():amax():item() > 2.5 * std):to_be(true)
end

describe("first values are PyTorch's", function()
  gb.manual_seed(31)
  it("Linear: uniform within 1 / sqrt(inputs), weight and bias", function()
    local l = nn.Linear(64, 400)
    expect_uniform(l.weight, 1 / 8)
    expect_uniform(l.bias, 1 / 8)
  end)
  it("Conv2d: uniform within 1 / sqrt(channels per group * kernel)", function()
    local c = nn.Conv2d(8, 64, { 3, 5 }, { groups = 2 })
    expect(c.weight):to_have_shape(64, 4, 3, 5)
    expect_uniform(c.weight, 1 / math.sqrt(60))
    expect_uniform(nn.Conv2d(4, 500, 1).bias, 0.5)
  end)
  it("Embedding: standard normal, the padding row zero", function()
    expect_normal(nn.Embedding(200, 30).weight, 1)
    local e = nn.Embedding(5, 300, { padding_idx = 2 })
    expect(e.weight[3]:abs():sum():item()):to_be(0.0)
    expect_normal(gb.no_grad(function() return e.weight[{ { 1, 2 } }] end), 1)
  end)
  it("norms: ones and zeros", function()
    for _, layer in ipairs { nn.LayerNorm(6), nn.BatchNorm2d(6), nn.BatchNorm1d(6), nn.RMSNorm(6),
      nn.GroupNorm(2, 6) } do
      expect(layer.weight):to_be_close { 1, 1, 1, 1, 1, 1 }
      if layer.bias then expect(layer.bias):to_be_close { 0, 0, 0, 0, 0, 0 } end
    end
  end)
  it("init.*", function()
    local w = nn.Parameter(gb.empty(200, 100))
    expect(nn.init.uniform_(w, -2, 2) == w):to_be(true)
    expect_uniform(w, 2)
    expect_normal(nn.init.normal_(w, 0, 0.3), 0.3)
    expect_uniform(nn.init.xavier_uniform_(w), math.sqrt(6 / 300))
    expect_normal(nn.init.xavier_normal_(w, 2), 2 * math.sqrt(2 / 300))
    expect_uniform(nn.init.kaiming_uniform_(w), math.sqrt(6 / 100))
    expect_uniform(nn.init.kaiming_uniform_(w, { a = math.sqrt(5) }), 1 / math.sqrt(100))
    expect_normal(nn.init.kaiming_normal_(w, { mode = "fan_out", nonlinearity = "relu" }), math.sqrt(2 / 200))
    expect(nn.init.constant_(w, 3)[1][1]:item()):to_be(3.0)
    expect(nn.init.ones_(w):sum():item()):to_be(20000.0)
    expect(nn.init.zeros_(w):sum():item()):to_be(0.0)
    nn.init.trunc_normal_(w, 0, 1, -0.5, 0.5)
    expect(w:detach():abs():amax():item() <= 0.5):to_be(true)
    expect(w:detach():std():item()):to_be_near(0.2857, 0.02) -- a normal cut at half its deviation
    expect(w.requires_grad):to_be(true)
    nn.init.orthogonal_(w)
    local q = w:detach()
    expect(q:t():matmul(q)):to_be_close(gb.eye(100), 1e-5)
    local wide = nn.init.orthogonal_(gb.empty(3, 7), 2)
    expect(wide:matmul(wide:t())):to_be_close(gb.eye(3) * 4, 1e-5)
    expect(nn.init.calculate_gain("tanh")):to_be_near(5 / 3)
    expect(function() nn.init.kaiming_uniform_(gb.ones(3)) end):to_fail("2 dimensions")
    expect(function() nn.init.calculate_gain("nonsense") end):to_fail("nonsense")
  end)
  it("the same seed makes the same model", function()
    gb.manual_seed(6)
    local a = nn.Linear(3, 4)
    gb.manual_seed(6)
    expect(nn.Linear(3, 4).weight:detach()):to_equal_bits(a.weight:detach())
  end)
end)

describe("layers", function()
  local x = gb.arange(12):float():reshape(3, 4):div(6):sub(1)
  it("say what F says", function()
    expect(nn.GELU("tanh")(x)):to_be_close(F.gelu(x, { approximate = "tanh" }))
    expect(nn.LeakyReLU(0.2)(x)):to_be_close(F.leaky_relu(x, 0.2))
    expect(nn.ELU(2)(x)):to_be_close(F.elu(x, 2))
    expect(nn.Softplus(3)(x)):to_be_close(F.softplus(x, { beta = 3 }))
    expect(nn.Softmax(1)(x)):to_be_close(F.softmax(x, 1))
    expect(nn.LogSoftmax()(x)):to_be_close(F.log_softmax(x, -1))
    expect(nn.SiLU()(x)):to_be_close(F.silu(x))
    expect(nn.Sigmoid()(x)):to_be_close(F.sigmoid(x))
    for layer, op in pairs { ReLU6 = "relu6", SELU = "selu", Mish = "mish", Softsign = "softsign",
      Hardsigmoid = "hardsigmoid", GLU = "glu",
                             Hardswish = "hardswish", LogSigmoid = "logsigmoid", Tanhshrink = "tanhshrink",
                               CELU = "celu", Softshrink = "softshrink",
                             Hardshrink = "hardshrink", Hardtanh = "hardtanh" } do
      expect(nn[layer]()(x)):to_equal_bits(F[op](x))
    end
    expect(nn.CELU(2)(x)):to_equal_bits(F.celu(x, 2))
    expect(nn.Softplus(1, 0.25)(x)):to_equal_bits(F.softplus(x, { threshold = 0.25 }))
    expect(nn.Hardtanh(-0.25, 0.5)(x)):to_equal_bits(x:clamp(-0.25, 0.5))
    expect(nn.Hardtanh({ max_val = 0.5 })(x)):to_equal_bits(x:clamp(-1, 0.5))
    expect(nn.Threshold(0.25, -3)(x)):to_equal_bits(F.threshold(x, 0.25, -3))
    expect(nn.Softshrink(0.25)(x)):to_equal_bits(F.softshrink(x, 0.25))
    expect(nn.Hardshrink(0.25)(x)):to_equal_bits(F.hardshrink(x, 0.25))
    expect(nn.GLU(2)(x)):to_equal_bits(F.glu(x, 2))
    expect(nn.Softmin(1)(x)):to_equal_bits(F.softmax(-x, 1))
    expect(tostring(nn.Hardtanh(-2, 2))):to_be("Hardtanh(min_val = -2, max_val = 2)")
    expect(nn.Flatten()(gb.ones(2, 3, 4))):to_have_shape(2, 12)
    expect(nn.Identity()(x)):to_be(x)
    local mlp = nn.MLP(4, 8, { outputs = 2 })
    expect(mlp(x)):to_be_close(mlp.fc2(F.gelu(mlp.fc1(x), { approximate = "tanh" })), 1e-5)
    local norm = nn.LayerNorm(4)
    local y, sum = norm:add(x, x)
    expect(sum):to_be_close(x * 2)
    expect(y):to_be_close(norm(x * 2), 1e-5)
  end)
  it("PReLU trains a slope for all channels, or one for each", function()
    local one, each = nn.PReLU(), nn.PReLU(4, { init = 0.5 })
    expect(one(x)):to_be_close(F.leaky_relu(x, 0.25))
    expect(each(x)):to_be_close(F.leaky_relu(x, 0.5))
    each(x):sum():backward()
    expect(each.weight.grad):to_be_close(x:clamp(nil, 0):sum(1))
    expect(nn.PReLU(3)(gb.full({ 2, 3, 4, 5 }, -1.0))):to_be_close(gb.full({ 2, 3, 4, 5 }, -0.25))
    expect(function() nn.PReLU(3)(x) end):to_fail("3 elements and x 4 channels")
  end)
  it("gumbel_softmax draws by probability, and hard draws have the soft gradient", function()
    gb.manual_seed(3)
    local logits = gb.tensor({ 0.5, 0.3, 0.2 }):log():expand({ 20000, 3 })
    local hard = F.gumbel_softmax(logits, 1, true)
    expect(hard:sum(-1)):to_be_close(gb.ones(20000))
    expect(hard:mean(1)):to_be_close(gb.tensor { 0.5, 0.3, 0.2 }, 0.015)
    local a, b = gb.zeros(3, 2, { requires_grad = true }), gb.zeros(3, 2, { requires_grad = true })
    gb.manual_seed(4)
    gb.sum(F.gumbel_softmax(a, 0.5, { dim = 1 }) * gb.arange(6):reshape(3, 2)):backward()
    gb.manual_seed(4)
    gb.sum(F.gumbel_softmax(b, 0.5, true, 1) * gb.arange(6):reshape(3, 2)):backward()
    expect(b.grad):to_be_close(a.grad, 1e-5)
    expect(a.grad:abs():sum():item() > 0.01):to_be(true)
    expect(function() F.gumbel_softmax(a, 0) end):to_fail("above 0")
  end)
  it("losses", function()
    local target, same = gb.tensor { 0, 3, 1 }, x * 0.5
    expect(nn.CrossEntropyLoss({ label_smoothing = 0.1, reduction = "sum" })(x, target)):to_be_close(F.cross_entropy(x,
      target, { label_smoothing = 0.1, reduction = "sum" }))
    local weight = gb.tensor { 1.0, 2.0, 3.0, 4.0 }
    local weighted = nn.CrossEntropyLoss { weight = weight }
    expect(weighted(x, target)):to_be_close(F.cross_entropy(x, target, weight))
    expect(#weighted:buffers()):to_be(1)
    expect(nn.MSELoss()(x, same)):to_be_close(F.mse_loss(x, same))
    expect(nn.L1Loss({ reduction = "none" })(x, same)):to_have_shape(3, 4)
    expect(nn.SmoothL1Loss({ beta = 0.5 })(x, same)):to_be_close(F.smooth_l1_loss(x, same, { beta = 0.5 }))
    expect(nn.BCEWithLogitsLoss({ pos_weight = 2 })(x,
      same:sigmoid())):to_be_close(F.binary_cross_entropy_with_logits(x, same:sigmoid(), { pos_weight = 2 }))
    expect(nn.NLLLoss()(F.log_softmax(x, -1), target)):to_be_close(F.cross_entropy(x, target), 1e-6)
    expect(nn.KLDivLoss({ reduction = "batchmean" })(F.log_softmax(x, -1), F.softmax(same, -1))):to_be_close(
      F.kl_div(F.log_softmax(x, -1), F.softmax(same, -1), { reduction = "batchmean" }))
  end)
  it("tell their sizes by PyTorch's names", function()
    local linear, conv, table_of = nn.Linear(3, 5), nn.Conv2d(2, 4, 3), nn.Embedding(7, 6)
    for _, pair in ipairs {
      { linear.in_features, 3 }, { linear.out_features, 5 }, { conv.in_channels, 2 }, { conv.out_channels, 4 },
      { table_of.num_embeddings, 7 }, { table_of.embedding_dim, 6 }, { nn.BatchNorm2d(8).num_features, 8 },
    } do expect(pair[1]):to_be(pair[2]) end
  end)
  it("MultiheadAttention: causal looks back only, a mask looks where it may", function()
    gb.manual_seed(2)
    local attention = nn.MultiheadAttention(8, 2, { is_causal = true })
    local a = gb.randn(1, 5, 8)
    local b = a:clone()
    b[{ 1, 5 }] = 0
    expect(attention(a)[{ 1, { 1, 4 } }]):to_be_close(attention(b)[{ 1, { 1, 4 } }], 1e-6)
    local free = nn.MultiheadAttention(8, 2)
    free:load_state_dict(attention:state_dict())
    expect(free(a, gb.ones(5, 5):tril():bool())):to_be_close(attention(a), 1e-6)
    expect(function() nn.MultiheadAttention(8, 3) end):to_fail("3 heads")
  end)
  it("MultiheadAttention: other keys and values, layouts, padding and weights", function()
    gb.manual_seed(3)
    local attention, from, memory = nn.MultiheadAttention(8, 2), gb.randn(2, 5, 8), gb.randn(2, 3, 8)
    expect(attention(from, from, from)):to_be_close(attention(from), 1e-6)
    local y, weights = attention(from, memory, memory, { need_weights = true })
    expect(y):to_be_close(attention(from, memory, memory), 1e-6)
    expect(weights):to_have_shape(2, 5, 3)
    expect(weights:sum(-1)):to_be_close(gb.ones(2, 5), 1e-6)
    expect(select(2, attention(from, memory, memory, { need_weights = true, average_attn_weights = false })):mean(2))
      :to_be_close(weights, 1e-6)
    -- a padded source is one that ends there, with a mask of either kind beside it
    local padding = gb.tensor { { 0, 0, 1 }, { 0, 0, 1 } }:bool()
    local short = memory:narrow(2, 1, 2)
    local cut = attention(from, short, short)
    expect(attention(from, memory, memory, { key_padding_mask = padding })):to_be_close(cut, 1e-6)
    local slope = gb.randn(5, 3)
    expect(attention(from, memory, memory, slope, { key_padding_mask = padding }))
      :to_be_close(attention(from, short, short, slope:narrow(2, 1, 2)), 1e-6)
    local hidden = gb.ones(5, 5):bool():triu(1) -- PyTorch's way: true may not look
    local causal = attention(from, { is_causal = true })
    expect(attention(from, { attn_mask = hidden })):to_be_close(causal, 1e-6)
    expect((attention(from, { attn_mask = hidden, need_weights = true }))):to_be_close(causal, 1e-6)
    expect((attention(from, { is_causal = true, need_weights = true }))):to_be_close(causal, 1e-6)
    -- a query that sees nothing has zeros, with weights and without
    local blind = gb.tensor { { 1, 1, 1 }, { 0, 0, 1 } }:bool()
    local dark = attention(from, memory, memory, { key_padding_mask = blind, need_weights = true })
    expect(dark):to_be_close(attention(from, memory, memory, { key_padding_mask = blind }), 1e-6)
    dark:sum():backward()
    expect(attention.qkv.weight.grad:isfinite():all():item()):to_be(true)
    attention:zero_grad()
    local last = nn.MultiheadAttention(8, 2, { batch_first = false })
    last:load_state_dict(attention:state_dict())
    expect(last(from:transpose(1, 2), memory:transpose(1, 2), memory:transpose(1, 2))):to_be_close(
      attention(from, memory, memory):transpose(1, 2), 1e-6)
    local wide = nn.MultiheadAttention(8, 2, { kdim = 6, vdim = 4 })
    local z = wide(from, gb.randn(2, 3, 6), gb.randn(2, 3, 4))
    expect(z):to_have_shape(2, 5, 8)
    z:sum():backward()
    expect(wide.k_proj.weight.grad):to_have_shape(8, 6)
    -- a projection that is more than its weight is called
    local free = nn.MultiheadAttention(8, 2)
    local called = 0
    free.qkv:register_forward_hook(function() called = called + 1 end)
    expect(free(from, from, from)):to_be_close(free(from), 1e-6)
    expect(called > 1):to_be(true)
    local normed = nn.MultiheadAttention(8, 2)
    nn.utils.weight_norm(normed.qkv)
    gb.no_grad(function() normed.qkv.weight_g:mul_(10) end)
    expect(normed(from, from, from)):to_be_close(normed(from), 1e-5)
    normed:zero_grad()
    normed(from, memory, memory):sum():backward()
    expect(normed.qkv.weight_g.grad ~= nil):to_be(true)
    expect(function() wide(from) end):to_fail("kdim")
    expect(function() wide(from, from, from) end):to_fail("key")
    expect(function() attention(from, memory, nil, from) end):to_fail("a key without a value")
    expect(function() attention(from, nil, memory) end):to_fail("a value without a key")
    expect(function() attention(from, memory) end):to_fail("a key needs a value")
    expect(function() nn.MultiheadAttention(1 << 62, 1 << 61) end):to_fail("too large")
    expect(function() attention(from, memory, memory, slope, { attn_mask = slope }) end):to_fail("both")
  end)
  it("refuse options and sizes that are none", function()
    for _, fn in ipairs {
      function() nn.Linear(2, 2, { bais = true }) end, function() nn.Linear(2, 2, 5) end, function() nn.Linear() end,
        function() nn.Linear(-1, 2) end,
      function() nn.Linear("a", 2) end, function() nn.Linear(2, 2, { activation = "nonsense" })(gb.ones(1, 2)) end,
        function() nn.Conv2d(3, 4) end,
      function() nn.Conv2d(3, 4, "x") end, function() nn.Conv2d(3, 4, 3, { groups = 2 }) end,
        function() nn.Conv2d(3, 4, { 1, 2, 3 }) end,
      function() nn.MaxPool2d() end, function() nn.Embedding(3) end,
        function() nn.Embedding(3, 2, { padding_idx = 3 }) end, function() nn.LayerNorm() end,
      function() nn.BatchNorm2d() end, function() nn.Parameter(5) end, function() nn.Parameter() end,
        function() nn.Dropout(2) end, function() nn.Dropout("x") end,
      function() nn.CrossEntropyLoss { smoothing = 1 } end, function() nn.Sequential(5)(gb.ones(1)) end,
        function() nn.Sequential(nn.ReLU(), "x") end,
      function() nn.ModuleList(5) end, function() nn.Linear(2, 2)(5) end, function() nn.Linear(2, 2)() end,
        function() nn.Linear(2, 2)(gb.ones(3)) end,
    } do
      local ok, why = pcall(fn)
      if ok then error("line " .. debug.getinfo(fn, "S").linedefined .. " was accepted") end
      if type(why) ~= "string" or why:find("^gibbous/") then
        error("the recipe's line is not named: " .. tostring(why))
      end
    end
    expect(function() nn.Linear(2, 2, { bais = true }) end):to_fail("did you mean 'bias'")
  end)
end)

describe("modules within each other", function()
  local function chain(depth)
    local model = nn.Linear(2, 2)
    for _ = 1, depth do
      local outer = nn.Module()
      outer.child = model
      model = outer
    end
    return model
  end
  it("may be hundreds deep", function()
    local model = chain(500)
    expect(#model:modules()):to_be(501)
    expect(#model:parameters()):to_be(2)
    expect(select(2, tostring(model):gsub("\n", ""))):to_be(500)
  end)
  it("are refused where they are deeper than names can be", function()
    local model = chain(100000)
    for _, name in ipairs { "named_modules", "state_dict", "parameters", "children", "describe", "train", "to",
      "zero_grad", "apply" } do
      local argument = name == "to" and "float16" or name == "apply" and print or nil
      expect(function() model[name](model, argument) end):to_fail("within each other more than 1000 deep")
    end
    local lists = {}
    for _ = 1, 100000 do lists = { lists } end
    local holder = nn.Module()
    holder.lists = lists
    expect(function() holder:parameters() end):to_fail("within each other more than 1000 deep")
  end)
  it("share what they have, however deep, and where one holds itself", function()
    local a, b = chain(100000), chain(100000)
    a.own, b.own = a, b
    a:share(b)
    while a.child do a, b = a.child, b.child end
    expect(a.weight):to_be(b.weight)
  end)
end)

describe("slips are seen", function()
  it("a plain tensor in the place of a parameter is an error with the cure", function()
    local layer = nn.Linear(2, 2)
    local weight = layer.weight
    expect(function() layer.weight = gb.zeros(2, 2) end):to_fail("copy_")
    expect(rawequal(layer.weight, weight)):to_be(true)
    layer.weight = nn.Parameter(gb.zeros(2, 2))
    expect(layer.weight:sum():item()):to_be(0)
    expect(#layer:parameters()):to_be(2)
    layer.bias = nil
    expect(#layer:parameters()):to_be(1)
  end)
  it("values of the wrong kind and extra arguments are errors", function()
    expect(function() nn.Linear(2, 2, false) end):to_fail("table of options")
    expect(function() nn.Linear(2, 2, {}, 1) end):to_fail("too many arguments")
    expect(function() nn.Dropout("0.5") end):to_fail("'p' must be a number")
    local x = gb.rand(1, 3, 4)
    local attention = nn.MultiheadAttention(4, 2)
    expect(function() attention(x, x, x, x, x) end):to_fail("MultiheadAttention: expects a table of options")
    expect(function() nn.Linear(4, 4)(x, x) end):to_fail("one argument more")
    expect(function() nn.Sequential(nn.ReLU())(x, x) end):to_fail("one argument more")
    expect(function() nn.CrossEntropyLoss()(x, x, x) end):to_fail("one argument more")
  end)
  it("modules are converted by the names that tensors have", function()
    local layer = nn.Linear(2, 2)
    local weight = layer.weight
    for name, dtype in pairs { half = "float16", bfloat16 = "bfloat16", double = "float64", float = "float32" } do
      expect(rawequal(layer[name](layer), layer)):to_be(true)
      expect(weight.dtype):to_be(dtype)
    end
    expect(layer:cpu().weight.device):to_be("cpu")
  end)
  it("pairs and # of a module are those of what it holds", function()
    local list = nn.ModuleList { nn.ReLU(), nn.Tanh() }
    expect(#list):to_be(2)
    local Net = nn.Module:extend("Net")
    function Net:init()
      self.second = nn.ReLU()
      self.first = nn.Linear(1, 1)
    end
    local names = {}
    for name in pairs(Net()) do names[#names + 1] = name end
    expect(table.concat(names, " ")):to_be("second first")
  end)
end)

describe("objects in the place of lists and tables", function()
  it("are refused, since to a reader that goes past metatables they are empty", function()
    local m = nn.Linear(2, 2)
    local loss = m(gb.ones(1, 2)):sum()
    expect(function() nn.utils.clip_grad_norm_(m, 1) end):to_fail("model:parameters()")
    expect(function() gb.grad(loss, m) end):to_fail("is a module")
    expect(function() gb.amp.GradScaler():scale(m) end):to_fail("is a module")
    expect(function() m:load_state_dict(nn.Linear(2, 2)) end):to_fail("is a module")
    expect(function() nn.ModuleList(nn.Sequential(nn.ReLU())) end):to_fail("is a module")
    expect(function() nn.Linear(2, 2, m) end):to_fail("is a module")
    expect(function() gb.save("/nowhere/x", m) end):to_fail("is a module")
    expect(function() nn.utils.clip_grad_norm_(m:state_dict(), 1) end):to_fail("must be a list")
    expect(function() gb.optim.SGD { params = m:parameters() } end):to_fail("one group")
    expect(function() gb.amp.policy { head = "float32" } end):to_fail("list of rules")
  end)
  it("a buffer is one only when it was assigned, and a parameter in its place is none", function()
    local m = nn.Linear(2, 2)
    expect(function() m:register_buffer("weight", gb.zeros(2, 2)) end):to_fail("copy_")
    expect(#m:parameters()):to_be(2)
    m:register_buffer("seen", gb.zeros(1))
    expect(function() m.seen = 5 end):to_fail("is a buffer")
    m.seen = nn.Parameter(gb.zeros(1))
    expect(#m:parameters()):to_be(3)
    expect(#m:buffers()):to_be(0)
    expect(function() m.training = nn.ReLU() end):to_fail("true or false")
    expect(function() nn.Linear(4, 2):share(nn.Linear(2, 2)) end):to_fail("has shape 2x4 here and 2x2")
  end)
  it("a function that is nil is not left out", function()
    expect(function() gb.no_grad(nil, gb.ones(1)) end):to_fail("'fn' is nil")
    expect(gb.is_grad_enabled()):to_be(true)
  end)
end)

gb.test.finish()
